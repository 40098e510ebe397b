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

from pixelis.data.record import Record
from pixelis.equations.embedding import ACTIONS, dilate, footprint_cells, mask_cells
from pixelis.equations.sft import IGNORED
from pixelis.geometry import Footprint, Mask, Size, Span, Track, UnitBox
from pixelis.media import MediaSet
from pixelis.policy import script
from pixelis.policy.ledger import KINDS, Ledger, Place, check
from pixelis.policy.pictures import Optics, Picture
from pixelis.policy.quoting import lines_read, quote_of
from pixelis.policy.script import SAMPLED, Style
from pixelis.policy.tokens import Tokens
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.grammar import OPEN

WORDS = 6
"""Subword ids of a phrase that the text head must name."""
CELLS = 8
"""Side of the coarse grid on which the mask head paints."""
MOMENTS = 16
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
    places: tuple[Place, ...]
    steps: Steps

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """(n,) thought, action and answer: what the loss is taken on."""
        return IS_SAMPLED[self.kinds]

    @property
    def action_step(self) -> NDArray[np.int16]:
        """(n,) the step of an action token, 0 for all others."""
        return np.where(self.kinds == ACTION, self.step_of, 0)

    @property
    def ledger(self) -> Ledger:
        kinds = [KINDS[k] for k in self.kinds]
        return Ledger(self.ids.tolist(), kinds, self.step_of.tolist(), [None] * len(self), list(self.places))

    def without_tools(self) -> Example:
        """Question and media to answer at once, as nano-base learns it: no step, no sentence before the answer."""
        kept = (self.kinds == PROMPT) | (self.kinds == ANSWER)
        shown = tuple(place for place in self.places if self.kinds[place.start] == PROMPT)  # they come before all else
        return replace(
            self,
            ids=self.ids[kept],
            kinds=self.kinds[kept],
            step_of=np.where(self.kinds[kept] == ANSWER, 1, 0).astype(np.int16),
            output_of=np.full(int(kept.sum()), -1, dtype=np.int16),
            places=shown,
            steps=no_steps(),
        )


def no_steps() -> Steps:
    return steps_from([])


def example_of(
    record: Record,
    media: MediaSet,
    tokens: Tokens,
    style: Style,
    optics: Optics,
    schemas: Sequence[dict[str, Any]],
) -> Example:
    """A record as tokens. What was not accepted keeps its question and its right answer only."""
    ledger, rows = Ledger(), []
    ledger.give(script.opening(record.item.question, media, style, schemas), tokens, optics)
    checks = record.acceptance.get("steps", [])
    steps = record.trace.steps if record.accepted else ()
    for number, step in enumerate(steps, start=1):
        view = None
        ledger.give(script.called(step.thought, step.call, step=number), tokens, optics)
        opens = next(k for k in range(len(ledger)) if ledger.kinds[k] == "action" and ledger.steps[k] == number)
        opens += len(tokens.encode(OPEN, control=True)) - 1
        rows.append(step_row(opens, step.call, step.result, checks[number - 1], ledger.places, media, tokens))
        if step.result.view is not None:
            media = media.with_view(step.result.view)
            view = media.names[-1]
        ledger.give(script.observed(step.result, view, media, style, step=number), tokens, optics)
    thought, answer = ("", record.item.answer) if not record.accepted else (record.trace.answer_thought, "")
    answer = answer or record.trace.answer or record.item.answer
    quote = quote_of(answer, lines_read(step.result for step in steps)) if tokens.quotes else None
    ledger.give(script.answered(thought, answer, style, step=len(steps) + 1, quote=quote), tokens, optics)
    check(ledger, tokens)
    ids = np.array(ledger.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in ledger.kinds], dtype=np.uint8)
    step_of = np.array(ledger.steps, dtype=np.int16)
    return Example(
        id=record.item.id,
        family=record.item.family,
        difficulty=record.item.difficulty,
        accepted=record.accepted,
        ids=ids,
        kinds=kinds,
        step_of=step_of,
        output_of=outputs(ids, kinds, step_of, tokens),
        places=tuple(ledger.places),
        steps=steps_from(rows),
    )


