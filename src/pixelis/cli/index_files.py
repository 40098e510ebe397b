"""What the verbs of `pixelis index` open: settings, encoders, the memory, and the mask that lies beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from pixelis.retrieval.collection import Item, Progress
    from pixelis.retrieval.features import FeatureCache
    from pixelis.retrieval.keys import KeyMaker
    from pixelis.retrieval.mask import EvaluationMask
    from pixelis.retrieval.memory import Memory, MemoryConfig

MASK_SOURCE = "mask.json"
"""Where the corpus lies whose media it masks."""


def settings_of(folder: Path, config: Path | None, overrides: list[str]) -> MemoryConfig | None:
    """None where nothing is said: the memory's own settings hold."""
    from pixelis.config import load_config
    from pixelis.retrieval.memory import SETTINGS, MemoryConfig

    if config is None and not overrides:
        return None
    own = folder / SETTINGS
    return load_config(MemoryConfig, config or (own if own.exists() else None), overrides)


def open_to_index(folder: Path, settings: MemoryConfig | None) -> Memory:
    """A memory whose index is about to be made again: what is wrong with the old one does not matter."""
    from pixelis.retrieval.memory import Memory
    from pixelis.retrieval.memory_head import read_memory_head
    from pixelis.retrieval.memory_index_files import forget_index

    read_memory_head(folder)  # before anything is removed
    forget_index(folder)
    return Memory.open(folder, settings)


def opened_or_new(
    folder: Path, settings: MemoryConfig | None, keys: KeyMaker, mask: EvaluationMask | None, corpus: Path
) -> Memory:
    from pixelis.retrieval.memory import Memory
    from pixelis.retrieval.memory_head import HEAD, MASK
    from pixelis.rundir import write_json

    if (folder / HEAD).exists():
        memory = Memory.open(folder, settings, mask=mask, rebuild=True)
        require_same_encoders(memory, keys)
        say_recovered(memory)
        return memory
    memory = Memory.create(
        folder,
        text_dimensions=keys.text.dimensions,
        visual_dimensions=keys.visual.embed([]).shape[1],
        encoders=keys.fingerprint,
        config=settings,
        mask=mask,
    )
    if mask is not None:
        mask.save(folder / MASK)
        write_json(folder / MASK_SOURCE, {"corpus": str(corpus.resolve())})
    return memory


def mask_for(
    folder: Path, corpus: Path, evaluation: list[Path], cache: FeatureCache, progress: Progress
) -> EvaluationMask | None:
    """The memory's own mask where it has one; else of the named media, or of the corpus's evaluation splits."""
    from pixelis.cli.data_dedup import corpus_items, encoder
    from pixelis.data.memories import EVALUATION
    from pixelis.errors import ConfigError
    from pixelis.retrieval.mask import EvaluationMask
    from pixelis.retrieval.memory_head import HEAD

    if (folder / HEAD).exists():
        if evaluation:
            raise ConfigError(f"{folder} has its mask already: --evaluation is for a new memory")
        return kept_mask(folder)
    if evaluation:
        items = named_media(evaluation)
    else:
        items = [item for split in EVALUATION for item in corpus_items(corpus, split)]
    if not items:
        raise ConfigError(f"{corpus} has no evaluation splits: name the media with --evaluation, or say --without-mask")
    return EvaluationMask.of(items, encoder(), cache=cache, progress=progress)


def named_media(evaluation: list[Path]) -> list[Item]:
    """The media that --evaluation names; ConfigError where one of the sources has none: nothing would be masked."""
    from pixelis.cli.data_dedup import media_of
    from pixelis.errors import ConfigError

    found = []
    for source in evaluation:
        items = media_of(source)
        if not items:
            raise ConfigError(f"--evaluation {source}: there are no media in it, so that nothing would be masked")
        found += items
    return found


def kept_mask(folder: Path) -> EvaluationMask | None:
    """The memory's mask. Media of a corpus have no files: they are rendered again where the corpus is still there.

    Where it is not, a near pair cannot be looked at, and is refused.
    """
    import json

    from pixelis.cli.data_dedup import corpus_items
    from pixelis.data.store import MANIFEST
    from pixelis.retrieval.collection import Collection
    from pixelis.retrieval.mask import EvaluationMask
    from pixelis.retrieval.memory_head import MASK

    if not (folder / MASK).exists():
        return None
    mask = EvaluationMask.load(folder / MASK)
    source = folder / MASK_SOURCE
    corpus = Path(json.loads(source.read_text(encoding="utf-8"))["corpus"]) if source.exists() else None
    if corpus is None or not (corpus / MANIFEST).exists():
        return mask
    known = {item.name: item for item in corpus_items(corpus)}
    items = [item if item.path else known.get(item.name, item) for item in mask.media.items]
    media = Collection(items, mask.media.features)
    return EvaluationMask(media, encoder=mask.encoder, threshold=mask.threshold, config=mask.config)


def key_maker() -> KeyMaker:
    from pixelis.encoders.text import TextEncoder
    from pixelis.encoders.visual import VisualEncoder
    from pixelis.retrieval.keys import KeyMaker

    return KeyMaker(TextEncoder(), VisualEncoder())


def require_same_encoders(memory: Memory, keys: KeyMaker) -> None:
    from pixelis.errors import MemoryFileError

    if memory.head.encoders != keys.fingerprint:
        raise MemoryFileError(f"{memory.folder} was made with other encoders; build it again with those in use")


def say_recovered(memory: Memory) -> None:
    if memory.recovered.bytes:
        done = "was dropped" if memory.files.writing else "is passed over"
        typer.echo(f"an append that was cut off {done} ({memory.recovered.bytes} bytes)", err=True)
