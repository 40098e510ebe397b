"""Which tools an item requires: the paper's perturbation tests, by running the reference program again.

supp:tool_necessity gives four: footprints are dilated and eroded by 8 px at input scale (SEG), identities are shuffled
(TRK), characters are masked (OCR), and a segment becomes a random window of its length (TEMP). Two are ours, since the
paper's tables omit the tools: evidence too small for the policy's input size is removed (ZOOM), and the property in
question is replaced, unless it is plain to see at input size (PROP).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np

from pixelis.core.geometry import Mask, Size, Span, TextSpan, Track, round_unit, to_pixels
from pixelis.equations.necessity import read_required, seg_required, temp_required, trk_required
from pixelis.items import CORRECT_THRESHOLD, MediumFacts, Necessity, Reference, Scalar, ToolName
from pixelis.metrics.text import normalised_anls
from pixelis.tools.vision.colours import COLOURS
from pixelis.tools.vision.shapes import SHAPES
from pixelis.world.painting import make_mask
from pixelis.world.programs import GRID_SIDE_PX, Facts, Parameters, Program, Unanswerable, mask_to_grid

REACH_PX = 8
"""Pixels at input scale by which a footprint grows and shrinks (supp:tool_necessity)."""
LEGIBLE_TEXT_PX = 9
"""The smallest height at which text is legible at input scale."""
VISIBLE_PX = 14
"""The smallest shorter side at which a thing is visible at input scale."""
CLEARLY_VISIBLE_PX = 40
"""From this size on, a colour or a figure is plain to see."""
MEASURED_PROPERTIES = ("texture", "orientation", "size", "speed")
"""Properties that must be measured at any size."""
DOMAINS: dict[str, tuple[str, ...]] = {
    "colour": COLOURS,
    "shape": SHAPES[:-1],
    "texture": ("plain", "striped", "checkered"),
    "orientation": ("horizontal", "vertical", "rising", "falling"),
}


@dataclass(frozen=True)
class NecessityCase:
    """An item's reference program and its inputs."""

    program: Program
    score: Callable[[str], float]
    """The score of an answer in words, 0 to 1."""
    references: tuple[Reference, ...]
    evidence: frozenset[str]
    parameters: Parameters
    media: tuple[MediumFacts, ...]
    reads_operands: bool
    """Whether the answer is computed from text, not copied: condition (a) of READ then applies to the operands."""
    seed: int

    def run(self, references: Sequence[Reference]) -> str:
        try:
            return self.program(Facts(references, self.parameters))
        except Unanswerable:
            return ""

    @cached_property
    def answer(self) -> str:
        return self.run(self.references)

    def is_different_answer(self, answer: str) -> bool:
        return self.score(answer) < CORRECT_THRESHOLD

    def perturb_evidence(self, perturb: Callable[[Reference], Reference | None]) -> list[Reference]:
        """The references with the evidence changed, or removed if `perturb` returns None."""
        references = [perturb(r) if r.name in self.evidence else r for r in self.references]
        return [r for r in references if r is not None]

    def evidence_of_kind(self, *kinds: str) -> list[Reference]:
        return [r for r in self.references if r.name in self.evidence and r.footprint.kind in kinds]

    def medium_facts(self, media: str) -> MediumFacts:
        return next(m for m in self.media if m.name == media)


def compute_necessities(case: NecessityCase) -> dict[ToolName, Necessity]:
    """All six tests, in the order of the paper's table."""
    return {
        "SEG": _test_seg(case),
        "TRK": _test_trk(case),
        "OCR": _test_ocr(case),
        "TEMP": _test_temp(case),
        "ZOOM": _test_zoom(case),
        "PROP": _test_prop(case),
    }


def _make_necessity(case: NecessityCase, required: bool, perturbed_answer: str, test: str) -> Necessity:
    return Necessity(required=required, answer=case.answer, perturbed_answer=perturbed_answer, test=test)


def _not_required(case: NecessityCase, reason: str) -> Necessity:
    return _make_necessity(case, False, case.answer, reason)


def _test_seg(case: NecessityCase) -> Necessity:
    masks = case.evidence_of_kind("mask")
    if not masks:
        return _not_required(case, "no region is part of the evidence")
    answers = {
        sign: case.run(case.perturb_evidence(lambda r, by=by: resize_region(r, by, case.references)))  # type: ignore[misc]
        for sign, by in (("dilated", REACH_PX), ("eroded", -REACH_PX))
    }
    sign = next((s for s, answer in answers.items() if case.is_different_answer(answer)), "dilated")
    changed = case.is_different_answer(answers[sign])
    return _make_necessity(
        case,
        seg_required(1.0, answer_changes=changed),  # the reference mask itself has IoU 1
        answers[sign],
        f"{len(masks)} regions {sign} by {REACH_PX} px at {GRID_SIDE_PX} px",
    )


