"""Media that must not be indexed: those of evaluation, and those that de-duplication removed
(supp:index_whitelist_dedup, "whitelist protocol"; called a mask here because it blocks).
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pydantic import Field, ValidationError

from pixelis.core.atomic import atomic_write
from pixelis.core.config import Config
from pixelis.core.errors import ConfigError, LeakageError, validation_problem
from pixelis.dedup.calibrate import get_threshold
from pixelis.dedup.candidates import SearchTables
from pixelis.dedup.media_collection import MediaCollection, MediaItem, ProgressCallback, collect, no_progress
from pixelis.dedup.media_features import MAX_FEATURE_BYTES, FeatureCache, Features, ImageEncoder, compute_features
from pixelis.dedup.pixel_verify import DedupConfig, PixelVerifier, flagged_pairs
from pixelis.media import Medium
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member
from pixelis.trace.schema import canonical_json

if TYPE_CHECKING:
    from pixelis.dedup.deduplicate import Removal

MASK_VERSION = 1
MAX_HEAD_BYTES = 256 * 2**20
"""Limit of the names and paths of the masked media; enough for a million."""


class MaskedItem(Config):
    """A masked medium in the head of the file."""

    name: str
    path: str | None


class MaskHead(Config):
    """The settings of a mask and the list of its media."""

    version: int
    encoder: str
    threshold: float = Field(ge=-1.0, le=1.0)
    config: DedupConfig
    items: tuple[MaskedItem, ...]


class BlockedMedium(NamedTuple):
    """An entry of the block list: a removed medium, and the one that was kept."""

    sha256: str
    name: str
    kept: str
    kept_sha256: str
    kind: str


class BlockList:
    """Media that were removed, one JSON object per line of an append-only file; every later run consults it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, BlockedMedium] = {}
        if path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    entry = BlockedMedium(**json.loads(line))
                except (ValueError, TypeError) as error:
                    reason = f"not an entry of a block list ({error}); correct or move it"
                    raise ConfigError(f"{path}:{number}: {reason}") from error
                self._entries[entry.sha256] = entry

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sha256: str) -> BlockedMedium | None:
        return self._entries.get(sha256)

    def add(self, removals: Iterable[Removal]) -> None:
        """Block the removed media, except exact copies: they share the hash of the medium that is kept."""
        new_entries = {
            r.sha256: BlockedMedium(r.sha256, r.name, r.kept, r.kept_sha256, r.kind)
            for r in removals
            if r.sha256 != r.kept_sha256 and r.sha256 not in self._entries
        }
        self._entries.update(new_entries)
        if new_entries:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry._asdict()) + "\n" for entry in new_entries.values())


