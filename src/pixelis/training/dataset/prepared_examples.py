"""Examples prepared once and kept on disk: rendering a corpus costs more than an epoch of nano.

The folder is named by the hash of corpus, prompt style, image processor and tokenizer. Several processes fill it, a
killed preparation is resumed, and training reads slices of it. Files are safetensors: nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus import Corpus
from pixelis.policy import chat_format
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.images import ImageProcessorConfig
from pixelis.policy.sequence import ImageSpan
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.training.common.run_state import Sources
from pixelis.training.dataset.examples import ANSWER, COLUMNS, PROMPT, Example, Steps, example_from_record, make_picture

FORMAT_VERSION = 4
"""Increased when the meaning of the files changes."""
CHUNK = 64
"""Records in one file: the unit of work of a process."""
TOKENIZER = "tokenizer"
TOKEN_COLUMNS = ("ids", "kinds", "step_of", "output_of")


class ExampleEntry(NamedTuple):
    """The index entry of an example."""

    chunk: int
    row: int
    id: str
    family: str
    accepted: bool
    tokens: int
    tokens_without_tools: int


def corpus_texts(corpus: Corpus) -> Iterator[str]:
    """All text that nano reads or writes in the train split, to train its tokenizer on."""
    for record in corpus.records(split="train"):
        yield record.item.question
        for step in record.trace.steps:
            yield step.thought
            yield chat_format.format_call_text(step.call)
            yield step.result.text or step.result.error
        yield record.trace.answer_thought
        yield record.trace.answer or record.item.answer


def tool_schemas() -> list[dict[str, Any]]:
    with Toolbox(ToolboxConfig(isolate=False, cache=False)) as toolbox:
        return toolbox.schemas()


def content_key(corpus: Corpus, tokens: PolicyTokenizer, style: PromptStyle, image_config: ImageProcessorConfig) -> str:
    """The name of the folder: equal keys mean equal bytes."""
    settings = style.model_dump(mode="json")
    parts = [FORMAT_VERSION, corpus.manifest.corpus, settings, image_config, tokenizer_hash(tokens)]
    parts += [tool_schemas()] if style.tool_schemas else []  # they are part of the prompt
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def tokenizer_hash(tokens: PolicyTokenizer) -> str:
    return hashlib.sha256(tokens.hf_tokenizer.backend_tokenizer.to_str().encode()).hexdigest()


def run_sources(corpus: Corpus, tokens: PolicyTokenizer) -> Sources:
    return Sources(corpus=corpus.manifest.corpus, tokenizer=tokenizer_hash(tokens))


def prepare(
    corpus: Corpus,
    split: str,
    tokens: PolicyTokenizer,
    style: PromptStyle,
    image_config: ImageProcessorConfig,
    *,
    workers: int = 2,
    folder: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> PreparedExamples:
    """The examples of a split; missing ones are prepared."""
    from pixelis.weights import cache_dir

    root = (folder or cache_dir() / "examples") / content_key(corpus, tokens, style, image_config)
    root.mkdir(parents=True, exist_ok=True)
    if not (root / TOKENIZER).exists():
        fresh = root / f".{TOKENIZER}.{os.getpid()}"
        tokens.hf_tokenizer.save_pretrained(fresh)
        try:
            fresh.rename(root / TOKENIZER)
        except OSError:  # another run was faster, with the same content
            shutil.rmtree(fresh)
    offset, numbers = 0, list[int]()
    for facts in corpus.manifest.shards:
        numbers += range(offset, offset + facts.records) if facts.split == split else ()
        offset += facts.records
    chunks = [numbers[k : k + CHUNK] for k in range(0, len(numbers), CHUNK)]
    missing = [k for k in range(len(chunks)) if not chunk_path(root, split, k).exists()]
    settings = {"style": style.model_dump(mode="json"), "optics": image_config._asdict(), "schemas": tool_schemas()}
    prepare_chunk = partial(make_chunk, str(corpus.folder), str(root), split, settings)
    done = len(numbers) - sum(len(chunks[k]) for k in missing)

    def report(more: int) -> None:
        nonlocal done
        done += more
        if on_progress:
            on_progress(done, len(numbers))

    report(0)
    if workers < 2 or len(missing) < 2:
        for k in missing:
            report(prepare_chunk(k, chunks[k]))
    else:
        with ProcessPoolExecutor(min(workers, len(missing)), mp_context=get_context("spawn")) as pool:
            for job in as_completed([pool.submit(prepare_chunk, k, chunks[k]) for k in missing]):
                report(job.result())
    return PreparedExamples(root, split, len(chunks), image_config)


def chunk_path(root: Path, split: str, number: int) -> Path:
    return root / f"{split}-{number:05d}.safetensors"


@lru_cache(maxsize=2)
def _open_corpus_and_tokens(corpus: str, root: str) -> tuple[Corpus, PolicyTokenizer]:
    return Corpus(corpus), PolicyTokenizer.open(Path(root) / TOKENIZER)


def make_chunk(folder: str, root: str, split: str, settings: dict[str, Any], chunk: int, numbers: Sequence[int]) -> int:
    """Write one file of examples, whole or not at all; returns their number."""
    from safetensors.numpy import save_file

    corpus, tokens = _open_corpus_and_tokens(folder, root)
    style, image_config = PromptStyle.model_validate(settings["style"]), ImageProcessorConfig(**settings["optics"])
    records, schemas = (corpus[number] for number in numbers), settings["schemas"]
    examples = [example_from_record(r, corpus.media(r), tokens, style, image_config, schemas) for r in records]
    path = chunk_path(Path(root), split, chunk)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    about = [{"id": e.id, "family": e.family, "difficulty": e.difficulty, "accepted": e.accepted} for e in examples]
    names = [[image_span.image.name for image_span in e.image_spans] for e in examples]
    # One key: safetensors writes several in arbitrary order, and the file would differ from run to run.
    save_file(to_columns(examples), partial, metadata={"about": json.dumps({"examples": about, "names": names})})
    partial.replace(path)
    return len(examples)


def to_columns(examples: Sequence[Example]) -> dict[str, NDArray[Any]]:
    """Examples end to end, with the end of each."""
    spans = [span for e in examples for span in e.image_spans]
    pictures = [span.image for span in spans]
    out: dict[str, NDArray[Any]] = {
        **{name: np.concatenate([getattr(e, name) for e in examples]) for name in TOKEN_COLUMNS},
        "ends.tokens": np.cumsum([len(e) for e in examples]),
        "ends.places": np.cumsum([len(e.image_spans) for e in examples]),
        "ends.steps": np.cumsum([len(e.steps) for e in examples]),
        "ends.looks": np.cumsum([len(e.steps.look_at) for e in examples]),
        "place.start": np.array([span.start for span in spans], dtype=np.int32),
        "place.shape": np.array([p.pixels.shape[:2] for p in pictures], dtype=np.int32).reshape(-1, 2),
        "pixels": np.concatenate([p.pixels.reshape(-1) for p in pictures] or [np.zeros(0, dtype=np.uint8)]),
        "ends.pixels": np.cumsum([sum(span.image.pixels.size for span in e.image_spans) for e in examples]),
        **{f"step.{name}": np.concatenate([getattr(e.steps, name) for e in examples]) for name in COLUMNS},
    }
    return {name: np.ascontiguousarray(column) for name, column in out.items()}


class ExampleChunk:
    """One file: its small columns in memory, its pixels on disk."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            self._file = safe_open(path, framework="np")
            metadata = json.loads(self._file.metadata()["about"])
            self.about, self.names = metadata["examples"], metadata["names"]
            self.columns = {name: self._file.get_tensor(name) for name in self._file.keys() if name != "pixels"}  # noqa: SIM118 - it is no mapping
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: holds no examples ({error}); delete it, and it is prepared again") from error
        self._pixels = self._file.get_slice("pixels")

    def get_slice(self, kind: str, row: int) -> slice:
        ends = self.columns[f"ends.{kind}"]
        return slice(int(ends[row - 1]) if row else 0, int(ends[row]))

    def pixels(self, row: int) -> NDArray[np.uint8]:
        part = self.get_slice("pixels", row)
        return self._pixels[part.start : part.stop] if part.stop > part.start else np.zeros(0, dtype=np.uint8)