def outputs(
    ids: NDArray[np.int32], kinds: NDArray[np.uint8], step_of: NDArray[np.int16], tokens: Tokens
) -> NDArray[np.int16]:
    """What feedback dropout may hide: everything between the tags of a response; the turn itself stays readable."""
    inside = kinds == OBSERVATION
    begin, end = (tokens.control.get(tag, -1) for tag in ("<tool_response>", "</tool_response>"))
    if begin >= 0 and end >= 0:
        depth = np.cumsum(inside & (ids == begin)) - np.cumsum(inside & (ids == end))
        inside &= (depth > 0) & (ids != begin)
    return np.where(inside, step_of - 1, -1).astype(np.int16)


# --- what the heads should say


def step_row(
    opens: int,
    call: ToolCall,
    result: ToolResult,
    judged: dict[str, Any],
    places: Sequence[Place],
    media: MediaSet,
    tokens: Tokens,
) -> dict[str, Any]:
    """The row of one step."""
    look = footprint_weights(result.footprints, places, media)
    found = result.footprints[0] if result.footprints else None
    on_source = not str(call.args.get("media", "")).startswith("View")  # footprints never lie in a view's coordinates
    region = found if call.tool == "SEG" and on_source and isinstance(found, Mask) else None
    return {
        "opens": opens,
        "tool": ACTIONS.index(call.tool) if call.tool in ACTIONS else -1,
        "decisive": bool(judged["decisive"]),
        "ok": result.ok,
        "valid": result.ok and judged["passed"] is not False,
        "confidence": np.nan if result.confidence is None else result.confidence,
        "box": called_box(call) or (region.box_unit if region else None) or (np.nan,) * 4,
        "words": called_words(call, tokens),
        "mask": mask_cells(region.array, Size(CELLS, CELLS)) if region else np.full((CELLS, CELLS), np.nan),
        "moments": moments(call, result, media),
        "seen": around(result.footprints) or (np.nan,) * 4,
        "look_at": look[0],
        "look_weight": look[1],
        "look_count": len(look[0]),
    }


def called_box(call: ToolCall) -> UnitBox | None:
    box = call.args.get("box", call.args.get("target"))
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(isinstance(v, int | float) for v in box):
        return None
    return tuple(float(np.clip(v, 0.0, 1.0)) for v in box)  # type: ignore[return-value]


def called_words(call: ToolCall, tokens: Tokens) -> NDArray[np.int32]:
    """The beginning of the phrase that a call asks for. What OCR reads is no argument: nano could not see it anyway."""
    phrase = call.args.get("target") or call.args.get("query")
    ids = tokens.encode(phrase)[:WORDS] if isinstance(phrase, str) else []
    return np.array(ids + [IGNORED] * (WORDS - len(ids)), dtype=np.int32)


def moments(call: ToolCall, result: ToolResult, media: MediaSet) -> NDArray[np.float32]:
    """Which parts of the clip TEMP's spans and TRK's tracks cover."""
    marked = np.zeros(MOMENTS, dtype=np.float32)
    for print_ in result.footprints if call.tool in ("TEMP", "TRK") else ():
        clip = media.source(media.canonical(print_.media))
        if isinstance(print_, Span) and clip.duration_s > 0:
            first, last = print_.start_s / clip.duration_s, print_.end_s / clip.duration_s
        elif isinstance(print_, Track):
            first, last = print_.frames[0] / clip.frame_count, (print_.frames[-1] + 1) / clip.frame_count
        else:
            continue
        low = min(int(first * MOMENTS), MOMENTS - 1)
        marked[low : max(low + 1, int(np.ceil(last * MOMENTS - 1e-6)))] = 1.0
    return marked if marked.any() else np.full(MOMENTS, np.nan, dtype=np.float32)


def boxes_of(footprint: Footprint) -> Iterator[UnitBox]:
    if isinstance(footprint, Track):
        yield footprint.boxes[-1]
    elif not isinstance(footprint, Span) and footprint.box_unit is not None:
        yield footprint.box_unit


