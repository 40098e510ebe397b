"""Conclusions about clips: where things went, how fast, when they came, how often; for the family motion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pixelis.core.geometry import Track
from pixelis.data.teachers.oracle.rationale_context import RationaleContext, join_with_and, two_decimals
from pixelis.data.teachers.oracle.rationales_pictures import (
    Wordings,
    explain_first,
    explain_without_numbers,
    frame_part,
)
from pixelis.data.teachers.oracle.running_notes import make_running_note
from pixelis.tools.base import coordinates
from pixelis.world.programs import aspect, find_time_spans, heading

ONE_EVENT_S = 0.5
"""Appearances closer to each other are one, as the oracle counts them."""


def find_track(context: RationaleContext, phrase: str, media: str | None = None) -> Track | None:
    """The first track of a thing."""
    return next(
        (
            r.footprint
            for r in context.notes
            if isinstance(r.footprint, Track) and r.footprint.label == phrase and media in (None, r.footprint.media)
        ),
        None,
    )


def edge_positions(track: Track, axis: int) -> tuple[float, float]:
    """Its left or upper edge on the first and on the last frame, as printed."""
    return round(track.boxes[0][axis], 2), round(track.boxes[-1][axis], 2)


def format_motion(track: Track, axis: int) -> str:
    first, last = edge_positions(track, axis)
    return f"{two_decimals(first)} to {two_decimals(last)}"


def explain_direction(context: RationaleContext) -> Wordings:
    target = context.parameter("target")
    track = find_track(context, target)
    if track is None:
        return explain_without_numbers(context)
    (x0, x1), (y0, y1) = edge_positions(track, 0), edge_positions(track, 1)
    trk_output = printed_track(context, track)
    if (
        context.canonical_wording
        and trk_output
        and "-" in str(trk_output["direction"])
        and printed_direction(context, track) == context.answer_text
    ):
        return (f"The {target} goes {trk_output['direction']}: {context.answer_text}.",)
    if (
        printed_direction(context, track) == context.answer_text
        or heading(x1 - x0, (y1 - y0) * aspect(context.item.parameters)) != context.answer_text
    ):
        return f"The {target} goes {context.answer_text}.", f"It moves {context.answer_text}."
    x, y = format_motion(track, 0), format_motion(track, 1)
    return f"x {x}, y {y}: {context.answer_text}.", f"From x {x} and y {y}, so {context.answer_text}."


def printed_direction(context: RationaleContext, track: Track) -> str:
    """Where TRK said that it goes, in the words of an answer."""
    trk_output = printed_track(context, track)
    return str(trk_output["direction"]).replace("-", " ") if trk_output else ""


def find_tracks(context: RationaleContext) -> list[tuple[str, Track]] | None:
    matches = [(phrase, find_track(context, phrase)) for phrase in context.names("things")]
    return None if any(t is None for _, t in matches) else [(p, t) for p, t in matches if t is not None]


def explain_mover(context: RationaleContext) -> Wordings:
    tracks_by_phrase, running_note = (
        find_tracks(context),
        make_running_note(context.item, context.drafts) if context.canonical_wording else None,
    )
    if tracks_by_phrase is None:
        return explain_without_numbers(context)
    if running_note is not None and [name for name, _ in running_note.ranking] == [context.answer_text]:
        return (f"{running_note.latest}; moving is the {context.answer_text}.",)
    edge_shifts = {
        p: [abs(b - a) for a, b in (edge_positions(t, 0), edge_positions(t, 1))] for p, t in tracks_by_phrase
    }
    axis = 0 if edge_shifts[context.answer_text][0] >= edge_shifts[context.answer_text][1] else 1
    items_text = ", ".join(f"{p} {format_motion(t, axis)}" for p, t in tracks_by_phrase)
    name, directions = "xy"[axis], [printed_direction(context, t) for _, t in tracks_by_phrase]
    if all(directions) and [
        p for (p, _), direction in zip(tracks_by_phrase, directions, strict=True) if direction != "still"
    ] == [context.answer_text]:
        directions_text = ", ".join(
            f"{p} {direction}" for (p, _), direction in zip(tracks_by_phrase, directions, strict=True)
        )
        return (
            f"{directions_text}: the {context.answer_text} moves.",
            f"{directions_text}. Only the {context.answer_text} moves.",
        )
    return (
        f"{name}: {items_text}; the {context.answer_text} moves.",
        f"{name} of each: {items_text}. Only the {context.answer_text} moves.",
    )


def explain_fastest(context: RationaleContext) -> Wordings:
    """How far each went over the same time."""
    tracks_by_phrase, ranking_word = find_tracks(context), context.parameter("most")
    if tracks_by_phrase is None:
        return explain_without_numbers(context)
    if context.canonical_wording:
        return explain_first(context, ranking_word, "things")
    distances = {p: round(abs(edge_positions(t, 0)[1] - edge_positions(t, 0)[0]), 2) for p, t in tracks_by_phrase}
    best = (max if ranking_word == "fastest" else min)(distances.values())
    if [p for p in distances if distances[p] == best] != [context.answer_text]:
        return (
            f"The {context.answer_text} is the {ranking_word}.",
            f"{ranking_word.capitalize()} is the {context.answer_text}.",
        )
    parts = []
    for p, t in tracks_by_phrase:
        low, high = sorted(edge_positions(t, 0))
        parts.append(f"{p} {two_decimals(high)} - {two_decimals(low)} = {two_decimals(distances[p])}")
    items_text = ", ".join(parts)
    return (
        f"{items_text}; {ranking_word} {two_decimals(best)}, the {context.answer_text}.",
        f"x: {items_text}; {ranking_word} is the {context.answer_text}.",
    )


def explain_which_clip(context: RationaleContext) -> Wordings:
    target, target_direction = context.parameter("target"), context.parameter("way")
    tracks = [find_track(context, target, f"Video_{k}") for k in (0, 1)]
    axis = 0 if target_direction in ("left", "right") else 1
    details, summaries = list[str](), list[str]()
    for k, track in enumerate(tracks):
        if track is None:
            return explain_without_numbers(context)
        first, last = edge_positions(track, axis)
        direction = (("left", "right"), ("up", "down"))[axis][last > first]
        direction = "still" if abs(last - first) < 0.05 else direction
        details.append(f"Video_{k} {'xy'[axis]} {format_motion(track, axis)}, {direction}")
        summaries.append(f"Video_{k} {direction}")
    prefix = f"Asked for {target_direction}: " if context.canonical_wording else ""
    return f"{prefix}{', '.join(summaries)}: {context.answer_text}.", f"{'; '.join(details)}: {context.answer_text}."


def explain_leaver(context: RationaleContext) -> Wordings:
    """Until when each was seen; or who was not found on the last frame."""
    tracks_by_phrase = find_tracks(context)
    last_frame = int(str(context.item.parameters["frames"])) - 1
    without_times = (
        f"The {context.answer_text} was not found on the last frame.",
        f"At the end there is no {context.answer_text}.",
    )
    if tracks_by_phrase is None or [p for p, t in tracks_by_phrase if t.frames[-1] < last_frame] != [
        context.answer_text
    ]:
        return without_times
    last_seen = [(p, last_printed_second(context, t)) for p, t in tracks_by_phrase]
    if any(seconds is None for _, seconds in last_seen):
        return without_times
    running_note = make_running_note(context.item, context.drafts) if context.canonical_wording else None
    if running_note is not None and [name for name, _ in running_note.ranking] == [context.answer_text]:
        return (f"{running_note.latest}; lost is the {context.answer_text}.",)
    items_text = ", ".join(f"{p} to {two_decimals(seconds or 0.0)} s" for p, seconds in last_seen)
    return (
        f"Seen: {items_text}; the {context.answer_text} leaves.",
        f"{items_text}: the {context.answer_text} is gone first.",
    )


def last_printed_second(context: RationaleContext, track: Track) -> float | None:
    """The last second that TRK printed for this track."""
    trk_output = printed_track(context, track)
    return float(trk_output["last_s"]) if trk_output else None


def printed_track(context: RationaleContext, track: Track) -> dict[str, Any] | None:
    """What TRK printed about this track."""
    for draft in context.drafts:
        for footprint in draft.result.footprints if draft.call.tool == "TRK" else ():
            if isinstance(footprint, Track) and (footprint.frames[-1], footprint.boxes[-1]) == (
                track.frames[-1],
                track.boxes[-1],
            ):
                return dict(draft.result.output["tracks"][0])
    return None


# --- moments


def explain_order(context: RationaleContext) -> Wordings:
    which = context.parameter("which")
    if context.canonical_wording:
        return explain_first(context, which, "things")
    starts = [(p, find_time_spans(context.notes, f"{p} appears")) for p in context.names("things")]
    if not all(spans for _, spans in starts):
        return explain_without_numbers(context)
    items_text = ", ".join(f"{p} {two_decimals(spans[0].start_s)} s" for p, spans in starts)
    start_text = next(two_decimals(spans[0].start_s) for p, spans in starts if p == context.answer_text)
    return (
        f"{items_text}; {which} at {start_text} s, the {context.answer_text}.",
        f"{items_text}; {which} comes the {context.answer_text}.",
    )


def explain_times(context: RationaleContext) -> Wordings:
    event_starts: list[float] = []
    for span in find_time_spans(context.notes, f"{context.parameter('target')} appears"):
        if not event_starts or span.start_s - event_starts[-1] > ONE_EVENT_S:
            event_starts.append(span.start_s)
    if str(len(event_starts)) != context.answer_text:
        return explain_without_numbers(context)
    items_text = join_with_and([f"{two_decimals(s)} s" for s in event_starts])
    frequency = "once" if len(event_starts) == 1 else f"{context.answer_text} times"
    return (
        f"It appears at {items_text}: {context.answer_text}.",
        f"At {items_text}, {frequency}: {context.answer_text}.",
    )


def explain_where_when(context: RationaleContext) -> Wordings:
    """When the other appears, and where the thing was printed to be about then."""
    target, other = context.parameter("target"), context.parameter("b")
    spans = find_time_spans(context.notes, f"{other} appears")
    time_text = f" at {two_decimals(spans[0].start_s)} s" if spans else ""
    track = find_track(context, target)
    if track is not None:
        x0, y0, x1, y1 = (round(v, 2) for v in track.boxes[-1])
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        if frame_part(x, y) == context.answer_text:
            box_text = coordinates((x0, y0, x1, y1))
            return (
                f"The {other} appears{time_text}; the {target} is then at {box_text}: {context.answer_text}.",
                f"At {box_text} then: {context.answer_text}.",
            )
    return (
        f"The {other} appears{time_text}; the {target} is {context.answer_text} then.",
        f"Then the {target} is {context.answer_text}.",
    )


def explain_last_colour(context: RationaleContext) -> Wordings:
    target = context.parameter("target")
    return (
        f"At the end it is {context.answer_text}.",
        f"The {target} turns {context.answer_text}.",
        f"Its last colour is {context.answer_text}.",
    )


def explain_passing_text(context: RationaleContext) -> Wordings:
    panel = context.parameter("target")
    return f"The {panel} says {context.answer_text}.", f"It reads {context.answer_text}."


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "motion.direction": explain_direction,
    "motion.mover": explain_mover,
    "motion.fastest": explain_fastest,
    "motion.pair": explain_which_clip,
    "motion.order": explain_order,
    "motion.times": explain_times,
    "motion.leaver": explain_leaver,
    "motion.where_when": explain_where_when,
    "motion.turns": explain_last_colour,
    "motion.passing": explain_passing_text,
}
