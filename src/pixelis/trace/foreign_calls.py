"""What an assistant of another project asked for, as calls of our tools.

A call that has no counterpart here keeps its own name and arguments, with the reason; so does one whose pixels cannot
be turned into unit coordinates, because nobody knows the size of the picture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pixelis.geometry import PixelBox, Size, UnitBox, rounded
from pixelis.media import Medium
from pixelis.tools.results import ToolCall
from pixelis.trace.foreign_turns import Source
from pixelis.trace.grammar import DECODER, ParsedCall, ParseFailure, parse_turn

BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
SPOKEN = re.compile(
    '"thoughts\N{THINKING FACE}"(.*?)"actions\N{ROCKET}"(.*?)'
    '(?:"value\N{WHITE RIGHT POINTING BACKHAND INDEX}"(.*))?\\Z',
    re.DOTALL,
)
PLANNED = re.compile(r"Step \d+:\s*\((\w+?)(?:_i|_\d+)?\((.*?)\)\s*->", re.DOTALL)
NUMBERED = re.compile(r"(\d+)(?!.*\d)", re.DOTALL)
COORDINATE = re.compile(r"\b([xy])\s*=?\s*\"?\s*:?\s*(-?\d+(?:\.\d+)?)")
NAMED_FRAMES = 16
"""Frames of a clip that Pixel-Reasoner shows; `select_frames` counts them from 1."""
NO_COUNTERPART = {
    "GETOBJECTS": "no tool lists everything in a picture",
    "ESTIMATEOBJECTDEPTH": "no tool measures depth",
    "ESTIMATEREGIONDEPTH": "no tool measures depth",
    "QUERYLANGUAGEMODEL": "no tool asks another model",
    "QUERYKNOWLEDGEBASE": "no tool looks things up",
    "CALCULATE": "no tool computes: the policy does",
    "SOLVEMATHEQUATION": "no tool computes: the policy does",
    "GETIMAGETOIMAGESSIMILARITY": "no tool compares whole pictures",
    "GETIMAGETOTEXTSSIMILARITY": "no tool compares pictures with texts",
    "GETTEXTTOIMAGESSIMILARITY": "no tool compares pictures with texts",
    "ZOOMINSUBFIGURE": "it names a part of a figure by its title; ZOOM wants a box",
    "DRAWHORIZONTALLINEBYY": "no tool draws",
    "DRAWVERTICALLINEBYX": "no tool draws",
    "VISUALIZEREGIONSONIMAGE": "no tool draws",
    "COMPARE": "no tool compares: the policy does",
}
DRAWN_ON = (
    "LOCALIZEOBJECTS", "DETECTFACES", "DRAWHORIZONTALLINEBYY", "DRAWVERTICALLINEBYX", "VISUALIZEREGIONSONIMAGE",
    "SEGMENTREGIONAROUNDPOINT",
)  # fmt: skip
"""These give back the picture that they were given, with marks on it: for us, the same picture."""


class Asked(NamedTuple):
    """One call as the other project wrote it."""

    name: str
    """Upper case."""
    args: Mapping[str, Any]
    failure: str = ""
    """Why it cannot be read, where it cannot."""


class Turned(NamedTuple):
    """A call of ours, and what stands in the way of executing it."""

    call: ToolCall
    reason: str = ""
    unknown: bool = False
    """It has no counterpart here."""
    clipped: bool = False


class Spoken(NamedTuple):
    """What an assistant's turn comes down to."""

    thought: str
    calls: tuple[Asked, ...]
    answer: str | None


@dataclass
class Pictures:
    """The pictures of a foreign trace in the order in which they came up, under our names."""

    given: tuple[Medium | None, ...]
    names: list[str | None] = field(default_factory=list)
    views: int = 0

    @classmethod
    def start(cls, given: tuple[Medium | None, ...], *, clip: bool) -> Pictures:
        kinds = ["Video" if (m.kind == "clip" if m else clip) else "Image" for m in given]
        return cls(given, [f"{kind}_{i}" for i, kind in enumerate(kinds)])

    def add_view(self) -> None:
        self.names.append(f"View_{self.views}")
        self.views += 1

    def size(self, place: int) -> Size | None:
        """Of a picture that was given and is at hand; a view of ours has another size than theirs."""
        found = self.given[place] if 0 <= place < len(self.given) else None
        return found.size if found else None


def spoken(text: str, source: Source) -> Spoken:
    """The thought, the calls and the answer of a turn."""
    if source in ("pixel-reasoner", "deepeyes"):
        turn = parse_turn(text)
        calls = tuple(_written(call) for call in turn.calls)
        boxed = BOXED.findall(text)
        return Spoken(turn.thought, calls, turn.answer or (boxed[-1].strip() if boxed else None))
    if told := SPOKEN.search(text):
        thought, actions, value = (part.strip() if part else "" for part in told.groups())
        return _from_actions(thought, actions, value or None)
    start = text.find("{")
    if start >= 0 and '"actions"' in text:
        try:
            value, _ = DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            return Spoken("", (Asked("", {"text": text[:2000]}, f"not JSON ({str(error)[:80]})"),), None)
        if isinstance(value, dict):
            return _from_actions(str(value.get("thought", "")), value.get("actions", []), None)
    why = "a step of a plan in words, not a call"
    return Spoken(text.strip(), tuple(Asked(n.upper(), {"text": a}, why) for n, a in PLANNED.findall(text)), None)


