"""Loading for the verbs of `pixelis index`: settings, encoders, the memory and its evaluation mask."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pixelis.core.errors import ConfigError, MemoryFileError

if TYPE_CHECKING:
    from pixelis.dedup.evaluation_mask import EvaluationMask
    from pixelis.dedup.media_collection import MediaItem, ProgressCallback
    from pixelis.dedup.media_features import FeatureCache
    from pixelis.memory.keys import KeyMaker
    from pixelis.memory.memory_store import MemoryConfig, MemoryStore

MASK_SOURCE = "mask.json"
"""Path of the corpus whose media are masked."""


def load_memory_config(folder: Path, config: Path | None, overrides: list[str]) -> MemoryConfig | None:
    """None if nothing is given: the memory's own settings apply."""
    from pixelis.core.config import load_config
    from pixelis.memory.memory_store import SETTINGS_FILE, MemoryConfig

    if config is None and not overrides:
        return None
    saved_settings = folder / SETTINGS_FILE
    return load_config(MemoryConfig, config or (saved_settings if saved_settings.exists() else None), overrides)


def open_for_reindex(folder: Path, settings: MemoryConfig | None) -> MemoryStore:
    """Open a memory after deleting its index, which may be damaged."""
    from pixelis.memory.memory_head import read_memory_head
    from pixelis.memory.memory_store import MemoryStore
    from pixelis.memory.vector_index_files import delete_index

    read_memory_head(folder)  # fails before anything is deleted
    delete_index(folder)
    return MemoryStore(folder, settings)


def open_or_create(
    folder: Path, settings: MemoryConfig | None, keys: KeyMaker, mask: EvaluationMask | None, corpus: Path
) -> MemoryStore:
    from pixelis.core.provenance import write_json
    from pixelis.memory.memory_head import MASK_FILE, MEMORY_HEAD_FILE
    from pixelis.memory.memory_store import MemoryStore

    if (folder / MEMORY_HEAD_FILE).exists():
        memory = MemoryStore(folder, settings, mask=mask, rebuild=True)
        require_same_encoders(memory, keys)
        warn_dropped_append(memory)
        return memory
    sizes = {"text_dimensions": keys.text.dimensions, "visual_dimensions": keys.visual.embed([]).shape[1]}
    memory = MemoryStore.create(folder, encoders=keys.fingerprint, config=settings, mask=mask, **sizes)
    if mask is not None:
        mask.save(folder / MASK_FILE)
        write_json(folder / MASK_SOURCE, {"corpus": str(corpus.resolve())})
    return memory


def choose_mask(
    folder: Path, corpus: Path, evaluation: list[Path], cache: FeatureCache, progress: ProgressCallback
) -> EvaluationMask | None:
    """The memory's own mask; for a new memory that of the given media, or of the corpus's evaluation splits."""
    from pixelis.cli.data_dedup import corpus_items, make_image_encoder
    from pixelis.data.corpus.exemplar_drafts import EVALUATION_SPLITS
    from pixelis.dedup.evaluation_mask import EvaluationMask
    from pixelis.memory.memory_head import MEMORY_HEAD_FILE

    if (folder / MEMORY_HEAD_FILE).exists():
        if evaluation:
            raise ConfigError(f"{folder} already has an evaluation mask; --evaluation is for a new memory")
        return load_mask(folder)
    if evaluation:
        items = media_from_sources(evaluation)
    else:
        items = [item for split in EVALUATION_SPLITS for item in corpus_items(corpus, split)]
    if not items:
        raise ConfigError(f"{corpus} has no evaluation splits; give the media with --evaluation, or use --without-mask")
    return EvaluationMask.build(items, make_image_encoder(), cache=cache, progress=progress)


def media_from_sources(evaluation: list[Path]) -> list[MediaItem]:
    """The media of --evaluation; ConfigError if a source has none, because nothing would be masked."""
    from pixelis.cli.data_dedup import media_from_source

    all_items = []
    for source in evaluation:
        items = media_from_source(source)
        if not items:
            raise ConfigError(f"--evaluation {source}: it contains no media, so nothing would be masked")
        all_items += items
    return all_items


def load_mask(folder: Path) -> EvaluationMask | None:
    """The memory's mask. Media of a corpus have no files: they are rendered again if the corpus is still there.

    Otherwise a near pair cannot be compared, and is refused.
    """
    import json

    from pixelis.cli.data_dedup import corpus_items
    from pixelis.data.corpus.corpus import MANIFEST
    from pixelis.dedup.evaluation_mask import EvaluationMask
    from pixelis.dedup.media_collection import MediaCollection
    from pixelis.memory.memory_head import MASK_FILE

    if not (folder / MASK_FILE).exists():
        return None
    mask = EvaluationMask.load(folder / MASK_FILE)
    source = folder / MASK_SOURCE
    corpus = Path(json.loads(source.read_text(encoding="utf-8"))["corpus"]) if source.exists() else None
    if corpus is None or not (corpus / MANIFEST).exists():
        return mask
    items_by_name = {item.name: item for item in corpus_items(corpus)}
    items = [item if item.path else items_by_name.get(item.name, item) for item in mask.media.items]
    media = MediaCollection(items, mask.media.features)
    return EvaluationMask(media, encoder=mask.encoder, threshold=mask.threshold, config=mask.config)


def make_key_maker() -> KeyMaker:
    from pixelis.memory.keys import KeyMaker
    from pixelis.weights.encoders.text_encoder import TextEncoder
    from pixelis.weights.encoders.visual_encoder import VisualEncoder

    return KeyMaker(TextEncoder(), VisualEncoder())


def require_same_encoders(memory: MemoryStore, keys: KeyMaker) -> None:

    if memory.head.encoders != keys.fingerprint:
        raise MemoryFileError(f"{memory.folder} was built with other encoders; build it again with the current ones")


def warn_dropped_append(memory: MemoryStore) -> None:
    if memory.recovered.bytes:
        outcome = "dropped" if memory.files.writable else "ignored"
        typer.echo(f"{outcome} an incomplete append ({memory.recovered.bytes} bytes)", err=True)
