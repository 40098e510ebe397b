"""The audit on itself: duplicates planted among look-alikes and unrelated media, recall and precision measured.

The unrelated part is meant to be hard: slides, tables and charts of the same templates with other content, textures,
clips over one background with another object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from pixelis.dedup.calibrate import ThresholdCalibration, calibrate
from pixelis.dedup.deduplicate import duplicates_by_left
from pixelis.dedup.leakage_audit import find_leaks
from pixelis.dedup.media_collection import MediaItem, ProgressCallback, collect, no_progress
from pixelis.dedup.media_features import FeatureCache, ImageEncoder
from pixelis.dedup.pixel_verify import DedupConfig
from pixelis.dedup.synthetic_duplicates import (
    CLIP_VARIANTS,
    LOOKALIKES,
    VARIANTS,
    bundled_images,
    flip_horizontal,
    reencode_clip,
    save_png,
)
from pixelis.media import Clip, Frame, Image


class SelfCheck(NamedTuple):
    """Recall of what was planted, and precision of what was found."""

    planted: int
    found: int
    """Planted copies that were traced to their original."""
    unrelated: int
    wrong: int
    """Unrelated media that were called copies, and copies that were traced to another original."""
    recall: float
    precision: float
    by_variant: dict[str, tuple[int, int]]
    missed: list[str]
    wrongly: list[str]
    flips: tuple[int, int]
    """Mirror images reported, and planted; they are not counted above."""
    calibration: ThresholdCalibration

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "calibration": self.calibration._asdict()}


class PlantedItem(NamedTuple):
    """A training item of the check, and the original it repeats, if any."""

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
    """Plants every change of every original and counts.

    `more` are originals of one's own and `others` unrelated media of one's own, no two of them duplicates.
    Without `built_in` only these are used: the thresholds were chosen beside the built-in ones.
    """
    config = config or DedupConfig()
    calibration = calibrate(encoder)
    threshold = calibration.threshold if config.cosine is None else config.cosine
    seeds = range(per_template)
    built_in_originals = (
        [*lookalike_items(range(templates), seeds), *synthetic_clips(range(3)), *bundled_items(even=True)]
        if built_in
        else []
    )
    lookalikes = (
        [*lookalike_items(range(templates), range(100, 100 + per_template)), *synthetic_clips(range(100, 103))]
        if built_in
        else []
    )
    unrelated = [*(bundled_items(even=False) if built_in else []), *extra_unrelated]
    originals = [*built_in_originals, *extra_originals]
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
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    missed, wrong_matches = [], []
    for item, original, variant in train:
        name, partner = item.name, matches.get(item.name)
        if variant == "flip":
            continue
        is_right = partner == original
        tally[variant][0] += is_right
        tally[variant][1] += 1
        if partner is not None and not is_right:
            wrong_matches.append(f"{name} taken for {partner}")
        if original is not None and not is_right:
            missed.append(name)
    copies = sum(p.original is not None and p.variant != "flip" for p in train)
    hits = copies - len(missed)
    flips = [p.item.name for p in train if p.variant == "flip"]
    return SelfCheck(
        planted=copies,
        found=hits,
        unrelated=sum(p.original is None for p in train),
        wrong=len(wrong_matches),
        recall=hits / copies if copies else 0.0,
        precision=hits / (hits + len(wrong_matches)) if hits + len(wrong_matches) else 0.0,
        by_variant={variant: (is_right, total) for variant, (is_right, total) in tally.items()},
        missed=missed,
        wrongly=wrong_matches,
        flips=(sum(name in mirror_names for name in flips), len(flips)),
        calibration=calibration,
    )


def plant_copies(originals: Sequence[MediaItem], workspace: Path, progress: ProgressCallback) -> Iterator[PlantedItem]:
    """Every change of each original."""
    for number, item in enumerate(originals, 1):
        medium = item.open()
        if medium.kind == "image":
            for variant, transform in {**VARIANTS, "flip": flip_horizontal}.items():
                path = save_png(transform(medium.frame(0)), workspace / f"{medium.sha256[:16]}-{variant}.png")
                yield PlantedItem(MediaItem(f"{item.name}#{variant}", path), item.name, variant)
        else:
            for variant, settings in CLIP_VARIANTS.items():
                path = workspace / f"{medium.sha256[:16]}-{variant}.mp4"
                reencode_clip(medium, path, **settings)
                yield PlantedItem(MediaItem(f"{item.name}#{variant}", path), item.name, variant)
        progress("planting", number, len(originals))


def bundled_items(*, even: bool) -> list[MediaItem]:
    """Half of scikit-image's pictures are originals, the other half is unrelated."""
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
    """A camera that pans over a picture, and discs that cross a background that stands still."""
    source = list(bundled_images().values())
    items = []
    for seed in seeds:
        items.append(
            MediaItem(f"pan-{seed}", medium=Clip.from_frames(render_pan(source[seed % len(source)], seed), fps=12))
        )
        items.append(MediaItem(f"discs-{seed}", medium=Clip.from_frames(render_discs(seed), fps=12)))
    return items


def render_pan(picture: Frame, seed: int, *, frames: int = 60) -> list[Frame]:
    """A window of 240 x 160 on its way over the picture."""
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
