"""The pictures of a step: the one it looked at, the view it made, or a film strip of the frames that matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from markupsafe import Markup

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Box, Mask, Size, Span, TextSpan, Track
from pixelis.media import ViewRecipe
from pixelis.media.query import cut_view
from pixelis.trace import MediaRecord, Step
from pixelis.trace.decisive import CallArguments, extract_arguments
from pixelis.view.draw import Mark, SvgCanvas, draw, draw_arguments
from pixelis.view.exhibit import Exhibit
from pixelis.view.pictures import EmbeddedPicture, PictureRegistry, decode_artifact

STRIP_FRAMES = 8


class Panel(NamedTuple):
    """One picture with its drawings."""

    picture: EmbeddedPicture | None
    """None if the medium is missing: the drawings are then on an empty ground."""
    size: Size
    marks: Markup
    caption: str
    note: str = ""
    kind: str = "picture"
    """`picture`, `strip` (one of several frames), `made` (a new view), or `locator` (where a view lies)."""
    during: tuple[Mark, ...] = ()
    """Spans that contain this frame."""

    @property
    def shown_size(self) -> Size:
        """In page pixels, before the column's limits: a small picture is enlarged."""
        scale = max(1.0, 900 / self.size.width)
        return Size(round(self.size.width * scale), round(self.size.height * scale))


class CallTarget(NamedTuple):
    """The medium or view that a call names."""

    record: MediaRecord
    view: str | None = None
    recipe: ViewRecipe | None = None


def call_target(exhibit: Exhibit, number: int) -> CallTarget | None:
    """The medium or view that step `number` (from 0) names; None if it is unknown."""
    trace = exhibit.trace
    media_arg = trace.steps[number].call.args.get("media")
    if media_arg is None:
        return CallTarget(trace.media[0]) if trace.media else None
    name = str(media_arg).strip().lower()
    records = {record.name.lower(): record for record in trace.media}
    if name in records:
        return CallTarget(records[name])
    for view, step in zip(trace.views[:number], trace.steps, strict=False):
        recipe = step.result.view
        if view is not None and view.lower() == name and recipe is not None and recipe.media.lower() in records:
            return CallTarget(records[recipe.media.lower()], view, recipe)
    return None


class PanelContext(NamedTuple):
    """The trace of the panels, and the pictures of their page."""

    exhibit: Exhibit
    pictures: PictureRegistry


class Drawing(NamedTuple):
    """The drawings over the pictures of a step."""

    marks: Sequence[Mark] = ()
    arguments: CallArguments | None = None
    """The arguments of a call without footprints, drawn instead."""

    def on(self, canvas: SvgCanvas) -> Markup:
        return draw_arguments(self.arguments, canvas) if self.arguments else draw(self.marks, canvas)


def panels(page: PanelContext, number: int, marks: list[Mark]) -> list[Panel]:
    """The pictures of step `number` (from 0), with the marks of its footprints."""
    trace = page.exhibit.trace
    step = trace.steps[number]
    target = call_target(page.exhibit, number)
    if target is None:
        return []
    drawing = Drawing([mark for mark in marks if mark.footprint.media == target.record.name])
    if not step.result.footprints:
        views = dict(zip(trace.views, (s.result.view for s in trace.steps), strict=True))
        drawing = drawing._replace(arguments=extract_arguments(step, trace.media, views))
    if target.recipe is not None:
        step_panels = [view_panel(page, target.recipe, target.view or "", drawing), locator_panel(page, target)]
    else:
        frames = frames_to_show(step, target.record)
        step_panels = [frame_panel(page, target.record, frame, drawing, strip=len(frames) > 1) for frame in frames]
    view_name = trace.views[number]
    if step.result.view is not None and view_name is not None:
        step_panels.append(view_panel(page, step.result.view, view_name, Drawing(), maker=step))
    return step_panels


def frame_panel(page: PanelContext, record: MediaRecord, frame: int, drawing: Drawing, *, strip: bool) -> Panel:
    medium = page.exhibit.media.get(record.name)
    picture, note, caption = None, "", record.name
    during: tuple[Mark, ...] = ()
    if record.kind == "clip":
        seconds = frame * record.duration_s / record.frame_count
        if medium is not None and frame < medium.frame_count:
            seconds = medium.time_of(frame)
        caption = f"{seconds:.2f} s · frame {frame}"
        spans = ((mark, mark.footprint) for mark in drawing.marks)
        during = tuple(m for m, f in spans if isinstance(f, Span) and f.start_s <= seconds <= f.end_s)
    if medium is None:
        note = "the file is missing"
    else:
        try:
            picture = page.pictures.add((record.sha256, frame), medium.frame(frame), strip=strip)
        except MediaError as error:
            note = str(error)
    size = picture.size if picture else page.pictures.fit(record.size, strip=strip)
    shapes = drawing.on(SvgCanvas(size, frame=frame, strip=strip))
    return Panel(picture, size, shapes, caption, note, "strip" if strip else "picture", during)


