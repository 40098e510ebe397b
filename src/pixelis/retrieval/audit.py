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

from pixelis.errors import ConfigError
from pixelis.metrics.statistics import clopper_pearson
from pixelis.retrieval.calibrate import threshold_of
from pixelis.retrieval.candidates import FAR, Candidate, embedding_rows, find_candidates
from pixelis.retrieval.collection import Collection, Item, Progress, Unread, collect, silent
from pixelis.retrieval.confirm import Confirmer, DedupConfig, Finding
from pixelis.retrieval.dedup import Removal, confirmed, counted, first_duplicate, plain
from pixelis.retrieval.features import FeatureCache, ImageEncoder
from pixelis.retrieval.planted import CLIP_VARIANTS, VARIANTS, rewritten, stored


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
    unread: list[Unread] = field(default_factory=list)
    passed_over: list[Unread] = field(default_factory=list)
    threshold: float = 0.0
    encoder: str = ""

    @property
    def clean(self) -> bool:
        """Nothing of evaluation is in train, everything was read, and no canary died unseen."""
        heard = self.canaries is None or self.canaries.planted == 0 or self.canaries.recall >= 0.98
        silence = self.residual is None or self.residual.found == 0
        return heard and silence and not (self.removed or self.unread or self.unconfirmed)

    def as_dict(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in vars(self).items()} | {"ok": self.clean}


def audit(
    train: Sequence[Item],
    evaluation: Sequence[Item],
    encoder: ImageEncoder,
    *,
    rng: np.random.Generator,
    config: DedupConfig | None = None,
    cache: FeatureCache | None = None,
    inspect: int = 1000,
    canaries: int = 10,
    workspace: Path,
    progress: Progress = silent,
) -> AuditReport:
    """Which training media are evaluation media, plainly or changed. `workspace` receives the planted clips."""
    config = config or DedupConfig()
    threshold = threshold_of(encoder) if config.cosine is None else config.cosine
    right = collect(evaluation, encoder, cache=cache, progress=progress, doing="reading evaluation media")
    left = collect(train, encoder, cache=cache, progress=progress, doing="reading training media")
    for side, what in ((right, "evaluation"), (left, "training")):
        if not len(side):
            why = f": {side.unread[0].name}: {side.unread[0].reason}" if side.unread else ""
            raise ConfigError(f"no {what} medium can be read, so that nothing was compared{why}")
    findings, counts = leaks(left, right, config, threshold, progress)
    gone = first_duplicate(findings)
    mirrored = {f.left: f for f in findings if f.kind == "flip" and f.left not in gone}
    removed = {**gone, **(mirrored if config.flips == "remove" else {})}
    kept = [number for number in range(len(left)) if number not in removed]
    return AuditReport(
        train=kinds(left, range(len(left))),
        evaluation=kinds(right, range(len(right))),
        candidates=counts,
        candidate_items=kinds(left, {finding.left for finding in findings}),
        exact=sum(finding.kind == "exact" for finding in removed.values()),
        removed=[Removal.of(removed[number], left, right) for number in sorted(removed)],
        flips=[Removal.of(mirrored[number], left, right) for number in sorted(mirrored)],
        unconfirmed=[Removal.of(finding, left, right) for finding in findings if finding.kind == "unconfirmed"],
        residual=residual(left, right, kept, config, threshold, rng, inspect, progress),
        canaries=sing(right, encoder, config, threshold, rng, canaries, workspace, progress),
        unread=[*left.unread, *right.unread],
        passed_over=[*left.passed_over, *right.passed_over],
        threshold=threshold,
        encoder=encoder.fingerprint,
    )


def kinds(side: Collection, numbers: Any) -> dict[str, int]:
    count = Counter(side.features[number].kind for number in numbers)
    return {"images": count["image"], "clips": count["clip"]}


def leaks(
    left: Collection, right: Collection, config: DedupConfig, threshold: float, progress: Progress
) -> tuple[list[Finding], dict[str, int]]:
    """Findings for every training item that some stage flagged."""
    known = {features.sha256: number for number, features in reversed(list(enumerate(right.features)))}
    exact = [
        Finding(number, known[f.sha256], "exact", 0, 1.0, 1.0, 1.0, reason="the same bytes")
        for number, f in enumerate(left.features)
        if f.sha256 in known
    ]
    settled = {finding.left for finding in exact}
    found = find_candidates(
        left.features,
        right.features,
        threshold=threshold,
        radius=config.hamming,
        flips=config.flips != "ignore",
        per_item=config.per_item,
    )
    found.pairs[:] = [pair for pair in found.pairs if pair.left not in settled]
    findings = [*exact, *confirmed(found, Confirmer(left, right, config, threshold), progress)]
    return findings, {"exact": len(exact), **counted(found, findings)}


