"""Spans and tracks as bars under a film strip."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pixelis.core.geometry import Span, Track
from pixelis.trace import MediaRecord
from pixelis.view.draw import Mark, clean, tooltip

MAX_LANES = 12


class Timeline(NamedTuple):
    """Bars over the length of a clip."""

    marks: Markup
    height: int
    duration_s: float
    ticks: Markup


def make_timeline(marks: Sequence[Mark], record: MediaRecord, frames: Sequence[int]) -> Timeline | None:
    """Spans and tracks of a clip over its length (x from 0 to 1000), with ticks at the shown frames."""
    if record.kind != "clip" or record.duration_s <= 0.0:
        return None
    lanes = [m for m in marks if m.footprint.media == record.name and isinstance(m.footprint, Span | Track)][:MAX_LANES]
    height = 12 * max(len(lanes), 1) + 4
    positions = [1000.0 * (f + 0.5) / record.frame_count for f in frames]
    tick = Markup('<line class="tick" x1="{0:.1f}" x2="{0:.1f}" y1="0" y2="{1}"/>')
    ticks = Markup("").join(tick.format(x, height) for x in positions)
    bars = Markup("").join(render_bar(mark, lane, record) for lane, mark in enumerate(lanes))
    return Timeline(bars, height, record.duration_s, ticks)


def render_bar(mark: Mark, lane: int, record: MediaRecord) -> Markup:
    footprint = mark.footprint
    start, end = 0.0, record.duration_s
    if isinstance(footprint, Span):
        start, end = footprint.start_s, footprint.end_s
    elif isinstance(footprint, Track):
        seconds_a_frame = record.duration_s / record.frame_count
        start, end = footprint.frames[0] * seconds_a_frame, (footprint.frames[-1] + 1) * seconds_a_frame
    left = min(1000.0 * start / record.duration_s, 996.0)
    width = min(max(1000.0 * (end - start) / record.duration_s, 4.0), 1000.0 - left)
    title = f"{clean(tooltip(footprint))}: {start:.2f} to {end:.2f} s"
    return Markup(
        '<g class="mark bar c{}" data-mark="{}"><title>{}</title>'
        '<rect x="{:.1f}" y="{}" width="{:.1f}" height="8" rx="2" fill-opacity="{:.2f}"/></g>'
    ).format(mark.colour, mark.key, title, left, 4 + 12 * lane, width, 0.35 + 0.65 * footprint.score)
