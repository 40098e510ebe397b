"""A self-check of the audit: recall and precision on synthetic duplicates among look-alikes and unrelated media.

The unrelated part is hard by design: slides, tables and charts of the same templates with other content, textures,
clips with the same background and other objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from pixelis.dedup.calibrate import ThresholdCalibration, calibrate
from pixelis.dedup.deduplicate import duplicates_by_left
from pixelis.dedup.leakage_audit import count_by_variant, find_leaks
from pixelis.dedup.media_collection import MediaItem, ProgressCallback, collect, no_progress
from pixelis.dedup.media_features import FeatureCache, ImageEncoder
from pixelis.dedup.pixel_verify import DedupConfig
from pixelis.dedup.synthetic_duplicates import LOOKALIKES, VARIANTS, bundled_images, flip_horizontal, write_variants
from pixelis.media import Clip, Frame, Image


class SelfCheck(NamedTuple):
    """Recall and precision on the planted copies."""

    planted: int
    found: int
    """Planted copies that were matched to their original."""
    unrelated: int
    wrong: int
    """Unrelated media that were matched, and copies that were matched to another original."""
    recall: float
    precision: float
    by_variant: dict[str, tuple[int, int]]
    missed: list[str]
    wrongly: list[str]
    flips: tuple[int, int]
    """Mirror images that were reported, and planted; not counted above."""
    calibration: ThresholdCalibration

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "calibration": self.calibration._asdict()}


class PlantedItem(NamedTuple):
    """A training item of the check, and the original that it copies, if any."""

    item: MediaItem
    original: str | None
    variant: str


def self_check(
    encoder: ImageEncoder,
    *,
    workspace: Path,
    extra_originals: Sequence[MediaItem] = (),
    extra_unrelated: Sequence[MediaItem] = (),
    built_in: bool = True,
    templates: int = 4,
    per_template: int = 4,
    config: DedupConfig | None = None,
    cache: FeatureCache | None = None,
    progress: ProgressCallback = no_progress,
) -> SelfCheck:
    """Plant every variant of every original among unrelated media, audit them, and count.

    No two of `extra_originals` and `extra_unrelated` may be duplicates. Without `built_in` only these are used, because
    the thresholds were chosen on the built-in media.
    """
    config = config or DedupConfig()
    calibration = calibrate(encoder)
    threshold = calibration.threshold if config.cosine is None else config.cosine
    originals, lookalikes, unrelated = list(extra_originals), list[MediaItem](), list(extra_unrelated)
    if built_in:
        numbers, other_seeds = range(templates), range(100, 100 + per_template)
        rendered = [*lookalike_items(numbers, range(per_template)), *synthetic_clips(range(3))]
        originals = [*rendered, *bundled_items(even=True), *originals]
        lookalikes = [*lookalike_items(numbers, other_seeds), *synthetic_clips(range(100, 103))]
        unrelated = [*bundled_items(even=False), *unrelated]
    train = [
        *(PlantedItem(item, None, "look-alike") for item in lookalikes),
        *(PlantedItem(item, None, "unrelated") for item in unrelated),
        *plant_copies(originals, workspace, progress),
    ]
    right = collect(originals, encoder, cache=cache, progress=progress, description="reading originals")
    left = collect([p.item for p in train], encoder, cache=cache, progress=progress, description="reading copies")
    findings, _ = find_leaks(left, right, config, threshold, progress)
    matches = {left.items[n].name: right.items[f.right].name for n, f in duplicates_by_left(findings).items()}
    mirror_names = {left.items[f.left].name for f in findings if f.kind == "flip"}
    return tally_results(train, matches, mirror_names, calibration)


def tally_results(
    train: Sequence[PlantedItem], matches: dict[str, str], mirror_names: set[str], calibration: ThresholdCalibration
) -> SelfCheck:
    flips = [p.item.name for p in train if p.variant == "flip"]
    counted = [(p, matches.get(p.item.name)) for p in train if p.variant != "flip"]
    errors = [(p, match) for p, match in counted if match != p.original]
    missed = [p.item.name for p, _ in errors if p.original is not None]
    wrong_matches = [f"{p.item.name} taken for {match}" for p, match in errors if match is not None]
    copies = sum(p.original is not None for p, _ in counted)
    hits = copies - len(missed)
    return SelfCheck(
        planted=copies,
        found=hits,
        unrelated=sum(p.original is None for p in train),
        wrong=len(wrong_matches),
        recall=hits / copies if copies else 0.0,
        precision=hits / (hits + len(wrong_matches)) if hits + len(wrong_matches) else 0.0,
        by_variant=count_by_variant((p.variant, match == p.original) for p, match in counted),
        missed=missed,
        wrongly=wrong_matches,
        flips=(sum(name in mirror_names for name in flips), len(flips)),
        calibration=calibration,
    )


def plant_copies(originals: Sequence[MediaItem], workspace: Path, progress: ProgressCallback) -> Iterator[PlantedItem]:
    """Every variant of each original, and its mirror image."""
    for number, item in enumerate(originals, 1):
        medium = item.open()
        variants = write_variants(medium, workspace / medium.sha256[:16], {**VARIANTS, "flip": flip_horizontal})
        for variant, path in variants:
            yield PlantedItem(MediaItem(f"{item.name}#{variant}", path), item.name, variant)
        progress("planting copies", number, len(originals))


def bundled_items(*, even: bool) -> list[MediaItem]:
    """Half of scikit-image's pictures: the even ones serve as originals, the others as unrelated media."""
    selected = list(bundled_images().items())[0 if even else 1 :: 2]
    return [MediaItem(name, medium=Image.from_array(np.array(frame))) for name, frame in selected]


