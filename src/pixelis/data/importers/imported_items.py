"""Items on disk: one JSON line each, the problems of the import beside them, and the paths to their media."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import ConfigError
from pixelis.data.corpus.text_lines import ImportResult, Problem, TextLine, parse_json, read_lines
from pixelis.data.importers import dataset_questions, photo_questions, text_questions
from pixelis.data.importers.coco import coco_items
from pixelis.data.importers.import_options import ImportOptions, ImportOutcome
from pixelis.data.importers.mot import mot_items
from pixelis.data.importers.spans import span_items
from pixelis.data.importers.text_datasets import ocr_items
from pixelis.data.importers.traces.foreign_traces import ImportedTrace
from pixelis.data.importers.user_questions import user_items
from pixelis.items import Item
from pixelis.trace import codec
from pixelis.trace.schema import canonical_json
from pixelis.verification.rights import rights_reasons
from pixelis.world.generate import necessity_case as case_of_the_world
from pixelis.world.generate import template as template_of_the_world
from pixelis.world.template import Template
from pixelis.world.tool_necessity import NecessityCase

TEMPLATES = {**dataset_questions.TEMPLATES, **photo_questions.TEMPLATES, **text_questions.TEMPLATES}
"""Every question template of the importers."""
DatasetKind = Literal["coco", "mot", "ocr", "spans", "questions"]
IMPORTERS: dict[str, Callable[[Path, ImportOptions], Iterator[ImportOutcome]]] = {
    "coco": coco_items,
    "mot": mot_items,
    "ocr": ocr_items,
    "spans": span_items,
    "questions": user_items,
}


def problems_path(out: Path) -> Path:
    """Where the problems of an import are written: `items.problems.jsonl` beside `items.jsonl`."""
    return out.with_name(f"{out.name.removesuffix('.jsonl')}.problems.jsonl")


def write_items(outcomes: Iterable[ImportOutcome], out: Path, *, limit: int | None = None) -> ImportResult:
    """Write items as they come, and every problem beside them. Without an item, `out` is not written.

    An item whose media may not enter a corpus, because of their licence or a visible watermark, is a problem.
    """
    require_items_file(out)

    def encode(outcome: Item, result: ImportResult) -> bytes:
        return outcome.model_dump_json(exclude_none=True).encode() + b"\n"

    return _write_outcomes(map(check_rights, outcomes), out, encode, limit)


def check_rights(outcome: ImportOutcome) -> ImportOutcome:
    """The item, or a problem if its media may not be used."""
    reasons = rights_reasons(outcome) if isinstance(outcome, Item) else []
    return Problem(outcome.id, "; ".join(reasons)) if isinstance(outcome, Item) and reasons else outcome


def write_traces(outcomes: Iterable[ImportedTrace | Problem], out: Path, *, limit: int | None = None) -> ImportResult:
    """Write foreign traces in the same way, and count their calls."""
    codec.check_target(out)

    def encode(outcome: ImportedTrace, result: ImportResult) -> bytes:
        result.call_counts["waiting"] += outcome.waiting
        result.call_counts["unusable"] += len(outcome.trace.steps) - outcome.waiting - len(outcome.unknown)
        result.call_counts.update(f"unknown {name}" for name in outcome.unknown)
        return codec.encode(outcome.trace)

    return _write_outcomes(outcomes, out, encode, limit)


T = TypeVar("T")


def _write_outcomes(
    outcomes: Iterable[T | Problem], out: Path, encode: Callable[[T, ImportResult], bytes], limit: int | None
) -> ImportResult:
    result = ImportResult()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            problems_file = stack.enter_context(atomic_write(problems_path(out)))
            file: BinaryIO | None = None  # opened by the first item, so that without one `out` stays as it is
            for outcome in outcomes:
                if isinstance(outcome, Problem):
                    result.add_problem(outcome)
                    problems_file.write(canonical_json(outcome._asdict()) + b"\n")
                    continue
                file = file or stack.enter_context(atomic_write(out))
                file.write(encode(outcome, result))
                result.count += 1
                if limit and result.count >= limit:
                    break
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror})") from error
    return result


def require_items_file(out: Path) -> None:
    """ConfigError if another kind of file would be overwritten."""
    with suppress(FileNotFoundError):
        if out.is_dir():
            raise ConfigError(f"{out} is a folder: name a file")
        with out.open("rb") as file:
            start = file.read(6)
        if start and not start.startswith(b'{"id":'):
            raise ConfigError(f"{out} exists and is not a file of items: nothing was written")


def find_or_import_items(source: Path, out: Path, options: ImportOptions) -> tuple[Path, ImportResult]:
    """A file of items and their number, or a user's questions imported into `out`; ConfigError if it is neither.

    The first line with a JSON object determines which of the two it is.
    """
    if is_items_file(source):
        return source, ImportResult(count=sum(1 for _ in read_lines(source)))
    result = write_items(user_items(source, options), out)
    if not result.count:
        raise ConfigError(f"{source}: none of its lines is a question or an item; see {problems_path(out)}")
    return out, result


def is_items_file(source: Path) -> bool:
    for line in read_lines(source):
        with suppress(ValueError):
            content = parse_json(line.text) if isinstance(line, TextLine) else None
            if isinstance(content, dict):
                return "template" in content
    return False


def get_template(name: str) -> Template:
    """A question template of an importer or the world by its id; ConfigError if there is none."""
    return TEMPLATES[name] if name in TEMPLATES else template_of_the_world(name)


def get_case(item: Item) -> NecessityCase:
    """The item's reference program, from which its necessity labels can be recomputed."""
    return case_of_the_world(item, get_template(item.template))
