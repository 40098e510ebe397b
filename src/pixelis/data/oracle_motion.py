"""How the oracle answers the motion family: find things on a frame, follow them, find moments."""

from __future__ import annotations

from pixelis.data.oracle_acts import SURE_READING, Hands
from pixelis.data.oracle_search import joined
from pixelis.data.oracle_session import Found, as_read, colour_of, noun_of
from pixelis.data.oracle_time import Start, Watch
from pixelis.geometry import Track
from pixelis.tools.colours import ACHROMATIC
from pixelis.world.programs import field_of


def things(w: Watch) -> list[str]:
    named = w.s.item.parameters["things"]
    return [str(p) for p in named] if isinstance(named, tuple) else [str(named)]


def direction(h: Hands) -> None:
    """Where one thing goes."""
    w = Watch(h.s, h.detours)
    w.overview()
    begin = w.start(str(w.s.item.parameters["target"]))
    if begin is not None:
        w.follow(begin, pieces=w.pieces(1, 4))


def each(h: Hands) -> None:
    """Several things, one after another."""
    w = Watch(h.s, h.detours)
    w.overview()
    together = w.s.prefers(0.5)
    phrases = things(w)
    begun = [w.start(p) for p in phrases] if together else []
    for k, phrase in enumerate(phrases):
        begin = begun[k] if together else w.start(phrase)
        if begin is not None:
            w.follow(begin, pieces=w.pieces(1, 3))


def pair(h: Hands) -> None:
    """The same thing in two clips."""
    w = Watch(h.s, h.detours)
    for media in ("Video_0", "Video_1"):
        begin = w.start(str(w.s.item.parameters["target"]), media=media)
        if begin is not None:
            w.follow(begin, media=media, pieces=w.pieces(1, 3))


def order(h: Hands) -> str | None:
    """What appears first, or last."""
    w = Watch(h.s, h.detours)
    w.overview()
    starts: dict[str, float] = {}
    for phrase in things(w):
        spans = w.appears(phrase)
        if not spans:
            return None
        starts[phrase] = spans[0].start_s
        if w.detours.take("refollow", 2):
            seen_from(w, phrase, spans[0].end_s)
    first = str(w.s.item.parameters["which"]) == "first"
    return (min if first else max)(starts, key=lambda p: starts[p])


def seen_from(w: Watch, phrase: str, seconds: float) -> Track | None:
    """Find a thing at a moment, and follow it from there."""
    frame = w.frame_at(seconds)
    begin = w.start(phrase, frame=frame)
    return w.follow(begin, start=frame, end=min(frame + 12, w.last_frame()), pieces=w.pieces(1, 2)) if begin else None


def times(h: Hands) -> str | None:
    """How often something appears."""
    w = Watch(h.s, h.detours)
    w.overview()
    target = str(w.s.item.parameters["target"])
    spans = w.appears(target, most=10)
    last = max((span.start_s for span in spans), default=0.0)
    if w.medium(None).duration_s - last > 1.5:  # the end once more: a late appearance is easily missed
        more, seen = w.when(f"the {target} appears", top_k=5, start_s=last if w.s.plain else round(last + 0.75, 2))
        w.s.cited.add(seen.step)
        for span in more:
            w.s.note(span.model_copy(update={"label": f"{target} appears"}), seen.step)
        spans += more
    apart: list[float] = []
    for span in sorted(spans, key=lambda x: x.start_s):
        if not apart or span.start_s - apart[-1] > 0.5:  # two windows at once are one event
            apart.append(span.start_s)
            if len(apart) <= 3 and w.detours.take("refollow", 2):
                seen_from(w, target, span.end_s)
    return str(len(apart)) if apart else None


def leaver(h: Hands) -> str | None:
    """Which thing is gone at the end: look for each on the last frame, or follow each."""
    w = Watch(h.s, h.detours)
    w.overview()
    phrases, last = things(w), w.last_frame()
    if w.s.prefers(0.75):
        for phrase in phrases:
            begin = w.start(phrase)
            if begin is not None:
                w.follow(begin, pieces=w.pieces(1, 2))
        tracks = [n.footprint for n in w.s.notes if isinstance(n.footprint, Track)]
        if sum(t.frames[-1] < last for t in tracks) == 1 and len(tracks) == len(phrases):
            return None  # the program sees it in the tracks
    left = []
    for phrase in phrases:
        found_last = w.find(phrase, frame=last, must=False)
        w.s.cited.add(w.s.looked)
        left += [] if found_last else [phrase]
    return left[0] if len(left) == 1 else None


