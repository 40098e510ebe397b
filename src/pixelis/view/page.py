"""Traces to one self-contained HTML file: inline style and script, embedded pictures, no requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from pixelis.core.geometry import Box, Footprint, Mask, Span, TextSpan, Track, UnitBox
from pixelis.trace import MediaRecord, Step
from pixelis.trace.decisive import StepDecision
from pixelis.view.draw import Mark, clean, make_marks
from pixelis.view.exhibit import Exhibit
from pixelis.view.panels import Panel, PanelContext, call_target, frames_to_show, panels
from pixelis.view.pictures import DETAIL_LEVELS, DetailLevel, PictureRegistry
from pixelis.view.templating import asset, render_page
from pixelis.view.timeline import Timeline, make_timeline
from pixelis.view.vote_page import VoteView, vote_view

PAGE_BYTES = 4 * 2**20
"""Target size of the page of one trace, reached by coarser pictures where possible."""
MAX_LISTED_FOOTPRINTS = 200
"""Footprints in the list of one step; the trace has all."""


class FootprintEntry(NamedTuple):
    """A footprint in the list of a step."""

    key: str
    colour: int
    kind: str
    name: str
    where: str
    score: float


class StepView(NamedTuple):
    """What the section of a step shows."""

    number: int
    step: Step
    decision: StepDecision
    args: list[tuple[str, str]]
    panels: list[Panel]
    timeline: Timeline | None
    entries: list[FootprintEntry]
    unlisted: int
    problems: list[str]
    view: str | None

    @property
    def tool(self) -> str:
        return self.step.result.tool


class TraceView(NamedTuple):
    """What the article of a trace shows."""

    key: str
    exhibit: Exhibit
    origin: str
    media: list[tuple[MediaRecord, Panel | None, str]]
    steps: list[StepView]
    vote: VoteView | None
    cached: int
    """Number of steps whose result came from the cache."""
    legend: list[tuple[str, str]]


LEGEND = {
    "decisive": "a step of which something reached a later call or the answer, with at least its tool's confidence",
    "confidence": "of a step: its tool's own; of an answer: probability of its words times that of its decisive steps",
    "kept result": "the same call had run before, and its result came from the cache",
    "marks": "what a call returned, in the colours of the list under the picture; a number in the list is its score",
    "dashed": "the region that a call was given, where it returned nothing",
    "failed": "the call ran and gave no result; invalid: it could not be read; the policy sees the reason and goes on",
    "hash chain": "every step is hashed with the one before it, and the seal closes the trace: a change would be found",
    "View": "a new picture that a call cut from a medium, and that later calls may look at",
}
"""The terms of the page, with one line each."""


def legend(exhibit: Exhibit, steps: Sequence[StepView]) -> list[tuple[str, str]]:
    """The legend, for the terms that occur."""
    results = [step.step.result for step in steps]
    used = {
        "decisive": any(step.decision.decisive for step in steps),
        "confidence": exhibit.confidence is not None or any(r.confidence is not None for r in results),
        "kept result": any(step.step.first_seconds is not None for step in steps),
        "marks": any(step.entries for step in steps),
        "dashed": any('class="argument"' in panel.marks for step in steps for panel in step.panels),
        "failed": not all(r.ok for r in results),
        "hash chain": True,
        "View": any(step.view for step in steps),
    }
    return [(term, text) for term, text in LEGEND.items() if used[term]]


def report(exhibits: Sequence[Exhibit]) -> str:
    """The evidence page of one or several traces."""
    page = ""
    for detail in DETAIL_LEVELS:
        page = render(exhibits, detail)
        if len(page) <= PAGE_BYTES * max(len(exhibits), 1):
            break
    return page


def render(exhibits: Sequence[Exhibit], detail: DetailLevel) -> str:
    pictures = PictureRegistry(detail)
    traces = [trace_view(exhibit, f"t{i}", pictures) for i, exhibit in enumerate(exhibits, start=1)]
    title = (clean(exhibits[0].trace.query)[:120] if exhibits else "") or "A chain of evidence"
    return render_page("page.html", script=asset("page.js"), title=title, traces=traces, pictures=pictures.all)


def trace_view(exhibit: Exhibit, key: str, pictures: PictureRegistry) -> TraceView:
    trace = exhibit.trace
    media = []
    for record in trace.media:
        medium = exhibit.media.get(record.name)
        panel = None
        if medium is not None:
            picture = pictures.add((record.sha256, 0), medium.frame(0), strip=record.kind == "clip")
            panel = Panel(picture, picture.size, Markup(""), record.name)
        media.append((record, panel, exhibit.missing.get(record.name, "")))
    steps = [step_view(exhibit, number, key, pictures) for number in range(len(trace.steps))]
    vote = None
    if exhibit.vote is not None:
        vote = vote_view({"answer": exhibit.vote["answer"], "answered": not exhibit.withheld, "vote": exhibit.vote})
    cached = sum(step.first_seconds is not None for step in trace.steps)
    terms, origin = legend(exhibit, steps), origin_sentence(trace.origin)
    return TraceView(key, exhibit, origin, media, steps, vote, cached, terms)


def origin_sentence(origin: str) -> str:
    kind, _, name = origin.partition(":")
    if kind == "plan":
        return "These calls were given by a person, as a plan. No model chose them."
    formats = {"policy": "The policy {} chose these calls.", "teacher": "The teacher {} chose these calls."}
    return formats.get(kind, "Imported from {}.").format(name)


def step_view(exhibit: Exhibit, number: int, trace_key: str, pictures: PictureRegistry) -> StepView:
    step = exhibit.trace.steps[number]
    marks = make_marks(step.result.footprints, f"{trace_key}-s{number + 1}")
    target = call_target(exhibit, number)
    timeline = None
    if target and target.recipe is None:
        timeline = make_timeline(marks, target.record, frames_to_show(step, target.record))
    return StepView(
        number=number + 1,
        step=step,
        decision=exhibit.decisions[number],
        args=[(name, format_argument(value)) for name, value in step.call.args.items()],
        panels=panels(PanelContext(exhibit, pictures), number, marks),
        timeline=timeline,
        entries=[footprint_entry(mark) for mark in marks[:MAX_LISTED_FOOTPRINTS]],
        unlisted=max(len(marks) - MAX_LISTED_FOOTPRINTS, 0),
        problems=[f"artifact {p.artifact.name} {p.reason}" for p in exhibit.artifact_problems if p.step == number + 1],
        view=exhibit.trace.views[number],
    )


def footprint_entry(mark: Mark) -> FootprintEntry:
    footprint = mark.footprint
    name = footprint.text if isinstance(footprint, TextSpan) else footprint.label
    if isinstance(footprint, Track):
        name = f"{name or 'track'} {footprint.track_id}"
    name, where = clean(name) or footprint.kind, describe_location(footprint)
    return FootprintEntry(mark.key, mark.colour, footprint.kind, name, where, footprint.score)


def describe_location(footprint: Footprint) -> str:
    """The place of a footprint in words."""
    if isinstance(footprint, Span):
        return f"{footprint.start_s:.2f} to {footprint.end_s:.2f} s"
    if isinstance(footprint, Track):
        return f"frames {footprint.frames[0]} to {footprint.frames[-1]}, seen on {len(footprint.frames)}"
    frame_suffix = f" · frame {footprint.frame}" if footprint.frame else ""
    if isinstance(footprint, Mask):
        return f"{100 * footprint.area:.1f} % of the frame{frame_suffix}"
    box: UnitBox = footprint.box_unit if isinstance(footprint, Box | TextSpan) else (0.0, 0.0, 1.0, 1.0)
    return "[" + ", ".join(f"{v:.2f}" for v in box) + f"]{frame_suffix}"


def format_argument(value: Any) -> str:
    """An argument as text; a long one is shortened."""
    if isinstance(value, dict) and {"width", "height", "counts"} <= value.keys():
        return f"a mask of {value['width']}x{value['height']}"
    if isinstance(value, dict) and isinstance(value.get("frames"), list) and "boxes" in value:
        return f"a track of {len(value['frames'])} frames"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return clean(text if len(text) <= 240 else text[:237] + "…")
