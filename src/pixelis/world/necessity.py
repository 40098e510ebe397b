"""Which tools an item cannot do without: the paper's perturbation tests, by running the reference program again.

supp:tool_necessity gives four. A footprint is dilated and eroded by 8 px at input scale (SEG), identities are shuffled
(TRK), characters are masked (OCR), a segment becomes a random window of its length (TEMP). Two are ours, since the
paper's tables leave the tools out: what cannot be made out at the policy's input size is taken away (ZOOM), and the
asked property is replaced by another, where a glance at input size does not settle it (PROP).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np

from pixelis.equations.necessity import read_required, seg_required, temp_required, trk_required
from pixelis.geometry import Mask, Size, Span, TextSpan, Track, rounded, to_pixels
from pixelis.metrics.text import normalised_anls
from pixelis.tools.colours import COLOURS
from pixelis.tools.shapes import SHAPES
from pixelis.world.item import RIGHT, MediumFacts, Necessity, Reference, Scalar, ToolName
from pixelis.world.painting import mask_at
from pixelis.world.programs import GRID, Parameters, Program, Unanswerable, on_grid

REACH_PX = 8
"""Pixels at input scale by which a footprint grows and shrinks (supp:tool_necessity)."""
LEGIBLE_TEXT_PX = 9
"""Text lower than this at input scale cannot be read."""
VISIBLE_PX = 14
"""A thing whose shorter side is under this at input scale cannot be made out."""
PLAIN_PX = 40
"""From this size on a colour or a figure is plain to see."""
MEASURED = ("texture", "orientation", "size", "speed")
"""Properties that are measured: a glance does not settle them at any size."""
DOMAINS: dict[str, tuple[str, ...]] = {
    "colour": COLOURS,
    "shape": SHAPES[:-1],
    "texture": ("plain", "striped", "checkered"),
    "orientation": ("horizontal", "vertical", "rising", "falling"),
}


@dataclass(frozen=True)
class Case:
    """An item's reference program with what it runs on."""

    solve: Program
    score: Callable[[str], float]
    """How right an answer in words is, 0 to 1."""
    references: tuple[Reference, ...]
    evidence: frozenset[str]
    parameters: Parameters
    media: tuple[MediumFacts, ...]
    reads_operands: bool
    """The answer is computed from what is written, not copied: condition (a) of READ is taken of the operands."""
    seed: int

    def run(self, references: Sequence[Reference]) -> str:
        try:
            return self.solve(references, self.parameters)
        except Unanswerable:
            return ""

    @cached_property
    def answer(self) -> str:
        return self.run(self.references)

    def changes(self, answer: str) -> bool:
        return self.score(answer) < RIGHT

    def with_evidence(self, change: Callable[[Reference], Reference | None]) -> list[Reference]:
        """The references, those that the answer depends on changed or (None) taken away."""
        after = [change(r) if r.name in self.evidence else r for r in self.references]
        return [r for r in after if r is not None]

    def chosen(self, *kinds: str) -> list[Reference]:
        return [r for r in self.references if r.name in self.evidence and r.footprint.kind in kinds]

    def facts(self, media: str) -> MediumFacts:
        return next(m for m in self.media if m.name == media)


def necessities(case: Case) -> dict[ToolName, Necessity]:
    """All six tests, in the order of the paper's table."""
    return {
        "SEG": _seg(case),
        "TRK": _trk(case),
        "OCR": _ocr(case),
        "TEMP": _temp(case),
        "ZOOM": _zoom(case),
        "PROP": _prop(case),
    }


def _record(case: Case, required: bool, perturbed: str, test: str) -> Necessity:
    return Necessity(required=required, answer=case.answer, perturbed_answer=perturbed, test=test)


def _untouched(case: Case, why: str) -> Necessity:
    return _record(case, False, case.answer, why)


def _seg(case: Case) -> Necessity:
    masks = case.chosen("mask")
    if not masks:
        return _untouched(case, "no region is part of the evidence")
    answers = {
        sign: case.run(case.with_evidence(lambda r, by=by: regrown(r, by, case.references)))  # type: ignore[misc]
        for sign, by in (("dilated", REACH_PX), ("eroded", -REACH_PX))
    }
    sign = next((s for s, answer in answers.items() if case.changes(answer)), "dilated")
    changed = case.changes(answers[sign])
    return _record(
        case,
        seg_required(1.0, answer_changes=changed),  # the reference mask itself has IoU 1
        answers[sign],
        f"{len(masks)} regions {sign} by {REACH_PX} px at {GRID} px",
    )


