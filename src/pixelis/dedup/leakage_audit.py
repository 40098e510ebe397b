"""Audit training media against evaluation media: candidates, removals, residual rate with its exact interval, canaries
(supp:index_whitelist_dedup, audit procedure; tab:dedup_audit).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError
from pixelis.dedup.calibrate import get_threshold
from pixelis.dedup.candidates import UNFLAGGED_DISTANCE, Candidate, embedding_rows, indices_of_kind
from pixelis.dedup.deduplicate import DuplicateReport, Removal, count_outcomes, duplicates_by_left, verify_candidates
from pixelis.dedup.media_collection import MediaCollection, MediaItem, ProgressCallback, collect, no_progress
from pixelis.dedup.media_features import FeatureCache, ImageEncoder
from pixelis.dedup.pixel_verify import DedupConfig, PairFinding, PixelVerifier, flagged_pairs
from pixelis.dedup.synthetic_duplicates import write_variants
from pixelis.metrics.statistics import clopper_pearson


class Residual(NamedTuple):
    """Near-duplicates that an inspection still finds among the kept media."""

    inspected: int
    found: int
    rate: float
    low: float
    """Clopper-Pearson, 95 %."""
    high: float
    names: list[str] = []  # noqa: RUF012 - never changed
    """The near-duplicates."""


class Canaries(NamedTuple):
    """Synthetic duplicates of evaluation media, audited as if they were training media, and how many were found."""

    planted: int
    found: int
    recall: float
    by_variant: dict[str, tuple[int, int]]
    """Found and planted copies of each variant."""
    missed: list[str]


@dataclass
class AuditReport(DuplicateReport):
    """What `pixelis data audit` writes."""

    train: dict[str, int] = field(default_factory=dict)
    evaluation: dict[str, int] = field(default_factory=dict)
    candidate_items: dict[str, int] = field(default_factory=dict)
    """Training images and clips that a stage flagged."""
    exact: int = 0
    residual: Residual | None = None
    canaries: Canaries | None = None

    @property
    def is_clean(self) -> bool:
        """Whether no evaluation media are in train, every medium was read, and at least 98 % of canaries were found."""
        canaries_found = self.canaries is None or self.canaries.planted == 0 or self.canaries.recall >= 0.98
        no_residual = self.residual is None or self.residual.found == 0
        return canaries_found and no_residual and not self.removed and super().is_clean


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
    """Find training media that are evaluation media or changed copies. `workspace` receives the canaries' files."""
    config = config or DedupConfig()
    threshold = get_threshold(encoder) if config.cosine is None else config.cosine
    right = collect(evaluation, encoder, cache=cache, progress=progress, description="reading evaluation media")
    left = collect(train, encoder, cache=cache, progress=progress, description="reading training media")
    for side, split in ((right, "evaluation"), (left, "training")):
        if not len(side):
            reason = f": {side.unreadable[0].name}: {side.unreadable[0].reason}" if side.unreadable else ""
            raise ConfigError(f"no {split} medium can be read; nothing was compared{reason}")
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
        unconfirmed=[Removal.from_finding(f, left, right) for f in findings if f.kind == "unconfirmed"],
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
    """Findings for every training item that a stage flagged, and their counts."""
    index_by_sha256 = {features.sha256: number for number, features in reversed(list(enumerate(right.features)))}
    exact = [
        PairFinding.exact(number, index_by_sha256[f.sha256])
        for number, f in enumerate(left.features)
        if f.sha256 in index_by_sha256
    ]
    exact_items = {finding.left for finding in exact}
    candidates = flagged_pairs(left.features, right.features, config, threshold)
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
    """Sample kept items without replacement and compare each with the evaluation media nearest to it.

    Random pairs are never duplicates; an inspector would pick the nearest by embedding and by hash.
    """
    sample = rng.choice(kept_indices, size=min(max_inspected, len(kept_indices)), replace=False).tolist()
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
        pairs = [Candidate(item, other, UNFLAGGED_DISTANCE, UNFLAGGED_DISTANCE, 0.0) for other in nearest]
        if any(inspector(pair).is_duplicate for pair in pairs):
            names.append(left.items[item].name)
        progress("inspecting kept media", number, len(sample))
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
    """Audit every variant of up to `max_originals` evaluation images and a few clips as training media."""
    copies = canary_items(right, rng, max_originals, workspace)
    collection = collect([item for _, item in copies], encoder, progress=progress, description="reading canaries")
    findings, _ = find_leaks(collection, right, config, threshold, progress)
    found = {collection.items[number].name for number in duplicates_by_left(findings)}
    by_variant = count_by_variant((variant, item.name in found) for variant, item in copies)
    missed = [item.name for _, item in copies if item.name not in found]
    total = len(copies)
    recall = (total - len(missed)) / total if total else 0.0
    return Canaries(planted=total, found=total - len(missed), recall=recall, by_variant=by_variant, missed=missed)


def count_by_variant(outcomes: Iterable[tuple[str, bool]]) -> dict[str, tuple[int, int]]:
    """How many copies of each variant are right, and how many there are, from (variant, is right)."""
    counts: dict[str, tuple[int, int]] = {}
    for variant, is_right in outcomes:
        right, total = counts.get(variant, (0, 0))
        counts[variant] = right + is_right, total + 1
    return counts


def canary_items(
    right: MediaCollection, rng: np.random.Generator, max_originals: int, workspace: Path
) -> list[tuple[str, MediaItem]]:
    """Changed copies of a sample of the evaluation media, each with its variant."""
    images = sample_indices(right, "image", rng, max_originals)
    clips = sample_indices(right, "clip", rng, min(max_originals, max(1, max_originals // 4)))
    return [
        (variant, MediaItem(f"{right.items[number].name}#{variant}", path))
        for number in (*images, *clips)
        for variant, path in write_variants(right.items[number].open(), workspace / f"canary-{number}")
    ]


def sample_indices(side: MediaCollection, kind: str, rng: np.random.Generator, max_count: int) -> list[int]:
    numbers = indices_of_kind(side.features, kind)
    return sorted(rng.choice(numbers, size=min(max_count, len(numbers)), replace=False).tolist())