def residual(
    left: Collection,
    right: Collection,
    kept: Sequence[int],
    config: DedupConfig,
    threshold: float,
    rng: np.random.Generator,
    most: int,
    progress: Progress,
) -> Residual:
    """Kept items drawn without replacement, each inspected beside the evaluation media that are nearest to it.

    Two media drawn blindly are never duplicates; the nearest by embedding and by hash are what an inspector would pick.
    """
    drawn = rng.choice(kept, size=min(most, len(kept)), replace=False).tolist() if kept and len(right) else []
    inspector = Confirmer(left, right, config, threshold, thorough=True)
    rows, owner = embedding_rows(right.features)
    table = rows.astype(np.float32) if drawn else rows
    hashes = np.array([features.whole for features in right.features], np.uint64)
    names = []
    for number, item in enumerate(drawn, 1):
        cosines = table @ left.features[item].embeddings.astype(np.float32).T  # (rows, keyframes)
        best = int(cosines.max(axis=1).argmax())
        by_hash = int(np.bitwise_count(hashes ^ np.uint64(left.features[item].whole)).argmin())
        nearest = dict.fromkeys([int(owner[best]), by_hash])
        if any(inspector(Candidate(item, other, FAR, FAR, 0.0)).is_duplicate for other in nearest):
            names.append(left.items[item].name)
        progress("inspecting what is left", number, len(drawn))
    bounds = clopper_pearson(len(names), len(drawn))
    rate = len(names) / len(drawn) if drawn else 0.0
    return Residual(len(drawn), len(names), rate, bounds.low, bounds.high, sorted(names))


def sing(
    right: Collection,
    encoder: ImageEncoder,
    config: DedupConfig,
    threshold: float,
    rng: np.random.Generator,
    most: int,
    workspace: Path,
    progress: Progress,
) -> Canaries:
    """Every change of up to `most` evaluation images and a few clips, audited as if it were training media."""
    planted = canary_items(right, rng, most, workspace)
    birds = collect([item for _, _, item in planted], encoder, progress=progress, doing="planting canaries")
    findings, _ = leaks(birds, right, config, threshold, progress)
    found = first_duplicate(findings)
    names = {item.name: number for number, item in enumerate(birds.items)}
    tally: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    missed = []
    for variant, _, item in planted:
        heard = names.get(item.name) in found
        tally[variant][0] += heard
        tally[variant][1] += 1
        missed += [] if heard else [item.name]
    total = len(planted)
    recall = (total - len(missed)) / total if total else 0.0
    by_variant = {variant: (seen, of) for variant, (seen, of) in tally.items()}
    return Canaries(planted=total, found=total - len(missed), recall=recall, by_variant=by_variant, missed=missed)


def canary_items(
    right: Collection, rng: np.random.Generator, most: int, workspace: Path
) -> list[tuple[str, int, Item]]:
    """(variant, number of the original, the changed copy)."""
    planted: list[tuple[str, int, Item]] = []
    for number in drawn_of(right, "image", rng, most):
        frame = right.items[number].open().frame(0)
        for variant, change in VARIANTS.items():
            path = stored(change(frame), workspace / f"canary-{number}-{variant}.png")
            planted.append((variant, number, Item(f"{right.items[number].name}#{variant}", path)))
    for number in drawn_of(right, "clip", rng, min(most, max(1, most // 4))):
        clip = right.items[number].open()
        for variant, change_of_clip in CLIP_VARIANTS.items():
            path = workspace / f"canary-{number}-{variant}.mp4"
            rewritten(clip, path, **change_of_clip)
            planted.append((variant, number, Item(f"{right.items[number].name}#{variant}", path)))
    return planted


def drawn_of(side: Collection, kind: str, rng: np.random.Generator, most: int) -> list[int]:
    numbers = [number for number, features in enumerate(side.features) if features.kind == kind]
    return sorted(rng.choice(numbers, size=min(most, len(numbers)), replace=False).tolist()) if numbers else []