def regrown(reference: Reference, by_px: int, references: Sequence[Reference]) -> Reference | None:
    """A region dilated (or eroded, under 0) at input scale; None where nothing is left.

    Its properties are those of whatever fills most of it then: of a small thing, the ground around it.
    """
    mask = reference.footprint
    if not isinstance(mask, Mask):
        return reference
    grid = on_grid(mask)
    size = Size(grid.shape[1], grid.shape[0])
    left, top, right, bottom = around(mask, size, max(by_px, 0) + 1)
    before = grid[top:bottom, left:right]
    reach = 2 * abs(by_px) + 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
    after = cv2.dilate(before, kernel) if by_px > 0 else cv2.erode(before, kernel, borderValue=0)
    if not after.any():
        return None
    evidence = {"media": mask.media, "label": mask.label, "frame": mask.frame, "score": mask.score}
    grown = mask_at(after > 0, left, top, size, **evidence)
    if 2 * int((before & after).sum()) >= int(after.sum()):
        return reference.model_copy(update={"footprint": grown})
    ground = next((r for r in references if r.footprint.label == "ground" and r.footprint.media == mask.media), None)
    taken = ground.properties if ground else {}
    properties = {key: taken.get(key, "") for key in reference.properties}
    return reference.model_copy(update={"footprint": grown, "properties": properties})


def around(mask: Mask, size: Size, margin: int) -> tuple[int, int, int, int]:
    """The part of the grid that a mask and so many cells around it lie in."""
    left, top, right, bottom = to_pixels(mask.box_unit or (0.0, 0.0, 1.0, 1.0), size).whole(size)
    return (
        max(left - margin, 0),
        max(top - margin, 0),
        min(right + margin, size.width),
        min(bottom + margin, size.height),
    )


def _trk(case: Case) -> Necessity:
    tracks = case.chosen("track")
    if not tracks:
        return _untouched(case, "no track is part of the evidence")
    perturbed = case.run(shuffled(case.references, case.seed))
    return _record(
        case,
        trk_required(1.0, shuffling_degrades=case.changes(perturbed)),  # the reference links have HOTA 1
        perturbed,
        f"identities of {sum(r.footprint.kind == 'track' for r in case.references)} tracks shuffled on every frame",
    )


