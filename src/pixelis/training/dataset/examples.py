"""A corpus record as a training example: the teacher's trace as tokens, with targets for the auxiliary heads.

An `Example` is a `TokenSequence` in arrays, so that training tokenises nothing, with one row of `Steps` per call: where
the call opens, the targets of the auxiliary heads, and the visual tokens that its footprint covers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Footprint, Mask, Size, Span, Track, UnitBox
from pixelis.data.corpus.record import Record
from pixelis.equations.embedding import ACTIONS, dilate, footprint_cells, mask_cells
from pixelis.equations.sft import IGNORE_INDEX
from pixelis.media import MediaSet
from pixelis.nano.quoting import find_quote, last_ocr_lines
from pixelis.policy import chat_format
from pixelis.policy.chat_format import SAMPLED, Piece, PromptStyle
from pixelis.policy.images import ImageProcessorConfig, ProcessedImage
from pixelis.policy.sequence import KINDS, ImageSpan, TokenSequence, check_sequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.tool_call_parser import CALL_OPEN

PHRASE_TOKENS = 6
"""Tokens of a phrase that the text head predicts."""
CELLS = 8
"""Side of the coarse grid of the mask head."""
CLIP_PARTS = 16
"""Equal parts of a clip that the temporal head classifies."""
PROMPT, ANSWER = KINDS.index("prompt"), KINDS.index("answer")
ACTION, THOUGHT, OBSERVATION = KINDS.index("action"), KINDS.index("thought"), KINDS.index("observation")
IS_SAMPLED = np.array([kind in SAMPLED for kind in KINDS])


@dataclass(frozen=True)
class Steps:
    """One row per call; NaN or `IGNORE_INDEX` where a head has no target."""

    opens: NDArray[np.int32]
    """(S,) the token that opens the call: the last one before any word of it."""
    tool: NDArray[np.int8]
    """(S,) index in 𝒜; −1 for a tool that is not one of the six."""
    decisive: NDArray[np.bool_]
    ok: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    """(S,) r_t: the call succeeded, and the verifier did not reject it."""
    confidence: NDArray[np.float32]
    box: NDArray[np.float32]
    """(S, 4) the box in the call, else the one around the region that SEG found for its phrase."""
    words: NDArray[np.int32]
    """(S, PHRASE_TOKENS) the phrase that SEG or TEMP looks for."""
    mask: NDArray[np.float32]
    """(S, CELLS, CELLS) the region that SEG found."""
    moments: NDArray[np.float32]
    """(S, CLIP_PARTS) the parts of the clip that TEMP found or TRK followed."""
    seen: NDArray[np.float32]
    """(S, 4) the box around the footprints, as printed in the result."""
    look_at: NDArray[np.int32]
    """(n,) visual tokens under the footprints, step by step."""
    look_weight: NDArray[np.float32]
    """(n,) their shares in v_t; they add up to 1 in each step."""
    look_count: NDArray[np.int32]
    """(S,) number of them in each step."""

    def __len__(self) -> int:
        return len(self.opens)


COLUMNS = tuple(field.name for field in fields(Steps))


@dataclass(frozen=True)
class Example:
    """A trajectory to train on."""

    id: str
    family: str
    difficulty: int
    accepted: bool
    ids: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    """(n,) indices in `KINDS`."""
    step_of: NDArray[np.int16]
    """(n,) the step, from 1, that a token belongs to; 0 for the prompt."""
    output_of: NDArray[np.int16]
    """(n,) the tool output, from 0, whose text or view a token is; −1 for all others, also for the tags around it."""
    image_spans: tuple[ImageSpan, ...]
    steps: Steps

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_sampled(self) -> NDArray[np.bool_]:
        """(n,) whether a token is thought, action or answer: the loss is taken on these."""
        return IS_SAMPLED[self.kinds]

    @property
    def action_step(self) -> NDArray[np.int16]:
        """(n,) the step of an action token, 0 for all others."""
        return np.where(self.kinds == ACTION, self.step_of, 0)

    @property
    def sequence(self) -> TokenSequence:
        kinds = [KINDS[k] for k in self.kinds]
        logprobs: list[float | None] = [None] * len(self)
        return TokenSequence(self.ids.tolist(), kinds, self.step_of.tolist(), logprobs, list(self.image_spans))

    def without_tools(self) -> Example:
        """Question, media and a direct answer, for nano-base: no steps, no sentence before the answer."""
        keep = (self.kinds == PROMPT) | (self.kinds == ANSWER)
        ids, kinds = self.ids[keep], self.kinds[keep]
        step_of, output_of = (kinds == ANSWER).astype(np.int16), np.full(len(ids), -1, dtype=np.int16)
        spans = tuple(span for span in self.image_spans if self.kinds[span.start] == PROMPT)  # they come first
        tokens = {"ids": ids, "kinds": kinds, "step_of": step_of, "output_of": output_of}
        return replace(self, **tokens, image_spans=spans, steps=empty_steps())


def example_from_record(
    record: Record,
    media: MediaSet,
    tokens: PolicyTokenizer,
    style: PromptStyle,
    image_config: ImageProcessorConfig,
    schemas: Sequence[dict[str, Any]],
) -> Example:
    """A record as tokens. If it was not accepted, only its question and its correct answer."""
    sequence, rows = TokenSequence(), []

    def append(pieces: Sequence[Piece]) -> None:
        sequence.append_context(pieces, tokens, image_config)

    append(chat_format.render_prompt(record.item.question, media, style, schemas))
    checks = record.acceptance.get("steps", [])
    steps = record.trace.steps if record.accepted else ()
    for number, step in enumerate(steps, start=1):
        view = None
        append(chat_format.render_call(step.thought, step.call, step=number))
        opens = next(k for k in range(len(sequence)) if sequence.kinds[k] == "action" and sequence.steps[k] == number)
        opens += len(tokens.encode(CALL_OPEN, control=True)) - 1
        rows.append(step_row(opens, step.call, step.result, checks[number - 1], sequence.image_spans, media, tokens))
        if step.result.view is not None:
            media = media.with_view(step.result.view)
            view = media.names[-1]
        append(chat_format.render_observation(step.result, view, media, style, step=number))
    thought, answer = ("", record.item.answer) if not record.accepted else (record.trace.answer_thought, "")
    answer = answer or record.trace.answer or record.item.answer
    quote = find_quote(answer, last_ocr_lines(step.result for step in steps)) if tokens.has_quote_tokens else None
    append(chat_format.render_answer(thought, answer, style, step=len(steps) + 1, quote=quote))
    check_sequence(sequence, tokens)
    item = record.item
    return example_from_sequence(
        sequence, tokens, id=item.id, family=item.family, difficulty=item.difficulty, accepted=record.accepted,
        steps=steps_from_rows(rows),
    )  # fmt: skip


def example_from_sequence(sequence: TokenSequence, tokens: PolicyTokenizer, **fields: Any) -> Example:
    """A sequence as arrays, with the fields of the example that are not tokens."""
    ids = np.array(sequence.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in sequence.kinds], dtype=np.uint8)
    step_of = np.array(sequence.steps, dtype=np.int16)
    output_of = output_indices(ids, kinds, step_of, tokens)
    image_spans = tuple(sequence.image_spans)
    return Example(ids=ids, kinds=kinds, step_of=step_of, output_of=output_of, image_spans=image_spans, **fields)


def output_indices(
    ids: NDArray[np.int32], kinds: NDArray[np.uint8], step_of: NDArray[np.int16], tokens: PolicyTokenizer
) -> NDArray[np.int16]:
    """What feedback dropout may hide: everything between the tags of a response; the turn itself stays readable."""
    inside = kinds == OBSERVATION
    begin, end = (tokens.control_ids.get(tag, -1) for tag in ("<tool_response>", "</tool_response>"))
    if begin >= 0 and end >= 0:
        depth = np.cumsum(inside & (ids == begin)) - np.cumsum(inside & (ids == end))
        inside &= (depth > 0) & (ids != begin)
    return np.where(inside, step_of - 1, -1).astype(np.int16)


# --- targets of the heads


def step_row(
    opens: int,
    call: ToolCall,
    result: ToolResult,
    step_verdict: dict[str, Any],
    image_spans: Sequence[ImageSpan],
    media: MediaSet,
    tokens: PolicyTokenizer,
) -> dict[str, Any]:
    """The row of `Steps` for one call."""
    look = footprint_weights(result.footprints, image_spans, media)
    first_footprint = result.footprints[0] if result.footprints else None
    on_source = not str(call.args.get("media", "")).startswith("View")  # footprints never lie in a view's coordinates
    region = first_footprint if call.tool == "SEG" and on_source and isinstance(first_footprint, Mask) else None
    return {
        "opens": opens,
        "tool": ACTIONS.index(call.tool) if call.tool in ACTIONS else -1,
        "decisive": bool(step_verdict["decisive"]),
        "ok": result.ok,
        "valid": result.ok and step_verdict["passed"] is not False,
        "confidence": np.nan if result.confidence is None else result.confidence,
        "box": box_argument(call) or (region.box_unit if region else None) or (np.nan,) * 4,
        "words": phrase_argument_ids(call, tokens),
        "mask": mask_cells(region.array, Size(CELLS, CELLS)) if region else np.full((CELLS, CELLS), np.nan),
        "moments": covered_clip_parts(call, result, media),
        "seen": enclosing_box(result.footprints) or (np.nan,) * 4,
        "look_at": look[0],
        "look_weight": look[1],
        "look_count": len(look[0]),
    }


def box_argument(call: ToolCall) -> UnitBox | None:
    box = call.args.get("box", call.args.get("target"))
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        return None
    return tuple(float(np.clip(v, 0.0, 1.0)) for v in box)  # type: ignore[return-value]


def phrase_argument_ids(call: ToolCall, tokens: PolicyTokenizer) -> NDArray[np.int32]:
    """The first tokens of the phrase in a call. What OCR reads is not an argument: nano could not see it anyway."""
    phrase = call.args.get("target") or call.args.get("query")
    ids = tokens.encode(phrase)[:PHRASE_TOKENS] if isinstance(phrase, str) else []
    return np.array(ids + [IGNORE_INDEX] * (PHRASE_TOKENS - len(ids)), dtype=np.int32)


def covered_clip_parts(call: ToolCall, result: ToolResult, media: MediaSet) -> NDArray[np.float32]:
    """(CLIP_PARTS,) which parts of the clip TEMP's spans and TRK's tracks cover; NaN if none."""
    covered = np.zeros(CLIP_PARTS, dtype=np.float32)
    for footprint in result.footprints if call.tool in ("TEMP", "TRK") else ():
        clip = media.source(media.canonical_name(footprint.media))
        if isinstance(footprint, Span) and clip.duration_s > 0:
            first, last = footprint.start_s / clip.duration_s, footprint.end_s / clip.duration_s
        elif isinstance(footprint, Track):
            first, last = footprint.frames[0] / clip.frame_count, (footprint.frames[-1] + 1) / clip.frame_count
        else:
            continue
        low = min(int(first * CLIP_PARTS), CLIP_PARTS - 1)
        covered[low : max(low + 1, int(np.ceil(last * CLIP_PARTS - 1e-6)))] = 1.0
    return covered if covered.any() else np.full(CLIP_PARTS, np.nan, dtype=np.float32)


def enclosing_box(footprints: Sequence[Footprint]) -> UnitBox | None:
    """The box around all regions, to 10^-2 (supp:et_dynamics); None if there are none."""
    boxes = [f.boxes[-1] if isinstance(f, Track) else f.box_unit for f in footprints if not isinstance(f, Span)]
    corners = np.array([box for box in boxes if box is not None])
    if not len(corners):
        return None
    x0, y0, x1, y1 = (round(float(v), 2) for v in (*corners[:, :2].min(0), *corners[:, 2:].max(0)))
    return x0, y0, x1, y1


# --- footprints on the visual tokens (supp:et_dynamics)


def footprint_weights(
    footprints: Sequence[Footprint], image_spans: Sequence[ImageSpan], media: MediaSet
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Visual tokens under the footprints and their shares in v_t: the masked mean of each frame, then over the frames.

    Only pictures of the item's media count: footprints are in their coordinates. A clip is shown as a few frames; a
    footprint on another frame is looked up on the nearest one. A step without footprints covers all of these pictures.
    """
    named = [(span, span.image.name.partition("@")) for span in image_spans if "View_" not in span.image.name]
    masks: dict[int, NDArray[np.bool_]] = {}
    for footprint in footprints:
        name = media.canonical_name(footprint.media)
        spans = [(span, int(frame or 0)) for span, (medium, _, frame) in named if medium == name]
        for span, frame in nearest_spans(footprint, spans, media, name):
            cells = footprint_cells(footprint, Size(span.image.columns, span.image.rows), frame=frame)
            masks[span.start] = masks.get(span.start, False) | cells
    masks = {start: dilate(cells) if cells.sum() < 9 else cells for start, cells in masks.items() if cells.any()}
    if not masks:
        masks = {span.start: np.ones((span.image.rows, span.image.columns), dtype=bool) for span, _ in named}
    positions = [start + np.flatnonzero(cells) for start, cells in masks.items()]
    weights = [np.full(len(a), 1.0 / (len(a) * len(masks))) for a in positions]
    shares = np.concatenate([np.zeros(0), *weights]).astype(np.float32)
    return np.concatenate([np.zeros(0, dtype=int), *positions]).astype(np.int32), shares