def _written(call: ParsedCall | ParseFailure) -> Asked:
    if isinstance(call, ParseFailure):
        return Asked("", {"text": call.source[:2000]}, call.reason)
    return Asked(call.call.tool, call.call.args)


def _from_actions(thought: str, actions: Any, value: str | None) -> Spoken:
    """A list of actions, as JSON or already read; `Terminate` is the answer."""
    if isinstance(actions, str):
        try:
            actions = json.loads(actions or "[]")
        except (ValueError, RecursionError):
            return Spoken(thought, (Asked("", {"text": actions[:2000]}, "the actions are no JSON"),), value)
    calls, answer = [], value if not actions else None
    for action in actions if isinstance(actions, list) else [actions]:
        if not isinstance(action, dict):
            calls.append(Asked("", {"text": str(action)[:2000]}, "an action is an object with name and arguments"))
            continue
        name = str(action.get("name", action.get("API_name", action.get("api_name", ""))))
        value_of: Any = next((action[k] for k in ("arguments", "API_params", "api_params") if k in action), {})
        args: dict[str, Any] = value_of if isinstance(value_of, dict) else {"param": value_of}
        if name == "Terminate":
            said = next((args[k] for k in ("answer", "ans", "param") if k in args), "")
            answer = str(said)
        else:
            calls.append(Asked(name.upper(), args, "" if name else "the action has no name"))
    return Spoken(thought, tuple(calls), answer)


def turned(asked: Asked, source: Source, pictures: Pictures) -> list[Turned]:
    """Our calls for one of theirs; the pictures that it makes are added."""
    if asked.failure:
        return [Turned(ToolCall(tool=asked.name or "UNREADABLE", args=dict(asked.args)), asked.failure, unknown=True)]
    place = _place(asked, source)
    media = pictures.names[place] if 0 <= place < len(pictures.names) else None
    ours = OURS.get(asked.name)
    if ours is None:
        why = NO_COUNTERPART.get(asked.name, "no tool of ours does this")
        made = [Turned(ToolCall(tool=asked.name, args=dict(asked.args)), why, unknown=True)]
    else:
        made = [one if place == 0 or media is None else _on(one, media) for one in ours(asked.args, place, pictures)]
        if media is None:
            made = [one._replace(reason=f"picture {place} is none that a call of ours makes") for one in made]
    _note(asked.name, media, pictures, made)
    return made


def _on(one: Turned, media: str) -> Turned:
    return one._replace(call=ToolCall(tool=one.call.tool, args={"media": media, **one.call.args}))


def _note(name: str, media: str | None, pictures: Pictures, made: list[Turned]) -> None:
    """Their new pictures: one that a call of ours will make is a view; the views are numbered as they will be made."""
    if name in DRAWN_ON:
        pictures.names.append(media)
    elif name == "ZOOMINSUBFIGURE":
        pictures.names.append(None)
    for one in made:
        if one.call.tool in ("ZOOM", "TEMP"):
            if one.reason:
                pictures.names.append(None)
            else:
                pictures.add_view()


def _place(asked: Asked, source: Source) -> int:
    """Which picture is meant, from 0."""
    if source == "pixel-reasoner":
        target = asked.args.get("target_image", 1)
        return int(target) - 1 if isinstance(target, int | float) else 0
    if source == "deepeyes":
        return 0  # its tool always cuts from the picture that was given
    found = NUMBERED.search(str(asked.args.get("image", "")))
    return int(found.group(1)) - (source == "openthinkimg") if found else 0


def _zoom(args: Mapping[str, Any], place: int, pictures: Pictures) -> list[Turned]:
    box = next((args[k] for k in ("bbox_2d", "bbox", "box") if k in args), None)
    if box is None and isinstance(args.get("region"), str):  # DeepEyes v2 writes its region as JSON in a string
        try:
            region = DECODER.decode(args["region"])
        except (ValueError, RecursionError):
            region = None
        box = region.get("bbox_2d") if isinstance(region, dict) else region
    if isinstance(box, str):
        numbers = re.findall(r"-?\d+(?:\.\d+)?", box)
        box = [float(n) for n in numbers]
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(v) for v in box):
        return [Turned(ToolCall(tool="ZOOM", args=dict(args)), "it names no box of four numbers")]
    return [_boxed("ZOOM", [float(v) for v in box], place, pictures)]


