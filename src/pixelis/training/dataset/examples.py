"""A corpus record as phase 1 reads it: the teacher's trace as tokens, and what each step's call should have said.

An `Example` is a `Ledger` in arrays (nothing is tokenised again during training) with one row of `Steps` for each call:
where the call opens, the targets of the auxiliary heads, and which visual tokens its footprint covers.
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
from pixelis.policy.chat_format import SAMPLED, PromptStyle
from pixelis.policy.images import ImageProcessorConfig, ProcessedImage
from pixelis.policy.sequence import KINDS, ImageSpan, TokenSequence, check_sequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.tool_call_parser import CALL_OPEN

PHRASE_TOKENS = 6
"""Subword ids of a phrase that the text head must name."""
CELLS = 8
"""Side of the coarse grid on which the mask head paints."""
CLIP_PARTS = 16
"""Equal parts of a clip that the temporal head says yes or no to."""
PROMPT, ANSWER = KINDS.index("prompt"), KINDS.index("answer")
ACTION, THOUGHT, OBSERVATION = KINDS.index("action"), KINDS.index("thought"), KINDS.index("observation")
IS_SAMPLED = np.array([kind in SAMPLED for kind in KINDS])


@dataclass(frozen=True)
class Steps:
    """One row a call; NaN or `IGNORED` where a head has nothing to say."""

    opens: NDArray[np.int32]
    """(S,) the token that opens the call: the last one before any word of it."""
    tool: NDArray[np.int8]
    """(S,) place in 𝒜; −1 for a tool that is none of the six."""
    decisive: NDArray[np.bool_]
    ok: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    """(S,) r_t: it succeeded, and the verifier did not refuse it."""
    confidence: NDArray[np.float32]
    box: NDArray[np.float32]
    """(S, 4) the box that the call names, else the one around the region that SEG found for its phrase."""
    words: NDArray[np.int32]
    """(S, WORDS) the phrase that SEG or TEMP is asked for."""
    mask: NDArray[np.float32]
    """(S, CELLS, CELLS) the region that SEG found."""
    moments: NDArray[np.float32]
    """(S, MOMENTS) the parts of the clip that TEMP found or TRK followed."""
    seen: NDArray[np.float32]
    """(S, 4) the box around the footprints, as the result prints it."""
    look_at: NDArray[np.int32]
    """(n,) visual tokens under the footprints, step after step."""
    look_weight: NDArray[np.float32]
    """(n,) their shares in v_t: they add up to 1 for each step."""
    look_count: NDArray[np.int32]
    """(S,) how many of them belong to a step."""

    def __len__(self) -> int:
        return len(self.opens)


COLUMNS = tuple(field.name for field in fields(Steps))


@dataclass(frozen=True)
class Example:
    """A trajectory to learn from."""

    id: str
    family: str
    difficulty: int
    accepted: bool
    ids: NDArray[np.int32]
    kinds: NDArray[np.uint8]
    """(n,) places in `KINDS`."""
    step_of: NDArray[np.int16]
    """(n,) the step, from 1, that a token belongs to; 0 for the prompt."""
    output_of: NDArray[np.int16]
    """(n,) the tool output, from 0, whose words or view a token is; −1 for all others, the tags around it included."""
    image_spans: tuple[ImageSpan, ...]
    steps: Steps

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_sampled(self) -> NDArray[np.bool_]:
        """(n,) thought, action and answer: what the loss is taken on."""
        return IS_SAMPLED[self.kinds]

    @property
    def action_step(self) -> NDArray[np.int16]:
        """(n,) the step of an action token, 0 for all others."""
        return np.where(self.kinds == ACTION, self.step_of, 0)

    @property
    def sequence(self) -> TokenSequence:
        kinds = [KINDS[k] for k in self.kinds]
        return TokenSequence(
            self.ids.tolist(), kinds, self.step_of.tolist(), [None] * len(self), list(self.image_spans)
        )

    def without_tools(self) -> Example:
        """Question and media to answer at once, as nano-base learns it: no step, no sentence before the answer."""
        kept_tokens = (self.kinds == PROMPT) | (self.kinds == ANSWER)
        prompt_spans = tuple(
            image_span for image_span in self.image_spans if self.kinds[image_span.start] == PROMPT
        )  # they come before all else
        return replace(
            self,
            ids=self.ids[kept_tokens],
            kinds=self.kinds[kept_tokens],
            step_of=np.where(self.kinds[kept_tokens] == ANSWER, 1, 0).astype(np.int16),
            output_of=np.full(int(kept_tokens.sum()), -1, dtype=np.int16),
            image_spans=prompt_spans,
            steps=empty_steps(),
        )


def empty_steps() -> Steps:
    return steps_from_rows([])


def example_from_record(
    record: Record,
    media: MediaSet,
    tokens: PolicyTokenizer,
    style: PromptStyle,
    image_config: ImageProcessorConfig,
    schemas: Sequence[dict[str, Any]],
) -> Example:
    """A record as tokens. What was not accepted keeps its question and its right answer only."""
    sequence, rows = TokenSequence(), []
    sequence.append_context(
        chat_format.render_prompt(record.item.question, media, style, schemas), tokens, image_config
    )
    checks = record.acceptance.get("steps", [])
    steps = record.trace.steps if record.accepted else ()
    for number, step in enumerate(steps, start=1):
        view = None
        sequence.append_context(chat_format.render_call(step.thought, step.call, step=number), tokens, image_config)
        opens = next(k for k in range(len(sequence)) if sequence.kinds[k] == "action" and sequence.steps[k] == number)
        opens += len(tokens.encode(CALL_OPEN, control=True)) - 1
        rows.append(step_row(opens, step.call, step.result, checks[number - 1], sequence.image_spans, media, tokens))
        if step.result.view is not None:
            media = media.with_view(step.result.view)
            view = media.names[-1]
        sequence.append_context(
            chat_format.render_observation(step.result, view, media, style, step=number), tokens, image_config
        )
    thought, answer = ("", record.item.answer) if not record.accepted else (record.trace.answer_thought, "")
    answer = answer or record.trace.answer or record.item.answer
    quote = find_quote(answer, last_ocr_lines(step.result for step in steps)) if tokens.has_quote_tokens else None
    sequence.append_context(
        chat_format.render_answer(thought, answer, style, step=len(steps) + 1, quote=quote), tokens, image_config
    )
    check_sequence(sequence, tokens)
    ids = np.array(sequence.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in sequence.kinds], dtype=np.uint8)
    step_of = np.array(sequence.steps, dtype=np.int16)
    return Example(
        id=record.item.id,
        family=record.item.family,
        difficulty=record.item.difficulty,
        accepted=record.accepted,
        ids=ids,
        kinds=kinds,
        step_of=step_of,
        output_of=output_indices(ids, kinds, step_of, tokens),
        image_spans=tuple(sequence.image_spans),
        steps=steps_from_rows(rows),
    )


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


# --- what the heads should say


def step_row(
    opens: int,
    call: ToolCall,
    result: ToolResult,
    step_verdict: dict[str, Any],
    image_spans: Sequence[ImageSpan],
    media: MediaSet,
    tokens: PolicyTokenizer,
) -> dict[str, Any]:
    """The row of one step."""
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
    """The beginning of the phrase that a call asks for. What OCR reads is no argument: nano could not see it anyway."""
    phrase = call.args.get("target") or call.args.get("query")
    ids = tokens.encode(phrase)[:PHRASE_TOKENS] if isinstance(phrase, str) else []
    return np.array(ids + [IGNORE_INDEX] * (PHRASE_TOKENS - len(ids)), dtype=np.int32)


def covered_clip_parts(call: ToolCall, result: ToolResult, media: MediaSet) -> NDArray[np.float32]:
    """Which parts of the clip TEMP's spans and TRK's tracks cover."""
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


def iter_boxes(footprint: Footprint) -> Iterator[UnitBox]:
    if isinstance(footprint, Track):
        yield footprint.boxes[-1]
    elif not isinstance(footprint, Span) and footprint.box_unit is not None:
        yield footprint.box_unit


def enclosing_box(footprints: Sequence[Footprint]) -> UnitBox | None:
    """The box around all regions, to 10^-2 (supp:et_dynamics); None where there is none."""
    boxes = np.array([box for footprint in footprints for box in iter_boxes(footprint)])
    if not len(boxes):
        return None
    x0, y0, x1, y1 = (round(float(v), 2) for v in (*boxes[:, :2].min(0), *boxes[:, 2:].max(0)))
    return x0, y0, x1, y1


# --- footprints on the visual tokens (supp:et_dynamics)


def footprint_weights(
    footprints: Sequence[Footprint], image_spans: Sequence[ImageSpan], media: MediaSet
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Visual tokens under the footprints and their shares in v_t: masked mean on each frame, then over the frames.

    Only pictures of the media that were given count: footprints are in their coordinates. A clip is shown by a few
    frames; a footprint on a frame that is not shown is looked up on the nearest one. Without any footprint the step has
    looked at everything that was given.
    """
    source_spans = [
        (image_span, *parse_frame_name(image_span.image.name))
        for image_span in image_spans
        if "View_" not in image_span.image.name
    ]
    masks: dict[int, NDArray[np.bool_]] = {}
    for footprint in footprints:
        name = media.canonical_name(footprint.media)
        medium_spans = [(image_span, frame) for image_span, medium, frame in source_spans if medium == name]
        for image_span, frame in nearest_spans(footprint, medium_spans, media, name):
            grid = Size(image_span.image.columns, image_span.image.rows)
            cells = footprint_cells(footprint, grid, frame=frame)
            masks[image_span.start] = masks[image_span.start] | cells if image_span.start in masks else cells
    masks = {start: dilate(cells) if cells.sum() < 9 else cells for start, cells in masks.items() if cells.any()}
    if not masks:
        masks = {
            image_span.start: np.ones((image_span.image.rows, image_span.image.columns), dtype=bool)
            for image_span, *_ in source_spans
        }
    token_positions = [start + np.flatnonzero(cells) for start, cells in masks.items()]
    weights = [np.full(len(a), 1.0 / (len(a) * len(masks))) for a in token_positions]
    if not token_positions:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    return np.concatenate(token_positions).astype(np.int32), np.concatenate(weights).astype(np.float32)


