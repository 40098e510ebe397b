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

from pixelis.core.geometry import PixelBox, Size, UnitBox, round_unit
from pixelis.data.importers.traces.foreign_turns import Source
from pixelis.media import Medium
from pixelis.tools.results import ToolCall
from pixelis.trace.tool_call_parser import DECODER, ParsedCall, ParseFailure, parse_turn

BOXED_ANSWER = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")
COTA_TURN = re.compile(
    '"thoughts\N{THINKING FACE}"(.*?)"actions\N{ROCKET}"(.*?)'
    '(?:"value\N{WHITE RIGHT POINTING BACKHAND INDEX}"(.*))?\\Z',
    re.DOTALL,
)
PLAN_STEP = re.compile(r"Step \d+:\s*\((\w+?)(?:_i|_\d+)?\((.*?)\)\s*->", re.DOTALL)
LAST_NUMBER = re.compile(r"(\d+)(?!.*\d)", re.DOTALL)
COORDINATE = re.compile(r"\b([xy])\s*=?\s*\"?\s*:?\s*(-?\d+(?:\.\d+)?)")
SELECTABLE_FRAMES = 16
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
ANNOTATING_TOOLS = (
    "LOCALIZEOBJECTS", "DETECTFACES", "DRAWHORIZONTALLINEBYY", "DRAWVERTICALLINEBYX", "VISUALIZEREGIONSONIMAGE",
    "SEGMENTREGIONAROUNDPOINT",
)  # fmt: skip
"""These give back the picture that they were given, with marks on it: for us, the same picture."""


class ForeignCall(NamedTuple):
    """One call as the other project wrote it."""

    name: str
    """Upper case."""
    args: Mapping[str, Any]
    failure: str = ""
    """Why it cannot be read, where it cannot."""


class ConvertedCall(NamedTuple):
    """A call of ours, and what stands in the way of executing it."""

    call: ToolCall
    reason: str = ""
    unknown: bool = False
    """It has no counterpart here."""
    clipped: bool = False


class ForeignReply(NamedTuple):
    """What an assistant's turn comes down to."""

    thought: str
    calls: tuple[ForeignCall, ...]
    answer: str | None


@dataclass
class ForeignImages:
    """The pictures of a foreign trace in the order in which they came up, under our names."""

    query_media: tuple[Medium | None, ...]
    names: list[str | None] = field(default_factory=list)
    views: int = 0

    @classmethod
    def start(cls, query_media: tuple[Medium | None, ...], *, clip: bool) -> ForeignImages:
        kinds = ["Video" if (m.kind == "clip" if m else clip) else "Image" for m in query_media]
        return cls(query_media, [f"{kind}_{i}" for i, kind in enumerate(kinds)])

    def add_view(self) -> None:
        self.names.append(f"View_{self.views}")
        self.views += 1

    def size(self, image_index: int) -> Size | None:
        """Of a picture that was given and is at hand; a view of ours has another size than theirs."""
        medium = self.query_media[image_index] if 0 <= image_index < len(self.query_media) else None
        return medium.size if medium else None


def parse_reply(text: str, source: Source) -> ForeignReply:
    """The thought, the calls and the answer of a turn."""
    if source in ("pixel-reasoner", "deepeyes"):
        turn = parse_turn(text)
        calls = tuple(_from_parsed(call) for call in turn.calls)
        boxed = BOXED_ANSWER.findall(text)
        return ForeignReply(turn.thought, calls, turn.answer or (boxed[-1].strip() if boxed else None))
    if match := COTA_TURN.search(text):
        thought, actions, value = (part.strip() if part else "" for part in match.groups())
        return _from_actions(thought, actions, value or None)
    start = text.find("{")
    if start >= 0 and '"actions"' in text:
        try:
            value, _ = DECODER.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            return ForeignReply("", (ForeignCall("", {"text": text[:2000]}, f"not JSON ({str(error)[:80]})"),), None)
        if isinstance(value, dict):
            return _from_actions(str(value.get("thought", "")), value.get("actions", []), None)
    reason = "a step of a plan in words, not a call"
    return ForeignReply(
        text.strip(), tuple(ForeignCall(n.upper(), {"text": a}, reason) for n, a in PLAN_STEP.findall(text)), None
    )


def _from_parsed(call: ParsedCall | ParseFailure) -> ForeignCall:
    if isinstance(call, ParseFailure):
        return ForeignCall("", {"text": call.source[:2000]}, call.reason)
    return ForeignCall(call.call.tool, call.call.args)


