"""Items on disk: one JSON line for each, the problems of the import beside them, and the way back to their media."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

from pydantic import ValidationError

from pixelis.data.importers import photo_questions, questions, text_questions
from pixelis.data.importers.coco import coco_items
from pixelis.data.importers.mot import mot_items
from pixelis.data.importers.ocr import ocr_items
from pixelis.data.importers.outcome import Outcome, Tally, Wishes
from pixelis.data.importers.own import own_items
from pixelis.data.importers.spans import span_items
from pixelis.data.rights import rights_reasons
from pixelis.errors import ConfigError, MediaError
from pixelis.media import MediaSet, open_media
from pixelis.rundir import replacing
from pixelis.trace import codec
from pixelis.trace.foreign import Imported
from pixelis.trace.foreign_files import Line, Problem, lines, parsed
from pixelis.trace.schema import canonical_json
from pixelis.world.generate import case_of as case_of_the_world
from pixelis.world.generate import template as template_of_the_world
from pixelis.world.item import Item
from pixelis.world.necessity import Case
from pixelis.world.template import Template

TEMPLATES = {**questions.TEMPLATES, **photo_questions.TEMPLATES, **text_questions.TEMPLATES}
"""Every question that importers put."""
Kind = Literal["coco", "mot", "ocr", "spans", "questions"]
IMPORTERS: dict[str, Callable[[Path, Wishes], Iterator[Outcome]]] = {
    "coco": coco_items,
    "mot": mot_items,
    "ocr": ocr_items,
    "spans": span_items,
    "questions": own_items,
}


def problems_path(out: Path) -> Path:
    """Where the problems of an import are written: `items.problems.jsonl` beside `items.jsonl`."""
    return out.with_name(f"{out.name.removesuffix('.jsonl')}.problems.jsonl")


def write_items(outcomes: Iterable[Outcome], out: Path, *, limit: int | None = None) -> Tally:
    """Write items as they come, and every problem beside them. Where there is no item, `out` is not written.

    An item whose media may not enter a corpus, by their licence or a visible watermark, is a problem.
    """
    require_items_file(out)

    def encoded(outcome: Item, tally: Tally) -> bytes:
        return outcome.model_dump_json(exclude_none=True).encode() + b"\n"

    return _written(map(with_rights, outcomes), out, encoded, limit)


def with_rights(outcome: Outcome) -> Outcome:
    """The item, or why its media may not be used."""
    reasons = rights_reasons(outcome) if isinstance(outcome, Item) else []
    return Problem(outcome.id, "; ".join(reasons)) if isinstance(outcome, Item) and reasons else outcome


def write_traces(outcomes: Iterable[Imported | Problem], out: Path, *, limit: int | None = None) -> Tally:
    """The same for foreign traces, with their calls counted."""
    codec.check_target(out)

    def encoded(outcome: Imported, tally: Tally) -> bytes:
        tally.calls["waiting"] += outcome.waiting
        tally.calls["unusable"] += len(outcome.trace.steps) - outcome.waiting - len(outcome.unknown)
        tally.calls.update(f"unknown {name}" for name in outcome.unknown)
        return codec.encode(outcome.trace)

    return _written(outcomes, out, encoded, limit)


T = TypeVar("T")


def _written(
    outcomes: Iterable[T | Problem], out: Path, encoded: Callable[[T, Tally], bytes], limit: int | None
) -> Tally:
    tally = Tally()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(problems_path(out)) as beside, _or_nothing(out, tally) as file:
            for outcome in outcomes:
                if isinstance(outcome, Problem):
                    tally.note(outcome)
                    beside.write(canonical_json(outcome._asdict()) + b"\n")
                    continue
                file.write(encoded(outcome, tally))
                tally.taken += 1
                if limit and tally.taken >= limit:
                    break
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror})") from error
    return tally


class _NothingTaken(Exception):  # noqa: N818 - it only takes the unwritten file away
    pass


@contextmanager
def _or_nothing(out: Path, tally: Tally) -> Iterator[BinaryIO]:
    """A file that appears only if something was written to it."""
    with suppress(_NothingTaken), replacing(out) as file:
        yield file
        if not tally.taken:
            raise _NothingTaken


def require_items_file(out: Path) -> None:
    """ConfigError where something else would be overwritten."""
    with suppress(FileNotFoundError):
        if out.is_dir():
            raise ConfigError(f"{out} is a folder: name a file")
        with out.open("rb") as file:
            start = file.read(6)
        if start and not start.startswith(b'{"id":'):
            raise ConfigError(f"{out} exists and is no file of items: nothing was written")


def read_items(path: Path) -> Iterator[Item | Problem]:
    """The items of a file, one after another, and a problem for each line that is none."""
    for line in lines(path):
        if isinstance(line, Problem):
            yield line
            continue
        yield read_item(f"{path}:{line.number}", line)


def read_item(where: str, line: Line) -> Item | Problem:
    try:
        return Item.model_validate_json(line.text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        return Problem(where, f"no item: {'.'.join(map(str, first['loc']))}: {first['msg']}")


def as_items(source: Path, out: Path, wishes: Wishes) -> tuple[Path, Tally]:
    """A file of items as it is, with their number; a user's own questions imported into `out`. ConfigError if neither.

    Which of the two it is, the first line says that holds a JSON object.
    """
    if holds_items(source):
        return source, Tally(taken=sum(1 for _ in lines(source)))
    tally = write_items(own_items(source, wishes), out)
    if not tally.taken:
        raise ConfigError(f"{source}: no line of it is a question or an item; {problems_path(out)} says why")
    return out, tally


def holds_items(source: Path) -> bool:
    for line in lines(source):
        with suppress(ValueError):
            content = parsed(line.text) if isinstance(line, Line) else None
            if isinstance(content, dict):
                return "template" in content
    return False


def media_of(item: Item, beside: Path) -> MediaSet:
    """The media of an imported item, found by their paths and checked by their hashes; MediaError otherwise."""
    paths = item.parameters.get("media_paths", ())
    if not isinstance(paths, tuple) or len(paths) != len(item.media):
        raise MediaError(f"item {item.id} does not say where its media lie")
    fps = float(str(item.parameters.get("media_fps", 25.0)))
    found = []
    for facts, path in zip(item.media, paths, strict=True):
        medium = open_media(beside.parent / str(path), fps=fps)
        if medium.sha256 != facts.sha256:
            raise MediaError(f"{path} is not the medium that item {item.id} was made from (its content has changed)")
        found.append(medium)
    return MediaSet(tuple(found))


def template(name: str) -> Template:
    """A question template by its id, of an importer or of the world; ConfigError where there is none."""
    return TEMPLATES[name] if name in TEMPLATES else template_of_the_world(name)


def case_of(item: Item) -> Case:
    """The item's reference program, so that its necessity labels can be computed anew from the item alone."""
    return case_of_the_world(item, template(item.template))