def _boxed(tool: str, box: list[float], place: int, pictures: Pictures) -> Turned:
    """A box in units where all of it lies in 0 to 1, else in pixels."""
    size: Size | None = Size(1, 1)
    if max(map(abs, box)) > 1.5:  # an overshoot of the frame is not yet a pixel
        size = pictures.size(place)
        if size is None:
            why = "its box is in pixels, and the size of the picture is not known"
            return Turned(ToolCall(tool=tool, args={"box_px": box}), why)
    width, height = size or Size(1, 1)
    clipped = min(box) < 0 or box[0] > width or box[2] > width or box[1] > height or box[3] > height
    try:
        unit: UnitBox = PixelBox(*box).to_unit(Size(width, height))
    except ValueError:
        args = {"box_px" if width > 1 else "box": box}
        return Turned(ToolCall(tool=tool, args=args), "its box has no area in the picture")
    return Turned(ToolCall(tool=tool, args={"box": list(unit)}), clipped=clipped)


def _select(args: Mapping[str, Any], place: int, pictures: Pictures) -> list[Turned]:
    """Frames by number as one TEMP call each: the k-th of sixteen, evenly from the first to the last."""
    frames = args.get("target_frames")
    if not isinstance(frames, list) or not frames or not all(_is_number(f) for f in frames):
        return [Turned(ToolCall(tool="TEMP", args=dict(args)), "it names no frames")]
    clip = pictures.given[0] if pictures.given else None
    if clip is None or clip.kind != "clip":
        why = "its frames are numbers, and the clip is not known"
        return [Turned(ToolCall(tool="TEMP", args={"frame_of_16": int(f)}), why) for f in frames]
    last = clip.frame_count - 1
    chosen = [round(min(max((int(f) - 1) / (NAMED_FRAMES - 1), 0.0), 1.0) * last) for f in frames]
    return [Turned(ToolCall(tool="TEMP", args={"select_s": rounded(clip.time_of(index))})) for index in chosen]


def _find(args: Mapping[str, Any], place: int, pictures: Pictures) -> list[Turned]:
    """One SEG call for each thing that is looked for."""
    wanted = next((args[k] for k in ("objects", "object", "param") if k in args), None)
    phrases = [p for p in (wanted if isinstance(wanted, list) else [wanted]) if isinstance(p, str) and p.strip()]
    if not phrases:
        return [Turned(ToolCall(tool="SEG", args=dict(args)), "it names nothing to look for")]
    return [Turned(ToolCall(tool="SEG", args={"target": phrase.strip()[:400]})) for phrase in phrases]


def _faces(args: Mapping[str, Any], place: int, pictures: Pictures) -> list[Turned]:
    return [Turned(ToolCall(tool="SEG", args={"target": "face"}))]


def _segment(args: Mapping[str, Any], place: int, pictures: Pictures) -> list[Turned]:
    """SEG at a point. OpenThinkIMG points as Molmo does, in percent of the picture."""
    param = args.get("param")
    text = json.dumps(param) if isinstance(param, dict) else str(param)
    found = {axis: float(value) for axis, value in COORDINATE.findall(text.replace('":', "="))}
    if isinstance(param, list) and len(param) == 2 and all(_is_number(v) for v in param):
        found = {"x": float(param[0]), "y": float(param[1])}
    if found.keys() != {"x", "y"}:
        return [Turned(ToolCall(tool="SEG", args=dict(args)), "it names no point")]
    size: Size | None = Size(100, 100)
    if max(found.values()) > 100:
        size = pictures.size(place)
    if size is None or min(found.values()) < 0 or found["x"] > size.width or found["y"] > size.height:
        why = "its point is not in percent, and lies in no picture of known size"
        return [Turned(ToolCall(tool="SEG", args={"point_px": [found["x"], found["y"]]}), why)]
    point = [rounded(found["x"] / size.width), rounded(found["y"] / size.height)]
    return [Turned(ToolCall(tool="SEG", args={"target": point}))]


def _read(args: Mapping[str, Any], place: int, pictures: Pictures) -> list[Turned]:
    return [Turned(ToolCall(tool="OCR"))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


OURS: dict[str, Callable[[Mapping[str, Any], int, Pictures], list[Turned]]] = {
    "CROP_IMAGE": _zoom, "CROP_IMAGE_NORMALIZED": _zoom, "ZOOM_IN": _zoom, "IMAGE_ZOOM_IN_TOOL": _zoom,
    "CROP": _zoom, "ZOOM": _zoom, "ZOOMIN": _zoom,
    "SELECT_FRAMES": _select,
    "OCR": _read,
    "LOCALIZEOBJECTS": _find, "POINT": _find, "GROUNDING": _find, "DETECTFACES": _faces,
    "SEGMENTREGIONAROUNDPOINT": _segment,
}  # fmt: skip
"""Their actions that one of our tools can do; CROP comes out of the grammar as ZOOM."""
