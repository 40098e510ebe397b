"""What may never be indexed: the media of evaluation, and what de-duplication dropped
(supp:index_whitelist_dedup, "whitelist protocol": it blocks, so that here it is called a mask).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pixelis.errors import ConfigError, LeakageError, MediaError
from pixelis.media import Medium
from pixelis.retrieval.calibrate import threshold_of
from pixelis.retrieval.candidates import find_candidates
from pixelis.retrieval.collection import Collection, Item, Progress, collect, silent
from pixelis.retrieval.confirm import Confirmer, DedupConfig
from pixelis.retrieval.features import FeatureCache, Features, ImageEncoder, features_of

if TYPE_CHECKING:
    from pixelis.retrieval.dedup import Removal

VERSION = 1


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

    def refuse(self, sha256s: Iterable[str], *, what: str = "an item") -> None:
        """LeakageError where one of these hashes is evaluation media; for items whose media were compared before."""
        for sha256 in sha256s:
            if sha256 in self._hashes:
                raise LeakageError(f"{what} shows {self._hashes[sha256]}, which is evaluation media; leave it out")

    def refuse_medium(self, medium: Medium, encoder: ImageEncoder, *, what: str = "an item") -> Features:
        """LeakageError where the medium is evaluation media or a changed copy; its features where it may pass.

        A near pair whose evaluation file cannot be opened any more is refused too.
        """
        self.refuse([medium.sha256], what=what)
        if encoder.fingerprint != self.encoder:
            raise ConfigError("the mask was made with another encoder; make it again with the one in use")
        features = features_of(medium, encoder)
        one = Collection([Item(what, medium=medium)], [features])
        confirm = Confirmer(one, self.media, self.config, self.threshold)
        near = find_candidates(one.features, self.media.features, threshold=self.threshold, radius=self.config.hamming)
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
        """One zip file: what the mask is, and the features of each medium."""
        path.parent.mkdir(parents=True, exist_ok=True)
        items = [{"name": i.name, "path": str(i.path.resolve()) if i.path else None} for i in self.media.items]
        head = {"version": VERSION, "encoder": self.encoder, "threshold": self.threshold, "items": items}
        partial = path.with_name(f"{path.name}.part")
        with zipfile.ZipFile(partial, "w") as file:
            file.writestr("mask.json", json.dumps({**head, "config": self.config.model_dump()}))
            for number, features in enumerate(self.media.features):
                file.writestr(f"{number}.npz", features.to_bytes())
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> EvaluationMask:
        try:
            with zipfile.ZipFile(path) as file:
                head = json.loads(file.read("mask.json"))
                if head["version"] > VERSION:
                    raise ConfigError(f"{path}: mask version {head['version']}, this build reads up to {VERSION}")
                features = [Features.from_bytes(file.read(f"{k}.npz")) for k in range(len(head["items"]))]
        except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise ConfigError(f"{path} is not an evaluation mask ({error}); make it again") from error
        items = [Item(i["name"], Path(i["path"]) if i["path"] else None) for i in head["items"]]
        config = DedupConfig(**head["config"])
        return cls(Collection(items, features), encoder=head["encoder"], threshold=head["threshold"], config=config)


__all__ = ["BlockList", "Blocked", "EvaluationMask", "LeakageError", "MediaError"]
