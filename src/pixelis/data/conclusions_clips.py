"""Conclusions about clips: where things went, how fast, when they came, how often; for the family motion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pixelis.data.conclusions_pictures import Wordings, first_of, part, unexplained
from pixelis.data.conclusions_seen import Chain, enumerated, two
from pixelis.data.tallies import tally
from pixelis.geometry import Track
from pixelis.tools.base import coordinates
from pixelis.world.programs import aspect, heading, stretches

ONE_EVENT_S = 0.5
"""Appearances closer to each other are one, as the oracle counts them."""


def followed(c: Chain, phrase: str, media: str | None = None) -> Track | None:
    """The first track of a thing."""
    return next(
        (
            r.footprint
            for r in c.notes
            if isinstance(r.footprint, Track) and r.footprint.label == phrase and media in (None, r.footprint.media)
        ),
        None,
    )


def ends(track: Track, axis: int) -> tuple[float, float]:
    """Its left or upper edge on the first and on the last frame, as printed."""
    return round(track.boxes[0][axis], 2), round(track.boxes[-1][axis], 2)


def way(track: Track, axis: int) -> str:
    first, last = ends(track, axis)
    return f"{two(first)} to {two(last)}"


def direction(c: Chain) -> Wordings:
    target = c.asked("target")
    track = followed(c, target)
    if track is None:
        return unexplained(c)
    (x0, x1), (y0, y1) = ends(track, 0), ends(track, 1)
    said = told_of(c, track)
    if c.plain and said and "-" in str(said["direction"]) and printed_way(c, track) == c.words:
        return (f"The {target} goes {said['direction']}: {c.words}.",)
    if printed_way(c, track) == c.words or heading(x1 - x0, (y1 - y0) * aspect(c.item.parameters)) != c.words:
        return f"The {target} goes {c.words}.", f"It moves {c.words}."
    x, y = way(track, 0), way(track, 1)
    return f"x {x}, y {y}: {c.words}.", f"From x {x} and y {y}, so {c.words}."


def printed_way(c: Chain, track: Track) -> str:
    """Where TRK said that it goes, in the words of an answer."""
    said = told_of(c, track)
    return str(said["direction"]).replace("-", " ") if said else ""


def tracks(c: Chain) -> list[tuple[str, Track]] | None:
    found = [(phrase, followed(c, phrase)) for phrase in c.named("things")]
    return None if any(t is None for _, t in found) else [(p, t) for p, t in found if t is not None]


def mover(c: Chain) -> Wordings:
    found, seen = tracks(c), tally(c.item, c.drafts) if c.plain else None
    if found is None:
        return unexplained(c)
    if seen is not None and [name for name, _ in seen.first] == [c.words]:
        return (f"{seen.now}; moving is the {c.words}.",)
    spread = {p: [abs(b - a) for a, b in (ends(t, 0), ends(t, 1))] for p, t in found}
    axis = 0 if spread[c.words][0] >= spread[c.words][1] else 1
    listed = ", ".join(f"{p} {way(t, axis)}" for p, t in found)
    name, ways = "xy"[axis], [printed_way(c, t) for _, t in found]
    if all(ways) and [p for (p, _), to in zip(found, ways, strict=True) if to != "still"] == [c.words]:
        brief = ", ".join(f"{p} {to}" for (p, _), to in zip(found, ways, strict=True))
        return f"{brief}: the {c.words} moves.", f"{brief}. Only the {c.words} moves."
    return f"{name}: {listed}; the {c.words} moves.", f"{name} of each: {listed}. Only the {c.words} moves."


def fastest(c: Chain) -> Wordings:
    """How far each went over the same time."""
    found, most = tracks(c), c.asked("most")
    if found is None:
        return unexplained(c)
    if c.plain:
        return first_of(c, most, "things")
    far = {p: round(abs(ends(t, 0)[1] - ends(t, 0)[0]), 2) for p, t in found}
    best = (max if most == "fastest" else min)(far.values())
    if [p for p in far if far[p] == best] != [c.words]:
        return f"The {c.words} is the {most}.", f"{most.capitalize()} is the {c.words}."
    parts = []
    for p, t in found:
        low, high = sorted(ends(t, 0))
        parts.append(f"{p} {two(high)} - {two(low)} = {two(far[p])}")
    listed = ", ".join(parts)
    return f"{listed}; {most} {two(best)}, the {c.words}.", f"x: {listed}; {most} is the {c.words}."


def which_clip(c: Chain) -> Wordings:
    target, wanted = c.asked("target"), c.asked("way")
    found = [followed(c, target, f"Video_{k}") for k in (0, 1)]
    axis = 0 if wanted in ("left", "right") else 1
    said, brief = list[str](), list[str]()
    for k, track in enumerate(found):
        if track is None:
            return unexplained(c)
        first, last = ends(track, axis)
        goes = (("left", "right"), ("up", "down"))[axis][last > first]
        goes = "still" if abs(last - first) < 0.05 else goes
        said.append(f"Video_{k} {'xy'[axis]} {way(track, axis)}, {goes}")
        brief.append(f"Video_{k} {goes}")
    asked = f"Asked for {wanted}: " if c.plain else ""
    return f"{asked}{', '.join(brief)}: {c.words}.", f"{'; '.join(said)}: {c.words}."


def leaver(c: Chain) -> Wordings:
    """Until when each was seen; or who was not found on the last frame."""
    found = tracks(c)
    last = int(str(c.item.parameters["frames"])) - 1
    gone = f"The {c.words} was not found on the last frame.", f"At the end there is no {c.words}."
    if found is None or [p for p, t in found if t.frames[-1] < last] != [c.words]:
        return gone
    until = [(p, seen_until(c, t)) for p, t in found]
    if any(seconds is None for _, seconds in until):
        return gone
    seen = tally(c.item, c.drafts) if c.plain else None
    if seen is not None and [name for name, _ in seen.first] == [c.words]:
        return (f"{seen.now}; lost is the {c.words}.",)
    listed = ", ".join(f"{p} to {two(seconds or 0.0)} s" for p, seconds in until)
    return f"Seen: {listed}; the {c.words} leaves.", f"{listed}: the {c.words} is gone first."


def seen_until(c: Chain, track: Track) -> float | None:
    """The last second that TRK printed for this track."""
    said = told_of(c, track)
    return float(said["last_s"]) if said else None


def told_of(c: Chain, track: Track) -> dict[str, Any] | None:
    """What TRK printed about this track."""
    for draft in c.drafts:
        for seen in draft.result.footprints if draft.call.tool == "TRK" else ():
            if isinstance(seen, Track) and (seen.frames[-1], seen.boxes[-1]) == (track.frames[-1], track.boxes[-1]):
                return dict(draft.result.output["tracks"][0])
    return None


# --- moments


def order(c: Chain) -> Wordings:
    which = c.asked("which")
    if c.plain:
        return first_of(c, which, "things")
    starts = [(p, stretches(c.notes, f"{p} appears")) for p in c.named("things")]
    if not all(found for _, found in starts):
        return unexplained(c)
    listed = ", ".join(f"{p} {two(found[0].start_s)} s" for p, found in starts)
    at = next(two(found[0].start_s) for p, found in starts if p == c.words)
    return f"{listed}; {which} at {at} s, the {c.words}.", f"{listed}; {which} comes the {c.words}."


def times(c: Chain) -> Wordings:
    apart: list[float] = []
    for span in stretches(c.notes, f"{c.asked('target')} appears"):
        if not apart or span.start_s - apart[-1] > ONE_EVENT_S:
            apart.append(span.start_s)
    if str(len(apart)) != c.words:
        return unexplained(c)
    listed = enumerated([f"{two(s)} s" for s in apart])
    often = "once" if len(apart) == 1 else f"{c.words} times"
    return f"It appears at {listed}: {c.words}.", f"At {listed}, {often}: {c.words}."


def where_when(c: Chain) -> Wordings:
    """When the other appears, and where the thing was printed to be about then."""
    target, other = c.asked("target"), c.asked("b")
    found = stretches(c.notes, f"{other} appears")
    when = f" at {two(found[0].start_s)} s" if found else ""
    track = followed(c, target)
    if track is not None:
        x0, y0, x1, y1 = (round(v, 2) for v in track.boxes[-1])
        x, y = (x0 + x1) / 2, (y0 + y1) / 2
        if part(x, y) == c.words:
            here = coordinates((x0, y0, x1, y1))
            return (
                f"The {other} appears{when}; the {target} is then at {here}: {c.words}.",
                f"At {here} then: {c.words}.",
            )
    return f"The {other} appears{when}; the {target} is {c.words} then.", f"Then the {target} is {c.words}."


def turns(c: Chain) -> Wordings:
    target = c.asked("target")
    return f"At the end it is {c.words}.", f"The {target} turns {c.words}.", f"Its last colour is {c.words}."


def passing(c: Chain) -> Wordings:
    panel = c.asked("target")
    return f"The {panel} says {c.words}.", f"It reads {c.words}."


SAYINGS: dict[str, Callable[[Chain], Wordings]] = {
    "motion.direction": direction,
    "motion.mover": mover,
    "motion.fastest": fastest,
    "motion.pair": which_clip,
    "motion.order": order,
    "motion.times": times,
    "motion.leaver": leaver,
    "motion.where_when": where_when,
    "motion.turns": turns,
    "motion.passing": passing,
}