def resize_region(reference: Reference, by_px: int, references: Sequence[Reference]) -> Reference | None:
    """A region dilated (or eroded, if `by_px` is negative) at input scale; None if nothing is left.

    It takes the properties of what fills most of it: around a small thing, those of the ground.
    """
    mask = reference.footprint
    if not isinstance(mask, Mask):
        return reference
    grid = mask_to_grid(mask)
    size = Size(grid.shape[1], grid.shape[0])
    left, top, right, bottom = grid_window(mask, size, max(by_px, 0) + 1)
    before = grid[top:bottom, left:right]
    reach = 2 * abs(by_px) + 1
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (reach, reach))
    after = cv2.dilate(before, kernel) if by_px > 0 else cv2.erode(before, kernel, borderValue=0)
    if not after.any():
        return None
    mask_fields = {"media": mask.media, "label": mask.label, "frame": mask.frame, "score": mask.score}
    resized_mask = make_mask(after > 0, left, top, size, **mask_fields)
    if 2 * int((before & after).sum()) >= int(after.sum()):
        return reference.model_copy(update={"footprint": resized_mask})
    ground = next((r for r in references if r.footprint.label == "ground" and r.footprint.media == mask.media), None)
    ground_properties = ground.properties if ground else {}
    properties = {key: ground_properties.get(key, "") for key in reference.properties}
    return reference.model_copy(update={"footprint": resized_mask, "properties": properties})


def grid_window(mask: Mask, size: Size, margin: int) -> tuple[int, int, int, int]:
    """The part of the grid that contains a mask with a margin."""
    left, top, right, bottom = to_pixels(mask.box_unit or (0.0, 0.0, 1.0, 1.0), size).pixel_bounds(size)
    right, bottom = min(right + margin, size.width), min(bottom + margin, size.height)
    return max(left - margin, 0), max(top - margin, 0), right, bottom


def _test_trk(case: NecessityCase) -> Necessity:
    tracks = case.evidence_of_kind("track")
    if not tracks:
        return _not_required(case, "no track is part of the evidence")
    perturbed_answer = case.run(shuffle_identities(case.references, case.seed))
    return _make_necessity(
        case,
        trk_required(
            1.0, shuffling_degrades=case.is_different_answer(perturbed_answer)
        ),  # the reference links have HOTA 1
        perturbed_answer,
        f"identities of {sum(r.footprint.kind == 'track' for r in case.references)} tracks shuffled on every frame",
    )


def shuffle_identities(references: Sequence[Reference], seed: int) -> list[Reference]:
    """Swap the boxes of the tracks of each medium on every frame after their first."""
    rng = np.random.default_rng(np.random.SeedSequence([seed, 17]))
    boxes: dict[str, dict[int, object]] = {}
    tracks = [r for r in references if isinstance(r.footprint, Track)]
    by_frame: dict[tuple[str, int], list[Reference]] = {}
    for r in tracks:
        for frame in r.footprint.frames:  # type: ignore[union-attr]
            by_frame.setdefault((r.footprint.media, frame), []).append(r)
    for (_, frame), present_tracks in sorted(by_frame.items()):
        shift = int(rng.integers(1, len(present_tracks))) if len(present_tracks) > 1 else 0
        for k, r in enumerate(present_tracks):
            is_first_frame = frame == r.footprint.frames[0]  # type: ignore[union-attr]
            donor = present_tracks[k if is_first_frame else (k + shift) % len(present_tracks)]
            boxes.setdefault(r.name, {})[frame] = donor.footprint.box_at(frame)  # type: ignore[union-attr]
    return [
        r.model_copy(update={"footprint": r.footprint.model_copy(update={"boxes": tuple(boxes[r.name].values())})})
        if isinstance(r.footprint, Track)
        else r
        for r in references
    ]


def _test_ocr(case: NecessityCase) -> Necessity:
    texts = case.evidence_of_kind("text")
    if not texts:
        return _not_required(case, "no text is part of the evidence")
    perturbed_answer = case.run(case.perturb_evidence(mask_characters))
    lines = [r.footprint.text for r in texts if isinstance(r.footprint, TextSpan)]
    line_texts = lines + [line.partition(": ")[2] for line in lines if ": " in line]  # `Room: 12` is read for the 12
    overlap = 1.0 if case.reads_operands else normalised_anls(case.answer, line_texts) if case.answer else 0.0
    required = read_required(overlap, masking_changes=case.is_different_answer(perturbed_answer))
    test = f"characters of {len(texts)} lines masked; ANLS of the answer with them {overlap:.2f}"
    return _make_necessity(case, required, perturbed_answer, test)


