"""What may never be indexed: the media of evaluation, and what de-duplication dropped
(supp:index_whitelist_dedup, "whitelist protocol": it blocks, so that here it is called a mask).
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
from pixelis.core.errors import ConfigError, LeakageError, MediaError
from pixelis.dedup.calibrate import get_threshold
from pixelis.dedup.candidates import SearchTables, find_candidates
from pixelis.dedup.media_collection import MediaCollection, MediaItem, ProgressCallback, collect, no_progress
from pixelis.dedup.media_features import MAX_FEATURE_BYTES, FeatureCache, Features, ImageEncoder, compute_features
from pixelis.dedup.pixel_verify import DedupConfig, PixelVerifier
from pixelis.media import Medium
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member
from pixelis.trace.schema import canonical_json

if TYPE_CHECKING:
    from pixelis.dedup.deduplicate import Removal

MASK_VERSION = 1
MAX_HEAD_BYTES = 256 * 2**20
"""Of the names and paths of the masked media: a million of them."""


class MaskedItem(Config):
    """A masked medium in the head of the file."""

    name: str
    path: str | None


class MaskHead(Config):
    """What a mask file says about itself."""

    version: int
    encoder: str
    threshold: float = Field(ge=-1.0, le=1.0)
    config: DedupConfig
    items: tuple[MaskedItem, ...]


class BlockedMedium(NamedTuple):
    """An entry of the block list."""

    sha256: str
    name: str
    kept: str
    kept_sha256: str
    kind: str


class BlockList:
    """Media that were dropped, one JSON object a line in a file that only grows; consulted at every later add."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._entries: dict[str, BlockedMedium] = {}
        if path is not None and path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    entry = BlockedMedium(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise ConfigError(
                        f"{path}:{number}: not an entry of a block list ({error}); mend or move it"
                    ) from error
                self._entries[entry.sha256] = entry

    def __contains__(self, sha256: object) -> bool:
        return sha256 in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sha256: str) -> BlockedMedium | None:
        return self._entries.get(sha256)

    def add(self, removals: Iterable[Removal]) -> None:
        """Exact copies share the hash of what stays, which must not be blocked."""
        new_entries = {
            r.sha256: BlockedMedium(r.sha256, r.name, r.kept, r.kept_sha256, r.kind)
            for r in removals
            if r.sha256 != r.kept_sha256 and r.sha256 not in self._entries
        }
        self._entries.update(new_entries)
        if self.path is not None and new_entries:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry._asdict()) + "\n" for entry in new_entries.values())


class EvaluationMask:
    """Hashes of the evaluation media, with the frame hashes and embeddings that give a changed copy away.

    `refuse` is asked before anything is indexed: by a hash, which is instant, or by a medium, which is compared.
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
        """Every item must be read: a mask with a hole in it guards nothing."""
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
        """A name for what this mask refuses: items say by it what they were compared with."""
        facts = {
            "media": sorted(self._hashes),
            "encoder": self.encoder,
            "threshold": self.threshold,
            "config": self.config.model_dump(mode="json"),
        }
        return hashlib.sha256(canonical_json(facts)).hexdigest()

    def check_hashes(self, sha256s: Iterable[str], *, label: str = "an item") -> None:
        """LeakageError where one of these hashes is evaluation media; for items whose media were compared before."""
        for sha256 in sha256s:
            if sha256 in self._hashes:
                raise LeakageError(f"{label} shows {self._hashes[sha256]}, which is evaluation media; leave it out")

    def check_medium(
        self, medium: Medium, encoder: ImageEncoder, *, label: str = "an item", precomputed: Features | None = None
    ) -> Features:
        """LeakageError where the medium is evaluation media or a changed copy; its features where it may pass.

        A near pair whose evaluation file cannot be opened any more is refused too. `known` are the medium's features
        where they were computed before.
        """
        self.check_hashes([medium.sha256], label=label)
        if encoder.fingerprint != self.encoder:
            raise ConfigError("the mask was made with another encoder; make it again with the one in use")
        features = precomputed or compute_features(medium, encoder)
        query = MediaCollection([MediaItem(label, medium=medium)], [features])
        verifier = PixelVerifier(query, self.media, self.config, self.threshold)
        candidates = find_candidates(
            query.features,
            self._tables,
            threshold=self.threshold,
            flips=self.config.flips != "ignore",
            per_item=self.config.per_item,
        )
        for pair in candidates.pairs:
            finding = verifier(pair)
            flip = finding.kind == "flip" and self.config.flips == "remove"
            if finding.is_duplicate or flip or finding.kind == "unconfirmed":
                masked_name = self.media.items[pair.right].name
                raise LeakageError(
                    f"{label} is a changed copy of {masked_name}, which is evaluation media (pHash {finding.distance}, "
                    f"cosine {finding.cosine:.2f}, overlap {finding.overlap:.2f}, {finding.kind}); leave it out"
                )
        return features

    def save(self, path: Path) -> None:
        """One zip file, of the same bytes for the same mask: what the mask is, and the features of each medium."""
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
        """ConfigError in one line where the file is no mask, whatever it is instead."""
        try:
            with zipfile.ZipFile(path) as file:
                head = parse_mask_head(path, read_member(file, "mask.json", max_bytes=MAX_HEAD_BYTES))
                features = [
                    Features.from_bytes(read_member(file, f"{number}.npz", max_bytes=MAX_FEATURE_BYTES))
                    for number in range(len(head.items))
                ]
            if len({entry.embeddings.shape[1] for entry in features}) > 1:
                raise ValueError("its embeddings are not of one length")
        except (OSError, *DAMAGED_ZIP) as error:
            reason = str(error).strip("'\"").splitlines()[0][:300] if str(error) else type(error).__name__
            raise ConfigError(f"{path} is not an evaluation mask ({reason}); make it again") from error
        items = [MediaItem(item.name, Path(item.path) if item.path else None) for item in head.items]
        return cls(MediaCollection(items, features), encoder=head.encoder, threshold=head.threshold, config=head.config)


def parse_mask_head(path: Path, content: bytes) -> MaskHead:
    """The head of a mask file; ValueError in one line where it is none, ConfigError where it is a newer one."""
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
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'its head'}: {first['msg']}") from error


__all__ = ["BlockList", "BlockedMedium", "EvaluationMask", "LeakageError", "MediaError"]
