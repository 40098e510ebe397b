"""From curves over time to windows: the event of a query, all windows scored against their surroundings, NMS.

UniVTG scores every clip of a video, proposes windows and suppresses those that overlap a better one. Here the curves
are short (at most eight frames per second), so that every window is a proposal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import UnitBox
from pixelis.tools.vision.grounding import Phrase, parse_phrase

Curve = NDArray[np.float64]
"""One value from 0 to 1 for each sampled frame, (T,)."""

Event = Literal["presence", "absence", "onset", "offset", "motion", "stillness", "cut"]
CONTEXT = 0.5
"""Weight of the surroundings of a window against its inside."""
MIN_WINDOW_S, MAX_FLANK_S = 0.4, 1.0
"""Minimum length of a window, and maximum length of a flank: beyond it the next event may begin."""
MAX_OVERLAP = 0.3
"""Two windows are one event if they share more than this part of the shorter (UniVTG: 0.7 of the union; but here
windows nest, since every one is a proposal)."""
EDGE_S = (0.15, 0.65)
"""An entrance lasts from this long before the onset to this long after it; an exit the other way round."""
DIP_S = 0.75
"""A gap of at most this length counts as presence."""
FLOOR = 0.02

Sightings = dict[int, list[tuple[float, UnitBox]]]
"""Detections of an object on some of the sampled frames: certainty and box, best first."""

EVENT_PATTERNS: dict[str, str] = {
    "cut": r"scene changes?|shot changes?|cuts?|new scene|transitions?|scene cut",
    "absence": r"no|without|absent|gone|empty|missing|nobody|nothing|not (?:visible|there|seen|in)",
    "onset": r"enter\w*|appear\w*|arriv\w*|com(?:es|ing|e) (?:in|into|back|to|out)|shows? up|emerg\w*|return\w*|"
    r"turns? (?:on)|becom\w*|starts?|begins?|comes",
    "offset": r"leav\w*|disappear\w*|vanish\w*|exit\w*|goes (?:away|out|off)|(?:runs?|walks?|moves?) (?:away|off|out)|"
    r"out of (?:the )?(?:frame|view|sight|picture)|ends?|turns? off",
    "stillness": r"stop\w*|(?:stands? |standing )?still|rests?|resting|waits?|waiting|motionless|paus\w+|freezes?|"
    r"sits?|sitting|lies|lying",
    "motion": r"mov(?:es?|ing)|runs?|running|walk\w*|jump\w*|leap\w*|hops?|hopping|throw\w*|kick\w*|catch\w*|danc\w+|"
    r"driv\w+|fl(?:y|ies|ying)|fall\w*|roll\w*|bounc\w+|spin\w*|swing\w*|juggl\w+|play\w*|chas\w+|wav(?:es|ing)|"
    r"ris(?:es?|ing)|rides?|riding|goes|going|turns? (?:around|round)|slid\w+|climb\w*",
}
QUOTE_PATTERN = r"[\"“”]([^\"“”]{1,80})[\"“”]|(?<!\w)'([^']{1,80})'(?!\w)"
JUMP_PATTERN = r"jump\w*|leap\w*|hops?|hopping"
TEXT_PATTERN = r"says?|saying|written|writing|text|title|words?|letters?|captions?|subtitles?"
LIGHT_PATTERNS = {
    "dark": r"dark\w*|night|black screen|dim",
    "bright": r"bright\w*|light(?:s|ing)? (?:up|on)|flash\w*|daylight",
}
COUNT_WORDS = {"two": 2, "three": 3, "four": 4, "both": 2, "several": 2, "2": 2, "3": 3, "4": 4}
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a an the this that these those is are was were be being been it its of in on at to from into out up down with "
        "and or when where what which who while as for by moment time clip video frame scene part there then picture "
        "camera screen does do did has have had first last again back away left right her his their very side toward "
        "towards turns turn goes go comes come gets get something someone somebody anything all",
    )
)


@dataclass(frozen=True)
class ParsedQuery:
    """A parsed query."""

    phrase: Phrase
    event: Event
    involves_motion: bool
    """Motion counts besides the event: "starts to run"."""
    heading: Literal["left", "right", "up", "down"] | None
    is_jump: bool
    quotes: tuple[str, ...]
    needs_text: bool
    light: Literal["dark", "bright"] | None
    min_count: int
    """Number of objects that must be visible at once."""
    unexplained_words: tuple[str, ...]
    """Words that no field above explains."""


def parse_query(query: str) -> ParsedQuery:
    """Parse a query into objects, colours, text, light, and an event."""
    pairs = re.findall(QUOTE_PATTERN, query)
    quotes = tuple(part.strip() for pair in pairs for part in pair if part.strip())
    text = re.sub(QUOTE_PATTERN, " ", query).lower()
    hits = {name: re.search(rf"\b(?:{pattern})\b", text) for name, pattern in EVENT_PATTERNS.items()}
    involves_motion = hits["motion"] is not None
    order: tuple[Event, ...] = ("cut", "absence", "offset", "onset", "stillness", "motion")
    event: Event = next((name for name in order if hits[name]), "presence")
    needs_text = bool(quotes) or re.search(rf"\b(?:{TEXT_PATTERN})\b", text) is not None
    phrase = parse_phrase(re.sub(r"\bscreen\b", " ", text) if needs_text else text)  # where text stands, not a thing
    headings = {"left": r"left\w*", "right": r"right\w*", "up": r"up\w*|ris(?:es?|ing)", "down": r"down\w*|fall\w*"}
    heading = next((h for h, p in headings.items() if involves_motion and re.search(rf"\b(?:{p})\b", text)), None)
    light = next((name for name, pattern in LIGHT_PATTERNS.items() if re.search(rf"\b(?:{pattern})\b", text)), None)
    if event == "presence" and (phrase.colours or light) and re.search(r"\b(?:turn|get)(?:s|ing)?\b", text):
        event = "onset"  # "turns red", "gets dark"
    explained_patterns = "|".join([*EVENT_PATTERNS.values(), TEXT_PATTERN, *LIGHT_PATTERNS.values()])
    remaining = re.findall(r"[a-z]{2,}", re.sub(rf"\b(?:{explained_patterns})\b", " ", text))
    words = tuple(w for w in remaining if w not in STOP_WORDS | COUNT_WORDS.keys() and parse_phrase(w).is_empty)
    min_count = next((n for word, n in COUNT_WORDS.items() if re.search(rf"\b{word}\b", text)), 1)
    is_jump = re.search(rf"\b(?:{JUMP_PATTERN})\b", text) is not None
    return ParsedQuery(phrase, event, involves_motion, heading, is_jump, quotes, needs_text, light, min_count, words)  # type: ignore[arg-type]


def combine_curves(curves: list[tuple[float, Curve]]) -> Curve:
    """The product of several signals, since a moment must match all of the query.

    The weights are exponents, the largest 1: a signal of half the weight counts half, in logarithms.
    """
    largest = max(weight for weight, _ in curves)
    logs = sum(weight / largest * np.log(np.maximum(curve, FLOOR)) for weight, curve in curves)
    return np.asarray(np.exp(logs))


def median_filter(curve: Curve) -> Curve:
    """Median of three, which removes single outliers."""
    if len(curve) < 3:
        return curve
    padded = np.pad(curve, 1, mode="edge")
    return np.asarray(np.median(np.stack([padded[:-2], padded[1:-1], padded[2:]]), axis=0))


def normalise_curve(curve: Curve, min_scale: float) -> Curve:
    """Scale a curve to 0..1 by its ninth decile, or by `min_scale` if little happens."""
    return np.asarray(np.clip(curve / max(float(np.quantile(curve, 0.9)), min_scale), 0.0, 1.0))


def interpolate_curve(values: dict[int, float], count: int) -> Curve:
    """Interpolate the sampled values over `count` frames."""
    positions = sorted(values)
    return np.interp(np.arange(count), positions, [values[k] for k in positions])


def fill_dips(curve: Curve, width: int) -> Curve:
    """Fill dips of up to `width` frames; slopes stay in place."""
    if width < 1 or len(curve) <= 2 * width:
        return curve
    half = width // 2 + 1
    dilated = np.stack([np.pad(curve, half, mode="edge")[i : i + len(curve)] for i in range(2 * half + 1)]).max(axis=0)
    return np.stack([np.pad(dilated, half, mode="edge")[i : i + len(curve)] for i in range(2 * half + 1)]).min(axis=0)


def boxes_near(sightings: Sightings, k: int, max_count: int) -> list[UnitBox]:
    """Boxes of an object just before and just after sampled frame `k`."""
    near = {max((j for j in sightings if j <= k), default=None), min((j for j in sightings if j >= k), default=None)}
    return [box for j in near if j is not None for confidence, box in sightings[j][:max_count] if confidence > 0.3]


def elevation_curve(sightings: Sightings, count: int) -> Curve:
    """Elevation of an object's top over its usual place: 0 up to a seventh of its height, 1 from two fifths on."""
    best = {k: candidates[0][1] for k, candidates in sightings.items() if candidates and candidates[0][0] > 0.3}
    if not best:
        return np.zeros(count)
    top = float(np.median([box[1] for box in best.values()]))
    height = float(np.median([box[3] - box[1] for box in best.values()]))
    elevations = {k: float(np.clip(4.0 * (top - box[1]) / height - 0.6, 0.0, 1.0)) for k, box in best.items()}
    return interpolate_curve(elevations, count)


