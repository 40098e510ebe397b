"""The corpus as a folder: shards, and a manifest that names them all.

    corpus/
      manifest.json             what was planned, every shard with its hashes, the corpus hash over them
      shards/train-00000.zip    a few hundred records each: see `shard`
      build.json                command, commit, machine and times of the last build; no part of the hash

World media are not stored: they are rendered again from the item (family, seed, difficulty, shift) and must have the
recorded hash. Media of imported items are found beside their file of items, which the manifest names, or as blobs.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from pixelis.core.errors import MediaError, TraceError
from pixelis.core.geometry import Value
from pixelis.core.provenance import atomic_write
from pixelis.data.corpus.record import CorpusRow, Record, Split
from pixelis.data.corpus.shard import Shard, ShardFacts, read_json
from pixelis.data.importers.imported_items import open_item_media
from pixelis.media import MediaSet, Medium, open_media
from pixelis.trace.schema import Sha256, canonical_json
from pixelis.world import Item, generate, shift_item, templates

MANIFEST = "manifest.json"
MAX_OPEN_SHARDS = 4
"""Shards whose index and last block are kept at hand."""


class Manifest(Value):
    """The corpus in one page."""

    version: Literal[1] = 1
    corpus: Sha256
    """Over the content hashes of all shards, in order."""
    plan: dict[str, Any] = Field(default_factory=dict)
    """Configuration, versions and tools that the content depends on."""
    shards: tuple[ShardFacts, ...]

    @property
    def records(self) -> int:
        return sum(shard.records for shard in self.shards)

    @property
    def accepted(self) -> int:
        return sum(shard.accepted for shard in self.shards)


def corpus_hash(shards: Sequence[ShardFacts]) -> str:
    """One name for the whole content."""
    listing = "".join(f"{shard.name} {shard.content}\n" for shard in shards)
    return hashlib.sha256(listing.encode()).hexdigest()


def write_manifest(folder: Path, plan: dict[str, Any], shards: Sequence[ShardFacts]) -> Manifest:
    """The last thing that a build writes: from then on the folder is a corpus."""
    manifest = Manifest(corpus=corpus_hash(shards), plan=plan, shards=tuple(shards))
    with atomic_write(folder / MANIFEST) as file:
        file.write(canonical_json(manifest.model_dump(mode="json")) + b"\n")
    return manifest


class Corpus:
    """A finished corpus. Records are read as they are asked for; memory holds a few blocks of them."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.exists():
            unfinished = (self.folder / ".building").exists()
            hint = (
                "its build has not ended: run the same `pixelis data build` again"
                if unfinished
                else "no corpus; `pixelis data build CONFIG -o` that folder makes one"
            )
            raise TraceError(f"{self.folder}: {hint} (there is no {MANIFEST})")
        content = read_json(path, "manifest")
        version = content.get("version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > 1:
            raise TraceError(f"{path}: corpus version {version}, this build reads up to 1; update pixelis")
        try:
            self.manifest = Manifest.model_validate(content)
        except ValidationError as error:
            first_error = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first_error["loc"])
            raise TraceError(f"{path} is no manifest: {where}: {first_error['msg']}") from error
        if any(Path(shard.name).name != shard.name for shard in self.manifest.shards):
            raise TraceError(f"{path}: a shard's name leads out of the corpus")
        self._shard: Callable[[str], Shard] = lru_cache(MAX_OPEN_SHARDS)(self._open_shard)

    def _open_shard(self, name: str) -> Shard:
        return Shard(self.folder / "shards" / name)

    def __len__(self) -> int:
        return self.manifest.records

    def __getitem__(self, number: int) -> Record:
        """Record `number` of the corpus, from 0, in the order of the manifest."""
        offset = number
        for facts in self.manifest.shards:
            if 0 <= offset < facts.records:
                return self._shard(facts.name).record(offset)
            offset -= facts.records
        raise IndexError(f"record {number} of {len(self)}")

    def rows(self, *, split: Split | None = None) -> Iterator[CorpusRow]:
        """The index of all shards: what can be known without reading records."""
        for facts in self.manifest.shards:
            if split in (None, facts.split):
                yield from self._shard(facts.name).rows

    def records(
        self,
        *,
        split: Split | None = None,
        family: str | Collection[str] | None = None,
        accepted: bool | None = None,
    ) -> Iterator[Record]:
        """Records one after another, verified; blocks that hold none of the wanted ones are not even read."""
        families = (family,) if isinstance(family, str) else family
        for facts in self.manifest.shards:
            if split not in (None, facts.split):
                continue
            shard = self._shard(facts.name)
            for number, row in enumerate(shard.rows):
                if (families is None or row.family in families) and accepted in (None, row.accepted):
                    yield shard.record(number)

    def find(self, item_id: str) -> Record:
        """The record of an item; TraceError where the corpus has none."""
        position = next((number for number, row in enumerate(self.rows()) if row.id == item_id), None)
        if position is None:
            raise TraceError(f"{self.folder} has no item {item_id!r}")
        return self[position]

    def verify(self) -> None:
        """Read every byte: TraceError at the first shard, row or blob that is not what it should be."""
        for facts in self.manifest.shards:
            self.require_shard(facts)
            Shard(self.folder / "shards" / facts.name).verify()
        if corpus_hash(self.manifest.shards) != self.manifest.corpus:
            raise TraceError(f"{self.folder / MANIFEST}: the corpus hash is not that of its shards")

    def require_shard(self, facts: ShardFacts) -> None:
        """TraceError where a shard is missing, damaged, or has other records than the manifest says."""
        path = self.folder / "shards" / facts.name
        actual = Shard(path).facts()
        if (actual.content, actual.records, actual.accepted) != (facts.content, facts.records, facts.accepted):
            raise TraceError(f"{path}: its content is not what the manifest says")

    def blob(self, sha256: str, record: Record) -> bytes | None:
        """An artifact or medium of a record by its hash; None where the corpus does not keep it."""
        offset = record.ordinal
        for facts in self.manifest.shards:
            if facts.split == record.split:
                if offset < facts.records:
                    return self._shard(facts.name).blob(sha256)
                offset -= facts.records
        return None

    def media(self, record: Record) -> MediaSet:
        """The record's media with their pixels: from the corpus where it keeps them, else rendered again."""
        if record.source:
            return self._media_beside_items(record)
        if is_world_item(record.item):
            folder = self.manifest.plan.get("config", {}).get("photographs")
            return MediaSet(render_item_media(record.item, photographs=Path(folder) if folder else None))
        return MediaSet(tuple(self._stored_medium(record, facts.sha256) for facts in record.item.media))

    def _media_beside_items(self, record: Record) -> MediaSet:
        """Media of an imported item: as blobs where the corpus keeps them, else where its file of items lies."""
        if all(self.blob(facts.sha256, record) is not None for facts in record.item.media):
            return MediaSet(tuple(self._stored_medium(record, facts.sha256) for facts in record.item.media))
        name = record.source.rpartition(":")[0]
        listed_files = self.manifest.plan.get("items")
        files_by_name = (
            {str(f.get("name")): f for f in listed_files if isinstance(f, dict)}
            if isinstance(listed_files, list)
            else {}
        )
        if name not in files_by_name:
            raise MediaError(f"{record.item.id}: the manifest of {self.folder} does not say where {name} lies")
        return open_item_media(record.item, self.folder / str(files_by_name[name].get("path")))

    def _stored_medium(self, record: Record, sha256: str) -> Medium:
        content = self.blob(sha256, record)
        if content is None:
            raise MediaError(f"{record.item.id}: medium {sha256[:12]}… is not kept in {self.folder}")
        with tempfile.NamedTemporaryFile(prefix="pixelis-medium-") as file:
            file.write(content)
            file.flush()
            return open_media(file.name)  # an open clip keeps its file although its name is gone


def is_world_item(item: Item) -> bool:
    """Whether the item can be rendered from its seed."""
    return any(item.template == template.id for template in templates(item.family))


def render_item_media(item: Item, *, photographs: Path | None = None) -> tuple[Medium, ...]:
    """The pixels of a world item; MediaError where this build of the world paints them otherwise."""
    rendered = generate(
        item.family,
        seed=item.seed,
        difficulty=item.difficulty,
        template_id=item.template,
        photographs=photographs,
    )
    if item.shift is not None:
        rendered = shift_item(rendered, item.shift.name, item.shift.severity, seed=item.shift.seed)
    for facts, medium in zip(item.media, rendered.media, strict=True):
        if facts.sha256 != medium.sha256:
            raise MediaError(
                f"{item.id}: {facts.name} is painted otherwise by this build of the world "
                f"(sha256 {medium.sha256[:12]}…, recorded {facts.sha256[:12]}…); use the version in the manifest"
            )
    return rendered.media
