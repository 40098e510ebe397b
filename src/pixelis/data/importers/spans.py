"""Stretches of time in: QVHighlights' JSON lines and Charades-STA's text, told apart line by line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Span, round_unit
from pixelis.data.importers.dataset_questions import make_question_item
from pixelis.data.importers.import_result import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    origin_parameters,
    stable_seed,
)
from pixelis.data.importers.traces.foreign_files import Problem, TextLine, parse_json, read_lines
from pixelis.items import Reference
from pixelis.media import Medium
from pixelis.world.template import ItemDraft

CHARADES_PATTERN = re.compile(r"(\S+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s*##\s*(.*)")
SLACK_S = 0.5
"""Windows may end this much after the clip does: datasets round."""
MAX_WINDOW_OVERLAP = 0.25
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


def span_items(source: Path, import_options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items over a file of moments: when, from which second on, and which of two comes first."""
    if source.is_dir():
        raise ConfigError(f"{source} is a folder: name the JSON lines of QVHighlights or the text of Charades-STA")
    locator = MediaLocator(source, import_options)
    seen: dict[str, int] = {}
    previous_moments: dict[str, Moment] = {}
    for line in read_lines(source):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{source}:{line.number}"
        if line.encoding != "utf-8":
            yield Problem(where, "read as Latin-1: it is not UTF-8", "changed")
        try:
            moment = parse_moment(line)
        except ValueError as error:
            yield Problem(where, str(error))
            continue
        if moment.id in seen:
            yield Problem(where, f"{moment.id} was already on line {seen[moment.id]}; the first one counts")
            continue
        seen[moment.id] = line.number
        try:
            medium = locator.open(moment.clip)
            if medium.kind != "clip":
                raise MediaError(f"{medium.describe()} is no clip")
        except MediaError as error:
            yield Problem(where, str(error))
            continue
        windows_in_clip = [(a, min(b, medium.duration_s)) for a, b in moment.windows if a < medium.duration_s]
        if not windows_in_clip:
            yield Problem(where, f"it happens after the end of the clip, which lasts {medium.duration_s:.1f} s")
            continue
        if (
            len(windows_in_clip) < len(moment.windows)
            or max(b for _, b in moment.windows) > medium.duration_s + SLACK_S
        ):
            yield Problem(where, f"a window goes beyond the {medium.duration_s:.1f} s of the clip: clipped", "changed")
        moment = moment._replace(windows=tuple(windows_in_clip))
        yield from questions(where, moment, previous_moments.get(moment.clip), medium, import_options)
        previous_moments[moment.clip] = moment


def parse_moment(line: TextLine) -> Moment:
    """A line of either dataset; ValueError with what is wrong."""
    if line.text.lstrip().startswith("{"):
        return moment_from_qvhighlights(parse_json(line.text))
    match = CHARADES_PATTERN.fullmatch(line.text.strip())
    if match is None:
        raise ValueError("neither a JSON object (QVHighlights) nor `clip start end##sentence` (Charades-STA)")
    clip, start, end, query = match.groups()
    windows = (_parse_window([float(start), float(end)]),)
    # Charades-STA has no ids: a sentence about a stretch of a clip is its own.
    return Moment("charades-sta", f"{clip}-{stable_seed(start, end, query):08x}", clip, _clean_query(query), windows)


def moment_from_qvhighlights(record: Any) -> Moment:
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
        _clean_query(record.get("query")),
        tuple(sorted(_parse_window(w) for w in windows)),
        str(record.get("licence") or record.get("license") or ""),
        str(record.get("watermark") or ""),
    )


def _parse_window(values: Any) -> tuple[float, float]:
    if not isinstance(values, list) or len(values) != 2 or not all(type(v) in (int, float) for v in values):
        raise ValueError(f"window {str(values)[:40]} is no [start, end] in seconds")
    start, end = (float(v) for v in values)
    if not (math.isfinite(start) and math.isfinite(end) and 0.0 <= start < end):
        raise ValueError(f"window [{start:g}, {end:g}] does not run forwards from 0")
    return start, end


