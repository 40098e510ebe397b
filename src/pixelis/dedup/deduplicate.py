"""De-duplication of one collection: the earliest item of each group is kept, the others enter the block list
(supp:index_whitelist_dedup, de-index vs. de-dup behaviour).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pixelis.dedup.calibrate import get_threshold
from pixelis.dedup.candidates import Candidates
from pixelis.dedup.evaluation_mask import BlockList
from pixelis.dedup.media_collection import (
    MediaCollection,
    MediaItem,
    ProgressCallback,
    UnreadableFile,
    collect,
    no_progress,
)
from pixelis.dedup.media_features import FeatureCache, ImageEncoder
from pixelis.dedup.pixel_verify import DedupConfig, PairFinding, PixelVerifier, flagged_pairs


class Removal(NamedTuple):
    """A removed item, the item that is kept instead, and the evidence."""

    name: str
    sha256: str
    kept: str
    kept_sha256: str
    kind: str
    distance: int
    cosine: float
    ssim: float
    overlap: float
    offset_s: float | None
    reason: str

    @classmethod
    def from_finding(
        cls, finding: PairFinding, left: MediaCollection, right: MediaCollection, *, root: int | None = None
    ) -> Removal:
        """`root` is the item that is kept where the finding's right item is itself removed."""
        kept_index = finding.right if root is None else root
        return cls(
            name=left.items[finding.left].name,
            sha256=left.features[finding.left].sha256,
            kept=right.items[kept_index].name,
            kept_sha256=right.features[kept_index].sha256,
            kind=finding.kind,
            distance=finding.distance,
            cosine=round(finding.cosine, 4),
            ssim=round(finding.ssim, 4),
            overlap=round(finding.overlap, 4),
            offset_s=finding.offset_s,
            reason=finding.reason,
        )


