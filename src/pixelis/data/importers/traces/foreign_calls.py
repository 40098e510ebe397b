"""Converts the tool calls of other projects to calls of our tools.

A call without a counterpart keeps its name and arguments, with the reason; so does one in pixels if the size of the
picture is unknown.
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
"""Frames of a clip that Pixel-Reasoner shows; `select_frames` numbers them from 1."""
NO_COUNTERPART = {
    "GETOBJECTS": "no tool lists everything in a picture",
    "QUERYLANGUAGEMODEL": "no tool asks another model",
    "QUERYKNOWLEDGEBASE": "no tool looks things up",
    "GETIMAGETOIMAGESSIMILARITY": "no tool compares whole pictures",
    "ZOOMINSUBFIGURE": "it names a part of a figure by its title; ZOOM wants a box",
    "COMPARE": "no tool compares: the policy does",
    **dict.fromkeys(("ESTIMATEOBJECTDEPTH", "ESTIMATEREGIONDEPTH"), "no tool measures depth"),
    **dict.fromkeys(("CALCULATE", "SOLVEMATHEQUATION"), "no tool computes: the policy does"),
    **dict.fromkeys(("GETIMAGETOTEXTSSIMILARITY", "GETTEXTTOIMAGESSIMILARITY"), "no tool compares pictures with texts"),
    **dict.fromkeys(("DRAWHORIZONTALLINEBYY", "DRAWVERTICALLINEBYX", "VISUALIZEREGIONSONIMAGE"), "no tool draws"),
}
ANNOTATING_TOOLS = (
    "LOCALIZEOBJECTS", "DETECTFACES", "DRAWHORIZONTALLINEBYY", "DRAWVERTICALLINEBYX", "VISUALIZEREGIONSONIMAGE",
    "SEGMENTREGIONAROUNDPOINT",
)  # fmt: skip
"""Tools that return their input picture with marks on it; here it is the same picture."""


class ForeignCall(NamedTuple):
    """One call in the format of the other project."""

    name: str
    """Upper case."""
    args: Mapping[str, Any]
    failure: str = ""
    """Why it cannot be parsed; empty otherwise."""


class ConvertedCall(NamedTuple):
    """A call of our tools, and the reason if it cannot be executed."""

    call: ToolCall
    reason: str = ""
    unknown: bool = False
    """There is no counterpart."""
    clipped: bool = False


class ForeignReply(NamedTuple):
    """The content of an assistant turn."""

    thought: str
    calls: tuple[ForeignCall, ...]
    answer: str | None


@dataclass
class ForeignImages:
    """The pictures of a foreign trace in order of appearance, under our names."""

    query_media: tuple[Medium | None, ...]
    names: list[str | None] = field(default_factory=list)
    views: int = 0

    @classmethod
    def start(cls, query_media: tuple[Medium | None, ...], *, clip: bool) -> ForeignImages:
        kinds = ["Video" if (m.kind == "clip" if m else clip) else "Image" for m in query_media]
        return cls(query_media, [f"{kind}_{i}" for i, kind in enumerate(kinds)])

    def add_picture(self, *, usable: bool) -> None:
        """Add the result of a call, which is a view of ours if the call is usable."""
        self.names.append(f"View_{self.views}" if usable else None)
        self.views += usable

    def size(self, image_index: int) -> Size | None:
        """Size of a picture of the query, if it is available; the sizes of views differ from theirs."""
        medium = self.query_media[image_index] if 0 <= image_index < len(self.query_media) else None
        return medium.size if medium else None


Converter = Callable[[Mapping[str, Any], int, ForeignImages], list[ConvertedCall]]


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
    """A list of actions, as JSON or parsed; `Terminate` is the answer."""
    if isinstance(actions, str):
        try:
            actions = json.loads(actions or "[]")
        except (ValueError, RecursionError):
            return ForeignReply(
                thought, (ForeignCall("", {"text": actions[:2000]}, "the actions are not JSON"),), value
            )
    calls, answer = [], value if not actions else None
    for action in actions if isinstance(actions, list) else [actions]:
        if not isinstance(action, dict):
            reason = "an action is an object with name and arguments"
            calls.append(ForeignCall("", {"text": str(action)[:2000]}, reason))
            continue
        name = str(action.get("name", action.get("API_name", action.get("api_name", ""))))
        value_of: Any = next((action[k] for k in ("arguments", "API_params", "api_params") if k in action), {})
        args: dict[str, Any] = value_of if isinstance(value_of, dict) else {"param": value_of}
        if name == "Terminate":
            answer = str(next((args[k] for k in ("answer", "ans", "param") if k in args), ""))
        else:
            calls.append(ForeignCall(name.upper(), args, "" if name else "the action has no name"))
    return ForeignReply(thought, tuple(calls), answer)


def convert_call(foreign_call: ForeignCall, source: Source, images: ForeignImages) -> list[ConvertedCall]:
    """Our calls for one of theirs; adds the pictures that it makes to `images`."""
    if foreign_call.failure:
        name = foreign_call.name or "UNREADABLE"
        return [unusable_call(name, foreign_call.args, foreign_call.failure)._replace(unknown=True)]
    image_index = _image_index(foreign_call, source)
    media = images.names[image_index] if 0 <= image_index < len(images.names) else None
    converter = CONVERTERS.get(foreign_call.name)
    if converter is None:
        reason = NO_COUNTERPART.get(foreign_call.name, "no tool of ours does this")
        converted = [unusable_call(foreign_call.name, foreign_call.args, reason)._replace(unknown=True)]
    else:
        converted = [
            call if image_index == 0 or media is None else _with_media(call, media)
            for call in converter(foreign_call.args, image_index, images)
        ]
        if media is None:
            reason = f"picture {image_index} is not one that our calls make"
            converted = [call._replace(reason=reason) for call in converted]
    _track_images(foreign_call.name, media, images, converted)
    return converted


def unusable_call(tool: str, args: Mapping[str, Any], reason: str) -> ConvertedCall:
    return ConvertedCall(ToolCall(tool=tool, args=dict(args)), reason)


def _with_media(converted: ConvertedCall, media: str) -> ConvertedCall:
    return converted._replace(call=ToolCall(tool=converted.call.tool, args={"media": media, **converted.call.args}))


def _track_images(name: str, media: str | None, images: ForeignImages, converted_calls: list[ConvertedCall]) -> None:
    """Add their new pictures; one that a call of ours will make is a view, numbered in order."""
    if name in ANNOTATING_TOOLS:
        images.names.append(media)
    elif name == "ZOOMINSUBFIGURE":
        images.names.append(None)
    for converted in converted_calls:
        if converted.call.tool in ("ZOOM", "TEMP"):
            images.add_picture(usable=not converted.reason)


def _image_index(foreign_call: ForeignCall, source: Source) -> int:
    """Index of the picture that a call refers to."""
    if source == "pixel-reasoner":
        target = foreign_call.args.get("target_image", 1)
        return int(target) - 1 if isinstance(target, int | float) else 0
    if source == "deepeyes":
        return 0  # its tool always crops the picture of the query
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
        box = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", box)]
    if not isinstance(box, list) or len(box) != 4 or not all(_is_number(v) for v in box):
        return [unusable_call("ZOOM", args, "it has no box of four numbers")]
    return [_convert_box("ZOOM", [float(v) for v in box], image_index, images)]


def _convert_box(tool: str, box: list[float], image_index: int, images: ForeignImages) -> ConvertedCall:
    """A box in units if all of it lies in 0 to 1, otherwise in pixels."""
    # Units may overshoot the frame.
    size = images.size(image_index) if max(map(abs, box)) > 1.5 else Size(1, 1)
    if size is None:
        return unusable_call(tool, {"box_px": box}, "its box is in pixels, and the size of the picture is unknown")
    width, height = size
    clipped = min(box) < 0 or box[0] > width or box[2] > width or box[1] > height or box[3] > height
    try:
        unit: UnitBox = PixelBox(*box).to_unit(size)
    except ValueError:
        return unusable_call(tool, {"box_px" if width > 1 else "box": box}, "its box has no area in the picture")
    return ConvertedCall(ToolCall(tool=tool, args={"box": list(unit)}), clipped=clipped)


def _convert_select_frames(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    """One TEMP call per frame: the k-th of sixteen, evenly spaced from the first to the last."""
    frames = args.get("target_frames")
    if not isinstance(frames, list) or not frames or not all(_is_number(f) for f in frames):
        return [unusable_call("TEMP", args, "it names no frames")]
    clip = images.query_media[0] if images.query_media else None
    if clip is None or clip.kind != "clip":
        reason = "its frames are numbers, and the clip is unknown"
        return [unusable_call("TEMP", {"frame_of_16": int(f)}, reason) for f in frames]
    last = clip.frame_count - 1
    chosen = [round(min(max((int(f) - 1) / (SELECTABLE_FRAMES - 1), 0.0), 1.0) * last) for f in frames]
    times = [round_unit(clip.time_of(index)) for index in chosen]
    return [ConvertedCall(ToolCall(tool="TEMP", args={"select_s": time_s})) for time_s in times]


def _convert_find(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    """One SEG call per target."""
    targets = next((args[k] for k in ("objects", "object", "param") if k in args), None)
    phrases = [p for p in (targets if isinstance(targets, list) else [targets]) if isinstance(p, str) and p.strip()]
    if not phrases:
        return [unusable_call("SEG", args, "it names no target")]
    return [ConvertedCall(ToolCall(tool="SEG", args={"target": phrase.strip()[:400]})) for phrase in phrases]


def _convert_to(tool: str, **args: Any) -> Converter:
    """A converter to a call that does not depend on the arguments of theirs."""
    return lambda foreign_args, image_index, images: [ConvertedCall(ToolCall(tool=tool, args=args))]


def _convert_segment(args: Mapping[str, Any], image_index: int, images: ForeignImages) -> list[ConvertedCall]:
    """SEG at a point. OpenThinkIMG gives points in percent of the picture, as Molmo does."""
    param = args.get("param")
    text = json.dumps(param) if isinstance(param, dict) else str(param)
    coordinates = {axis: float(value) for axis, value in COORDINATE.findall(text.replace('":', "="))}
    if isinstance(param, list) and len(param) == 2 and all(_is_number(v) for v in param):
        coordinates = {"x": float(param[0]), "y": float(param[1])}
    if coordinates.keys() != {"x", "y"}:
        return [unusable_call("SEG", args, "it has no point")]
    size = images.size(image_index) if max(coordinates.values()) > 100 else Size(100, 100)
    if size is None or min(coordinates.values()) < 0 or coordinates["x"] > size.width or coordinates["y"] > size.height:
        reason = "its point is neither in percent nor in a picture of known size"
        return [unusable_call("SEG", {"point_px": [coordinates["x"], coordinates["y"]]}, reason)]
    point = [round_unit(coordinates["x"] / size.width), round_unit(coordinates["y"] / size.height)]
    return [ConvertedCall(ToolCall(tool="SEG", args={"target": point}))]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


CONVERTERS: dict[str, Converter] = {
    **dict.fromkeys(
        ("CROP_IMAGE", "CROP_IMAGE_NORMALIZED", "ZOOM_IN", "IMAGE_ZOOM_IN_TOOL", "CROP", "ZOOM", "ZOOMIN"),
        _convert_zoom,
    ),
    **dict.fromkeys(("LOCALIZEOBJECTS", "POINT", "GROUNDING"), _convert_find),
    "SELECT_FRAMES": _convert_select_frames,
    "OCR": _convert_to("OCR"),
    "DETECTFACES": _convert_to("SEG", target="face"),
    "SEGMENTREGIONAROUNDPOINT": _convert_segment,
}
"""Their actions that our tools can do; the grammar reads CROP as ZOOM."""