def edge_curve(curve: Curve, times_s: Curve, *, rising: bool) -> Curve:
    """Near 1 around each moment at which a curve rises (or falls) and stays so, else 0."""
    low, high = np.quantile(curve, [0.05, 0.95])
    strengths = np.zeros_like(curve)
    if high - low < 0.25:
        return strengths
    above = median_filter(curve) > (low + high) / 2.0
    before_s, after_s = EDGE_S if rising else EDGE_S[::-1]
    for k in np.flatnonzero(above[1:] != above[:-1]) + 1:
        if bool(above[k]) != rising:
            continue
        middle = (times_s[k - 1] + times_s[k]) / 2.0
        earlier = curve[(times_s < middle) & (times_s >= middle - 1.0)].mean()
        later = curve[(times_s > middle) & (times_s <= middle + 1.0)].mean() if k < len(curve) else 0.0
        in_edge = (times_s >= middle - before_s) & (times_s <= middle + after_s)
        strengths[in_edge] = np.maximum(strengths[in_edge], min(abs(later - earlier), 1.0))
    return strengths


class FrameWindow(NamedTuple):
    """Frames `first` to `last`, both inside, of the sampled ones."""

    first: int
    last: int
    score: float


def best_windows(saliency: Curve, fps: float, *, max_count: int) -> list[FrameWindow]:
    """The best windows, best first, of all windows: the mean inside minus CONTEXT times the mean in the flanks.

    A flank is half as long as the window, within MIN_WINDOW_S and MAX_FLANK_S; at an end of the clip the other flank
    counts for both.
    """
    count = len(saliency)
    min_length = max(round(MIN_WINDOW_S * fps), 1)
    sums = np.concatenate([[0.0], np.cumsum(saliency)])
    first, last = np.triu_indices(count)
    length = last - first + 1
    flank = np.clip((length + 1) // 2, min_length, max(round(MAX_FLANK_S * fps), min_length))
    left, right = np.maximum(first - flank, 0), np.minimum(last + 1 + flank, count)
    inside = (sums[last + 1] - sums[first]) / length
    has_left, has_right = first > left, right > last + 1
    before = (sums[first] - sums[left]) / np.maximum(first - left, 1)
    after = (sums[right] - sums[last + 1]) / np.maximum(right - last - 1, 1)
    around = np.where(has_left & has_right, (before + after) / 2.0, before * has_left + after * has_right)
    scores = np.clip(inside - CONTEXT * around, 0.0, 1.0)
    scores = np.where((length >= min_length) | (length == count), scores, 0.0)
    order = np.lexsort((first, -length, -np.round(scores, 6)))  # of equal scores, the longer window
    windows: list[FrameWindow] = []
    for i in order:
        if len(windows) == max_count or scores[i] < max(0.15, 0.4 * (windows[0].score if windows else 0.0)):
            break
        candidate = FrameWindow(int(first[i]), int(last[i]), float(round(scores[i], 6)))
        if all(overlap_share(candidate, better) <= MAX_OVERLAP for better in windows):
            windows.append(candidate)
    return windows


def overlap_share(first: FrameWindow, second: FrameWindow) -> float:
    """Share of the shorter window that lies in the other."""
    intersection = min(first.last, second.last) - max(first.first, second.first) + 1
    return max(intersection, 0) / (min(first.last - first.first, second.last - second.first) + 1)