def _from_actions(thought: str, actions: Any, value: str | None) -> ForeignReply:
    """A list of actions, as JSON or already read; `Terminate` is the answer."""
    if isinstance(actions, str):
        try:
            actions = json.loads(actions or "[]")
        except (ValueError, RecursionError):
            return ForeignReply(thought, (ForeignCall("", {"text": actions[:2000]}, "the actions are no JSON"),), value)
    calls, answer = [], value if not actions else None
    for action in actions if isinstance(actions, list) else [actions]:
        if not isinstance(action, dict):
            calls.append(
                ForeignCall("", {"text": str(action)[:2000]}, "an action is an object with name and arguments")
            )
            continue
        name = str(action.get("name", action.get("API_name", action.get("api_name", ""))))
        value_of: Any = next((action[k] for k in ("arguments", "API_params", "api_params") if k in action), {})
        args: dict[str, Any] = value_of if isinstance(value_of, dict) else {"param": value_of}
        if name == "Terminate":
            answer_value = next((args[k] for k in ("answer", "ans", "param") if k in args), "")
            answer = str(answer_value)
        else:
            calls.append(ForeignCall(name.upper(), args, "" if name else "the action has no name"))
    return ForeignReply(thought, tuple(calls), answer)


def convert_call(foreign_call: ForeignCall, source: Source, images: ForeignImages) -> list[ConvertedCall]:
    """Our calls for one of theirs; the pictures that it makes are added."""
    if foreign_call.failure:
        return [
            ConvertedCall(
                ToolCall(tool=foreign_call.name or "UNREADABLE", args=dict(foreign_call.args)),
                foreign_call.failure,
                unknown=True,
            )
        ]
    image_index = _image_index(foreign_call, source)
    media = images.names[image_index] if 0 <= image_index < len(images.names) else None
    converter = CONVERTERS.get(foreign_call.name)
    if converter is None:
        reason = NO_COUNTERPART.get(foreign_call.name, "no tool of ours does this")
        converted = [
            ConvertedCall(ToolCall(tool=foreign_call.name, args=dict(foreign_call.args)), reason, unknown=True)
        ]
    else:
        converted = [
            call if image_index == 0 or media is None else _with_media(call, media)
            for call in converter(foreign_call.args, image_index, images)
        ]
        if media is None:
            converted = [
                call._replace(reason=f"picture {image_index} is none that a call of ours makes") for call in converted
            ]
    _track_images(foreign_call.name, media, images, converted)
    return converted


def _with_media(converted: ConvertedCall, media: str) -> ConvertedCall:
    return converted._replace(call=ToolCall(tool=converted.call.tool, args={"media": media, **converted.call.args}))


def _track_images(name: str, media: str | None, images: ForeignImages, converted_calls: list[ConvertedCall]) -> None:
    """Their new pictures: one that a call of ours will make is a view; the views are numbered as they will be made."""
    if name in ANNOTATING_TOOLS:
        images.names.append(media)
    elif name == "ZOOMINSUBFIGURE":
        images.names.append(None)
    for converted in converted_calls:
        if converted.call.tool in ("ZOOM", "TEMP"):
            if converted.reason:
                images.names.append(None)
            else:
                images.add_view()


def _image_index(foreign_call: ForeignCall, source: Source) -> int:
    """Which picture is meant, from 0."""
    if source == "pixel-reasoner":
        target = foreign_call.args.get("target_image", 1)
        return int(target) - 1 if isinstance(target, int | float) else 0
    if source == "deepeyes":
        return 0  # its tool always cuts from the picture that was given
    match = LAST_NUMBER.search(str(foreign_call.args.get("image", "")))
    return int(match.group(1)) - (source == "openthinkimg") if match else 0


