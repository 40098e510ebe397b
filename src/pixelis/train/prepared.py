"""Examples on disk, made once: rendering a corpus again costs more than an epoch of nano.

The folder is named by the corpus hash, the manner of speaking, the optics and the tokenizer; several processes fill it,
a killed one is gone on with, and training reads slices of it. Files are safetensors: nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.data.store import Corpus
from pixelis.errors import ConfigError
from pixelis.policy import script
from pixelis.policy.ledger import Place
from pixelis.policy.pictures import Optics
from pixelis.policy.script import Style
from pixelis.policy.tokens import Tokens
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.train.examples import ANSWER, COLUMNS, PROMPT, Example, Steps, example_of, picture_at
from pixelis.train.state import Sources
from pixelis.weights import cache_dir

VERSION = 4
"""Rises when what is written here changes its meaning."""
CHUNK = 64
"""Records in one file: the unit of work of a process."""
TOKENIZER = "tokenizer"


class Entry(NamedTuple):
    """What is known about an example without reading it."""

    chunk: int
    row: int
    id: str
    family: str
    accepted: bool
    tokens: int
    tokens_without_tools: int


def corpus_texts(corpus: Corpus) -> Iterator[str]:
    """Everything that nano will read or write in the train split: its tokenizer is trained on this."""
    for record in corpus.records(split="train"):
        yield record.item.question
        for step in record.trace.steps:
            yield step.thought
            yield script.call_text(step.call)
            yield step.result.text or step.result.error
        yield record.trace.answer_thought
        yield record.trace.answer or record.item.answer


def tool_schemas() -> list[dict[str, Any]]:
    with Toolbox(ToolboxConfig(isolate=False, cache=False)) as toolbox:
        return toolbox.schemas()


def key_of(corpus: Corpus, tokens: Tokens, style: Style, optics: Optics) -> str:
    """Names the content: equal keys, equal bytes."""
    parts = [VERSION, corpus.manifest.corpus, style.model_dump(mode="json"), optics, tokenizer_hash(tokens)]
    parts += [tool_schemas()] if style.tool_schemas else []  # they stand in the prompt
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def tokenizer_hash(tokens: Tokens) -> str:
    return hashlib.sha256(tokens.tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def sources_of(corpus: Corpus, tokens: Tokens) -> Sources:
    return Sources(corpus=corpus.manifest.corpus, tokenizer=tokenizer_hash(tokens))


def prepare(
    corpus: Corpus,
    split: str,
    tokens: Tokens,
    style: Style,
    optics: Optics,
    *,
    workers: int = 2,
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Prepared:
    """The examples of a split, made where they are not there yet."""
    root = (folder or cache_dir() / "examples") / key_of(corpus, tokens, style, optics)
    root.mkdir(parents=True, exist_ok=True)
    if not (root / TOKENIZER).exists():
        fresh = root / f".{TOKENIZER}.{os.getpid()}"
        tokens.tokenizer.save_pretrained(fresh)
        try:
            fresh.rename(root / TOKENIZER)
        except OSError:  # another run was quicker, with the same content
            shutil.rmtree(fresh)
    offset, numbers = 0, list[int]()
    for facts in corpus.manifest.shards:
        numbers += range(offset, offset + facts.records) if facts.split == split else ()
        offset += facts.records
    chunks = [numbers[k : k + CHUNK] for k in range(0, len(numbers), CHUNK)]
    missing = [k for k in range(len(chunks)) if not chunk_path(root, split, k).exists()]
    settings = {"style": style.model_dump(mode="json"), "optics": optics._asdict(), "schemas": tool_schemas()}
    done = len(numbers) - sum(len(chunks[k]) for k in missing)

    def report(more: int) -> None:
        nonlocal done
        done += more
        if on_progress:
            on_progress(done, len(numbers))

    report(0)
    if workers < 2 or len(missing) < 2:
        for k in missing:
            report(make_chunk(str(corpus.folder), chunks[k], str(root), split, k, settings))
    else:
        with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
            jobs = [
                pool.submit(make_chunk, str(corpus.folder), chunks[k], str(root), split, k, settings) for k in missing
            ]
            for job in as_completed(jobs):
                report(job.result())
    return Prepared(root, split, len(chunks), optics)


def chunk_path(root: Path, split: str, number: int) -> Path:
    return root / f"{split}-{number:05d}.safetensors"


@lru_cache(maxsize=2)
def _opened(corpus: str, root: str) -> tuple[Corpus, Tokens]:
    return Corpus(corpus), Tokens.open(Path(root) / TOKENIZER)


def make_chunk(
    corpus_folder: str, numbers: Sequence[int], root: str, split: str, chunk: int, settings: dict[str, Any]
) -> int:
    """One file of examples, whole or not at all; returns how many it holds."""
    from safetensors.numpy import save_file

    corpus, tokens = _opened(corpus_folder, root)
    style, optics = Style.model_validate(settings["style"]), Optics(**settings["optics"])
    examples = []
    for number in numbers:
        record = corpus[number]
        examples.append(example_of(record, corpus.media(record), tokens, style, optics, settings["schemas"]))
    path = chunk_path(Path(root), split, chunk)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    about = [{"id": e.id, "family": e.family, "difficulty": e.difficulty, "accepted": e.accepted} for e in examples]
    names = [[place.picture.name for place in e.places] for e in examples]
    # One key: safetensors writes several in any order, and the file would differ from run to run.
    save_file(columns(examples), partial, metadata={"about": json.dumps({"examples": about, "names": names})})
    partial.replace(path)
    return len(examples)


def columns(examples: Sequence[Example]) -> dict[str, NDArray[Any]]:
    """Examples end to end, with where each of them ends."""
    pictures = [place.picture for e in examples for place in e.places]
    out: dict[str, NDArray[Any]] = {
        "ids": np.concatenate([e.ids for e in examples]),
        "kinds": np.concatenate([e.kinds for e in examples]),
        "step_of": np.concatenate([e.step_of for e in examples]),
        "output_of": np.concatenate([e.output_of for e in examples]),
        "ends.tokens": np.cumsum([len(e) for e in examples]),
        "ends.places": np.cumsum([len(e.places) for e in examples]),
        "ends.steps": np.cumsum([len(e.steps) for e in examples]),
        "ends.looks": np.cumsum([len(e.steps.look_at) for e in examples]),
        "place.start": np.array([place.start for e in examples for place in e.places], dtype=np.int32),
        "place.shape": np.array([p.pixels.shape[:2] for p in pictures], dtype=np.int32).reshape(-1, 2),
        "pixels": np.concatenate([p.pixels.reshape(-1) for p in pictures] or [np.zeros(0, dtype=np.uint8)]),
    }
    out["ends.pixels"] = np.cumsum([sum(place.picture.pixels.size for place in e.places) for e in examples])
    for name in COLUMNS:
        out[f"step.{name}"] = np.concatenate([getattr(e.steps, name) for e in examples])
    return {name: np.ascontiguousarray(column) for name, column in out.items()}


class Chunk:
    """One file, its small columns in memory and its pixels on disk."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            self._file = safe_open(path, framework="np")
            told = json.loads(self._file.metadata()["about"])
            self.about, self.names = told["examples"], told["names"]
            self.columns = {name: self._file.get_tensor(name) for name in self._file.keys() if name != "pixels"}  # noqa: SIM118 - it is no mapping
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: no examples in it ({error}); delete it, and it is made again") from error
        self._pixels = self._file.get_slice("pixels")

    def slice_of(self, what: str, row: int) -> slice:
        ends = self.columns[f"ends.{what}"]
        return slice(int(ends[row - 1]) if row else 0, int(ends[row]))

    def pixels(self, row: int) -> NDArray[np.uint8]:
        cut = self.slice_of("pixels", row)
        return self._pixels[cut.start : cut.stop] if cut.stop > cut.start else np.zeros(0, dtype=np.uint8)


