"""SEG: masks for a phrase, a click or a box.

A phrase is grounded first (colour and shape words on regions, COCO classes through the detector), then segmented. The
classical backend takes milliseconds and needs no weights; SAM 2 encodes a picture once (about four seconds on one
core, kept by content) and answers every later prompt on it in a tenth of a second.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import cv2
import numpy as np
from pydantic import Field

from pixelis.core.errors import ToolError
from pixelis.core.geometry import FULL_FRAME, Mask, PixelBox, Point, UnitBox, Value, round_unit, to_pixels
from pixelis.media.medium import Frame, frame_size
from pixelis.tools.backends.temporal_signals import PerceptionModels, detections
from pixelis.tools.base import AreaBox, FrameArgs, Observation, Scene, Tool, coordinates
from pixelis.tools.results import ToolIdentity
from pixelis.tools.vision import regions
from pixelis.tools.vision.colours import dominant_colours
from pixelis.tools.vision.grounding import Phrase, match_detections, parse_phrase
from pixelis.tools.vision.regions import RegionMask
from pixelis.weights import CATALOGUE, Hub, fingerprint, is_available, weight_path
from pixelis.weights.store import hash_path

GRID_SIDE = 1024
"""Masks have at most this many cells along the longer side."""
SAM2_WEIGHTS = ("sam2-tiny-encoder", "sam2-tiny-decoder")
MIN_COLOUR_SHARE = 0.16
"""A detected thing has a colour if at least this share of it shows it (see `colour_share`)."""
MIN_LIT_SHARE = 0.1
MIN_SHARE_OF_MAIN = 0.4
"""… and this share of its main colour: white in shade is slightly blue, but not blue."""

Backend = Literal["auto", "classical", "sam2", "sam2-transformers"]
Grounding = Literal["detector", "regions", "point", "box"]


class SegArgs(FrameArgs):
    """What to cut out."""

    target: Annotated[str, Field(min_length=1, max_length=400)] | Point | AreaBox = Field(
        description='a phrase ("the red bus"), a point [x, y] or a box [x0, y0, x1, y1], from 0 to 1'
    )
    limit: int = Field(default=16, ge=1, le=64, description="at most this many regions, best first")


class SegRegion(Value):
    """One region in short."""

    label: str
    box: UnitBox
    area: float
    score: float


class SegOutput(Value):
    """What was cut out."""

    regions: tuple[SegRegion, ...]
    grounded_by: Grounding
    backend: str
    ignored: tuple[str, ...] = ()
    """Words of the phrase that nothing here knows."""


class Seg(Tool[SegArgs]):
    """Segmentation with three backends behind one call."""

    name = "SEG"
    summary = "Find and outline what a phrase names, or what lies at a point or in a box."
    Args = SegArgs
    Output = SegOutput
    version = "3"
    decisive_confidence = 0.4

    def __init__(self, backend: Backend = "auto", sam2_model: str = "") -> None:
        if backend == "auto":
            backend = "sam2" if all(is_available(name) for name in SAM2_WEIGHTS) else "classical"
        self.backend = backend
        self._sam2_model = sam2_model
        self._models = PerceptionModels()

    @cached_property
    def _checkpoint(self) -> Sam2Checkpoint:
        return resolve_checkpoint(self._sam2_model)

    def identity(self) -> ToolIdentity:
        weights = [fingerprint("nanodet")] if is_available("nanodet") else []
        if self.backend == "sam2":
            weights += [fingerprint(name) for name in SAM2_WEIGHTS]
        elif self.backend == "sam2-transformers" and self._checkpoint.sha256:
            weights.append(self._checkpoint.sha256)
        backend = f"{self.backend} {self._sam2_model}" if self.backend == "sam2-transformers" else self.backend
        return ToolIdentity(tool=self.name, version=self.version, backend=backend, weights="+".join(weights))

    @cached_property
    def _sam2(self) -> Any:
        if self.backend == "sam2-transformers":
            from pixelis.tools.backends.sam2_transformers import Sam2Transformers

            return Sam2Transformers(self._checkpoint.model)
        from pixelis.tools.backends.sam2 import Sam2

        return Sam2()

    def look(self, args: SegArgs, scene: Scene) -> Observation:
        index = scene.index(args)
        frame = scene.frame(index)
        image = resize_to_grid(frame)
        if isinstance(args.target, str):
            grounding, matches = self._segment_phrase(args.target, scene, index, image)
        elif len(args.target) == 2:
            grounding, matches = "point", self._segment_point(args.target, scene, index, image)
        else:
            grounding, matches = "box", self._segment_box(args.target, scene, index, image, "")
        if not matches:
            raise ToolError(not_found_message(args.target))
        ignored = parse_phrase(args.target).ignored if isinstance(args.target, str) else ()
        return self._to_observation(matches[: args.limit], grounding, index, ignored)

    def _segment_phrase(self, text: str, scene: Scene, index: int, image: Frame) -> tuple[Grounding, list[RegionMask]]:
        phrase = parse_phrase(text)
        if phrase.is_empty:
            raise ToolError(
                f"{text!r} names no colour, shape or COCO class that SEG can find; give a point [x, y] or a box instead"
            )
        if phrase.classes:
            if self._models.detector is None:
                if not phrase.colours and not phrase.shape:
                    raise ToolError(f"{text!r} needs the detector; run `pixelis models pull nanodet`, or give a point")
            else:
                return "detector", select_by_choice(self._segment_detections(phrase, scene, index, image), phrase)
        if not (phrase.colours or phrase.shape):
            return "detector", []
        candidates = regions.find_regions(image, phrase.colours, phrase.shape, scene.limits.regions)
        label = " ".join([*phrase.colours, *([phrase.shape] if phrase.shape else [])])
        return "regions", select_by_choice([region._replace(label=label) for region in candidates], phrase)

    def _segment_detections(self, phrase: Phrase, scene: Scene, index: int, image: Frame) -> list[RegionMask]:
        """Objects of the class (and colour, if one is named), best first, each segmented in its box."""
        all_detections = detections(scene, index, self._models.detector)
        matches = match_detections(all_detections, phrase)[: scene.limits.regions]
        ranked: list[tuple[float, RegionMask]] = []
        for detection in matches:
            box = detection.box_px.to_unit(scene.medium.size)
            candidates = self._segment_box(box, scene, index, image, detection.label)
            if not candidates:
                continue
            region = candidates[0]._replace(score=detection.score)
            share = colour_share(image, region.mask, phrase.colours)
            if not phrase.colours or share >= MIN_COLOUR_SHARE:
                ranked.append((share if phrase.colours else detection.score, region))
        return [region for _, region in sorted(ranked, key=lambda pair: -pair[0])]

    def _embedding(self, scene: Scene, index: int) -> Any:
        key = f"{self.identity().backend} {self.version}/{self.identity().weights}/{scene.medium.sha256}/{index}"
        content = scene.perceive(key, lambda: self._sam2.embed(scene.frame(index)).to_bytes())
        return self._sam2.restore(content)

    def _segment_with_prompt(self, scene: Scene, index: int, image: Frame, **prompt: Any) -> list[RegionMask]:
        candidates = self._sam2.segment(self._embedding(scene, index), frame_size(image), **prompt)
        return [RegionMask(mask, score) for mask, score in candidates if mask.any()]

    def _segment_point(self, point: Point, scene: Scene, index: int, image: Frame) -> list[RegionMask]:
        height, width = image.shape[:2]
        x, y = min(int(point[0] * width), width - 1), min(int(point[1] * height), height - 1)
        if self.backend == "classical":
            region = regions.segment_at_point(image, x, y)
            return [region] if region else []
        click = np.array([[x + 0.5, y + 0.5]])
        return self._segment_with_prompt(scene, index, image, points=click, labels=np.array([1]))[:1]

    def _segment_box(self, box: UnitBox, scene: Scene, index: int, image: Frame, label: str) -> list[RegionMask]:
        box_px = to_pixels(box, frame_size(image))
        if self.backend == "classical":
            candidates = [regions.segment_in_box(image, box_px) or fill_box(image, box_px)]
        else:
            candidates = self._segment_with_prompt(scene, index, image, box_px=box_px)[:1]
        return [region._replace(label=label) for region in candidates]

    def _to_observation(
        self, matches: list[RegionMask], grounding: Grounding, index: int, ignored: tuple[str, ...]
    ) -> Observation:
        masks = [
            Mask.from_array(item.mask, frame=index, label=item.label, score=round_unit(item.score)) for item in matches
        ]
        summaries = tuple(
            SegRegion(label=mask.label, box=mask.box_unit or FULL_FRAME, area=round_unit(mask.area), score=mask.score)
            for mask in masks
        )
        listing = "; ".join(
            f"{region.label or 'region'} {coordinates(region.box)} area {region.area:.2f} score {region.score:.2f}"
            for region in summaries
        )
        ignored_note = f"; nothing here knows {', '.join(map(repr, ignored))}" if ignored else ""
        return Observation(
            text=(f"{len(summaries)} regions: {listing}" if len(summaries) > 1 else listing) + ignored_note,
            output=SegOutput(regions=summaries, grounded_by=grounding, backend=self.backend, ignored=ignored),
            footprints=tuple(masks),
            confidence=float(np.mean([mask.score for mask in masks])),
        )


class Sam2Checkpoint(NamedTuple):
    """A `Sam2Model`: a folder or a hub id, and the hash of the folder if it is known."""

    model: str
    sha256: str


def resolve_checkpoint(model: str) -> Sam2Checkpoint:
    """The folder of this name, or the pulled folder of this hub id; else the id itself."""
    if Path(model).is_dir():
        return Sam2Checkpoint(model, hash_path(Path(model)))
    for weight in CATALOGUE:
        if isinstance(weight.source, Hub) and weight.source.repository == model and is_available(weight.name):
            return Sam2Checkpoint(str(weight_path(weight.name)), fingerprint(weight.name))
    return Sam2Checkpoint(model, "")


def resize_to_grid(frame: Frame) -> Frame:
    """The frame on the grid of the masks."""
    size = frame_size(frame)
    shrink = GRID_SIDE / max(size)
    if shrink >= 1.0:
        return frame
    interpolation = cv2.INTER_AREA if shrink < 0.5 else cv2.INTER_LINEAR  # near its own size a frame needs no averaging
    return np.asarray(cv2.resize(frame, size.scaled(shrink), interpolation=interpolation), dtype=np.uint8)


def fill_box(image: Frame, box_px: PixelBox) -> RegionMask:
    """The box itself, if it is too small to separate figure from ground."""
    mask = np.zeros(image.shape[:2], dtype=bool)
    left, top, right, bottom = box_px.pixel_bounds(frame_size(image))
    mask[top:bottom, left:right] = True
    return RegionMask(mask, 0.3)


def colour_share(image: Frame, mask: np.ndarray, colours: tuple[str, ...]) -> float:
    """Share of the non-black pixels that have one of the colours; 0 if no colour is named."""
    pixels = image[mask]
    if not colours or not len(pixels):
        return 0.0
    shares = dict(dominant_colours(pixels))
    lit = 1.0 - shares.get("black", 0.0)  # tyres, windows and shadows are black on objects of any colour
    main = max((share for name, share in shares.items() if name != "black"), default=0.0)
    scores = [shares.get(colour, 0.0) / (1.0 if colour == "black" else max(lit, MIN_LIT_SHARE)) for colour in colours]
    leads = [colour == "black" or shares.get(colour, 0.0) >= MIN_SHARE_OF_MAIN * main for colour in colours]
    return max(share if leading else 0.0 for share, leading in zip(scores, leads, strict=True))


def select_by_choice(matches: list[RegionMask], phrase: Phrase) -> list[RegionMask]:
    """All regions, or the one that the phrase selects by place or size."""
    if phrase.choice is None or not matches:
        return matches

    def centre(item: RegionMask) -> tuple[float, float]:
        ys, xs = np.nonzero(item.mask)
        return float(xs.mean()), float(ys.mean())

    height, width = matches[0].mask.shape
    rank = {
        "leftmost": lambda item: centre(item)[0],
        "rightmost": lambda item: -centre(item)[0],
        "topmost": lambda item: centre(item)[1],
        "bottommost": lambda item: -centre(item)[1],
        "largest": lambda item: -float(item.mask.sum()),
        "smallest": lambda item: float(item.mask.sum()),
        "central": lambda item: float(np.hypot(centre(item)[0] - width / 2, centre(item)[1] - height / 2)),
    }[phrase.choice]
    return [min(matches, key=rank)]


def not_found_message(target: str | tuple[float, ...]) -> str:
    if isinstance(target, str):
        return f"SEG found nothing that fits {target!r}"
    return f"SEG found no region at ({', '.join(f'{v:.2f}' for v in target)})"