def _convert_zoom(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
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
        return [ConvertedCall(ToolCall(tool="ZOOM", args=dict(args)), "it names no box of four numbers")]
    return [_convert_box("ZOOM", [float(v) for v in box], image_index, images)]


def _convert_box(tool: str, box: list[float], image_index: int, images: ForeignImages) -> ConvertedCall:
    """A box in units where all of it lies in 0 to 1, else in pixels."""
    size: Size | None = Size(1, 1)
    if max(map(abs, box)) > 1.5:  # an overshoot of the frame is not yet a pixel
        size = images.size(image_index)
        if size is None:
            reason = "its box is in pixels, and the size of the picture is not known"
            return ConvertedCall(ToolCall(tool=tool, args={"box_px": box}), reason)
    width, height = size or Size(1, 1)
    clipped = min(box) < 0 or box[0] > width or box[2] > width or box[1] > height or box[3] > height
    try:
        unit: UnitBox = PixelBox(*box).to_unit(Size(width, height))
    except ValueError:
        args = {"box_px" if width > 1 else "box": box}
        return ConvertedCall(ToolCall(tool=tool, args=args), "its box has no area in the picture")
    return ConvertedCall(ToolCall(tool=tool, args={"box": list(unit)}), clipped=clipped)


def _convert_select_frames(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    """Frames by number as one TEMP call each: the k-th of sixteen, evenly from the first to the last."""
    frames = args.get("target_frames")
    if not isinstance(frames, list) or not frames or not all(_is_number(f) for f in frames):
        return [ConvertedCall(ToolCall(tool="TEMP", args=dict(args)), "it names no frames")]
    clip = images.query_media[0] if images.query_media else None
    if clip is None or clip.kind != "clip":
        reason = "its frames are numbers, and the clip is not known"
        return [ConvertedCall(ToolCall(tool="TEMP", args={"frame_of_16": int(f)}), reason) for f in frames]
    last = clip.frame_count - 1
    chosen = [round(min(max((int(f) - 1) / (SELECTABLE_FRAMES - 1), 0.0), 1.0) * last) for f in frames]
    return [
        ConvertedCall(ToolCall(tool="TEMP", args={"select_s": round_unit(clip.time_of(index))})) for index in chosen
    ]


def _convert_find(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    """One SEG call for each thing that is looked for."""
    targets = next((args[k] for k in ("objects", "object", "param") if k in args), None)
    phrases = [p for p in (targets if isinstance(targets, list) else [targets]) if isinstance(p, str) and p.strip()]
    if not phrases:
        return [ConvertedCall(ToolCall(tool="SEG", args=dict(args)), "it names nothing to look for")]
    return [ConvertedCall(ToolCall(tool="SEG", args={"target": phrase.strip()[:400]})) for phrase in phrases]


def _convert_faces(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    return [ConvertedCall(ToolCall(tool="SEG", args={"target": "face"}))]


def _convert_segment(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    """SEG at a point. OpenThinkIMG points as Molmo does, in percent of the picture."""
    param = args.get("param")
    text = json.dumps(param) if isinstance(param, dict) else str(param)
    coordinates = {axis: float(value) for axis, value in COORDINATE.findall(text.replace('":', "="))}
    if isinstance(param, list) and len(param) == 2 and all(_is_number(v) for v in param):
        coordinates = {"x": float(param[0]), "y": float(param[1])}
    if coordinates.keys() != {"x", "y"}:
        return [ConvertedCall(ToolCall(tool="SEG", args=dict(args)), "it names no point")]
    size: Size | None = Size(100, 100)
    if max(coordinates.values()) > 100:
        size = images.size(image_index)
    if size is None or min(coordinates.values()) < 0 or coordinates["x"] > size.width or coordinates["y"] > size.height:
        reason = "its point is not in percent, and lies in no picture of known size"
        return [ConvertedCall(ToolCall(tool="SEG", args={"point_px": [coordinates["x"], coordinates["y"]]}), reason)]
    point = [round_unit(coordinates["x"] / size.width), round_unit(coordinates["y"] / size.height)]
    return [ConvertedCall(ToolCall(tool="SEG", args={"target": point}))]


def _convert_ocr(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    return [ConvertedCall(ToolCall(tool="OCR"))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


CONVERTERS: dict[str, Callable[[Mapping[str, Any], int, ForeignImages], list[ConvertedCall]]] = {
    "CROP_IMAGE": _convert_zoom, "CROP_IMAGE_NORMALIZED": _convert_zoom, "ZOOM_IN": _convert_zoom, "IMAGE_ZOOM_IN_TOOL": _convert_zoom,
    "CROP": _convert_zoom, "ZOOM": _convert_zoom, "ZOOMIN": _convert_zoom,
    "SELECT_FRAMES": _convert_select_frames,
    "OCR": _convert_ocr,
    "LOCALIZEOBJECTS": _convert_find, "POINT": _convert_find, "GROUNDING": _convert_find, "DETECTFACES": _convert_faces,
    "SEGMENTREGIONAROUNDPOINT": _convert_segment,
}  # fmt: skip
"""Their actions that one of our tools can do; CROP comes out of the grammar as ZOOM."""
