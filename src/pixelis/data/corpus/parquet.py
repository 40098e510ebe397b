"""Export of a corpus, items or traces to Parquet, as a folder that Hugging Face `datasets` opens by its path.

The most useful fields are columns; the whole item and the whole trace are columns too, as JSON, so that the export is
lossless. Pixels are not exported: media are named by hash, and by path if there is one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from pixelis.core.errors import ConfigError, TraceError, validation_problem
from pixelis.core.extras import require
from pixelis.data.corpus.corpus import MANIFEST, Corpus
from pixelis.data.corpus.record import Record
from pixelis.data.corpus.text_lines import ImportResult, Problem, read_lines
from pixelis.items import Item
from pixelis.trace import codec
from pixelis.trace.schema import Trace, canonical_json

ROWS_PER_FILE = 20_000
ROWS_PER_GROUP = 256
"""Rows that are written together."""


class ParquetRow(NamedTuple):
    """One row, and the table and split that it belongs to."""

    table: str
    """`corpus`, `items` or `traces`: one configuration of the dataset each."""
    split: str
    columns: dict[str, Any]


def export_parquet(source: Path, out: Path, *, accepted: bool = False) -> ImportResult:
    """Write `source` (a corpus folder, or a file of items or traces) as Parquet files with a README into `out`.

    `accepted` excludes rejected records. The folder appears when it is complete.
    """
    arrow = require("pyarrow", "Parquet")
    require("pyarrow.parquet", "Parquet")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and is not empty: name a new folder")
    staging = out.with_name(f".{out.name}.part")
    result = ImportResult()
    try:
        staging.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(staging)
        writers: dict[tuple[str, str], _SplitWriter] = {}
        for row in rows(source, accepted=accepted):
            if isinstance(row, Problem):
                result.add_problem(row)
                continue
            key = (row.table, row.split)
            if key not in writers:
                writers[key] = _SplitWriter(staging / row.table, row.split, table_schema(arrow, row.table), arrow)
            writers[key].add(row.columns)
            result.count += 1
        for files in writers.values():
            files.close()
        if result.count:
            (staging / "README.md").write_text(
                dataset_card(source, {k: f.row_count for k, f in writers.items()}), encoding="utf-8"
            )
            if out.exists():
                out.rmdir()
            staging.rename(out)
        else:
            _remove_leftovers(staging)
            staging.rmdir()
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror})") from error
    return result


def _remove_leftovers(folder: Path) -> None:
    """Delete the files and folders of a killed export, and nothing else."""
    for file in [*sorted(folder.rglob("*.parquet")), folder / "README.md"]:
        file.unlink(missing_ok=True)
    for inner in [f for f in folder.iterdir() if f.is_dir()]:
        inner.rmdir()


class _SplitWriter:
    """Writes the files of one split of one table, a group of rows at a time."""

    def __init__(self, folder: Path, split: str, schema: Any, arrow: Any) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._split, self._schema, self._arrow = folder, split, schema, arrow
        self._writer: Any = None
        self._buffer: list[dict[str, Any]] = []
        self.row_count = 0

    def add(self, columns: dict[str, Any]) -> None:
        self._buffer.append(columns)
        self.row_count += 1
        if self.row_count % ROWS_PER_FILE == 0:
            self.close()
        elif len(self._buffer) == ROWS_PER_GROUP:
            self._flush()

    def _flush(self) -> None:
        if self._writer is None:
            name = f"{self._split}-{(self.row_count - 1) // ROWS_PER_FILE:05d}.parquet"
            self._writer = self._arrow.parquet.ParquetWriter(self._folder / name, self._schema, compression="zstd")
        self._writer.write_table(self._arrow.Table.from_pylist(self._buffer, schema=self._schema))
        self._buffer.clear()

    def close(self) -> None:
        if self._buffer:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


# --- rows


def rows(source: Path, *, accepted: bool = False) -> Iterator[ParquetRow | Problem]:
    """The rows of a corpus folder, of a file of items or traces, or of every such file in a folder."""
    if (source / MANIFEST).is_file():
        yield from _corpus_rows(Corpus(source), accepted=accepted)
        return
    if source.is_dir():
        files = sorted(f for f in source.rglob("*.jsonl") if not f.name.endswith(".problems.jsonl"))
        if not files:
            raise ConfigError(f"{source} is not a corpus and holds no .jsonl files of items or traces")
    else:
        files = [source]
    for file in files:
        yield from _file_rows(file)


def _corpus_rows(corpus: Corpus, *, accepted: bool) -> Iterator[ParquetRow | Problem]:
    for number in range(len(corpus)):
        try:
            record = corpus[number]
        except TraceError as error:
            yield Problem(f"{corpus.folder}, record {number}", str(error))
            continue
        if record.accepted or not accepted:
            yield ParquetRow("corpus", split_name(record.split), record_columns(record))


def _file_rows(file: Path) -> Iterator[ParquetRow | Problem]:
    for line in read_lines(file):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{file}:{line.number}"
        try:
            if line.text.startswith(codec.FIRST_BYTES.decode()):
                yield ParquetRow("traces", "train", trace_columns(codec.decode(line.text.encode() + b"\n")))
            else:
                yield ParquetRow("items", "train", item_columns(Item.model_validate_json(line.text)))
        except TraceError as error:
            yield Problem(where, str(error))
        except ValidationError as error:
            yield Problem(where, f"neither a trace nor an item: {validation_problem(error)}")


def split_name(split: str) -> str:
    """The name of a split for Hugging Face: `dev-cal` is `dev_cal`."""
    return split.replace("-", "_")


def record_columns(record: Record) -> dict[str, Any]:
    return {
        **item_columns(record.item),
        **trace_columns(record.trace),
        "accepted": record.accepted,
        "acceptance_json": json.dumps(record.acceptance, sort_keys=True),
        "teaching_json": json.dumps(record.teaching, sort_keys=True),
    }


def item_columns(item: Item) -> dict[str, Any]:
    paths = item.parameters.get("media_paths", ())
    hints = paths if isinstance(paths, tuple) else (paths,)
    same = {"id", "family", "template", "difficulty", "seed", "answer", "scoring"}
    return {
        **item.model_dump(include=same),
        "question": item.question,
        "options": list(item.options),
        "answers": list(item.answers),
        "needs": list(item.required_tools),
        "media": [
            {**m.model_dump(), "path": str(hints[k]) if k < len(hints) else None} for k, m in enumerate(item.media)
        ],
        "licence": str(item.parameters.get("licence", "")),
        "watermark": str(item.parameters.get("watermark", "")),
        "item_json": item.model_dump_json(exclude_none=True),
    }


def trace_columns(trace: Trace) -> dict[str, Any]:
    return {
        "trace_id": trace.id,
        "query": trace.query,
        "origin": trace.origin,
        "final_answer": trace.answer,
        "answer_confidence": trace.answer_confidence,
        "steps": [
            {
                "thought": step.thought,
                "tool": step.call.tool,
                "args": json.dumps(step.call.args, sort_keys=True, ensure_ascii=False),
                "status": step.result.status,
                "text": step.result.text or step.result.error,
                "confidence": step.result.confidence,
                "seconds": step.result.seconds,
            }
            for step in trace.steps
        ],
        "seal": trace.seal,
        "trace_json": canonical_json(trace.model_dump(mode="json")).decode(),
    }


def table_schema(arrow: Any, table: str) -> Any:
    """The columns of a table, independent of its rows."""
    text, texts = arrow.string(), arrow.list_(arrow.string())
    medium = {
        "name": text, "sha256": text, "width": arrow.int32(), "height": arrow.int32(), "frames": arrow.int32(),
        "duration_s": arrow.float64(), "path": text,
    }  # fmt: skip
    step = {
        "thought": text, "tool": text, "args": text, "status": text, "text": text, "confidence": arrow.float64(),
        "seconds": arrow.float64(),
    }  # fmt: skip
    item: dict[str, Any] = {
        "id": text, "family": text, "template": text, "difficulty": arrow.int8(), "seed": arrow.int64(),
        "question": text, "options": texts, "answer": text, "answers": texts, "scoring": text, "needs": texts,
        "media": arrow.list_(arrow.struct(list(medium.items()))), "licence": text, "watermark": text, "item_json": text,
    }  # fmt: skip
    trace: dict[str, Any] = {
        "trace_id": text, "query": text, "origin": text, "final_answer": text, "answer_confidence": arrow.float64(),
        "steps": arrow.list_(arrow.struct(list(step.items()))), "seal": text, "trace_json": text,
    }  # fmt: skip
    extra: dict[str, Any] = {"accepted": arrow.bool_(), "acceptance_json": text, "teaching_json": text}
    return arrow.schema(list({"items": item, "traces": trace, "corpus": {**item, **trace, **extra}}[table].items()))


def dataset_card(source: Path, counts: Mapping[tuple[str, str], int]) -> str:
    """The README of the dataset, whose header maps files to splits for `datasets.load_dataset`."""
    tables: dict[str, list[tuple[str, int]]] = {}
    for (table, split), count in counts.items():
        tables.setdefault(table, []).append((split, count))
    header = ["---", "configs:"]
    for table, splits in tables.items():
        header += [f"- config_name: {table}", "  data_files:"]
        for split, _ in splits:
            header += [f"  - split: {split}", f'    path: "{table}/{split}-*.parquet"']
    listing = [f"| {table} | {split} | {count} |" for table, splits in tables.items() for split, count in splits]
    body = ["# Exported from Pixelis", "", f"Source: `{source.name}`.", "", "| table | split | rows |", "|---|---|---|"]
    footer = ["", "`item_json` and `trace_json` hold the whole records; the other columns are derived from them."]
    return "\n".join([*header, "---", "", *body, *listing, *footer, ""])
