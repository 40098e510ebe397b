"""Solvers of the motion family: find things on a frame, follow them, find moments."""

from __future__ import annotations

from pixelis.core.geometry import Track
from pixelis.data.teachers.oracle.clip_actions import ClipActions, TrackStart
from pixelis.data.teachers.oracle.oracle_search import join_lines
from pixelis.data.teachers.oracle.oracle_session import OracleRegion, colour_from_phrase, noun_from_phrase, snap_box
from pixelis.data.teachers.oracle.picture_actions import MIN_READING_CONFIDENCE
from pixelis.tools.vision.colours import ACHROMATIC
from pixelis.world.programs import Facts, locate_field


def thing_phrases(clip: ClipActions) -> list[str]:
    return list(Facts((), clip.session.item.parameters).words("things"))


def solve_direction(clip: ClipActions) -> None:
    """Follow one thing."""
    clip.sample_overview()
    track_start = clip.start_track(clip.parameter("target"))
    if track_start is not None:
        clip.follow(track_start, pieces=clip.sample_piece_count(1, 4))


def solve_each_thing(clip: ClipActions) -> None:
    """Follow several things, one after another."""
    clip.sample_overview()
    find_all_first = clip.session.prefers(0.5)
    phrases = thing_phrases(clip)
    starts = [clip.start_track(p) for p in phrases] if find_all_first else []
    for k, phrase in enumerate(phrases):
        track_start = starts[k] if find_all_first else clip.start_track(phrase)
        if track_start is not None:
            clip.follow(track_start, pieces=clip.sample_piece_count(1, 3))


def solve_pair(clip: ClipActions) -> None:
    """Follow the same thing in two clips."""
    for media in ("Video_0", "Video_1"):
        track_start = clip.start_track(clip.parameter("target"), media=media)
        if track_start is not None:
            clip.follow(track_start, media=media, pieces=clip.sample_piece_count(1, 3))


def solve_order(clip: ClipActions) -> str | None:
    """What appears first, or last."""
    clip.sample_overview()
    starts: dict[str, float] = {}
    for phrase in thing_phrases(clip):
        spans = clip.find_appearances(phrase)
        if not spans:
            return None
        starts[phrase] = spans[0].start_s
        if clip.detours.should_take("refollow", 2):
            follow_from(clip, phrase, spans[0].end_s)
    first = clip.parameter("which") == "first"
    return (min if first else max)(starts, key=lambda p: starts[p])


def follow_from(clip: ClipActions, phrase: str, seconds: float) -> Track | None:
    """Find a thing at a time, and follow it from there."""
    frame = clip.frame_at(seconds)
    track_start = clip.start_track(phrase, frame=frame)
    if track_start is None:
        return None
    end = min(frame + 12, clip.last_frame())
    return clip.follow(track_start, start_frame=frame, end_frame=end, pieces=clip.sample_piece_count(1, 2))


def solve_times(clip: ClipActions) -> str | None:
    """How often something appears."""
    clip.sample_overview()
    target = clip.parameter("target")
    spans = clip.find_appearances(target, max_spans=10)
    last_start = max((span.start_s for span in spans), default=0.0)
    if clip.medium(None).duration_s - last_start > 1.5:  # search the end again: a late appearance is easily missed
        start_s = last_start if clip.session.canonical_wording else round(last_start + 0.75, 2)
        late_spans, outcome = clip.find_spans(f"the {target} appears", top_k=5, start_s=start_s)
        clip.session.cited_steps.add(outcome.step)
        for span in late_spans:
            clip.session.note(span.model_copy(update={"label": f"{target} appears"}), outcome.step)
        spans += late_spans
    event_starts: list[float] = []
    for span in sorted(spans, key=lambda x: x.start_s):
        if not event_starts or span.start_s - event_starts[-1] > 0.5:  # overlapping windows are one event
            event_starts.append(span.start_s)
            if len(event_starts) <= 3 and clip.detours.should_take("refollow", 2):
                follow_from(clip, target, span.end_s)
    return str(len(event_starts)) if event_starts else None


def solve_leaver(clip: ClipActions) -> str | None:
    """The thing that is gone at the end: search for each on the last frame, or follow each."""
    clip.sample_overview()
    phrases, last_frame = thing_phrases(clip), clip.last_frame()
    if clip.session.prefers(0.75):
        for phrase in phrases:
            track_start = clip.start_track(phrase)
            if track_start is not None:
                clip.follow(track_start, pieces=clip.sample_piece_count(1, 2))
        tracks = [n.footprint for n in clip.session.notes if isinstance(n.footprint, Track)]
        if sum(t.frames[-1] < last_frame for t in tracks) == 1 and len(tracks) == len(phrases):
            return None  # the program finds it in the tracks
    missing = []
    for phrase in phrases:
        last_regions = clip.find(phrase, frame=last_frame, required=False)
        clip.session.cited_steps.add(clip.session.last_seg_step)
        missing += [] if last_regions else [phrase]
    return missing[0] if len(missing) == 1 else None


