"""Stretches of time in: QVHighlights' JSON lines and Charades-STA's text, told apart line by line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.data.importers.outcome import Outcome, Shelf, Wishes, origin, seed_of
from pixelis.data.importers.questions import asked
from pixelis.errors import ConfigError, MediaError
from pixelis.geometry import Span, rounded
from pixelis.media import Medium
from pixelis.trace.foreign_files import Line, Problem, lines, parsed
from pixelis.world.item import Reference
from pixelis.world.template import Draft

CHARADES = re.compile(r"(\S+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s*##\s*(.*)")
SLACK_S = 0.5
"""Windows may end this much after the clip does: datasets round."""
SHARED = 0.25
"""An offered window shares less than this with the true ones and with the others offered."""


class Moment(NamedTuple):
    """One line: something that happens in a clip, and when."""

    dataset: str
    id: str
    clip: str
    query: str
    windows: tuple[tuple[float, float], ...]
    licence: str = ""
    watermark: str = ""


def span_items(source: Path, wishes: Wishes) -> Iterator[Outcome]:
    """Items over a file of moments: when, from which second on, and which of two comes first."""
    if source.is_dir():
        raise ConfigError(f"{source} is a folder: name the JSON lines of QVHighlights or the text of Charades-STA")
    shelf = Shelf(source, wishes)
    seen: dict[str, int] = {}
    before: dict[str, Moment] = {}
    for line in lines(source):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{source}:{line.number}"
        if line.encoding != "utf-8":
            yield Problem(where, "read as Latin-1: it is not UTF-8", "changed")
        try:
            moment = read(line)
        except ValueError as error:
            yield Problem(where, str(error))
            continue
        if moment.id in seen:
            yield Problem(where, f"{moment.id} was already on line {seen[moment.id]}; the first one counts")
            continue
        seen[moment.id] = line.number
        try:
            medium = shelf.open(moment.clip)
            if medium.kind != "clip":
                raise MediaError(f"{medium.describe()} is no clip")
        except MediaError as error:
            yield Problem(where, str(error))
            continue
        inside = [(a, min(b, medium.duration_s)) for a, b in moment.windows if a < medium.duration_s]
        if not inside:
            yield Problem(where, f"it happens after the end of the clip, which lasts {medium.duration_s:.1f} s")
            continue
        if len(inside) < len(moment.windows) or max(b for _, b in moment.windows) > medium.duration_s + SLACK_S:
            yield Problem(where, f"a window goes beyond the {medium.duration_s:.1f} s of the clip: clipped", "changed")
        moment = moment._replace(windows=tuple(inside))
        yield from questions(where, moment, before.get(moment.clip), medium, wishes)
        before[moment.clip] = moment


def read(line: Line) -> Moment:
    """A line of either dataset; ValueError with what is wrong."""
    if line.text.lstrip().startswith("{"):
        return from_qvhighlights(parsed(line.text))
    match = CHARADES.fullmatch(line.text.strip())
    if match is None:
        raise ValueError("neither a JSON object (QVHighlights) nor `clip start end##sentence` (Charades-STA)")
    clip, start, end, query = match.groups()
    windows = (_window([float(start), float(end)]),)
    # Charades-STA has no ids: a sentence about a stretch of a clip is its own.
    return Moment("charades-sta", f"{clip}-{seed_of(start, end, query):08x}", clip, _sentence(query), windows)


def from_qvhighlights(record: Any) -> Moment:
    if not isinstance(record, dict):
        raise ValueError("no JSON object")
    clip, windows = record.get("vid"), record.get("relevant_windows")
    if not isinstance(clip, str) or record.get("qid") is None:
        raise ValueError("it has no qid or no vid")
    if not isinstance(windows, list) or not windows:
        raise ValueError("it has no relevant_windows")
    return Moment(
        "qvhighlights",
        str(record["qid"]),
        clip,
        _sentence(record.get("query")),
        tuple(sorted(_window(w) for w in windows)),
        str(record.get("licence") or record.get("license") or ""),
        str(record.get("watermark") or ""),
    )


def _window(values: Any) -> tuple[float, float]:
    if not isinstance(values, list) or len(values) != 2 or not all(type(v) in (int, float) for v in values):
        raise ValueError(f"window {str(values)[:40]} is no [start, end] in seconds")
    start, end = (float(v) for v in values)
    if not (math.isfinite(start) and math.isfinite(end) and 0.0 <= start < end):
        raise ValueError(f"window [{start:g}, {end:g}] does not run forwards from 0")
    return start, end


def _sentence(query: Any) -> str:
    query = query.strip() if isinstance(query, str) else ""
    query = query.rstrip(".").strip()
    if not query:
        raise ValueError("it says nothing about what happens")
    return query


def questions(where: str, moment: Moment, other: Moment | None, medium: Medium, wishes: Wishes) -> Iterator[Outcome]:
    facts = origin(moment.dataset, moment.id, medium, wishes, licence=moment.licence, watermark=moment.watermark)
    references = spans_of(moment, 0)
    asks = 0

    def ask(kind: str, kept: list[Reference], parameters: dict[str, Any], options: tuple[str, ...] = ()) -> Outcome:
        evidence = [r.name for r in kept]
        draft = Draft((medium,), kept, evidence, {**facts, **parameters}, options=options, traits={"footage"})
        return asked(kind, draft, id=f"{kind}/{moment.id}", seed=seed_of(kind, moment.id))

    offered = windows(moment, medium.duration_s)
    names = tuple(f"{a:.1f} s to {b:.1f} s" for a, b in offered)
    if len(set(names)) == len(names) > 1:
        times = {"starts": tuple(a for a, _ in offered), "ends": tuple(b for _, b in offered)}
        yield ask("spans.when", references, {"query": moment.query, "windows": names, **times}, names)
        asks += 1
    if len(moment.windows) == 1 and moment.windows[0][0] >= 1.0:
        yield ask("spans.start", references, {"query": moment.query})
        asks += 1
    if other and other.query.casefold() != moment.query.casefold() and _one_before(moment, other):
        pair = (other.query, moment.query) if seed_of(moment.id) % 2 else (moment.query, other.query)
        yield ask("spans.first", references + spans_of(other, len(references)), {"events": pair}, pair)
        asks += 1
    if not asks:
        yield Problem(where, "no question can be put: it goes on for most of the clip", "unasked")


def spans_of(moment: Moment, first: int) -> list[Reference]:
    return [
        Reference(
            name=f"span_{first + k}",
            footprint=Span(media="Video_0", label=moment.query, start_s=rounded(a), end_s=rounded(b)),
            properties={"start_s": rounded(a), "end_s": rounded(b)},
        )
        for k, (a, b) in enumerate(moment.windows)
    ]


def windows(moment: Moment, duration_s: float) -> list[tuple[float, float]]:
    """Up to four windows of one length to choose from, the first true one among them, in a drawn order."""
    rng = np.random.default_rng(seed_of("windows", moment.id))
    true = moment.windows[0]
    length = true[1] - true[0]
    chosen = [(rounded(true[0]), rounded(true[1]))]
    starts = np.arange(0.0, max(duration_s - length, 0.0) + 1e-6, max(length / 4, 0.25))
    for start in rng.permutation(starts):
        window = (round(float(start), 1), round(float(start) + length, 1))
        if len(chosen) < 4 and all(_shared(window, w) < SHARED for w in (*moment.windows, *chosen)):
            chosen.append(window)
    return [chosen[int(k)] for k in rng.permutation(len(chosen))]


def _shared(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Overlap as a share of the shorter one."""
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    return max(overlap, 0.0) / max(min(a[1] - a[0], b[1] - b[0]), 1e-9)


def _one_before(a: Moment, b: Moment) -> bool:
    """Whether one of the two is over before the other begins."""
    return a.windows[-1][1] <= b.windows[0][0] or b.windows[-1][1] <= a.windows[0][0]