def where_when(h: Hands) -> str | None:
    """Where one thing is when another appears."""
    w = Watch(h.s, h.detours)
    s, target = w.s, str(w.s.item.parameters["target"])
    spans = w.appears(str(s.item.parameters["b"]))
    if not spans:
        return None
    seconds = w.shown(spans[0]) if s.plain else (spans[0].start_s + spans[0].end_s) / 2
    frame = w.frame_at(seconds)
    if not s.plain and s.prefers(0.8):
        begin = w.start(target)
        until = min(frame + 4, w.last_frame())
        track = w.follow(begin, end=until, pieces=w.pieces(1, 3)) if begin else None
        box = track.at(frame) if track else None
        if box is not None:
            return field_of(box)
    if w.detours.take("show"):
        w.show(seconds)
    there = w.at(target, frame=frame)
    if there is None:
        return None
    box = as_read(there.mask.box_unit or there.box)
    seen = s.call("PROP", "measure", "position", box=list(box), frame=frame, attributes=["position"])
    s.cited |= {there.step, seen.step}
    return str(seen.result.output["properties"]["position"]["value"]) if seen.ok else field_of(box)


def turns(h: Hands) -> None:
    """The colour of a thing at the end."""
    w = Watch(h.s, h.detours)
    s, target, last = w.s, str(w.s.item.parameters["target"]), w.last_frame()
    w.overview()
    found = w.at(target, frame=0)
    if found is None:
        return
    box = as_read(found.mask.box_unit or found.box)
    if w.detours.take("refollow"):
        track = w.follow(Start(target, box, found.step), end=int(s.rng.integers(8, 13)), pieces=w.pieces(1, 2))
        box = as_read(track.boxes[-1]) if track else box
    if w.detours.take("show"):
        w.show(w.medium(None).time_of(last))
    seen = s.call("PROP", "measure", "colour", box=list(box), frame=last, attributes=["colour"])
    s.cited |= {found.step, seen.step}
    if seen.ok:
        end = found._replace(phrase=f"{target} at the end", step=seen.step)
        s.note_region(end, colour=main_colour(seen.result.output["properties"]["colour"]["measures"]))


def main_colour(shares: dict[str, float]) -> str:
    """The colour that a thing is called by: its largest hue, if it has much of any."""
    hues = {name: share for name, share in shares.items() if name not in ACHROMATIC and share >= 0.25}
    return max(hues or shares, key=lambda name: shares[name])


def passing(h: Hands) -> str | None:
    """The text on something that comes and goes."""
    w = Watch(h.s, h.detours)
    s, target = w.s, str(w.s.item.parameters["target"])
    w.overview()
    colour = colour_of(target)
    wording = str(s.choose((f"something {colour}", f"the {colour} rectangle", f"{colour} rectangle")))
    for query in (wording, f"{colour} in the picture"):
        spans, seen = w.when(query, top_k=1)
        if not spans:
            continue
        frame = w.frame_at(w.moments(spans[0])[0])
        panel = w.at(target, frame=frame)
        if panel is not None:
            s.cited |= {seen.step, panel.step}
            return panel_text(w, panel, frame)
    return None


def panel_text(w: Watch, panel: Found, frame: int) -> str | None:
    """Enlarge what was found on a frame, perhaps after following it a little, and read it."""
    s, what = w.s, noun_of(panel.phrase)
    if w.detours.take("refollow") and panel.media == s.name(None):
        begin = Start(panel.phrase, panel.box, panel.step)
        end = min(frame + int(s.rng.integers(4, 7)), w.last_frame())
        track = w.follow(begin, start=frame, end=end, pieces=w.pieces(1, 2))
        if track is not None and len(track.frames) > 1:
            later = len(track.frames) // 2
            frame, panel = track.frames[later], panel._replace(box=as_read(track.boxes[later]))
    on_clip = panel.media == s.name(None)
    view = w.closer(panel.box, what, media=panel.media, frame=frame if on_clip else None, scale=s.choose((None, 0.8)))
    lines = [line for line in w.read_view(view, what) if len(line.text.strip()) > 2]
    if not lines or min(line.span.score for line in lines) < SURE_READING:
        box = panel.box if on_clip else as_read(panel.mask.box_unit or panel.box)
        lines = lines or s.read(what, "reread", box=list(box), frame=frame)
    if not lines:
        return None
    s.cited.add(lines[0].step)
    return joined(lines).text


SOLVERS = {
    "motion.direction": direction,
    "motion.mover": each,
    "motion.fastest": each,
    "motion.pair": pair,
    "motion.order": order,
    "motion.times": times,
    "motion.leaver": leaver,
    "motion.where_when": where_when,
    "motion.turns": turns,
    "motion.passing": passing,
}
