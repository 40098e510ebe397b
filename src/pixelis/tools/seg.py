"""SEG: masks for a phrase, a click or a box.

A phrase is grounded first (colour and shape words on regions, COCO classes through the detector), then cut out. The
classical backend takes milliseconds and needs no weights; SAM 2 encodes a picture once (about four seconds on one
core, kept by content) and answers every later prompt on it in a tenth of a second.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import cv2
import numpy as np
from pydantic import AfterValidator, Field

from pixelis.errors import ToolError
from pixelis.geometry import Mask, PixelBox, Point, Size, UnitBox, Value, rounded, to_pixels
from pixelis.media.medium import Frame
from pixelis.tools.backends import regions
from pixelis.tools.backends.regions import Region
from pixelis.tools.backends.signals import DETECTION_FLOOR, Models, detections
from pixelis.tools.base import FrameArgs, Observation, Scene, Tool, coordinates, require_area
from pixelis.tools.colours import dominant
from pixelis.tools.grounding import Phrase, things, understand
from pixelis.tools.results import ToolIdentity
from pixelis.weights import CATALOGUE, Hub, available, fingerprint, path_of
from pixelis.weights.store import hash_of

GRID_SIDE = 1024
"""Masks are made and kept on a grid of at most this many cells along the longer side."""
SAM2_WEIGHTS = ("sam2-tiny-encoder", "sam2-tiny-decoder")
COLOUR_SHARE = 0.16
"""A detected thing has a colour if at least this share of it shows it (see `colour_share`)."""
LEAST_LIT = 0.1
BESIDE_MAIN = 0.4
"""… and this share of its main colour: white in shade is a little blue, and not blue."""

Backend = Literal["auto", "classical", "sam2", "sam2-transformers"]
Grounded = Literal["detector", "regions", "point", "box"]


class SegArgs(FrameArgs):
    """What to cut out."""

    target: (
        Annotated[str, Field(min_length=1, max_length=400)] | Point | Annotated[UnitBox, AfterValidator(require_area)]
    ) = Field(description='a phrase ("the red bus"), a point [x, y] or a box [x0, y0, x1, y1], from 0 to 1')
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
    grounded_by: Grounded
    backend: str
    ignored: tuple[str, ...] = ()
    """Words of the phrase that nothing here knows."""


class Found(NamedTuple):
    """A region with its name."""

    region: Region
    label: str


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
            backend = "sam2" if all(available(name) for name in SAM2_WEIGHTS) else "classical"
        self.backend = backend
        self._sam2_model = sam2_model
        self._models = Models()

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return find_checkpoint(self._sam2_model)

    def identity(self) -> ToolIdentity:
        weights = [fingerprint("nanodet")] if available("nanodet") else []
        if self.backend == "sam2":
            weights += [fingerprint(name) for name in SAM2_WEIGHTS]
        elif self.backend == "sam2-transformers" and self._checkpoint.sha256:
            weights.append(self._checkpoint.sha256)
        model = f" {self._sam2_model}" if self.backend == "sam2-transformers" else ""
        return ToolIdentity(
            tool=self.name, version=self.version, backend=f"{self.backend}{model}", weights="+".join(weights)
        )

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
        image = on_grid(frame)
        if isinstance(args.target, str):
            grounded, found = self._phrase(args.target, scene, index, image)
        elif len(args.target) == 2:
            grounded, found = "point", self._point(args.target, scene, index, image)
        else:
            grounded, found = "box", self._box(args.target, scene, index, image, "")
        if not found:
            raise ToolError(nothing_found(args.target))
        ignored = understand(args.target).ignored if isinstance(args.target, str) else ()
        return self._observed(found[: args.limit], grounded, index, ignored)

    def _phrase(self, text: str, scene: Scene, index: int, image: Frame) -> tuple[Grounded, list[Found]]:
        phrase = understand(text)
        if phrase.is_empty:
            raise ToolError(
                f"{text!r} names no colour, shape or COCO class that SEG can find; give a point [x, y] or a box instead"
            )
        if phrase.classes:
            if self._models.detector is None:
                if not phrase.colours and not phrase.shape:
                    raise ToolError(f"{text!r} needs the detector; run `pixelis models pull nanodet`, or give a point")
            else:
                return "detector", chosen(self._detected(phrase, scene, index, image), phrase)
        if not (phrase.colours or phrase.shape):
            return "detector", []
        if phrase.colours:
            cut = regions.by_colour(image, phrase.colours, phrase.shape, scene.limits.regions)
        else:
            cut = regions.by_contrast(image, phrase.shape, scene.limits.regions)
        label = " ".join([*phrase.colours, *([phrase.shape] if phrase.shape else [])])
        return "regions", chosen([Found(region, label) for region in cut], phrase)

    def _detected(self, phrase: Phrase, scene: Scene, index: int, image: Frame) -> list[Found]:
        """Things of the class, of the colour where one is named, best first, each cut out of its box."""
        faint = detections(scene, index, self._models.detector, threshold=DETECTION_FLOOR)
        seen = things(faint, phrase)[: scene.limits.regions]
        found: list[tuple[float, Found]] = []
        for detection in seen:
            cut = self._box(detection.box_px.to_unit(scene.medium.size), scene, index, image, detection.label)
            if not cut:
                continue
            region = cut[0].region._replace(score=detection.score)
            share = colour_share(image, region.mask, phrase.colours)
            if not phrase.colours or share >= COLOUR_SHARE:
                found.append((share if phrase.colours else detection.score, Found(region, detection.label)))
        return [item for _, item in sorted(found, key=lambda pair: -pair[0])]

    def _embedding(self, scene: Scene, index: int) -> Any:
        key = f"{self.identity().backend} {self.version}/{self.identity().weights}/{scene.medium.sha256}/{index}"
        content = scene.perceive(key, lambda: self._sam2.embed(scene.frame(index)).to_bytes())
        return self._sam2.restore(content)

    def _prompted(self, scene: Scene, index: int, image: Frame, **prompt: Any) -> list[Region]:
        size = Size(image.shape[1], image.shape[0])
        return [
            Region(mask, score) for mask, score in self._sam2.segment(self._embedding(scene, index), size, **prompt)
        ]

    def _point(self, point: Point, scene: Scene, index: int, image: Frame) -> list[Found]:
        height, width = image.shape[:2]
        x, y = min(int(point[0] * width), width - 1), min(int(point[1] * height), height - 1)
        if self.backend == "classical":
            region = regions.at_point(image, x, y)
            return [Found(region, "")] if region else []
        cut = self._prompted(scene, index, image, points=np.array([[x + 0.5, y + 0.5]]), labels=np.array([1]))
        return [Found(region, "") for region in cut if region.mask.any()][:1]

    def _box(self, box: UnitBox, scene: Scene, index: int, image: Frame, label: str) -> list[Found]:
        box_px = to_pixels(box, Size(image.shape[1], image.shape[0]))
        if self.backend == "classical":
            region = regions.in_box(image, box_px) or whole_box(image, box_px)
            return [Found(region, label)]
        cut = self._prompted(scene, index, image, box_px=box_px)
        return [Found(region, label) for region in cut if region.mask.any()][:1]

    def _observed(self, found: list[Found], grounded: Grounded, index: int, ignored: tuple[str, ...]) -> Observation:
        masks = [
            Mask.from_array(item.region.mask, frame=index, label=item.label, score=rounded(item.region.score))
            for item in found
        ]
        short = tuple(
            SegRegion(
                label=mask.label, box=mask.box_unit or (0.0, 0.0, 1.0, 1.0), area=rounded(mask.area), score=mask.score
            )
            for mask in masks
        )
        listed = "; ".join(
            f"{region.label or 'region'} {coordinates(region.box)} area {region.area:.2f} score {region.score:.2f}"
            for region in short
        )
        passed_over = f"; nothing here knows {', '.join(map(repr, ignored))}" if ignored else ""
        return Observation(
            text=(f"{len(short)} regions: {listed}" if len(short) > 1 else listed) + passed_over,
            output=SegOutput(regions=short, grounded_by=grounded, backend=self.backend, ignored=ignored),
            footprints=tuple(masks),
            confidence=float(np.mean([mask.score for mask in masks])),
        )


class Checkpoint(NamedTuple):
    """A `Sam2Model`: a folder, or what a hub calls it; and the hash of the folder, as far as it can be known here."""

    model: str
    sha256: str


def find_checkpoint(model: str) -> Checkpoint:
    """The folder of this name, or what `pixelis models pull` brought of this hub id; else the id itself."""
    if Path(model).is_dir():
        return Checkpoint(model, hash_of(Path(model)))
    for weight in CATALOGUE:
        if isinstance(weight.source, Hub) and weight.source.repository == model and available(weight.name):
            return Checkpoint(str(path_of(weight.name)), fingerprint(weight.name))
    return Checkpoint(model, "")


def on_grid(frame: Frame) -> Frame:
    """The frame on the grid that masks are kept on."""
    height, width = frame.shape[:2]
    shrink = GRID_SIDE / max(height, width)
    if shrink >= 1.0:
        return frame
    size = (max(round(width * shrink), 1), max(round(height * shrink), 1))
    way = cv2.INTER_AREA if shrink < 0.5 else cv2.INTER_LINEAR  # near its own size a frame needs no averaging
    return np.asarray(cv2.resize(frame, size, interpolation=way), dtype=np.uint8)


def whole_box(image: Frame, box_px: PixelBox) -> Region:
    """The box itself, for one too small to tell figure from ground."""
    mask = np.zeros(image.shape[:2], dtype=bool)
    left, top, right, bottom = box_px.whole(Size(image.shape[1], image.shape[0]))
    mask[top:bottom, left:right] = True
    return Region(mask, 0.3)


def colour_share(image: Frame, mask: np.ndarray, colours: tuple[str, ...]) -> float:
    """How far a thing has one of the colours, as a share of what is not black on it; 0 where none is asked for."""
    pixels = image[mask]
    if not colours or not len(pixels):
        return 0.0
    shares = dict(dominant(pixels))
    lit = 1.0 - shares.get("black", 0.0)  # tyres, windows and shadow are black on a thing of any colour
    main = max((share for name, share in shares.items() if name != "black"), default=0.0)
    found = [shares.get(colour, 0.0) / (1.0 if colour == "black" else max(lit, LEAST_LIT)) for colour in colours]
    leads = [colour == "black" or shares.get(colour, 0.0) >= BESIDE_MAIN * main for colour in colours]
    return max(share if leading else 0.0 for share, leading in zip(found, leads, strict=True))


def chosen(found: list[Found], phrase: Phrase) -> list[Found]:
    """All of them, or the one that the phrase picks out by place or size."""
    if phrase.choice is None or not found:
        return found

    def centre(item: Found) -> tuple[float, float]:
        ys, xs = np.nonzero(item.region.mask)
        return float(xs.mean()), float(ys.mean())

    height, width = found[0].region.mask.shape
    rank = {
        "leftmost": lambda item: centre(item)[0],
        "rightmost": lambda item: -centre(item)[0],
        "topmost": lambda item: centre(item)[1],
        "bottommost": lambda item: -centre(item)[1],
        "largest": lambda item: -float(item.region.mask.sum()),
        "smallest": lambda item: float(item.region.mask.sum()),
        "central": lambda item: float(np.hypot(centre(item)[0] - width / 2, centre(item)[1] - height / 2)),
    }[phrase.choice]
    return [min(found, key=rank)]


def nothing_found(target: str | tuple[float, ...]) -> str:
    if isinstance(target, str):
        return f"SEG found nothing that fits {target!r}"
    return f"SEG found no region at ({', '.join(f'{v:.2f}' for v in target)})"
