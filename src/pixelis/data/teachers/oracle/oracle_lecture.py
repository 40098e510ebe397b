"""Solvers of the lecture family: find the moment or the slide, read it, compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle import page_layout as pages
from pixelis.data.teachers.oracle.clip_actions import ClipActions
from pixelis.data.teachers.oracle.oracle_session import OracleLine, box_centre, snap_box
from pixelis.tools.base import coordinates
from pixelis.world.programs import format_number

SLIDE_BODY: UnitBox = (0.0, 0.0, 0.9, 0.85)
PROBE_INTERVAL_S = 2.4
"""Slides are shown longer than this, so probing at this interval misses none."""
ENTRY_PATTERN = re.compile(r"^\W*([A-Za-z]+)\s*[=＝:\-~_]*\s*(\d+)\W*$")
TASK_PATTERN = re.compile(r"(\d+)\s*([+\-–—−÷±])\s*(\d+)")


class SlideReading(NamedTuple):
    """The text read on a slide."""

    title: str
    lines: list[OracleLine]
    seconds: float
    step: int


# --- reading slides


def read_slide(clip: ClipActions, seconds: float, subject: str = "slide") -> SlideReading:
    """Read the slide at a time: the whole frame, or its body enlarged."""
    session, time_s = clip.session, clamp_time(clip, seconds)
    if clip.detours.should_take("show"):
        lines = clip.read_view(clip.show_frame(time_s), subject)
    elif clip.detours.should_take("refine"):
        lines = clip.read_view(clip.zoom_in(SLIDE_BODY, subject, time_s=time_s), subject)
    else:
        lines = session.read(subject, "read", time_s=time_s)
    return to_slide(lines, time_s)


def clamp_time(clip: ClipActions, seconds: float) -> float:
    """A time within the clip, to two decimals."""
    return round(min(max(seconds, 0.0), clip.medium(None).duration_s - 0.05), 2)


def drop_single_characters(lines: Sequence[OracleLine]) -> list[OracleLine]:
    """Drop single characters, which are mostly marks read as letters."""
    return [line for line in lines if len(line.text.strip()) > 1]


def to_slide(lines: list[OracleLine], seconds: float) -> SlideReading:
    words = drop_single_characters(lines)
    heading = min(words, key=lambda line: line.span.box_unit[1], default=None)
    body = [line for line in words if line is not heading]
    step = lines[0].step if lines else -1
    return SlideReading(heading.text if heading else "", body, seconds, step)


def enlarge_slide(clip: ClipActions, slide: SlideReading, subject: str) -> SlideReading:
    """Read the body of a slide again, enlarged."""
    view = clip.session.zoom(SLIDE_BODY, subject, "closer", time_s=slide.seconds)
    return to_slide(clip.read_view(view, subject), slide.seconds)


def read_title(clip: ClipActions, seconds: float) -> tuple[str, int]:
    """The title on screen at a time, and the step that read it."""
    time_s = clamp_time(clip, seconds)
    lines = clip.session.read("title", "read", box=list(pages.TITLE_STRIP), time_s=time_s)
    return (lines[0].text, lines[0].step) if lines else ("", len(clip.session.drafts) - 1)


def find_slide(clip: ClipActions, title: str) -> float | None:
    """A time at which the slide of a title is on screen, by TEMP or by probing."""
    session = clip.session
    if session.prefers(0.55):
        spans, outcome = clip.find_spans(f'the screen says "{title}"', top_k=1)
        if spans:
            for seconds in clip.inspection_times(spans[0]):
                screen_title, step = read_title(clip, seconds)
                if pages.spelling_distance(screen_title, title) <= pages.MAX_NAME_DISTANCE:
                    session.cited_steps |= {outcome.step, step}
                    return seconds
    return probe_titles(clip, title)


def probe_titles(clip: ClipActions, title: str) -> float | None:
    """Read the titles one after another."""
    seconds = 1.0
    while seconds < clip.medium(None).duration_s and clip.session.has_steps_left:
        screen_title, step = read_title(clip, seconds)
        if pages.spelling_distance(screen_title, title) <= pages.MAX_NAME_DISTANCE:
            clip.session.cited_steps.add(step)
            return seconds
        seconds += PROBE_INTERVAL_S
    return None


def find_entry(slide: SlideReading, key: str) -> tuple[float, OracleLine] | None:
    """The number of the entry nearest to a key in spelling, if any is near enough, and its line."""
    entries = {m[1]: (float(m[2]), line) for line in slide.lines if (m := ENTRY_PATTERN.match(line.text))}
    best = min(entries, key=lambda k: pages.spelling_distance(k, key), default="")
    is_near = pages.spelling_distance(best, key) <= pages.MAX_NAME_DISTANCE
    return entries.get(best) if is_near else None


def read_value(clip: ClipActions, slide: SlideReading, key: str) -> float | None:
    """The number after a key on a slide, which is read again, enlarged, if the key is missing."""
    entry = find_entry(slide, key)
    if entry is None and clip.session.has_steps_left:
        entry = find_entry(enlarge_slide(clip, slide, key), key)
    if entry is None:
        return None
    number_read, line = entry
    clip.session.note_line(line, role="taken", value=number_read)
    if clip.detours.should_take("reread", 2):
        box = snap_box(line.span.box_unit)
        clip.read_view(clip.zoom_in(box, key, time_s=slide.seconds, scale=0.7), key)
    return number_read


# --- by a mark


def find_mark_time(clip: ClipActions) -> float | None:
    """A time at which the mark is on screen."""
    target = clip.parameter("target")
    clip.sample_overview()
    spans = clip.find_appearances(target)
    if not spans:
        return None
    seconds = clip.time_within(spans[0])
    if clip.detours.should_take("refollow", 2):
        track_mark(clip, target, seconds)
    return seconds


def track_mark(clip: ClipActions, target: str, seconds: float) -> UnitBox | None:
    """Follow the mark from a time on; returns its first box."""
    frame = clip.frame_at(seconds)
    track_start = clip.start_track(target, frame=frame)
    if track_start is None:
        return None
    end = None
    if not clip.session.canonical_wording:
        end = min(frame + int(clip.session.rng.integers(6, 10)), clip.last_frame())
    track = clip.follow(track_start, start_frame=frame, end_frame=end, pieces=clip.sample_piece_count(1, 4))
    return track.boxes[0] if track else track_start.box


def solve_title_when(clip: ClipActions) -> str | None:
    """The title at the appearance of a mark."""
    seconds = find_mark_time(clip)
    if seconds is None:
        return None
    if clip.session.prefers(0.5):
        screen_title, step = read_title(clip, seconds)
        if len(screen_title) > 2:
            clip.session.cited_steps.add(step)
            return screen_title
    slide = read_slide(clip, seconds)
    clip.session.cited_steps.add(slide.step)
    return slide.title or None


def solve_value_when(clip: ClipActions) -> str | None:
    """A value at the appearance of a mark."""
    seconds = find_mark_time(clip)
    if seconds is None:
        return None
    result = read_value(clip, read_slide(clip, seconds), clip.parameter("key"))
    return None if result is None else format_number(result)


def solve_task(clip: ClipActions) -> str | None:
    """The result of the task on screen at the appearance of a mark."""
    seconds = find_mark_time(clip)
    if seconds is None:
        return None
    slide = read_slide(clip, seconds)
    for attempt in range(2):
        for line in slide.lines:
            if m := TASK_PATTERN.search(line.text):
                is_sum = m[2] in "+±÷"
                clip.session.note_line(pages.with_text(line, f"{m[1]} {'+' if is_sum else '-'} {m[3]}"), role="taken")
                return str(int(m[1]) + int(m[3]) if is_sum else int(m[1]) - int(m[3]))
        if attempt == 0 and clip.session.has_steps_left:
            slide = enlarge_slide(clip, slide, "task")
    return None


def solve_pointed(clip: ClipActions) -> str | None:
    """The line beside a mark."""
    target = clip.parameter("target")
    clip.sample_overview()
    spans = clip.find_appearances(target)
    if not spans:
        return None
    seconds = clip.time_within(spans[0])
    if clip.session.prefers(0.9):
        box = track_mark(clip, target, seconds)
    else:
        region = clip.find_on_frame(target, frame=clip.frame_at(seconds))
        box = region.mask.box_unit if region else None
        clip.session.cited_steps |= {region.step} if region else set()
    beside = clip.session.canonical_wording
    lines = read_beside(clip, box, target, seconds) if box and beside else read_slide(clip, seconds).lines
    if box is None or not lines:
        return None
    y = box_centre(box)[1]
    line = min(lines, key=lambda r: abs(box_centre(r.span.box_unit)[1] - y))
    clip.session.note_line(line, role="taken")
    entry = ENTRY_PATTERN.match(line.text)
    return f"{entry[1]} = {entry[2]}" if entry else line.text


def read_beside(clip: ClipActions, box: UnitBox, target: str, seconds: float) -> list[OracleLine]:
    """Read the strip of a slide at the height of a mark, or the whole slide if that reads nothing."""
    _, top, _, bottom = snap_box(box)
    subject = f"{target} at {coordinates(snap_box(box))}"
    lines = clip.session.read(subject, "along", box=[0.0, top, 1.0, bottom], time_s=clamp_time(clip, seconds))
    return drop_single_characters(lines) or read_slide(clip, seconds).lines


# --- by a title


def solve_value_on_slide(clip: ClipActions) -> str | None:
    """One value, or the sum of two, on a slide of a title."""
    clip.sample_overview()
    seconds = find_slide(clip, clip.parameter("title"))
    if seconds is None:
        return None
    slide = read_slide(clip, seconds)
    values = [read_value(clip, slide, key) for key in clip.given_parameters("key", "a", "b")]
    return None if None in values else format_number(sum(v for v in values if v is not None))


def solve_change(clip: ClipActions) -> str | None:
    """The difference of a value between two slides."""
    values = []
    for name in ("a", "b"):
        seconds = find_slide(clip, clip.parameter(name))
        values.append(None if seconds is None else read_value(clip, read_slide(clip, seconds), clip.parameter("key")))
    first, second = values
    return None if first is None or second is None else format_number(abs(first - second))


def solve_next_title(clip: ClipActions) -> str | None:
    """The title after another."""
    title = clip.parameter("title")
    clip.sample_overview()
    seconds = find_slide(clip, title)
    while seconds is not None and seconds + 1.2 < clip.medium(None).duration_s and clip.session.has_steps_left:
        seconds += PROBE_INTERVAL_S / 2
        screen_title, step = read_title(clip, seconds)
        clip.session.cited_steps.add(step)
        if len(screen_title) > 2 and pages.spelling_distance(screen_title, title) > pages.MAX_NAME_DISTANCE:
            return screen_title
    return None


def solve_slide_count(clip: ClipActions) -> str | None:
    """The number of slides: one more than the cuts."""
    clip.sample_overview()
    spans, outcome = clip.find_spans(str(clip.session.choose(("new scene", "scene changes", "a new scene"))), top_k=20)
    clip.session.cited_steps.add(outcome.step)
    for span in spans:
        clip.session.note(span.model_copy(update={"label": "cut"}), outcome.step)
    starts = sorted(span.start_s for span in spans)
    for start in starts[: int(clip.session.rng.integers(1, 4))]:
        if clip.detours.should_take("reread"):
            clip.session.cited_steps.add(read_title(clip, start + 1.0)[1])
    return str(len(starts) + 1)


SOLVERS = {
    "lecture.title_when": solve_title_when,
    "lecture.value_when": solve_value_when,
    "lecture.task": solve_task,
    "lecture.pointed": solve_pointed,
    "lecture.value_on": solve_value_on_slide,
    "lecture.sum": solve_value_on_slide,
    "lecture.change": solve_change,
    "lecture.next": solve_next_title,
    "lecture.count": solve_slide_count,
}
