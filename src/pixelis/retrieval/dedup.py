"""De-duplication of one collection: the earliest of each group stays, the others go on the block list
(supp:index_whitelist_dedup, de-index vs. de-dup behaviour).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pixelis.retrieval.calibrate import threshold_of
from pixelis.retrieval.candidates import Candidate, Candidates, find_candidates
from pixelis.retrieval.collection import Collection, Item, Progress, Unread, collect, silent
from pixelis.retrieval.confirm import Confirmer, DedupConfig, Finding
from pixelis.retrieval.features import FeatureCache, ImageEncoder
from pixelis.retrieval.mask import BlockList


class Removal(NamedTuple):
    """An item that goes, the one that stays in its place, and the evidence."""

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
    def of(cls, finding: Finding, left: Collection, right: Collection, *, keeps: int | None = None) -> Removal:
        """`keeps` is the item that stays where the one that was met has gone itself."""
        kept = finding.right if keeps is None else keeps
        return cls(
            name=left.items[finding.left].name,
            sha256=left.features[finding.left].sha256,
            kept=right.items[kept].name,
            kept_sha256=right.features[kept].sha256,
            kind=finding.kind,
            distance=finding.distance,
            cosine=round(finding.cosine, 4),
            ssim=round(finding.ssim, 4),
            overlap=round(finding.overlap, 4),
            offset_s=finding.offset_s,
            reason=finding.reason,
        )


@dataclass
class DedupReport:
    """What `pixelis data dedup` writes."""

    items: int = 0
    kept: list[str] = field(default_factory=list)
    removed: list[Removal] = field(default_factory=list)
    flips: list[Removal] = field(default_factory=list)
    """Mirror images, whether or not they were removed."""
    unconfirmed: list[Removal] = field(default_factory=list)
    """Pairs whose files could not be opened a second time."""
    unread: list[Unread] = field(default_factory=list)
    passed_over: list[Unread] = field(default_factory=list)
    candidates: dict[str, int] = field(default_factory=dict)
    threshold: float = 0.0
    encoder: str = ""

    @property
    def clean(self) -> bool:
        """Everything that should have been looked at was."""
        return not self.unread and not self.unconfirmed

    def as_dict(self) -> dict[str, Any]:
        return {name: plain(value) for name, value in vars(self).items()} | {"ok": self.clean}


def plain(value: Any) -> Any:
    """Named tuples as objects, for JSON."""
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value._asdict() if hasattr(value, "_asdict") else value


def deduplicate(
    items: Sequence[Item],
    encoder: ImageEncoder,
    *,
    config: DedupConfig | None = None,
    cache: FeatureCache | None = None,
    blocked: BlockList | None = None,
    progress: Progress = silent,
) -> DedupReport:
    """Which of `items`, in their order of ingest, repeat an earlier one. Removed ones enter `blocked`."""
    config = config or DedupConfig()
    threshold = threshold_of(encoder) if config.cosine is None else config.cosine
    found = collect(items, encoder, cache=cache, progress=progress)
    report = DedupReport(items=len(items), unread=found.unread, passed_over=found.passed_over, threshold=threshold)
    report.encoder = encoder.fingerprint
    fresh = without_copies(found, blocked, report)
    pairs = find_candidates(
        fresh.features,
        None,
        threshold=threshold,
        radius=config.hamming,
        flips=config.flips != "ignore",
        per_item=config.per_item,
    )
    findings = confirmed(pairs, Confirmer(fresh, fresh, config, threshold), progress)
    keep_earliest(fresh, findings, config, report)
    report.candidates = counted(pairs, findings)
    if blocked is not None:
        blocked.add(report.removed)
    return report


def without_copies(found: Collection, blocked: BlockList | None, report: DedupReport) -> Collection:
    """The first of each content; its copies and what an earlier run blocked are removed already."""
    first: dict[str, int] = {}
    fresh = Collection()
    for number, (item, features) in enumerate(zip(found.items, found.features, strict=True)):
        entry = blocked.find(features.sha256) if blocked else None
        if features.sha256 in first:
            same = Finding(number, first[features.sha256], "exact", 0, 1.0, 1.0, 1.0, reason="the same bytes")
            report.removed.append(Removal.of(same, found, found))
        elif entry is not None:
            known = Finding(number, number, "exact", 0, 1.0, 1.0, 1.0, reason="on the block list")
            report.removed.append(
                Removal.of(known, found, found)._replace(kept=entry.kept, kept_sha256=entry.kept_sha256)
            )
        else:
            first[features.sha256] = number
            fresh.items.append(item)
            fresh.features.append(features)
    return fresh


def confirmed(pairs: Candidates, confirm: Confirmer, progress: Progress) -> list[Finding]:
    """Findings in the order of the candidates; an item that has been found out is not looked at again."""
    findings: list[Finding] = []
    done: set[int] = set()
    for number, pair in enumerate(pairs.pairs, 1):
        if pair.left not in done:
            finding = confirm(pair)
            findings.append(finding)
            if finding.is_duplicate:
                done.add(pair.left)
        progress("confirming", number, len(pairs.pairs))
    return findings


def keep_earliest(fresh: Collection, findings: list[Finding], config: DedupConfig, report: DedupReport) -> None:
    """A later item goes where it repeats an earlier one; what stays is the first of the whole chain."""
    stays: dict[int, int] = {}
    mirrors: set[tuple[int, int]] = set()
    for finding in sorted(findings, key=lambda f: f.left):
        root = stays.get(finding.right, finding.right)
        removal = Removal.of(finding, fresh, fresh, keeps=root)
        if finding.kind == "flip" and (finding.left, root) not in mirrors:  # once, however many copies it mirrors
            mirrors.add((finding.left, root))
            report.flips.append(removal)
        if finding.kind == "unconfirmed":
            report.unconfirmed.append(removal)
        remove = finding.is_duplicate or (finding.kind == "flip" and config.flips == "remove")
        if remove and finding.left not in stays:
            stays[finding.left] = root
            report.removed.append(removal)
    heads = {fresh.features[gone].sha256: root for gone, root in stays.items()}
    report.removed = [headed(removal, fresh, heads) for removal in report.removed]
    report.kept = [item.name for number, item in enumerate(fresh.items) if number not in stays]


def headed(removal: Removal, fresh: Collection, heads: dict[str, int]) -> Removal:
    """A copy of what has gone itself names what stays."""
    if removal.kept_sha256 not in heads:
        return removal
    root = heads[removal.kept_sha256]
    return removal._replace(kept=fresh.items[root].name, kept_sha256=fresh.features[root].sha256)


def counted(pairs: Candidates, findings: list[Finding]) -> dict[str, int]:
    """Candidates by stage, and what became of those that were looked at."""
    kinds = Counter(finding.kind for finding in findings)
    return {
        "by_hash": pairs.by_hash,
        "by_embedding": pairs.by_embedding,
        "left_off": pairs.left_off,
        "looked_at": len(findings),
        **{kind: kinds[kind] for kind in ("near", "flip", "template", "different", "unconfirmed")},
    }


def first_duplicate(findings: Sequence[Finding]) -> dict[int, Finding]:
    """By left item, the finding that removes it."""
    return {finding.left: finding for finding in reversed(findings) if finding.is_duplicate}


__all__ = ["Candidate", "DedupConfig", "DedupReport", "Item", "Removal", "deduplicate"]