@dataclass
class DuplicateReport:
    """What `pixelis data dedup` and `pixelis data audit` both report."""

    removed: list[Removal] = field(default_factory=list)
    flips: list[Removal] = field(default_factory=list)
    """Mirror images, whether or not they were removed."""
    unconfirmed: list[Removal] = field(default_factory=list)
    """Pairs that could not be verified because a file did not open a second time."""
    unread: list[UnreadableFile] = field(default_factory=list)
    passed_over: list[UnreadableFile] = field(default_factory=list)
    candidates: dict[str, int] = field(default_factory=dict)
    threshold: float = 0.0
    encoder: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether every medium was read and every pair verified."""
        return not self.unread and not self.unconfirmed

    def as_dict(self) -> dict[str, Any]:
        return {name: to_jsonable(value) for name, value in vars(self).items()} | {"ok": self.is_clean}


def to_jsonable(value: Any) -> Any:
    """Named tuples as objects, for JSON."""
    if isinstance(value, list):
        return [to_jsonable(v) for v in value]
    return value._asdict() if hasattr(value, "_asdict") else value


@dataclass
class DedupReport(DuplicateReport):
    """What `pixelis data dedup` writes."""

    items: int = 0
    kept: list[str] = field(default_factory=list)


def deduplicate(
    items: Sequence[MediaItem],
    encoder: ImageEncoder,
    *,
    config: DedupConfig | None = None,
    cache: FeatureCache | None = None,
    block_list: BlockList | None = None,
    progress: ProgressCallback = no_progress,
) -> DedupReport:
    """Find the items that repeat an earlier one, in ingest order. Removed items enter `block_list`."""
    config = config or DedupConfig()
    threshold = get_threshold(encoder) if config.cosine is None else config.cosine
    media = collect(items, encoder, cache=cache, progress=progress)
    report = DedupReport(items=len(items), unread=media.unreadable, passed_over=media.skipped, threshold=threshold)
    report.encoder = encoder.fingerprint
    unique = drop_exact_copies(media, block_list, report)
    candidates = flagged_pairs(unique.features, None, config, threshold)
    findings = verify_candidates(candidates, PixelVerifier(unique, unique, config, threshold), progress)
    keep_earliest(unique, findings, config, report)
    report.candidates = count_outcomes(candidates, findings)
    if block_list is not None:
        block_list.add(report.removed)
    return report


def drop_exact_copies(media: MediaCollection, block_list: BlockList | None, report: DedupReport) -> MediaCollection:
    """The first item of each content; removes its exact copies and what an earlier run blocked."""
    first_index: dict[str, int] = {}
    unique = MediaCollection()
    for number, (item, features) in enumerate(zip(media.items, media.features, strict=True)):
        entry = block_list.find(features.sha256) if block_list else None
        if features.sha256 in first_index:
            finding = PairFinding.exact(number, first_index[features.sha256])
            report.removed.append(Removal.from_finding(finding, media, media))
        elif entry is not None:
            removal = Removal.from_finding(PairFinding.exact(number, number, "on the block list"), media, media)
            report.removed.append(removal._replace(kept=entry.kept, kept_sha256=entry.kept_sha256))
        else:
            first_index[features.sha256] = number
            unique.items.append(item)
            unique.features.append(features)
    return unique


def verify_candidates(candidates: Candidates, verifier: PixelVerifier, progress: ProgressCallback) -> list[PairFinding]:
    """Findings in the order of the candidates; once an item is a duplicate, its other pairs are skipped."""
    findings: list[PairFinding] = []
    removed: set[int] = set()
    for number, pair in enumerate(candidates.pairs, 1):
        if pair.left not in removed:
            finding = verifier(pair)
            findings.append(finding)
            if finding.is_duplicate:
                removed.add(pair.left)
        progress("verifying pairs", number, len(candidates.pairs))
    return findings


def keep_earliest(
    unique: MediaCollection, findings: list[PairFinding], config: DedupConfig, report: DedupReport
) -> None:
    """Remove each item that repeats an earlier one; the first item of a chain of duplicates is kept."""
    roots: dict[int, int] = {}
    mirrors: set[tuple[int, int]] = set()
    for finding in sorted(findings, key=lambda f: f.left):
        root = roots.get(finding.right, finding.right)
        removal = Removal.from_finding(finding, unique, unique, root=root)
        if finding.kind == "flip" and (finding.left, root) not in mirrors:  # one report, however many copies it mirrors
            mirrors.add((finding.left, root))
            report.flips.append(removal)
        if finding.kind == "unconfirmed":
            report.unconfirmed.append(removal)
        if config.removes(finding) and finding.left not in roots:
            roots[finding.left] = root
            report.removed.append(removal)
    root_by_sha256 = {unique.features[removed_index].sha256: root for removed_index, root in roots.items()}
    report.removed = [resolve_root(removal, unique, root_by_sha256) for removal in report.removed]
    report.kept = [item.name for number, item in enumerate(unique.items) if number not in roots]


def resolve_root(removal: Removal, unique: MediaCollection, root_by_sha256: dict[str, int]) -> Removal:
    """If the item that a copy refers to is itself removed, name the one that is kept."""
    if removal.kept_sha256 not in root_by_sha256:
        return removal
    root = root_by_sha256[removal.kept_sha256]
    return removal._replace(kept=unique.items[root].name, kept_sha256=unique.features[root].sha256)


def count_outcomes(candidates: Candidates, findings: list[PairFinding]) -> dict[str, int]:
    """Candidates by stage, and the verdicts on those that were verified."""
    kinds = Counter(finding.kind for finding in findings)
    return {
        "by_hash": candidates.by_hash,
        "by_embedding": candidates.by_embedding,
        "left_off": candidates.num_dropped,
        "looked_at": len(findings),
        **{kind: kinds[kind] for kind in ("near", "flip", "template", "different", "unconfirmed")},
    }


def duplicates_by_left(findings: Sequence[PairFinding]) -> dict[int, PairFinding]:
    """The finding that removes each left item."""
    return {finding.left: finding for finding in reversed(findings) if finding.is_duplicate}