class PreparedExamples:
    """The examples of one split: an index in memory, the rest read on demand."""

    def __init__(self, root: Path, split: str, chunks: int, image_config: ImageProcessorConfig) -> None:
        self.root = root
        self._split = split
        self._image_config = image_config
        self._chunk = lru_cache(maxsize=256)(lambda k: ExampleChunk(chunk_path(root, split, k)))
        self.entries: list[ExampleEntry] = []
        for k in range(chunks):
            chunk = self._chunk(k)
            ends, kinds = chunk.columns["ends.tokens"], chunk.columns["kinds"]
            lengths = np.diff(ends, prepend=0)
            short_lengths = np.add.reduceat((kinds == PROMPT) | (kinds == ANSWER), ends - lengths, dtype=int)
            for row, about in enumerate(chunk.about):
                identity = about["id"], about["family"], about["accepted"]
                self.entries.append(ExampleEntry(k, row, *identity, int(lengths[row]), int(short_lengths[row])))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, number: int) -> Example:
        entry = self.entries[number]
        chunk, row = self._chunk(entry.chunk), entry.row
        token, step, look = (chunk.get_slice(name, row) for name in ("tokens", "steps", "looks"))
        looks = ("look_at", "look_weight")
        steps = Steps(**{name: chunk.columns[f"step.{name}"][look if name in looks else step] for name in COLUMNS})
        tokens = {name: chunk.columns[name][token] for name in TOKEN_COLUMNS}
        image_spans = tuple(self._image_spans(chunk, row))
        return Example(**chunk.about[row], **tokens, image_spans=image_spans, steps=steps)

    def _image_spans(self, chunk: ExampleChunk, row: int) -> Iterator[ImageSpan]:
        span_range, pixels, offset = chunk.get_slice("places", row), chunk.pixels(row), 0
        starts, shapes = chunk.columns["place.start"][span_range], chunk.columns["place.shape"][span_range]
        for start, (height, width), name in zip(starts.tolist(), shapes.tolist(), chunk.names[row], strict=True):
            end = offset + height * width * 3
            image = make_picture(name, pixels[offset:end].reshape(height, width, 3), self._image_config)
            yield ImageSpan(start, image)
            offset = end
