"""Train against evaluation: candidates, removed, what is left over with its exact interval, and canaries
(supp:index_whitelist_dedup, audit procedure; tab:dedup_audit).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError
from pixelis.dedup.calibrate import get_threshold
from pixelis.dedup.candidates import UNFLAGGED_DISTANCE, Candidate, embedding_rows, find_candidates
from pixelis.dedup.deduplicate import Removal, count_outcomes, duplicates_by_left, to_jsonable, verify_candidates
from pixelis.dedup.media_collection import (
    MediaCollection,
    MediaItem,
    ProgressCallback,
    UnreadableFile,
    collect,
    no_progress,
)
from pixelis.dedup.media_features import FeatureCache, ImageEncoder
from pixelis.dedup.pixel_verify import DedupConfig, PairFinding, PixelVerifier
from pixelis.dedup.synthetic_duplicates import CLIP_VARIANTS, VARIANTS, reencode_clip, save_png
from pixelis.metrics.statistics import clopper_pearson


class Residual(NamedTuple):
    """Near-duplicates that an inspector still finds among what was kept."""

    inspected: int
    found: int
    rate: float
    low: float
    """Clopper-Pearson, 95 %."""
    high: float
    names: list[str] = []  # noqa: RUF012 - never changed
    """What was found."""


class Canaries(NamedTuple):
    """Known duplicates of evaluation media, planted among the training media, and how many the audit found."""

    planted: int
    found: int
    recall: float
    by_variant: dict[str, tuple[int, int]]
    """Found and planted of each change."""
    missed: list[str]


@dataclass
class AuditReport:
    """What `pixelis data audit` writes."""

    train: dict[str, int] = field(default_factory=dict)
    evaluation: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, int] = field(default_factory=dict)
    candidate_items: dict[str, int] = field(default_factory=dict)
    """Training images and clips that some stage flagged."""
    exact: int = 0
    removed: list[Removal] = field(default_factory=list)
    flips: list[Removal] = field(default_factory=list)
    unconfirmed: list[Removal] = field(default_factory=list)
    residual: Residual | None = None
    canaries: Canaries | None = None
    unread: list[UnreadableFile] = field(default_factory=list)
    passed_over: list[UnreadableFile] = field(default_factory=list)
    threshold: float = 0.0
    encoder: str = ""

    @property
    def is_clean(self) -> bool:
        """Nothing of evaluation is in train, everything was read, and no canary died unseen."""
        canaries_found = self.canaries is None or self.canaries.planted == 0 or self.canaries.recall >= 0.98
        no_residual = self.residual is None or self.residual.found == 0
        return canaries_found and no_residual and not (self.removed or self.unread or self.unconfirmed)

    def as_dict(self) -> dict[str, Any]:
        return {name: to_jsonable(value) for name, value in vars(self).items()} | {"ok": self.is_clean}


def audit_leakage(
    train: Sequence[MediaItem],
    evaluation: Sequence[MediaItem],
    encoder: ImageEncoder,
    *,
    rng: np.random.Generator,
    config: DedupConfig | None = None,
    cache: FeatureCache | None = None,
    inspect: int = 1000,
    canaries: int = 10,
    workspace: Path,
    progress: ProgressCallback = no_progress,
) -> AuditReport:
    """Which training media are evaluation media, plainly or changed. `workspace` receives the planted clips."""
    config = config or DedupConfig()
    threshold = get_threshold(encoder) if config.cosine is None else config.cosine
    right = collect(evaluation, encoder, cache=cache, progress=progress, description="reading evaluation media")
    left = collect(train, encoder, cache=cache, progress=progress, description="reading training media")
    for side, split in ((right, "evaluation"), (left, "training")):
        if not len(side):
            reason = f": {side.unreadable[0].name}: {side.unreadable[0].reason}" if side.unreadable else ""
            raise ConfigError(f"no {split} medium can be read, so that nothing was compared{reason}")
    findings, counts = find_leaks(left, right, config, threshold, progress)
    duplicates = duplicates_by_left(findings)
    mirrors = {f.left: f for f in findings if f.kind == "flip" and f.left not in duplicates}
    removed = {**duplicates, **(mirrors if config.flips == "remove" else {})}
    kept_indices = [number for number in range(len(left)) if number not in removed]
    return AuditReport(
        train=count_kinds(left, range(len(left))),
        evaluation=count_kinds(right, range(len(right))),
        candidates=counts,
        candidate_items=count_kinds(left, {finding.left for finding in findings}),
        exact=sum(finding.kind == "exact" for finding in removed.values()),
        removed=[Removal.from_finding(removed[number], left, right) for number in sorted(removed)],
        flips=[Removal.from_finding(mirrors[number], left, right) for number in sorted(mirrors)],
        unconfirmed=[
            Removal.from_finding(finding, left, right) for finding in findings if finding.kind == "unconfirmed"
        ],
        residual=estimate_residual(left, right, kept_indices, config, threshold, rng, inspect, progress),
        canaries=check_canaries(right, encoder, config, threshold, rng, canaries, workspace, progress),
        unread=[*left.unreadable, *right.unreadable],
        passed_over=[*left.skipped, *right.skipped],
        threshold=threshold,
        encoder=encoder.fingerprint,
    )


def count_kinds(side: MediaCollection, numbers: Any) -> dict[str, int]:
    count = Counter(side.features[number].kind for number in numbers)
    return {"images": count["image"], "clips": count["clip"]}


def find_leaks(
    left: MediaCollection, right: MediaCollection, config: DedupConfig, threshold: float, progress: ProgressCallback
) -> tuple[list[PairFinding], dict[str, int]]:
    """Findings for every training item that some stage flagged."""
    index_by_sha256 = {features.sha256: number for number, features in reversed(list(enumerate(right.features)))}
    exact = [
        PairFinding(number, index_by_sha256[f.sha256], "exact", 0, 1.0, 1.0, 1.0, reason="the same bytes")
        for number, f in enumerate(left.features)
        if f.sha256 in index_by_sha256
    ]
    exact_items = {finding.left for finding in exact}
    candidates = find_candidates(
        left.features,
        right.features,
        threshold=threshold,
        radius=config.hamming,
        flips=config.flips != "ignore",
        per_item=config.per_item,
    )
    candidates.pairs[:] = [pair for pair in candidates.pairs if pair.left not in exact_items]
    findings = [*exact, *verify_candidates(candidates, PixelVerifier(left, right, config, threshold), progress)]
    return findings, {"exact": len(exact), **count_outcomes(candidates, findings)}


def estimate_residual(
    left: MediaCollection,
    right: MediaCollection,
    kept_indices: Sequence[int],
    config: DedupConfig,
    threshold: float,
    rng: np.random.Generator,
    max_inspected: int,
    progress: ProgressCallback,
) -> Residual:
    """Kept items drawn without replacement, each inspected beside the evaluation media that are nearest to it.

    Two media drawn blindly are never duplicates; the nearest by embedding and by hash are what an inspector would pick.
    """
    sample = (
        rng.choice(kept_indices, size=min(max_inspected, len(kept_indices)), replace=False).tolist()
        if kept_indices and len(right)
        else []
    )
    inspector = PixelVerifier(left, right, config, threshold, thorough=True)
    rows, owner = embedding_rows(right.features)
    embedding_table = rows.astype(np.float32) if sample else rows
    hashes = np.array([features.phash for features in right.features], np.uint64)
    names = []
    for number, item in enumerate(sample, 1):
        cosines = embedding_table @ left.features[item].embeddings.astype(np.float32).T  # (rows, keyframes)
        best = int(cosines.max(axis=1).argmax())
        by_hash = int(np.bitwise_count(hashes ^ np.uint64(left.features[item].phash)).argmin())
        nearest = dict.fromkeys([int(owner[best]), by_hash])
        if any(
            inspector(Candidate(item, other, UNFLAGGED_DISTANCE, UNFLAGGED_DISTANCE, 0.0)).is_duplicate
            for other in nearest
        ):
            names.append(left.items[item].name)
        progress("inspecting what is left", number, len(sample))
    bounds = clopper_pearson(len(names), len(sample))
    rate = len(names) / len(sample) if sample else 0.0
    return Residual(len(sample), len(names), rate, bounds.low, bounds.high, sorted(names))


def check_canaries(
    right: MediaCollection,
    encoder: ImageEncoder,
    config: DedupConfig,
    threshold: float,
    rng: np.random.Generator,
    max_originals: int,
    workspace: Path,
    progress: ProgressCallback,
) -> Canaries:
    """Every change of up to `most` evaluation images and a few clips, audited as if it were training media."""
    canary_copies = canary_items(right, rng, max_originals, workspace)
    collection = collect(
        [item for _, _, item in canary_copies], encoder, progress=progress, description="planting canaries"
    )
    findings, _ = find_leaks(collection, right, config, threshold, progress)
    duplicates = duplicates_by_left(findings)
    names = {item.name: number for number, item in enumerate(collection.items)}
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    missed = []
    for variant, _, item in canary_copies:
        is_found = names.get(item.name) in duplicates
        tally[variant][0] += is_found
        tally[variant][1] += 1
        missed += [] if is_found else [item.name]
    total = len(canary_copies)
    recall = (total - len(missed)) / total if total else 0.0
    by_variant = {variant: (num_found, num_planted) for variant, (num_found, num_planted) in tally.items()}
    return Canaries(planted=total, found=total - len(missed), recall=recall, by_variant=by_variant, missed=missed)


def canary_items(
    right: MediaCollection, rng: np.random.Generator, max_originals: int, workspace: Path
) -> list[tuple[str, int, MediaItem]]:
    """(variant, number of the original, the changed copy)."""
    canary_copies: list[tuple[str, int, MediaItem]] = []
    for number in sample_indices(right, "image", rng, max_originals):
        frame = right.items[number].open().frame(0)
        for variant, transform in VARIANTS.items():
            path = save_png(transform(frame), workspace / f"canary-{number}-{variant}.png")
            canary_copies.append((variant, number, MediaItem(f"{right.items[number].name}#{variant}", path)))
    for number in sample_indices(right, "clip", rng, min(max_originals, max(1, max_originals // 4))):
        clip = right.items[number].open()
        for variant, settings in CLIP_VARIANTS.items():
            path = workspace / f"canary-{number}-{variant}.mp4"
            reencode_clip(clip, path, **settings)
            canary_copies.append((variant, number, MediaItem(f"{right.items[number].name}#{variant}", path)))
    return canary_copies


def sample_indices(side: MediaCollection, kind: str, rng: np.random.Generator, max_count: int) -> list[int]:
    numbers = [number for number, features in enumerate(side.features) if features.kind == kind]
    return sorted(rng.choice(numbers, size=min(max_count, len(numbers)), replace=False).tolist()) if numbers else []