def nearest_spans(
    footprint: Footprint, spans: Sequence[tuple[ImageSpan, int]], media: MediaSet, name: str
) -> Iterator[tuple[ImageSpan, int]]:
    """The pictures of a medium on which a footprint is looked up, each with the frame of the footprint to use there."""
    if not spans:
        return
    if isinstance(footprint, Track):
        inside = [(s, f) for s, f in spans if footprint.frames[0] <= f <= footprint.frames[-1]]
        for span, frame in inside or [min(spans, key=lambda sf: abs(sf[1] - footprint.frames[0]))]:
            yield span, min(footprint.frames, key=lambda f, at=frame: abs(f - at))  # type: ignore[misc]
    elif isinstance(footprint, Span):
        clip = media.source(name)
        inside = [(s, f) for s, f in spans if footprint.start_s <= clip.time_of(f) <= footprint.end_s]
        middle = (footprint.start_s + footprint.end_s) / 2
        yield from inside or [min(spans, key=lambda sf: abs(clip.time_of(sf[1]) - middle))]
    else:
        span, _ = min(spans, key=lambda sf: abs(sf[1] - footprint.frame))
        yield span, footprint.frame


STEP_DTYPES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "opens": (np.int32, ()), "tool": (np.int8, ()), "decisive": (np.bool_, ()), "ok": (np.bool_, ()),
    "valid": (np.bool_, ()), "confidence": (np.float32, ()), "box": (np.float32, (4,)),
    "words": (np.int32, (PHRASE_TOKENS,)), "mask": (np.float32, (CELLS, CELLS)), "moments": (np.float32, (CLIP_PARTS,)),
    "seen": (np.float32, (4,)), "look_count": (np.int32, ()),
}  # fmt: skip
"""Type and shape of the columns that have one entry per call."""


def steps_from_rows(rows: Sequence[dict[str, Any]]) -> Steps:
    """Rows as columns."""
    columns = {
        name: np.array([row[name] for row in rows], dtype=dtype).reshape(len(rows), *shape)
        for name, (dtype, shape) in STEP_DTYPES.items()
    }
    looks = {
        name: np.concatenate([np.zeros(0, dtype=dtype), *(row[name] for row in rows)])
        for name, dtype in (("look_at", np.int32), ("look_weight", np.float32))
    }
    return Steps(**columns, **looks)


def empty_steps() -> Steps:
    return steps_from_rows([])


def make_picture(name: str, pixels: NDArray[np.uint8], image_config: ImageProcessorConfig) -> ProcessedImage:
    return ProcessedImage(name, pixels, pixels.shape[0] // image_config.cell, pixels.shape[1] // image_config.cell)
