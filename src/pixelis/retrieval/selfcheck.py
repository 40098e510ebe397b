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

from pixelis.media import Clip, Frame, Image
from pixelis.retrieval.audit import leaks
from pixelis.retrieval.calibrate import Calibration, calibrate
from pixelis.retrieval.collection import Item, Progress, collect, silent
from pixelis.retrieval.confirm import DedupConfig
from pixelis.retrieval.dedup import first_duplicate
from pixelis.retrieval.features import FeatureCache, ImageEncoder
from pixelis.retrieval.planted import CLIP_VARIANTS, LOOKALIKES, VARIANTS, bundled_pictures, flipped, rewritten, stored


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
    calibration: Calibration

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "calibration": self.calibration._asdict()}


class Planted(NamedTuple):
    """A training item of the check, and the original it repeats, if any."""

    item: Item
    original: str | None
    variant: str


def self_check(
    encoder: ImageEncoder,
    *,
    workspace: Path,
    more: Sequence[Item] = (),
    others: Sequence[Item] = (),
    built_in: bool = True,
    templates: int = 4,
    per_template: int = 4,
    config: DedupConfig | None = None,
    cache: FeatureCache | None = None,
    progress: Progress = silent,
) -> SelfCheck:
    """Plants every change of every original and counts.

    `more` are originals of one's own and `others` unrelated media of one's own, no two of them duplicates.
    Without `built_in` only these are used: the thresholds were chosen beside the built-in ones.
    """
    config = config or DedupConfig()
    measured = calibrate(encoder)
    threshold = measured.threshold if config.cosine is None else config.cosine
    seeds = range(per_template)
    made = [*pictures(range(templates), seeds), *clips(range(3)), *bundled(even=True)] if built_in else []
    like = [*pictures(range(templates), range(100, 100 + per_template)), *clips(range(100, 103))] if built_in else []
    unrelated = [*(bundled(even=False) if built_in else []), *others]
    originals = [*made, *more]
    train = [
        *(Planted(item, None, "look-alike") for item in like),
        *(Planted(item, None, "unrelated") for item in unrelated),
        *planted(originals, workspace, progress),
    ]
    right = collect(originals, encoder, cache=cache, progress=progress, doing="reading originals")
    left = collect([p.item for p in train], encoder, cache=cache, progress=progress, doing="reading copies")
    findings, _ = leaks(left, right, config, threshold, progress)
    found = {left.items[n].name: right.items[f.right].name for n, f in first_duplicate(findings).items()}
    mirrored = {left.items[f.left].name for f in findings if f.kind == "flip"}
    return counted(train, found, mirrored, measured)


def counted(train: Sequence[Planted], found: dict[str, str], mirrored: set[str], calibration: Calibration) -> SelfCheck:
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    missed, wrongly = [], []
    for item, original, variant in train:
        name, partner = item.name, found.get(item.name)
        if variant == "flip":
            continue
        right = partner == original
        tally[variant][0] += right
        tally[variant][1] += 1
        if partner is not None and not right:
            wrongly.append(f"{name} taken for {partner}")
        if original is not None and not right:
            missed.append(name)
    copies = sum(p.original is not None and p.variant != "flip" for p in train)
    hits = copies - len(missed)
    flips = [p.item.name for p in train if p.variant == "flip"]
    return SelfCheck(
        planted=copies,
        found=hits,
        unrelated=sum(p.original is None for p in train),
        wrong=len(wrongly),
        recall=hits / copies if copies else 0.0,
        precision=hits / (hits + len(wrongly)) if hits + len(wrongly) else 0.0,
        by_variant={variant: (right, of) for variant, (right, of) in tally.items()},
        missed=missed,
        wrongly=wrongly,
        flips=(sum(name in mirrored for name in flips), len(flips)),
        calibration=calibration,
    )


def planted(originals: Sequence[Item], workspace: Path, progress: Progress) -> Iterator[Planted]:
    """Every change of each original."""
    for number, item in enumerate(originals, 1):
        medium = item.open()
        if medium.kind == "image":
            for variant, change in {**VARIANTS, "flip": flipped}.items():
                path = stored(change(medium.frame(0)), workspace / f"{medium.sha256[:16]}-{variant}.png")
                yield Planted(Item(f"{item.name}#{variant}", path), item.name, variant)
        else:
            for variant, settings in CLIP_VARIANTS.items():
                path = workspace / f"{medium.sha256[:16]}-{variant}.mp4"
                rewritten(medium, path, **settings)
                yield Planted(Item(f"{item.name}#{variant}", path), item.name, variant)
        progress("planting", number, len(originals))


def bundled(*, even: bool) -> list[Item]:
    """Half of scikit-image's pictures are originals, the other half is unrelated."""
    chosen = list(bundled_pictures().items())[0 if even else 1 :: 2]
    return [Item(name, medium=Image.from_array(np.array(frame))) for name, frame in chosen]


def pictures(templates: range, seeds: range) -> list[Item]:
    """Slides, tables and charts."""
    return [
        Item(f"{kind}-{template}-{seed}", medium=Image.from_array(make(seed, template=template)))
        for kind, make in LOOKALIKES.items()
        for template in templates
        for seed in seeds
    ]


def clips(seeds: range) -> list[Item]:
    """A camera that pans over a picture, and discs that cross a background that stands still."""
    source = list(bundled_pictures().values())
    made = []
    for seed in seeds:
        made.append(Item(f"pan-{seed}", medium=Clip.from_frames(pan(source[seed % len(source)], seed), fps=12)))
        made.append(Item(f"discs-{seed}", medium=Clip.from_frames(discs(seed), fps=12)))
    return made


def pan(picture: Frame, seed: int, *, frames: int = 60) -> list[Frame]:
    """A window of 240 x 160 on its way over the picture."""
    rng = np.random.default_rng([7, seed])
    height, width = picture.shape[:2]
    scale = max(1.0, 340 / width, 260 / height)
    large = cv2.resize(picture, None, fx=scale, fy=scale) if scale > 1 else picture
    room = np.array([large.shape[1] - 240, large.shape[0] - 160])
    begin, end = rng.random(2) * room, rng.random(2) * room
    places = [(begin + (end - begin) * k / (frames - 1)).astype(int) for k in range(frames)]
    return [np.ascontiguousarray(large[y : y + 160, x : x + 240]) for x, y in places]


def discs(seed: int, *, frames: int = 60) -> list[Frame]:
    """Five coloured discs cross a background that all these clips share."""
    rng = np.random.default_rng([8, seed])
    clouds = np.random.default_rng(9).integers(0, 256, (10, 15, 3), dtype=np.uint8)
    ground = cv2.resize(clouds, (240, 160), interpolation=cv2.INTER_CUBIC)
    starts, ways = rng.uniform(30, 130, (5, 2)), rng.uniform(-1.2, 1.2, (5, 2))
    colours = rng.integers(0, 256, (5, 3)).tolist()
    made = []
    for number in range(frames):
        frame = ground.copy()
        for start, way, colour in zip(starts, ways, colours, strict=True):
            x, y = start + way * number
            cv2.circle(frame, (int(x), int(y)), 18, colour, -1)
        made.append(frame)
    return made