class Prepared:
    """The examples of one split: an index in memory, the rest read as it is asked for."""

    def __init__(self, root: Path, split: str, chunks: int, optics: Optics) -> None:
        self.root = root
        self._split = split
        self._optics = optics
        self._chunk = lru_cache(maxsize=256)(lambda k: Chunk(chunk_path(root, split, k)))
        self.entries: list[Entry] = []
        for k in range(chunks):
            chunk = self._chunk(k)
            ends, kinds = chunk.columns["ends.tokens"], chunk.columns["kinds"]
            lengths = np.diff(ends, prepend=0)
            short = np.add.reduceat((kinds == PROMPT) | (kinds == ANSWER), ends - lengths, dtype=int)
            for row, about in enumerate(chunk.about):
                own = about["id"], about["family"], about["accepted"]
                self.entries.append(Entry(k, row, *own, int(lengths[row]), int(short[row])))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> Example:
        entry = self.entries[number]
        chunk, row = self._chunk(entry.chunk), entry.row
        token, step, look = (chunk.slice_of(name, row) for name in ("tokens", "steps", "looks"))
        of_looks = ("look_at", "look_weight")
        steps = Steps(**{name: chunk.columns[f"step.{name}"][look if name in of_looks else step] for name in COLUMNS})
        return Example(
            **chunk.about[row],
            **{name: chunk.columns[name][token] for name in ("ids", "kinds", "step_of", "output_of")},
            places=tuple(self._places(chunk, row)),
            steps=steps,
        )

    def _places(self, chunk: Chunk, row: int) -> Iterator[Place]:
        where, pixels, at = chunk.slice_of("places", row), chunk.pixels(row), 0
        starts, shapes = chunk.columns["place.start"][where], chunk.columns["place.shape"][where]
        for start, (height, width), name in zip(starts.tolist(), shapes.tolist(), chunk.names[row], strict=True):
            size = height * width * 3
            yield Place(start, picture_at(name, pixels[at : at + size].reshape(height, width, 3), self._optics))
            at += size