def _clean_query(query: Any) -> str:
    query = query.strip() if isinstance(query, str) else ""
    query = query.rstrip(".").strip()
    if not query:
        raise ValueError("it says nothing about what happens")
    return query


def questions(
    where: str, moment: Moment, previous: Moment | None, medium: Medium, import_options: ImportOptions
) -> Iterator[ImportOutcome]:
    facts = origin_parameters(
        moment.dataset, moment.id, medium, import_options, licence=moment.licence, watermark=moment.watermark
    )
    references = moment_references(moment, 0)
    question_count = 0

    def ask(
        kind: str, refs: list[Reference], parameters: dict[str, Any], options: tuple[str, ...] = ()
    ) -> ImportOutcome:
        evidence = [r.name for r in refs]
        draft = ItemDraft((medium,), refs, evidence, {**facts, **parameters}, options=options, traits={"footage"})
        return make_question_item(kind, draft, id=f"{kind}/{moment.id}", seed=stable_seed(kind, moment.id))

    candidates = candidate_windows(moment, medium.duration_s)
    names = tuple(f"{a:.1f} s to {b:.1f} s" for a, b in candidates)
    if len(set(names)) == len(names) > 1:
        times = {"starts": tuple(a for a, _ in candidates), "ends": tuple(b for _, b in candidates)}
        yield ask("spans.when", references, {"query": moment.query, "windows": names, **times}, names)
        question_count += 1
    if len(moment.windows) == 1 and moment.windows[0][0] >= 1.0:
        yield ask("spans.start", references, {"query": moment.query})
        question_count += 1
    if previous and previous.query.casefold() != moment.query.casefold() and _are_disjoint(moment, previous):
        pair = (previous.query, moment.query) if stable_seed(moment.id) % 2 else (moment.query, previous.query)
        yield ask("spans.first", references + moment_references(previous, len(references)), {"events": pair}, pair)
        question_count += 1
    if not question_count:
        yield Problem(where, "no question can be put: it goes on for most of the clip", "unasked")


def moment_references(moment: Moment, first_index: int) -> list[Reference]:
    return [
        Reference(
            name=f"span_{first_index + k}",
            footprint=Span(media="Video_0", label=moment.query, start_s=round_unit(a), end_s=round_unit(b)),
            properties={"start_s": round_unit(a), "end_s": round_unit(b)},
        )
        for k, (a, b) in enumerate(moment.windows)
    ]


def candidate_windows(moment: Moment, duration_s: float) -> list[tuple[float, float]]:
    """Up to four windows of one length to choose from, the first true one among them, in a drawn order."""
    rng = np.random.default_rng(stable_seed("windows", moment.id))
    true_window = moment.windows[0]
    length = true_window[1] - true_window[0]
    candidates = [(round_unit(true_window[0]), round_unit(true_window[1]))]
    starts = np.arange(0.0, max(duration_s - length, 0.0) + 1e-6, max(length / 4, 0.25))
    for start in rng.permutation(starts):
        window = (round(float(start), 1), round(float(start) + length, 1))
        if len(candidates) < 4 and all(
            _overlap_share(window, w) < MAX_WINDOW_OVERLAP for w in (*moment.windows, *candidates)
        ):
            candidates.append(window)
    return [candidates[int(k)] for k in rng.permutation(len(candidates))]


def _overlap_share(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Overlap as a share of the shorter one."""
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    return max(overlap, 0.0) / max(min(a[1] - a[0], b[1] - b[0]), 1e-9)


def _are_disjoint(a: Moment, b: Moment) -> bool:
    """Whether one of the two is over before the other begins."""
    return a.windows[-1][1] <= b.windows[0][0] or b.windows[-1][1] <= a.windows[0][0]
