"""Importer of time spans: QVHighlights' JSON lines and Charades-STA's text, recognised line by line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import Span, round_unit
from pixelis.data.corpus.text_lines import Problem, TextLine, parse_json, parse_lines
from pixelis.data.importers.dataset_questions import QuestionMaker
from pixelis.data.importers.import_options import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    origin_parameters,
    stable_seed,
)
from pixelis.items import Reference
from pixelis.media import Medium

CHARADES_PATTERN = re.compile(r"(\S+)\s+(-?[\d.]+)\s+(-?[\d.]+)\s*##\s*(.*)")
SLACK_S = 0.5
"""Windows may end this much after the clip, since datasets round."""
MAX_WINDOW_OVERLAP = 0.25
"""Candidate windows overlap the true ones and each other by less than this."""


class Moment(NamedTuple):
    """One line: an event in a clip, and its times."""

    dataset: str
    id: str
    clip: str
    query: str
    windows: tuple[tuple[float, float], ...]
    licence: str = ""
    watermark: str = ""


def span_items(source: Path, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items about a file of moments: when, from which second on, and which of two comes first."""
    if source.is_dir():
        raise ConfigError(f"{source} is a folder: name the JSON lines of QVHighlights or the text of Charades-STA")
    locator = MediaLocator(source, options)
    seen: dict[str, int] = {}
    previous_moments: dict[str, Moment] = {}
    for line in parse_lines(source, parse_moment):
        if isinstance(line, Problem):
            yield line
            continue
        where, moment = line.where, line.value
        if moment.id in seen:
            yield Problem(where, f"{moment.id} was already on line {seen[moment.id]}; the first one counts")
            continue
        seen[moment.id] = line.number
        try:
            medium = locator.open(moment.clip)
            if medium.kind != "clip":
                raise MediaError(f"{medium.describe()} is not a clip")
        except MediaError as error:
            yield Problem(where, str(error))
            continue
        windows = [(a, min(b, medium.duration_s)) for a, b in moment.windows if a < medium.duration_s]
        if not windows:
            yield Problem(where, f"it happens after the end of the clip, which lasts {medium.duration_s:.1f} s")
            continue
        if len(windows) < len(moment.windows) or max(b for _, b in moment.windows) > medium.duration_s + SLACK_S:
            yield Problem(where, f"a window goes beyond the {medium.duration_s:.1f} s of the clip: clipped", "changed")
        moment = moment._replace(windows=tuple(windows))
        yield from questions(where, moment, previous_moments.get(moment.clip), medium, options)
        previous_moments[moment.clip] = moment


def parse_moment(line: TextLine) -> Moment:
    """A line of either dataset; ValueError if it is invalid."""
    if line.text.lstrip().startswith("{"):
        return moment_from_qvhighlights(parse_json(line.text))
    match = CHARADES_PATTERN.fullmatch(line.text.strip())
    if match is None:
        raise ValueError("neither a JSON object (QVHighlights) nor `clip start end##sentence` (Charades-STA)")
    clip, start, end, query = match.groups()
    windows = (_parse_window([float(start), float(end)]),)
    # Charades-STA has no ids: the clip, the times and the sentence identify a moment.
    return Moment("charades-sta", f"{clip}-{stable_seed(start, end, query):08x}", clip, _clean_query(query), windows)


def moment_from_qvhighlights(record: Any) -> Moment:
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
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
        raise ValueError(f"window {str(values)[:40]} is not [start, end] in seconds")
    start, end = (float(v) for v in values)
    if not (math.isfinite(start) and math.isfinite(end) and 0.0 <= start < end):
        raise ValueError(f"window [{start:g}, {end:g}] does not run forwards from 0")
    return start, end


def _clean_query(query: Any) -> str:
    text = query.strip().rstrip(".").strip() if isinstance(query, str) else ""
    if not text:
        raise ValueError("it has no description of what happens")
    return text


def questions(
    where: str, moment: Moment, previous: Moment | None, medium: Medium, options: ImportOptions
) -> Iterator[ImportOutcome]:
    facts = origin_parameters(
        moment.dataset, moment.id, medium, options, licence=moment.licence, watermark=moment.watermark
    )
    references = moment_references(moment, 0)
    maker = QuestionMaker(medium, references, facts, (moment.id,), "footage")
    candidates = candidate_windows(moment, medium.duration_s)
    names = tuple(f"{a:.1f} s to {b:.1f} s" for a, b in candidates)
    if has_windows := len(set(names)) == len(names) > 1:
        times = {"starts": tuple(a for a, _ in candidates), "ends": tuple(b for _, b in candidates)}
        yield maker.ask("spans.when", references, {"query": moment.query, "windows": names, **times}, options=names)
    if has_start := len(moment.windows) == 1 and moment.windows[0][0] >= 1.0:
        yield maker.ask("spans.start", references, {"query": moment.query})
    if has_pair := previous is not None and _is_other_event(moment, previous):
        pair = (previous.query, moment.query) if stable_seed(moment.id) % 2 else (moment.query, previous.query)
        both = references + moment_references(previous, len(references))
        yield maker.ask("spans.first", both, {"events": pair}, references=both, options=pair)
    if not (has_windows or has_start or has_pair):
        yield Problem(where, "no question can be asked: it lasts for most of the clip", "unasked")


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
    """Up to four windows of one length in random order, the first true one among them."""
    rng = np.random.default_rng(stable_seed("windows", moment.id))
    true_window = moment.windows[0]
    length = true_window[1] - true_window[0]
    candidates = [(round_unit(true_window[0]), round_unit(true_window[1]))]
    starts = np.arange(0.0, max(duration_s - length, 0.0) + 1e-6, max(length / 4, 0.25))
    for start in rng.permutation(starts):
        window = (round(float(start), 1), round(float(start) + length, 1))
        others = (*moment.windows, *candidates)
        if len(candidates) < 4 and all(_overlap_share(window, w) < MAX_WINDOW_OVERLAP for w in others):
            candidates.append(window)
    return [candidates[int(k)] for k in rng.permutation(len(candidates))]


def _overlap_share(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Overlap as a share of the shorter window."""
    overlap = min(a[1], b[1]) - max(a[0], b[0])
    return max(overlap, 0.0) / max(min(a[1] - a[0], b[1] - b[0]), 1e-9)


def _is_other_event(a: Moment, b: Moment) -> bool:
    """Whether they are different things, one of which ends before the other begins."""
    is_disjoint = a.windows[-1][1] <= b.windows[0][0] or b.windows[-1][1] <= a.windows[0][0]
    return is_disjoint and a.query.casefold() != b.query.casefold()
