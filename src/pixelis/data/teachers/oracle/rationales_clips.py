"""Conclusions about clips: where things went, how fast, when they appeared, how often; for the family motion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pixelis.core.geometry import Track
from pixelis.data.teachers.oracle.rationale_context import RationaleContext, Wordings, join_with_and, require
from pixelis.data.teachers.oracle.rationales_pictures import explain_first, frame_part
from pixelis.tools.base import coordinates
from pixelis.world.programs import Unanswerable, heading

ONE_EVENT_S = 0.5
"""Appearances closer to each other are one, as the oracle counts them."""


def edge_positions(track: Track, axis: int) -> tuple[float, float]:
    """Its left or upper edge on the first and on the last frame, as printed."""
    return round(track.boxes[0][axis], 2), round(track.boxes[-1][axis], 2)


def format_motion(track: Track, axis: int) -> str:
    first, last = edge_positions(track, axis)
    return f"{first:.2f} to {last:.2f}"


def find_tracks(context: RationaleContext) -> list[tuple[str, Track]]:
    return [(phrase, context.facts.track(phrase)) for phrase in context.names("things")]


def printed_track(context: RationaleContext, track: Track) -> dict[str, Any] | None:
    """What TRK printed about this track."""
    end = (track.frames[-1], track.boxes[-1])
    for draft in context.drafts:
        for footprint in draft.result.footprints if draft.call.tool == "TRK" else ():
            if isinstance(footprint, Track) and (footprint.frames[-1], footprint.boxes[-1]) == end:
                return dict(draft.result.output["tracks"][0])
    return None


def printed_direction(context: RationaleContext, track: Track) -> str:
    """The direction that TRK printed; empty if it printed none."""
    return str((printed_track(context, track) or {}).get("direction", ""))


def explain_direction(context: RationaleContext) -> Wordings:
    track = context.facts.track(context.parameter("target"))
    (x0, x1), (y0, y1) = edge_positions(track, 0), edge_positions(track, 1)
    direction = printed_direction(context, track)
    is_printed = direction.replace("-", " ") == context.answer
    if context.canonical_wording and "-" in direction and is_printed:
        return context.say("motion.direction.translated", direction=direction)
    if is_printed or heading(x1 - x0, (y1 - y0) * context.facts.aspect) != context.answer:
        return context.say("motion.direction.printed")
    return context.say("motion.direction", x=format_motion(track, 0), y=format_motion(track, 1))


def explain_mover(context: RationaleContext) -> Wordings:
    tracks = find_tracks(context)
    if note := context.conclusive_note:
        return context.say("motion.mover.listed", latest=note.latest)
    shifts = {p: [abs(b - a) for a, b in (edge_positions(t, 0), edge_positions(t, 1))] for p, t in tracks}
    axis = 0 if shifts[context.answer][0] >= shifts[context.answer][1] else 1
    directions = [(p, printed_direction(context, t).replace("-", " ")) for p, t in tracks]
    if all(word for _, word in directions) and [p for p, word in directions if word != "still"] == [context.answer]:
        return context.say("motion.mover.printed", items=", ".join(f"{p} {word}" for p, word in directions))
    items_text = ", ".join(f"{p} {format_motion(t, axis)}" for p, t in tracks)
    return context.say("motion.mover", axis="xy"[axis], items=items_text)


def explain_fastest(context: RationaleContext) -> Wordings:
    """Compare the distances over the same time."""
    tracks, ranking_word = find_tracks(context), context.parameter("most")
    if context.canonical_wording:
        return explain_first(context, ranking_word, "things")
    distances = {p: round(abs(edge_positions(t, 0)[1] - edge_positions(t, 0)[0]), 2) for p, t in tracks}
    best = (max if ranking_word == "fastest" else min)(distances.values())
    if [p for p in distances if distances[p] == best] != [context.answer]:
        return context.say("ranking.without_numbers", ranking_word=ranking_word)
    parts = []
    for p, t in tracks:
        low, high = sorted(edge_positions(t, 0))
        parts.append(f"{p} {high:.2f} - {low:.2f} = {distances[p]:.2f}")
    return context.say("motion.fastest", items=", ".join(parts), best=best)


def explain_which_clip(context: RationaleContext) -> Wordings:
    axis = 0 if context.parameter("way") in ("left", "right") else 1
    details, summaries = list[str](), list[str]()
    for name in ("Video_0", "Video_1"):
        track = context.facts.track(context.parameter("target"), name)
        first, last = edge_positions(track, axis)
        direction = "still" if abs(last - first) < 0.05 else (("left", "right"), ("up", "down"))[axis][last > first]
        details.append(f"{name} {'xy'[axis]} {format_motion(track, axis)}, {direction}")
        summaries.append(f"{name} {direction}")
    key = "motion.pair.canonical" if context.canonical_wording else "motion.pair"
    return context.say(key, summaries=", ".join(summaries), details="; ".join(details))


def explain_leaver(context: RationaleContext) -> Wordings:
    """The time until which each was seen; or which one was not found on the last frame."""
    last_frame = int(context.parameter("frames")) - 1
    try:
        tracks = find_tracks(context)
        require([p for p, t in tracks if t.frames[-1] < last_frame] == [context.answer])
        outputs = [(p, printed_track(context, t)) for p, t in tracks]
        last_seen = [(p, float(output["last_s"])) for p, output in outputs if output is not None]
        require(len(last_seen) == len(tracks))
    except Unanswerable:
        return context.say("motion.leaver.not_found")
    if note := context.conclusive_note:
        return context.say("motion.leaver.listed", latest=note.latest)
    return context.say("motion.leaver", items=", ".join(f"{p} to {seconds:.2f} s" for p, seconds in last_seen))


# --- moments


def explain_order(context: RationaleContext) -> Wordings:
    if context.canonical_wording:
        return explain_first(context, context.parameter("which"), "things")
    spans = {p: context.facts.spans(f"{p} appears") for p in context.names("things")}
    require(all(spans.values()))
    starts = {p: f"{found[0].start_s:.2f}" for p, found in spans.items()}
    items_text = ", ".join(f"{p} {start} s" for p, start in starts.items())
    return context.say("motion.order", items=items_text, start=starts[context.answer])


def explain_times(context: RationaleContext) -> Wordings:
    event_starts: list[float] = []
    for span in context.facts.spans(f"{context.parameter('target')} appears"):
        if not event_starts or span.start_s - event_starts[-1] > ONE_EVENT_S:
            event_starts.append(span.start_s)
    require(str(len(event_starts)) == context.answer)
    frequency = "once" if len(event_starts) == 1 else f"{context.answer} times"
    return context.say("motion.times", items=join_with_and([f"{s:.2f} s" for s in event_starts]), frequency=frequency)


def explain_where_when(context: RationaleContext) -> Wordings:
    """When the other appears, and where the thing was printed to be about then."""
    spans = context.facts.spans(f"{context.parameter('b')} appears")
    time_text = f" at {spans[0].start_s:.2f} s" if spans else ""
    try:
        x0, y0, x1, y1 = (round(v, 2) for v in context.facts.track(context.parameter("target")).boxes[-1])
        require(frame_part((x0 + x1) / 2, (y0 + y1) / 2) == context.answer)
    except Unanswerable:
        return context.say("motion.where_when", time=time_text)
    return context.say("motion.where_when.box", time=time_text, box=coordinates((x0, y0, x1, y1)))


RATIONALE_WRITERS: dict[str, Callable[[RationaleContext], Wordings]] = {
    "motion.direction": explain_direction,
    "motion.mover": explain_mover,
    "motion.fastest": explain_fastest,
    "motion.pair": explain_which_clip,
    "motion.order": explain_order,
    "motion.times": explain_times,
    "motion.leaver": explain_leaver,
    "motion.where_when": explain_where_when,
}