def parse_frame_name(name: str) -> tuple[str, int]:
    medium, _, frame = name.partition("@")
    return medium, int(frame or 0)


def nearest_spans(
    footprint: Footprint, medium_spans: Sequence[tuple[ImageSpan, int]], media: MediaSet, name: str
) -> Iterator[tuple[ImageSpan, int]]:
    """Pictures on which a footprint is looked up, each with the frame of the footprint that stands for it."""
    if not medium_spans:
        return
    if isinstance(footprint, Track):
        inside = [(p, f) for p, f in medium_spans if footprint.frames[0] <= f <= footprint.frames[-1]]
        for image_span, frame in inside or [min(medium_spans, key=lambda pf: abs(pf[1] - footprint.frames[0]))]:
            yield image_span, min(footprint.frames, key=lambda f, at=frame: abs(f - at))  # type: ignore[misc]
    elif isinstance(footprint, Span):
        clip = media.source(name)
        inside = [(p, f) for p, f in medium_spans if footprint.start_s <= clip.time_of(f) <= footprint.end_s]
        middle = (footprint.start_s + footprint.end_s) / 2
        yield from inside or [min(medium_spans, key=lambda pf: abs(clip.time_of(pf[1]) - middle))]
    else:
        image_span, _ = min(medium_spans, key=lambda pf: abs(pf[1] - footprint.frame))
        yield image_span, footprint.frame