class EvaluationMask:
    """Content hashes of the evaluation media, with frame hashes and embeddings that detect modified copies.

    Call `check_hashes` (instant) or `check_medium` (compares pixels) before anything is indexed.
    """

    def __init__(
        self, media: MediaCollection, *, encoder: str, threshold: float, config: DedupConfig | None = None
    ) -> None:
        self.media, self.encoder, self.threshold = media, encoder, threshold
        self.config = config or DedupConfig()
        self._tables = SearchTables(media.features, radius=self.config.hamming)
        self._hashes = {f.sha256: item.name for f, item in zip(media.features, media.items, strict=True)}

    @classmethod
    def build(
        cls,
        items: Sequence[MediaItem],
        encoder: ImageEncoder,
        *,
        config: DedupConfig | None = None,
        cache: FeatureCache | None = None,
        progress: ProgressCallback = no_progress,
    ) -> EvaluationMask:
        """LeakageError if an item cannot be read: an incomplete mask protects nothing."""
        config = config or DedupConfig()
        media = collect(items, encoder, cache=cache, progress=progress, description="reading evaluation media")
        if media.unreadable:
            first = media.unreadable[0]
            raise LeakageError(
                f"{len(media.unreadable)} evaluation media cannot be masked, the first is {first.name}: {first.reason}"
            )
        threshold = get_threshold(encoder) if config.cosine is None else config.cosine
        return cls(media, encoder=encoder.fingerprint, threshold=threshold, config=config)

    def __len__(self) -> int:
        return len(self._hashes)

    def __contains__(self, sha256: object) -> bool:
        return sha256 in self._hashes

    @cached_property
    def digest(self) -> str:
        """Identifies what this mask blocks; items record it as the mask that they were compared with."""
        facts = {
            "media": sorted(self._hashes),
            "encoder": self.encoder,
            "threshold": self.threshold,
            "config": self.config.model_dump(mode="json"),
        }
        return hashlib.sha256(canonical_json(facts)).hexdigest()

    def check_hashes(self, sha256s: Iterable[str], *, label: str = "an item") -> None:
        """LeakageError if one of these hashes is evaluation media; enough for media that were compared before."""
        for sha256 in sha256s:
            if sha256 in self._hashes:
                raise LeakageError(f"{label} shows {self._hashes[sha256]}, which is evaluation media; leave it out")

    def check_medium(
        self, medium: Medium, encoder: ImageEncoder, *, label: str = "an item", precomputed: Features | None = None
    ) -> Features:
        """The medium's features; LeakageError if it is an evaluation medium or a modified copy of one.

        A near pair whose evaluation file no longer opens is refused too. `precomputed` are the medium's features.
        """
        self.check_hashes([medium.sha256], label=label)
        if encoder.fingerprint != self.encoder:
            raise ConfigError("the mask was made with another encoder; build it again with the current one")
        features = precomputed or compute_features(medium, encoder)
        query = MediaCollection([MediaItem(label, medium=medium)], [features])
        verifier = PixelVerifier(query, self.media, self.config, self.threshold)
        for pair in flagged_pairs(query.features, self._tables, self.config, self.threshold).pairs:
            finding = verifier(pair)
            if self.config.removes(finding) or finding.kind == "unconfirmed":
                masked_name = self.media.items[pair.right].name
                raise LeakageError(
                    f"{label} is a changed copy of {masked_name}, which is evaluation media (pHash {finding.distance}, "
                    f"cosine {finding.cosine:.2f}, overlap {finding.overlap:.2f}, {finding.kind}); leave it out"
                )
        return features

    def save(self, path: Path) -> None:
        """Write one zip file: a head, and the features of each medium. The same mask gives the same bytes."""
        items = tuple(MaskedItem(name=i.name, path=str(i.path.resolve()) if i.path else None) for i in self.media.items)
        head = MaskHead(
            version=MASK_VERSION, encoder=self.encoder, threshold=self.threshold, config=self.config, items=items
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as stream, zipfile.ZipFile(stream, "w") as file:
                add_member(file, "mask.json", canonical_json(head.model_dump(mode="json")), zipfile.ZIP_DEFLATED)
                for number, features in enumerate(self.media.features):
                    add_member(file, f"{number}.npz", features.to_bytes(), zipfile.ZIP_STORED)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror or error})") from error

    @classmethod
    def load(cls, path: Path) -> EvaluationMask:
        """ConfigError of one line if the file is not a mask."""
        try:
            with zipfile.ZipFile(path) as file:
                head = parse_mask_head(path, read_member(file, "mask.json", max_bytes=MAX_HEAD_BYTES))
                features = [
                    Features.from_bytes(read_member(file, f"{number}.npz", max_bytes=MAX_FEATURE_BYTES))
                    for number in range(len(head.items))
                ]
            if len({entry.embeddings.shape[1] for entry in features}) > 1:
                raise ValueError("its embeddings differ in length")
        except (OSError, *DAMAGED_ZIP) as error:
            reason = str(error).strip("'\"").splitlines()[0][:300] if str(error) else type(error).__name__
            raise ConfigError(f"{path} is not an evaluation mask ({reason}); build it again") from error
        items = [MediaItem(item.name, Path(item.path) if item.path else None) for item in head.items]
        return cls(MediaCollection(items, features), encoder=head.encoder, threshold=head.threshold, config=head.config)


def parse_mask_head(path: Path, content: bytes) -> MaskHead:
    """The head of a mask file; ValueError of one line if it is malformed, ConfigError if its version is newer."""
    try:
        parsed = json.loads(content)
    except RecursionError as error:
        raise ValueError("its head is nested too deeply") from error
    version = parsed.get("version") if isinstance(parsed, dict) else None
    if isinstance(version, int) and version > MASK_VERSION:
        raise ConfigError(f"{path}: mask version {version}, this build reads up to {MASK_VERSION}; update pixelis")
    try:
        return MaskHead.model_validate(parsed)
    except ValidationError as error:
        raise ValueError(validation_problem(error)) from error