def solve_where_when(clip: ClipActions) -> str | None:
    """Where one thing is when another appears."""
    session, target = clip.session, clip.parameter("target")
    spans = clip.find_appearances(clip.parameter("b"))
    if not spans:
        return None
    seconds = clip.time_within(spans[0]) if session.canonical_wording else (spans[0].start_s + spans[0].end_s) / 2
    frame = clip.frame_at(seconds)
    if not session.canonical_wording and session.prefers(0.8):
        start, end = clip.start_track(target), min(frame + 4, clip.last_frame())
        track = clip.follow(start, end_frame=end, pieces=clip.sample_piece_count(1, 3)) if start else None
        box = track.box_at(frame) if track else None
        if box is not None:
            return locate_field(box)
    if clip.detours.should_take("show"):
        clip.show_frame(seconds)
    region = clip.find_on_frame(target, frame=frame)
    if region is None:
        return None
    box = snap_box(region.source_box)
    outcome = session.call("PROP", "measure", "position", box=list(box), frame=frame, attributes=["position"])
    session.cited_steps |= {region.step, outcome.step}
    return str(outcome.result.output["properties"]["position"]["value"]) if outcome.ok else locate_field(box)


def solve_last_colour(clip: ClipActions) -> None:
    """The colour of a thing at the end."""
    session, target, last_frame = clip.session, clip.parameter("target"), clip.last_frame()
    clip.sample_overview()
    region = clip.find_on_frame(target, frame=0)
    if region is None:
        return
    box = snap_box(region.source_box)
    if clip.detours.should_take("refollow"):
        start, end = TrackStart(target, box, region.step), int(session.rng.integers(8, 13))
        track = clip.follow(start, end_frame=end, pieces=clip.sample_piece_count(1, 2))
        box = snap_box(track.boxes[-1]) if track else box
    if clip.detours.should_take("show"):
        clip.show_frame(clip.medium(None).time_of(last_frame))
    outcome = session.call("PROP", "measure", "colour", box=list(box), frame=last_frame, attributes=["colour"])
    session.cited_steps |= {region.step, outcome.step}
    if outcome.ok:
        end_region = region._replace(phrase=f"{target} at the end", step=outcome.step)
        shares = outcome.result.output["properties"]["colour"]["measures"]
        session.note_region(end_region, colour=dominant_colour(shares))


def dominant_colour(shares: dict[str, float]) -> str:
    """The colour name of a thing: its largest hue, if any is large enough."""
    hues = {name: share for name, share in shares.items() if name not in ACHROMATIC and share >= 0.25}
    return max(hues or shares, key=lambda name: shares[name])


def solve_passing_text(clip: ClipActions) -> str | None:
    """The text on something that appears and disappears."""
    session, target = clip.session, clip.parameter("target")
    clip.sample_overview()
    colour = colour_from_phrase(target)
    wording = str(session.choose((f"something {colour}", f"the {colour} rectangle", f"{colour} rectangle")))
    for query in (wording, f"{colour} in the picture"):
        spans, outcome = clip.find_spans(query, top_k=1)
        if not spans:
            continue
        frame = clip.frame_at(clip.inspection_times(spans[0])[0])
        panel = clip.find_on_frame(target, frame=frame)
        if panel is not None:
            session.cited_steps |= {outcome.step, panel.step}
            return read_panel_text(clip, panel, frame)
    return None


def read_panel_text(clip: ClipActions, panel: OracleRegion, frame: int) -> str | None:
    """Enlarge a panel on a frame, perhaps after following it a little, and read it."""
    session, subject = clip.session, noun_from_phrase(panel.phrase)
    if clip.detours.should_take("refollow") and panel.media == session.canonical_media(None):
        track_start = TrackStart(panel.phrase, panel.box, panel.step)
        end = min(frame + int(session.rng.integers(4, 7)), clip.last_frame())
        track = clip.follow(track_start, start_frame=frame, end_frame=end, pieces=clip.sample_piece_count(1, 2))
        if track is not None and len(track.frames) > 1:
            middle_index = len(track.frames) // 2
            frame, panel = track.frames[middle_index], panel._replace(box=snap_box(track.boxes[middle_index]))
    is_on_clip = panel.media == session.canonical_media(None)
    frame_arg = frame if is_on_clip else None
    view = clip.zoom_in(panel.box, subject, media=panel.media, frame=frame_arg, scale=session.choose((None, 0.8)))
    lines = [line for line in clip.read_view(view, subject) if len(line.text.strip()) > 2]
    if not lines or min(line.span.score for line in lines) < MIN_READING_CONFIDENCE:
        box = panel.box if is_on_clip else snap_box(panel.source_box)
        lines = lines or session.read(subject, "reread", box=list(box), frame=frame)
    if not lines:
        return None
    session.cited_steps.add(lines[0].step)
    return join_lines(lines).text


SOLVERS = {
    "motion.direction": solve_direction,
    "motion.mover": solve_each_thing,
    "motion.fastest": solve_each_thing,
    "motion.pair": solve_pair,
    "motion.order": solve_order,
    "motion.times": solve_times,
    "motion.leaver": solve_leaver,
    "motion.where_when": solve_where_when,
    "motion.turns": solve_last_colour,
    "motion.passing": solve_passing_text,
}