def around(footprints: Sequence[Footprint]) -> UnitBox | None:
    """The box around all regions, to 10^-2 (supp:et_dynamics); None where there is none."""
    boxes = np.array([box for footprint in footprints for box in boxes_of(footprint)])
    if not len(boxes):
        return None
    x0, y0, x1, y1 = (round(float(v), 2) for v in (*boxes[:, :2].min(0), *boxes[:, 2:].max(0)))
    return x0, y0, x1, y1


# --- footprints on the visual tokens (supp:et_dynamics)


def footprint_weights(
    footprints: Sequence[Footprint], places: Sequence[Place], media: MediaSet
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Visual tokens under the footprints and their shares in v_t: masked mean on each frame, then over the frames.

    Only pictures of the media that were given count: footprints are in their coordinates. A clip is shown by a few
    frames; a footprint on a frame that is not shown is looked up on the nearest one. Without any footprint the step has
    looked at everything that was given.
    """
    shown = [(place, *named_frame(place.picture.name)) for place in places if "View_" not in place.picture.name]
    masks: dict[int, NDArray[np.bool_]] = {}
    for footprint in footprints:
        name = media.canonical(footprint.media)
        own = [(place, frame) for place, medium, frame in shown if medium == name]
        for place, frame in nearest(footprint, own, media, name):
            grid = Size(place.picture.columns, place.picture.rows)
            cells = footprint_cells(footprint, grid, frame=frame)
            masks[place.start] = masks[place.start] | cells if place.start in masks else cells
    masks = {start: dilate(cells) if cells.sum() < 9 else cells for start, cells in masks.items() if cells.any()}
    if not masks:
        masks = {place.start: np.ones((place.picture.rows, place.picture.columns), dtype=bool) for place, *_ in shown}
    at = [start + np.flatnonzero(cells) for start, cells in masks.items()]
    weights = [np.full(len(a), 1.0 / (len(a) * len(masks))) for a in at]
    if not at:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
    return np.concatenate(at).astype(np.int32), np.concatenate(weights).astype(np.float32)


def named_frame(name: str) -> tuple[str, int]:
    medium, _, frame = name.partition("@")
    return medium, int(frame or 0)


def nearest(
    footprint: Footprint, own: Sequence[tuple[Place, int]], media: MediaSet, name: str
) -> Iterator[tuple[Place, int]]:
    """Pictures on which a footprint is looked up, each with the frame of the footprint that stands for it."""
    if not own:
        return
    if isinstance(footprint, Track):
        inside = [(p, f) for p, f in own if footprint.frames[0] <= f <= footprint.frames[-1]]
        for place, frame in inside or [min(own, key=lambda pf: abs(pf[1] - footprint.frames[0]))]:
            yield place, min(footprint.frames, key=lambda f, at=frame: abs(f - at))  # type: ignore[misc]
    elif isinstance(footprint, Span):
        clip = media.source(name)
        inside = [(p, f) for p, f in own if footprint.start_s <= clip.time_of(f) <= footprint.end_s]
        middle = (footprint.start_s + footprint.end_s) / 2
        yield from inside or [min(own, key=lambda pf: abs(clip.time_of(pf[1]) - middle))]
    else:
        place, _ = min(own, key=lambda pf: abs(pf[1] - footprint.frame))
        yield place, footprint.frame


def steps_from(rows: Sequence[dict[str, Any]]) -> Steps:
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
        words=column("words", np.int32, WORDS),
        mask=column("mask", np.float32, CELLS, CELLS),
        moments=column("moments", np.float32, MOMENTS),
        seen=column("seen", np.float32, 4),
        look_at=joined("look_at", np.int32),
        look_weight=joined("look_weight", np.float32),
        look_count=column("look_count", np.int32),
    )


def picture_at(name: str, pixels: NDArray[np.uint8], optics: Optics) -> Picture:
    return Picture(name, pixels, pixels.shape[0] // optics.cell, pixels.shape[1] // optics.cell)
