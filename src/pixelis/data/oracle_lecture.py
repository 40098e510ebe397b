"""How the oracle answers the lecture family: find the moment or the slide, read it, compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pixelis.data import oracle_pages as pages
from pixelis.data.oracle_acts import Hands
from pixelis.data.oracle_session import Line, as_read, centre
from pixelis.data.oracle_time import Watch
from pixelis.geometry import UnitBox
from pixelis.tools.base import coordinates
from pixelis.world.programs import number

BODY: UnitBox = (0.0, 0.0, 0.9, 0.85)
EVERY_S = 2.4
"""Slides are shown longer than this: looking so often misses none."""
ENTRY = re.compile(r"^\W*([A-Za-z]+)\s*[=＝:\-~_]*\s*(\d+)\W*$")
TASK = re.compile(r"(\d+)\s*([+\-–—−÷±])\s*(\d+)")


class Page(NamedTuple):
    """What is read on a slide."""

    title: str
    lines: list[Line]
    seconds: float
    step: int


# --- reading slides


def read_slide(w: Watch, seconds: float, what: str = "slide") -> Page:
    """A slide at a moment: the whole frame, or its text enlarged first."""
    s, at = w.s, inside(w, seconds)
    if w.detours.take("show"):
        view = w.show(at)
        lines = w.read_view(view, what)
    elif w.detours.take("refine"):
        view = w.closer(BODY, what, time_s=at)
        lines = w.read_view(view, what)
    else:
        lines = s.read(what, "read", time_s=at)
    return as_page(lines, at)


def inside(w: Watch, seconds: float) -> float:
    """A moment that the clip has, to two decimals."""
    return round(min(max(seconds, 0.0), w.medium(None).duration_s - 0.05), 2)


def words_in(lines: Sequence[Line]) -> list[Line]:
    """Without single signs, which are mostly marks that were read as letters."""
    return [line for line in lines if len(line.text.strip()) > 1]


def as_page(lines: list[Line], seconds: float) -> Page:
    kept = words_in(lines)
    heading = min(kept, key=lambda line: line.span.box_unit[1], default=None)
    body = [line for line in kept if line is not heading]
    step = lines[0].step if lines else -1
    return Page(heading.text if heading else "", body, seconds, step)


def read_title(w: Watch, seconds: float) -> tuple[str, int]:
    """The title on screen at a moment."""
    at = inside(w, seconds)
    lines = w.s.read("title", "read", box=list(pages.TITLE_STRIP), time_s=at)
    return (lines[0].text, lines[0].step) if lines else ("", len(w.s.drafts) - 1)


def find_slide(w: Watch, title: str) -> float | None:
    """When the slide of a title is on screen: asked of TEMP, or by looking every few seconds."""
    s = w.s
    if s.prefers(0.55):
        spans, seen = w.when(f'the screen says "{title}"', top_k=1)
        if spans:
            for seconds in w.moments(spans[0]):
                said, step = read_title(w, seconds)
                if pages.apart(said, title) <= pages.SAME_NAME:
                    s.cited |= {seen.step, step}
                    return seconds
    return probe(w, title)


def probe(w: Watch, title: str) -> float | None:
    """Look at the titles one after another."""
    seconds = 1.0
    while seconds < w.medium(None).duration_s and w.s.has_room:
        said, step = read_title(w, seconds)
        if pages.apart(said, title) <= pages.SAME_NAME:
            w.s.cited.add(step)
            return seconds
        seconds += EVERY_S
    return None


def value(w: Watch, page: Page, key: str) -> float | None:
    """The number after a key on a slide; read once more, enlarged, where it is not plain."""
    found = {m[1]: (float(m[2]), line) for line in page.lines if (m := ENTRY.match(line.text))}
    best = min(found, key=lambda k: pages.apart(k, key), default=None)
    if best is None or pages.apart(best, key) > pages.SAME_NAME:
        if not w.s.has_room:
            return None
        view = w.s.zoom(BODY, key, "closer", time_s=page.seconds)
        again = as_page(w.read_view(view, key), page.seconds)
        found = {m[1]: (float(m[2]), line) for line in again.lines if (m := ENTRY.match(line.text))}
        best = min(found, key=lambda k: pages.apart(k, key), default=None)
        if best is None or pages.apart(best, key) > pages.SAME_NAME:
            return None
    number_read, line = found[best]
    w.s.note_line(line, role="taken", value=number_read)
    if w.detours.take("reread", 2):
        box = as_read(line.span.box_unit)
        w.read_view(w.closer(box, key, time_s=page.seconds, scale=0.7), key)
    return number_read


# --- by a mark


def moment(w: Watch) -> float | None:
    """When the mark appears: a moment in which it is on screen."""
    target = str(w.s.item.parameters["target"])
    w.overview()
    spans = w.appears(target)
    if not spans:
        return None
    seconds = w.shown(spans[0])
    if w.detours.take("refollow", 2):
        watched(w, target, seconds)
    return seconds


def watched(w: Watch, target: str, seconds: float) -> UnitBox | None:
    """The mark from a moment on: where it is, and that it stays."""
    frame = w.frame_at(seconds)
    begin = w.start(target, frame=frame)
    if begin is None:
        return None
    end = None if w.s.plain else min(frame + int(w.s.rng.integers(6, 10)), w.last_frame())
    track = w.follow(begin, start=frame, end=end, pieces=w.pieces(1, 4))
    return track.boxes[0] if track else begin.box


def title_when(h: Hands) -> str | None:
    """The title when a mark appears."""
    w = Watch(h.s, h.detours)
    seconds = moment(w)
    if seconds is None:
        return None
    if w.s.prefers(0.5):
        said, step = read_title(w, seconds)
        if len(said) > 2:
            w.s.cited.add(step)
            return said
    page = read_slide(w, seconds)
    w.s.cited.add(page.step)
    return page.title or None


def value_when(h: Hands) -> str | None:
    """A value when a mark appears."""
    w = Watch(h.s, h.detours)
    seconds = moment(w)
    if seconds is None:
        return None
    found = value(w, read_slide(w, seconds), str(w.s.item.parameters["key"]))
    return None if found is None else number(found)


def task(h: Hands) -> str | None:
    """The result of what is to be computed when a mark appears."""
    w = Watch(h.s, h.detours)
    seconds = moment(w)
    if seconds is None:
        return None
    page = read_slide(w, seconds)
    for attempt in range(2):
        for line in page.lines:
            if m := TASK.search(line.text):
                plus = m[2] in "+±÷"
                w.s.note_line(pages.renamed(line, f"{m[1]} {'+' if plus else '-'} {m[3]}"), role="taken")
                return str(int(m[1]) + int(m[3]) if plus else int(m[1]) - int(m[3]))
        if attempt == 0 and w.s.has_room:
            page = as_page(w.read_view(w.s.zoom(BODY, "task", "closer", time_s=page.seconds), "task"), page.seconds)
    return None


def pointed(h: Hands) -> str | None:
    """The line beside a mark."""
    w = Watch(h.s, h.detours)
    target = str(w.s.item.parameters["target"])
    w.overview()
    spans = w.appears(target)
    if not spans:
        return None
    seconds = w.shown(spans[0])
    if w.s.prefers(0.9):
        box = watched(w, target, seconds)
    else:
        found = w.at(target, frame=w.frame_at(seconds))
        box = found.mask.box_unit if found else None
        w.s.cited |= {found.step} if found else set()
    lines = beside(w, box, target, seconds) if w.s.plain and box else read_slide(w, seconds).lines
    if box is None or not lines:
        return None
    y = centre(box)[1]
    line = min(lines, key=lambda r: abs(centre(r.span.box_unit)[1] - y))
    w.s.note_line(line, role="taken")
    entry = ENTRY.match(line.text)
    return f"{entry[1]} = {entry[2]}" if entry else line.text


def beside(w: Watch, box: UnitBox, target: str, seconds: float) -> list[Line]:
    """The strip of a slide at the height of a mark; the whole slide where that reads nothing."""
    _, top, _, bottom = as_read(box)
    what = f"{target} at {coordinates(as_read(box))}"
    lines = w.s.read(what, "along", box=[0.0, top, 1.0, bottom], time_s=inside(w, seconds))
    return words_in(lines) or read_slide(w, seconds).lines


# --- by a title


def on_slide(h: Hands) -> str | None:
    """One value, or the sum of two, on a slide of a title."""
    w = Watch(h.s, h.detours)
    parameters = w.s.item.parameters
    w.overview()
    seconds = find_slide(w, str(parameters["title"]))
    if seconds is None:
        return None
    page = read_slide(w, seconds)
    keys = [str(parameters["key"])] if "key" in parameters else [str(parameters["a"]), str(parameters["b"])]
    values = [value(w, page, key) for key in keys]
    return None if None in values else number(sum(v for v in values if v is not None))


def change(h: Hands) -> str | None:
    """How far a value differs between two slides."""
    w = Watch(h.s, h.detours)
    parameters = w.s.item.parameters
    values = []
    for name in ("a", "b"):
        seconds = find_slide(w, str(parameters[name]))
        values.append(None if seconds is None else value(w, read_slide(w, seconds), str(parameters["key"])))
    first, second = values
    return None if first is None or second is None else number(abs(first - second))


def following(h: Hands) -> str | None:
    """The title after another."""
    w = Watch(h.s, h.detours)
    title = str(w.s.item.parameters["title"])
    w.overview()
    seconds = find_slide(w, title)
    while seconds is not None and seconds + 1.2 < w.medium(None).duration_s and w.s.has_room:
        seconds += EVERY_S / 2
        said, step = read_title(w, seconds)
        w.s.cited.add(step)
        if len(said) > 2 and pages.apart(said, title) > pages.SAME_NAME:
            return said
    return None


def count(h: Hands) -> str | None:
    """How many slides there are: cuts, and the titles between them."""
    w = Watch(h.s, h.detours)
    w.overview()
    spans, seen = w.when(str(w.s.choose(("new scene", "scene changes", "a new scene"))), top_k=20)
    w.s.cited.add(seen.step)
    for span in spans:
        w.s.note(span.model_copy(update={"label": "cut"}), seen.step)
    starts = sorted(span.start_s for span in spans)
    for start in starts[: int(w.s.rng.integers(1, 4))]:
        if w.detours.take("reread"):
            w.s.cited.add(read_title(w, start + 1.0)[1])
    return str(len(starts) + 1)


SOLVERS = {
    "lecture.title_when": title_when,
    "lecture.value_when": value_when,
    "lecture.task": task,
    "lecture.pointed": pointed,
    "lecture.value_on": on_slide,
    "lecture.sum": on_slide,
    "lecture.change": change,
    "lecture.next": following,
    "lecture.count": count,
}