def mask_characters(reference: Reference) -> Reference:
    """A line of text with every letter and digit masked."""
    footprint = reference.footprint
    if not isinstance(footprint, TextSpan):
        return reference
    masked_text = "".join("#" if c.isalnum() else c for c in footprint.text)
    return reference.model_copy(update={"footprint": footprint.model_copy(update={"text": masked_text})})


def _test_temp(case: NecessityCase) -> Necessity:
    spans = case.evidence_of_kind("span")
    if not spans:
        return _not_required(case, "no stretch of time is part of the evidence")
    rng = np.random.default_rng(np.random.SeedSequence([case.seed, 23]))
    duration_s = lambda r: case.medium_facts(r.footprint.media).duration_s  # noqa: E731
    perturbed_answer = case.run(case.perturb_evidence(lambda r: move_span(r, duration_s(r), rng)))
    flips = case.is_different_answer(perturbed_answer)
    required = temp_required(1.0, random_window_flips=flips)  # the reference segment has tIoU 1
    test = f"{len(spans)} segments replaced by random windows of their length"
    return _make_necessity(case, required, perturbed_answer, test)


def move_span(reference: Reference, duration_s: float, rng: np.random.Generator) -> Reference:
    """A random segment of equal length that shares less than half of the true one."""
    span = reference.footprint
    if not isinstance(span, Span):
        return reference
    start_s = span.start_s
    for _ in range(16):
        start_s = float(rng.uniform(0.0, max(duration_s - span.seconds, 0.0)))
        overlap_s = max(min(start_s, span.start_s) + span.seconds - max(start_s, span.start_s), 0.0)
        if overlap_s < 0.5 * span.seconds or span.seconds == 0.0:
            break
    window = span.model_copy(update={"start_s": round_unit(start_s), "end_s": round_unit(start_s + span.seconds)})
    return reference.model_copy(update={"footprint": window})


def shorter_side_px(reference: Reference, media: Mapping[str, MediumFacts]) -> float:
    """The shorter side of a region or the height of a line at input size; infinite for other footprints."""
    footprint = reference.footprint
    if isinstance(footprint, Span):
        return float("inf")
    box = footprint.boxes[0] if isinstance(footprint, Track) else footprint.box_unit
    if box is None:
        return 0.0
    facts = media[footprint.media]
    scale = GRID_SIDE_PX / max(facts.width, facts.height)
    width, height = (box[2] - box[0]) * facts.width * scale, (box[3] - box[1]) * facts.height * scale
    return height if isinstance(footprint, TextSpan) else min(width, height)


def _test_zoom(case: NecessityCase) -> Necessity:
    media = {m.name: m for m in case.media}

    def keep_if_visible(r: Reference) -> Reference | None:
        min_side_px = LEGIBLE_TEXT_PX if r.footprint.kind == "text" else VISIBLE_PX
        return r if shorter_side_px(r, media) >= min_side_px else None

    remaining = case.perturb_evidence(keep_if_visible)
    removed_count = len(case.references) - len(remaining)
    if not removed_count:
        return _not_required(case, f"all of the evidence can be made out at {GRID_SIDE_PX} px")
    perturbed_answer = case.run(remaining)
    return _make_necessity(
        case,
        case.is_different_answer(perturbed_answer),
        perturbed_answer,
        f"{removed_count} references too small at {GRID_SIDE_PX} px taken away",
    )


def _test_prop(case: NecessityCase) -> Necessity:
    attribute = str(case.parameters.get("attribute", ""))
    holders = [r for r in case.references if r.name in case.evidence and attribute in r.properties]
    if not attribute or not holders:
        return _not_required(case, "no property is asked for")
    media = {m.name: m for m in case.media}
    clearly_visible = attribute not in MEASURED_PROPERTIES and all(
        shorter_side_px(r, media) >= CLEARLY_VISIBLE_PX for r in holders
    )
    perturbed_answer = case.run(case.perturb_evidence(lambda r: replace_property(r, attribute)))
    return _make_necessity(
        case,
        case.is_different_answer(perturbed_answer) and not clearly_visible,
        perturbed_answer,
        f"{attribute} of {len(holders)} references replaced"
        + (f"; plain to see at {GRID_SIDE_PX} px" if clearly_visible else ""),
    )


def replace_property(reference: Reference, attribute: str) -> Reference:
    """The reference with another value of a property: the next word of its domain, or a number 50 % larger."""
    if attribute not in reference.properties:
        return reference
    value: Scalar = reference.properties[attribute]
    domain = DOMAINS.get(attribute, ())
    if isinstance(value, str):
        value = domain[(domain.index(value) + 1) % len(domain)] if value in domain else f"not {value}"
    else:
        value = value * 1.5 + 1
    return reference.model_copy(update={"properties": {**reference.properties, attribute: value}})