def steps_from_rows(rows: Sequence[dict[str, Any]]) -> Steps:
    """Rows as columns."""

    def column(name: str, dtype: Any, *shape: int) -> NDArray[Any]:
        return np.array([row[name] for row in rows], dtype=dtype).reshape(len(rows), *shape)

    def joined(name: str, dtype: Any) -> NDArray[Any]:
        return np.concatenate([row[name] for row in rows]).astype(dtype) if rows else np.zeros(0, dtype=dtype)

    return Steps(
        opens=column("opens", np.int32),
        tool=column("tool", np.int8),
        decisive=column("decisive", np.bool_),
        ok=column("ok", np.bool_),
        valid=column("valid", np.bool_),
        confidence=column("confidence", np.float32),
        box=column("box", np.float32, 4),
        words=column("words", np.int32, PHRASE_TOKENS),
        mask=column("mask", np.float32, CELLS, CELLS),
        moments=column("moments", np.float32, CLIP_PARTS),
        seen=column("seen", np.float32, 4),
        look_at=joined("look_at", np.int32),
        look_weight=joined("look_weight", np.float32),
        look_count=column("look_count", np.int32),
    )


def make_picture(name: str, pixels: NDArray[np.uint8], image_config: ImageProcessorConfig) -> ProcessedImage:
    return ProcessedImage(name, pixels, pixels.shape[0] // image_config.cell, pixels.shape[1] // image_config.cell)