def lookalike_items(templates: range, seeds: range) -> list[MediaItem]:
    """Slides, tables and charts."""
    return [
        MediaItem(f"{kind}-{template}-{seed}", medium=Image.from_array(render(seed, template=template)))
        for kind, render in LOOKALIKES.items()
        for template in templates
        for seed in seeds
    ]


def synthetic_clips(seeds: range) -> list[MediaItem]:
    """Clips of a camera that pans over a picture, and of discs that cross a static background."""
    source = list(bundled_images().values())
    clips: dict[str, list[Frame]] = {}
    for seed in seeds:
        clips[f"pan-{seed}"] = render_pan(source[seed % len(source)], seed)
        clips[f"discs-{seed}"] = render_discs(seed)
    return [MediaItem(name, medium=Clip.from_frames(frames, fps=12)) for name, frames in clips.items()]


def render_pan(picture: Frame, seed: int, *, frames: int = 60) -> list[Frame]:
    """A window of 240 x 160 that moves over the picture."""
    rng = np.random.default_rng([7, seed])
    height, width = picture.shape[:2]
    scale = max(1.0, 340 / width, 260 / height)
    large = cv2.resize(picture, None, fx=scale, fy=scale) if scale > 1 else picture
    max_offset = np.array([large.shape[1] - 240, large.shape[0] - 160])
    start, end = rng.random(2) * max_offset, rng.random(2) * max_offset
    corners = [(start + (end - start) * k / (frames - 1)).astype(int) for k in range(frames)]
    return [np.ascontiguousarray(large[y : y + 160, x : x + 240]) for x, y in corners]


def render_discs(seed: int, *, frames: int = 60) -> list[Frame]:
    """Five coloured discs cross a background that all these clips share."""
    rng = np.random.default_rng([8, seed])
    noise = np.random.default_rng(9).integers(0, 256, (10, 15, 3), dtype=np.uint8)
    background = cv2.resize(noise, (240, 160), interpolation=cv2.INTER_CUBIC)
    starts, velocities = rng.uniform(30, 130, (5, 2)), rng.uniform(-1.2, 1.2, (5, 2))
    colours = rng.integers(0, 256, (5, 3)).tolist()
    rendered = []
    for number in range(frames):
        frame = background.copy()
        for start, velocity, colour in zip(starts, velocities, colours, strict=True):
            x, y = start + velocity * number
            cv2.circle(frame, (int(x), int(y)), 18, colour, -1)
        rendered.append(frame)
    return rendered
