"""The corpus as a folder of shards and a manifest that lists them.

    corpus/
      manifest.json             the plan, every shard with its hashes, and the corpus hash over them
      shards/train-00000.zip    a few hundred records each: see `shard`
      build.json                command, commit, machine and times of the last build; not part of the hash

Generated media are not stored: they are rendered again from the item (family, seed, difficulty, shift) and must have
the recorded hash. Media of imported items are blobs, or lie beside their file of items, which the manifest names.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import MediaError, TraceError, validation_problem
from pixelis.core.geometry import Value
from pixelis.data.corpus.record import CorpusRow, Record, Split
from pixelis.data.corpus.shard import Shard, ShardFacts, read_json
from pixelis.items import Item, MediumFacts
from pixelis.media import MediaSet, Medium, open_media
from pixelis.trace.schema import Sha256, canonical_json

MANIFEST = "manifest.json"
MAX_OPEN_SHARDS = 4
"""Shards whose index and last block stay in memory."""


class Manifest(Value):
    """The plan and the shards of a corpus."""

    version: Literal[1] = 1
    corpus: Sha256
    """Over the content hashes of all shards, in order."""
    plan: dict[str, Any] = Field(default_factory=dict)
    """Configuration, versions and tools that determine the content."""
    shards: tuple[ShardFacts, ...]

    @property
    def records(self) -> int:
        return sum(shard.records for shard in self.shards)

    @property
    def accepted(self) -> int:
        return sum(shard.accepted for shard in self.shards)


def corpus_hash(shards: Sequence[ShardFacts]) -> str:
    listing = "".join(f"{shard.name} {shard.content}\n" for shard in shards)
    return hashlib.sha256(listing.encode()).hexdigest()


def write_manifest(folder: Path, plan: dict[str, Any], shards: Sequence[ShardFacts]) -> Manifest:
    """Write the manifest, which completes a corpus."""
    manifest = Manifest(corpus=corpus_hash(shards), plan=plan, shards=tuple(shards))
    with atomic_write(folder / MANIFEST) as file:
        file.write(canonical_json(manifest.model_dump(mode="json")) + b"\n")
    return manifest


class Corpus:
    """A finished corpus. Records are read on demand; a few blocks of them stay in memory."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.exists():
            hint = "not a corpus; build one there with `pixelis data build CONFIG -o`"
            if (self.folder / ".building").exists():
                hint = "its build is unfinished: run the same `pixelis data build` again"
            raise TraceError(f"{self.folder}: {hint} (there is no {MANIFEST})")
        content = read_json(path, "manifest")
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > 1:
            raise TraceError(f"{path}: corpus version {version}, this build reads up to 1; update pixelis")
        try:
            self.manifest = Manifest.model_validate(content)
        except ValidationError as error:
            raise TraceError(f"{path} is not a manifest: {validation_problem(error)}") from error
        if any(Path(shard.name).name != shard.name for shard in self.manifest.shards):
            raise TraceError(f"{path}: the name of a shard points outside the corpus")
        self._shard: Callable[[str], Shard] = lru_cache(MAX_OPEN_SHARDS)(lambda name: Shard(self.shard_path(name)))

    def shard_path(self, name: str) -> Path:
        return self.folder / "shards" / name

    def __len__(self) -> int:
        return self.manifest.records

    def __getitem__(self, number: int) -> Record:
        """Record `number` of the corpus, from 0, in the order of the manifest."""
        shard, offset = self._locate(number, self.manifest.shards)
        if shard is None:
            raise IndexError(f"record {number} of {len(self)}")
        return shard.record(offset)

    def _locate(self, offset: int, shards: Iterable[ShardFacts]) -> tuple[Shard | None, int]:
        """The shard that holds record `offset` of these shards, and the record's number in it."""
        for facts in shards:
            if 0 <= offset < facts.records:
                return self._shard(facts.name), offset
            offset -= facts.records
        return None, offset

    def rows(self, *, split: Split | None = None) -> Iterator[CorpusRow]:
        """The index rows of all shards, or of one split."""
        for facts in self.manifest.shards:
            if split in (None, facts.split):
                yield from self._shard(facts.name).rows

    def records(
        self, *, split: Split | None = None, family: str | Collection[str] | None = None, accepted: bool | None = None
    ) -> Iterator[Record]:
        """The selected records in order, verified; blocks without one of them are not read."""
        families = (family,) if isinstance(family, str) else family
        for facts in self.manifest.shards:
            if split not in (None, facts.split):
                continue
            shard = self._shard(facts.name)
            for number, row in enumerate(shard.rows):
                if (families is None or row.family in families) and accepted in (None, row.accepted):
                    yield shard.record(number)

    def find(self, item_id: str) -> Record:
        """The record of an item; TraceError if there is none."""
        for number, row in enumerate(self.rows()):
            if row.id == item_id:
                return self[number]
        raise TraceError(f"{self.folder} has no item {item_id!r}")

    def verify(self) -> None:
        """Check every byte; TraceError at the first shard, row or blob that is damaged."""
        for facts in self.manifest.shards:
            self.require_shard(facts)
            Shard(self.shard_path(facts.name)).verify()
        if corpus_hash(self.manifest.shards) != self.manifest.corpus:
            raise TraceError(f"{self.folder / MANIFEST}: the corpus hash is not that of its shards")

    def require_shard(self, facts: ShardFacts) -> None:
        """TraceError if a shard is missing, damaged, or differs from the manifest."""
        path = self.shard_path(facts.name)
        actual = Shard(path).facts()
        if (actual.content, actual.records, actual.accepted) != (facts.content, facts.records, facts.accepted):
            raise TraceError(f"{path}: its content differs from the manifest")

    def blob(self, sha256: str, record: Record) -> bytes | None:
        """An artifact or medium of a record by its hash; None if the corpus does not keep it."""
        shard, _ = self._locate(record.ordinal, (s for s in self.manifest.shards if s.split == record.split))
        return shard.blob(sha256) if shard else None

    def media(self, record: Record) -> MediaSet:
        """The record's media with their pixels: blobs of the corpus, files beside their items, or rendered again."""
        from pixelis.world import templates

        item = record.item
        if not record.source and any(item.template == template.id for template in templates(item.family)):
            folder = self.manifest.plan.get("config", {}).get("photographs")
            return MediaSet(render_item_media(item, photographs=Path(folder) if folder else None))
        blobs = [self.blob(facts.sha256, record) for facts in item.media]
        if record.source and None in blobs:
            from pixelis.data.corpus.stored_items import open_item_media

            return open_item_media(item, self._items_path(record))
        return MediaSet(tuple(map(self._open_blob, blobs, item.media)))

    def _items_path(self, record: Record) -> Path:
        """The file of items that an imported record comes from."""
        name = record.source.rpartition(":")[0]
        files = self.manifest.plan.get("items")
        for file in files if isinstance(files, list) else ():
            if isinstance(file, dict) and file.get("name") == name:
                return self.folder / str(file.get("path"))
        raise MediaError(f"{record.item.id}: the manifest of {self.folder} does not name the location of {name}")

    def _open_blob(self, content: bytes | None, facts: MediumFacts) -> Medium:
        if content is None:
            raise MediaError(f"medium {facts.sha256[:12]}… is not stored in {self.folder}")
        with tempfile.NamedTemporaryFile(prefix="pixelis-medium-") as file:
            file.write(content)
            file.flush()
            return open_media(file.name)  # an open clip keeps its file after the name is gone


def render_item_media(item: Item, *, photographs: Path | None = None) -> tuple[Medium, ...]:
    """The pixels of a generated item; MediaError if this version of the world renders them differently."""
    from pixelis.world import generate, shift_item

    rendered = generate(
        item.family, seed=item.seed, difficulty=item.difficulty, template_id=item.template, photographs=photographs
    )
    if item.shift is not None:
        rendered = shift_item(rendered, item.shift.name, item.shift.severity, seed=item.shift.seed)
    for facts, medium in zip(item.media, rendered.media, strict=True):
        if facts.sha256 != medium.sha256:
            raise MediaError(
                f"{item.id}: this version of the world renders {facts.name} differently "
                f"(sha256 {medium.sha256[:12]}…, recorded {facts.sha256[:12]}…); use the version in the manifest"
            )
    return rendered.media
