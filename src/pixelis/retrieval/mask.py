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

from pixelis.config import Config
from pixelis.errors import ConfigError, LeakageError, MediaError
from pixelis.media import Medium
from pixelis.retrieval.calibrate import threshold_of
from pixelis.retrieval.candidates import Tables, find_candidates
from pixelis.retrieval.collection import Collection, Item, Progress, collect, silent
from pixelis.retrieval.confirm import Confirmer, DedupConfig
from pixelis.retrieval.features import MOST_BYTES, FeatureCache, Features, ImageEncoder, features_of
from pixelis.rundir import replacing
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member
from pixelis.trace.schema import canonical_json

if TYPE_CHECKING:
    from pixelis.retrieval.dedup import Removal

VERSION = 1
HEAD_BYTES = 256 * 2**20
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


class Blocked(NamedTuple):
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
        self._entries: dict[str, Blocked] = {}
        if path is not None and path.exists():
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                try:
                    entry = Blocked(**json.loads(line))
                except (ValueError, TypeError) as error:
                    raise ConfigError(
                        f"{path}:{number}: not an entry of a block list ({error}); mend or move it"
                    ) from error
                self._entries[entry.sha256] = entry

    def __contains__(self, sha256: object) -> bool:
        return sha256 in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, sha256: str) -> Blocked | None:
        return self._entries.get(sha256)

    def add(self, removals: Iterable[Removal]) -> None:
        """Exact copies share the hash of what stays, which must not be blocked."""
        fresh = {
            r.sha256: Blocked(r.sha256, r.name, r.kept, r.kept_sha256, r.kind)
            for r in removals
            if r.sha256 != r.kept_sha256 and r.sha256 not in self._entries
        }
        self._entries.update(fresh)
        if self.path is not None and fresh:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry._asdict()) + "\n" for entry in fresh.values())


class EvaluationMask:
    """Hashes of the evaluation media, with the frame hashes and embeddings that give a changed copy away.

    `refuse` is asked before anything is indexed: by a hash, which is instant, or by a medium, which is compared.
    """

    def __init__(self, media: Collection, *, encoder: str, threshold: float, config: DedupConfig | None = None) -> None:
        self.media, self.encoder, self.threshold = media, encoder, threshold
        self.config = config or DedupConfig()
        self._tables = Tables(media.features, radius=self.config.hamming)
        self._hashes = {f.sha256: item.name for f, item in zip(media.features, media.items, strict=True)}

    @classmethod
    def of(
        cls,
        items: Sequence[Item],
        encoder: ImageEncoder,
        *,
        config: DedupConfig | None = None,
        cache: FeatureCache | None = None,
        progress: Progress = silent,
    ) -> EvaluationMask:
        """Every item must be read: a mask with a hole in it guards nothing."""
        config = config or DedupConfig()
        media = collect(items, encoder, cache=cache, progress=progress, doing="reading evaluation media")
        if media.unread:
            first = media.unread[0]
            raise LeakageError(
                f"{len(media.unread)} evaluation media cannot be masked, the first is {first.name}: {first.reason}"
            )
        threshold = threshold_of(encoder) if config.cosine is None else config.cosine
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

    def refuse(self, sha256s: Iterable[str], *, what: str = "an item") -> None:
        """LeakageError where one of these hashes is evaluation media; for items whose media were compared before."""
        for sha256 in sha256s:
            if sha256 in self._hashes:
                raise LeakageError(f"{what} shows {self._hashes[sha256]}, which is evaluation media; leave it out")

    def refuse_medium(
        self, medium: Medium, encoder: ImageEncoder, *, what: str = "an item", known: Features | None = None
    ) -> Features:
        """LeakageError where the medium is evaluation media or a changed copy; its features where it may pass.

        A near pair whose evaluation file cannot be opened any more is refused too. `known` are the medium's features
        where they were computed before.
        """
        self.refuse([medium.sha256], what=what)
        if encoder.fingerprint != self.encoder:
            raise ConfigError("the mask was made with another encoder; make it again with the one in use")
        features = known or features_of(medium, encoder)
        one = Collection([Item(what, medium=medium)], [features])
        confirm = Confirmer(one, self.media, self.config, self.threshold)
        near = find_candidates(
            one.features,
            self._tables,
            threshold=self.threshold,
            flips=self.config.flips != "ignore",
            per_item=self.config.per_item,
        )
        for pair in near.pairs:
            finding = confirm(pair)
            flip = finding.kind == "flip" and self.config.flips == "remove"
            if finding.is_duplicate or flip or finding.kind == "unconfirmed":
                kept = self.media.items[pair.right].name
                raise LeakageError(
                    f"{what} is a changed copy of {kept}, which is evaluation media (pHash {finding.distance}, "
                    f"cosine {finding.cosine:.2f}, overlap {finding.overlap:.2f}, {finding.kind}); leave it out"
                )
        return features

    def save(self, path: Path) -> None:
        """One zip file, of the same bytes for the same mask: what the mask is, and the features of each medium."""
        items = tuple(MaskedItem(name=i.name, path=str(i.path.resolve()) if i.path else None) for i in self.media.items)
        head = MaskHead(
            version=VERSION, encoder=self.encoder, threshold=self.threshold, config=self.config, items=items
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as stream, zipfile.ZipFile(stream, "w") as file:
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
                head = read_head(path, read_member(file, "mask.json", most=HEAD_BYTES))
                features = [
                    Features.from_bytes(read_member(file, f"{number}.npz", most=MOST_BYTES))
                    for number in range(len(head.items))
                ]
            if len({found.embeddings.shape[1] for found in features}) > 1:
                raise ValueError("its embeddings are not of one length")
        except (OSError, *DAMAGED_ZIP) as error:
            why = str(error).strip("'\"").splitlines()[0][:300] if str(error) else type(error).__name__
            raise ConfigError(f"{path} is not an evaluation mask ({why}); make it again") from error
        items = [Item(item.name, Path(item.path) if item.path else None) for item in head.items]
        return cls(Collection(items, features), encoder=head.encoder, threshold=head.threshold, config=head.config)


def read_head(path: Path, content: bytes) -> MaskHead:
    """The head of a mask file; ValueError in one line where it is none, ConfigError where it is a newer one."""
    try:
        found = json.loads(content)
    except RecursionError as error:
        raise ValueError("its head is nested too deeply") from error
    version = found.get("version") if isinstance(found, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(f"{path}: mask version {version}, this build reads up to {VERSION}; update pixelis")
    try:
        return MaskHead.model_validate(found)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'its head'}: {first['msg']}") from error


__all__ = ["BlockList", "Blocked", "EvaluationMask", "LeakageError", "MediaError"]