def shuffled(references: Sequence[Reference], seed: int) -> list[Reference]:
    """Tracks that swap their boxes on every frame after their first, on each medium by itself."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 17]))
    boxes: dict[str, dict[int, object]] = {}
    tracks = [r for r in references if isinstance(r.footprint, Track)]
    by_frame: dict[tuple[str, int], list[Reference]] = {}
    for r in tracks:
        for frame in r.footprint.frames:  # type: ignore[union-attr]
            by_frame.setdefault((r.footprint.media, frame), []).append(r)
    for (_, frame), present in sorted(by_frame.items()):
        shift = int(rng.integers(1, len(present))) if len(present) > 1 else 0
        for k, r in enumerate(present):
            own = frame == r.footprint.frames[0]  # type: ignore[union-attr]
            giver = present[k if own else (k + shift) % len(present)]
            boxes.setdefault(r.name, {})[frame] = giver.footprint.at(frame)  # type: ignore[union-attr]
    return [
        r.model_copy(update={"footprint": r.footprint.model_copy(update={"boxes": tuple(boxes[r.name].values())})})
        if isinstance(r.footprint, Track)
        else r
        for r in references
    ]


def _ocr(case: Case) -> Necessity:
    texts = case.chosen("text")
    if not texts:
        return _untouched(case, "no text is part of the evidence")
    perturbed = case.run(case.with_evidence(masked))
    lines = [r.footprint.text for r in texts if isinstance(r.footprint, TextSpan)]
    said = lines + [line.partition(": ")[2] for line in lines if ": " in line]  # `Room: 12` is read for the 12
    overlap = 1.0 if case.reads_operands else normalised_anls(case.answer, said) if case.answer else 0.0
    return _record(
        case,
        read_required(overlap, masking_changes=case.changes(perturbed)),
        perturbed,
        f"characters of {len(texts)} lines masked; ANLS of the answer with them {overlap:.2f}",
    )


def masked(reference: Reference) -> Reference:
    """A line of text with every letter and digit blotted out."""
    footprint = reference.footprint
    if not isinstance(footprint, TextSpan):
        return reference
    blotted = "".join("#" if c.isalnum() else c for c in footprint.text)
    return reference.model_copy(update={"footprint": footprint.model_copy(update={"text": blotted})})


def _temp(case: Case) -> Necessity:
    found = case.chosen("span")
    if not found:
        return _untouched(case, "no stretch of time is part of the evidence")
    rng = np.random.default_rng(np.random.SeedSequence([case.seed, 23]))
    perturbed = case.run(case.with_evidence(lambda r: moved_in_time(r, case.facts(r.footprint.media).duration_s, rng)))
    return _record(
        case,
        temp_required(1.0, random_window_flips=case.changes(perturbed)),  # the reference segment has tIoU 1
        perturbed,
        f"{len(found)} segments replaced by random windows of their length",
    )


def moved_in_time(reference: Reference, duration_s: float, rng: np.random.Generator) -> Reference:
    """A segment somewhere else, at equal length; one that shares half of the true segment is drawn again."""
    span = reference.footprint
    if not isinstance(span, Span):
        return reference
    start_s = span.start_s
    for _ in range(16):
        start_s = float(rng.uniform(0.0, max(duration_s - span.seconds, 0.0)))
        shared = max(min(start_s, span.start_s) + span.seconds - max(start_s, span.start_s), 0.0)
        if shared < 0.5 * span.seconds or span.seconds == 0.0:
            break
    window = span.model_copy(update={"start_s": rounded(start_s), "end_s": rounded(start_s + span.seconds)})
    return reference.model_copy(update={"footprint": window})


def shorter_side_px(reference: Reference, media: Mapping[str, MediumFacts]) -> float:
    """The shorter side of a region, or the height of a line, at input size; infinite for what has neither."""
    footprint = reference.footprint
    if isinstance(footprint, Span):
        return float("inf")
    box = footprint.boxes[0] if isinstance(footprint, Track) else footprint.box_unit
    if box is None:
        return 0.0
    facts = media[footprint.media]
    scale = GRID / max(facts.width, facts.height)
    width, height = (box[2] - box[0]) * facts.width * scale, (box[3] - box[1]) * facts.height * scale
    return height if isinstance(footprint, TextSpan) else min(width, height)


def _zoom(case: Case) -> Necessity:
    media = {m.name: m for m in case.media}

    def seen(r: Reference) -> Reference | None:
        least = LEGIBLE_TEXT_PX if r.footprint.kind == "text" else VISIBLE_PX
        return r if shorter_side_px(r, media) >= least else None

    kept = case.with_evidence(seen)
    lost = len(case.references) - len(kept)
    if not lost:
        return _untouched(case, f"all of the evidence can be made out at {GRID} px")
    perturbed = case.run(kept)
    return _record(case, case.changes(perturbed), perturbed, f"{lost} references too small at {GRID} px taken away")


def _prop(case: Case) -> Necessity:
    attribute = str(case.parameters.get("attribute", ""))
    holders = [r for r in case.references if r.name in case.evidence and attribute in r.properties]
    if not attribute or not holders:
        return _untouched(case, "no property is asked for")
    media = {m.name: m for m in case.media}
    plain = attribute not in MEASURED and all(shorter_side_px(r, media) >= PLAIN_PX for r in holders)
    perturbed = case.run(case.with_evidence(lambda r: replaced(r, attribute)))
    return _record(
        case,
        case.changes(perturbed) and not plain,
        perturbed,
        f"{attribute} of {len(holders)} references replaced" + (f"; plain to see at {GRID} px" if plain else ""),
    )


def replaced(reference: Reference, attribute: str) -> Reference:
    """The reference with another value of one property: the next word of its kind, or a number half as large again."""
    if attribute not in reference.properties:
        return reference
    value: Scalar = reference.properties[attribute]
    domain = DOMAINS.get(attribute, ())
    if isinstance(value, str):
        value = domain[(domain.index(value) + 1) % len(domain)] if value in domain else f"not {value}"
    else:
        value = value * 1.5 + 1
    return reference.model_copy(update={"properties": {**reference.properties, attribute: value}})