def view_panel(page: PanelContext, recipe: ViewRecipe, name: str, drawing: Drawing, maker: Step | None = None) -> Panel:
    """A view: its recorded artifact, else cut again from its source."""
    exhibit, pictures = page
    picture, note = None, "the file is missing"
    source = exhibit.media.get(recipe.media)
    makers = [maker] if maker else [s for s in exhibit.trace.steps if s.result.view == recipe]
    for artifact in (a for s in makers for a in s.result.artifacts):
        frame = decode_artifact(exhibit.pictures[artifact.sha256]) if artifact.sha256 in exhibit.pictures else None
        if frame is not None and frame.shape[:2] == (recipe.height, recipe.width):
            picture = pictures.add(("artifact", artifact.sha256), frame)
            break
    if picture is None and source is not None:
        try:
            picture = pictures.add(("view", source.sha256, recipe), cut_view(source, recipe).pixels)
        except MediaError as error:
            note = str(error)
    size = picture.size if picture else pictures.fit(Size(recipe.width, recipe.height), strip=False)
    shapes = drawing.on(SvgCanvas(size, recipe.box, recipe.frame))
    caption = f"{name}, {recipe.width}x{recipe.height}, cut from {recipe.media}"
    return Panel(picture, size, shapes, caption, "" if picture else note, "made" if maker else "picture")


def locator_panel(page: PanelContext, target: CallTarget) -> Panel:
    """A small picture of the source with the box of the view."""
    assert target.recipe is not None  # noqa: S101 - only views have locators
    x0, y0, x1, y1 = target.recipe.box
    view_box = Box(media=target.record.name, frame=target.recipe.frame, x0=x0, y0=y0, x1=x1, y1=y1)
    clip = target.record.kind == "clip"
    panel = frame_panel(page, target.record, target.recipe.frame, Drawing([Mark(view_box, "", 0)]), strip=clip)
    return panel._replace(kind="locator", caption=f"where {target.view} lies in {target.record.name}")


def frames_to_show(step: Step, record: MediaRecord) -> list[int]:
    """At most eight frames, evenly chosen: those with footprints, or some of the whole clip."""
    if record.kind == "image":
        return [0]
    last = record.frame_count - 1
    footprints = [f for f in step.result.footprints if f.media == record.name]
    track_frames = sorted({frame for f in footprints if isinstance(f, Track) for frame in f.frames})
    if track_frames:
        return sample_evenly(track_frames, STRIP_FRAMES)
    spans = sorted((f for f in footprints if isinstance(f, Span)), key=lambda f: -f.score)[:STRIP_FRAMES]
    if spans:
        return sorted({frame for span in spans for frame in span_frames(span, record, STRIP_FRAMES // len(spans))})
    still_frames = sorted({f.frame for f in footprints if isinstance(f, Box | Mask | TextSpan)})
    if still_frames:
        return [min(frame, last) for frame in sample_evenly(still_frames, STRIP_FRAMES)]
    frame_arg = find_frame_arg(step, record)
    return sample_evenly(range(record.frame_count), 4) if frame_arg is None else [frame_arg]


def find_frame_arg(step: Step, record: MediaRecord) -> int | None:
    """The frame that a call names by number or time; None if the clip does not have it."""
    frame, at = (None if isinstance(value := step.call.args.get(key), bool) else value for key in ("frame", "time_s"))
    if frame is None and isinstance(at, int | float) and record.duration_s:
        frame = math.floor(at / record.duration_s * record.frame_count)
        frame -= at == record.duration_s  # the end of a clip is its last frame
    return frame if isinstance(frame, int) and 0 <= frame < record.frame_count else None


def span_frames(span: Span, record: MediaRecord, count: int) -> list[int]:
    """Frames in the middle of equal parts of a span."""
    if not record.duration_s:
        return [0]
    at = [min((span.start_s + (i + 0.5) / count * span.seconds) / record.duration_s, 1.0) for i in range(count)]
    return sorted({min(int(t * record.frame_count), record.frame_count - 1) for t in at})


def sample_evenly(frames: Sequence[int], count: int) -> list[int]:
    if len(frames) <= count:
        return list(frames)
    return [frames[round(i * (len(frames) - 1) / (count - 1))] for i in range(count)]
