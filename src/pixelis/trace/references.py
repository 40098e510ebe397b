r"""Arguments of a plan that point at what an earlier step returned.

A reference is a whole string, `$` and the number of a step from 1, then a path:

    $1.box           the box of the first footprint that has one, as [x0, y0, x1, y1]
    $1.box[2]        the box of the third such footprint
    $1.point         the centre of that box, as [x, y]
    $2.view          the name of the view that the step made: "View_0"
    $3.text          the text of the first line read;  $3.text[1] of the second
    $1.mask          the first mask, as {"width", "height", "counts"}
    $1.frame         the frame of the first footprint that lies on one
    $4.track         the first track, as {"frames", "boxes"};  $4.track.boxes[0], $4.track.frames[-1]
    $4.span.start_s  when the first stretch of time begins
    $1.footprints[0].label,  $5.output.attributes.colour     anything else in the result, by key and index

Nothing is evaluated: the path is read by one regular expression. Any other string is itself ("$5 bill" is a phrase).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pixelis.errors import MediaError
from pixelis.geometry import Mask, Span, TextSpan, Track, rounded
from pixelis.media import MediaSet
from pixelis.tools.results import ToolResult

REFERENCE = re.compile(r"\$(\d{1,4})\.([a-z_]\w*)((?:\.[A-Za-z_]\w*|\[-?\d{1,6}\])*)", re.ASCII)
PART = re.compile(r"\.([A-Za-z_]\w*)|\[(-?\d+)\]")


class DeadReferenceError(ValueError):
    """A reference leads nowhere: the sentence says where it stopped."""


class Place(NamedTuple):
    """Something on a medium, which a call on another medium must not be given."""

    value: Any
    media: str


def is_reference(value: object) -> bool:
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def has_references(args: object) -> bool:
    """Whether a reference stands anywhere in the arguments."""
    if isinstance(args, dict):
        return any(has_references(part) for part in args.values())
    if isinstance(args, list):
        return any(has_references(part) for part in args)
    return is_reference(args)


def resolve(args: dict[str, Any], results: Sequence[ToolResult], media: MediaSet) -> dict[str, Any]:
    """The arguments with every reference replaced by its value; DeadReferenceError where one leads nowhere."""
    used: list[tuple[str, str]] = []
    concrete = replace(args, results, used)
    for reference, lies_on in used:
        looked_at = concrete.get("media")
        try:
            looked_at = media.canonical(looked_at if isinstance(looked_at, str) else None)
        except MediaError:
            continue  # the toolbox says it better
        if looked_at != lies_on:
            raise DeadReferenceError(f"{reference} lies on {lies_on}, and this call looks at {looked_at}: set media")
    return concrete


def replace(value: Any, results: Sequence[ToolResult], used: list[tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {key: replace(part, results, used) for key, part in value.items()}
    if isinstance(value, list):
        return [replace(part, results, used) for part in value]
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    found = follow(match, results)
    if isinstance(found, Place):
        used.append((match[0], found.media))
        return found.value
    return found


def follow(match: re.Match[str], results: Sequence[ToolResult]) -> Any:
    """The value at the end of a reference, or a Place where it lies on a medium."""
    number, root = int(match[1]), match[2]
    path: list[str | int] = [key or int(index) for key, index in PART.findall(match[3])]
    if not 1 <= number <= len(results):
        raise DeadReferenceError(f"{match[0]}: there is no step {number} before this one")
    result = results[number - 1]
    if not result.ok:
        raise DeadReferenceError(f"{match[0]}: step {number} ({result.tool}) gave no result ({result.status})")
    if root == "view":
        if result.view is None:
            raise DeadReferenceError(f"{match[0]}: step {number} ({result.tool}) made no view")
        return f"View_{sum(r.view is not None for r in results[: number - 1])}"
    if root in SHORT:
        return shorthand(match[0], root, path, result)
    return walk(match[0], result.model_dump(mode="json"), [root, *path])


SHORT = ("box", "point", "mask", "track", "span", "text", "frame")


def shorthand(reference: str, root: str, path: list[str | int], result: ToolResult) -> Any:
    """The first footprint of a kind, or the one whose index follows, as arguments want it."""
    found: list[Any] = []
    for footprint in result.footprints:
        value = as_argument(root, footprint)
        if value is not None:
            found.append(Place(value, footprint.media) if root not in ("span", "text", "frame") else value)
    index = path.pop(0) if path and isinstance(path[0], int) else 0
    if not -len(found) <= int(index) < len(found):
        raise DeadReferenceError(f"{reference}: the {result.tool} step has {len(found)} footprints with a {root}")
    chosen = found[int(index)]
    if not path:
        return chosen
    value = walk(reference, chosen.value if isinstance(chosen, Place) else chosen, path)
    return Place(value, chosen.media) if isinstance(chosen, Place) and isinstance(value, list) else value


SHAPES: dict[str, type[Any]] = {"span": Span, "text": TextSpan, "track": Track, "mask": Mask}
KEPT = {"span": {"start_s", "end_s"}, "track": {"frames", "boxes"}, "mask": {"width", "height", "counts"}}
"""What tools take of a footprint."""


def as_argument(root: str, footprint: Any) -> Any:
    """What a shorthand takes from a footprint; None where it has no such thing."""
    if root in SHAPES:
        if not isinstance(footprint, SHAPES[root]):
            return None
        return footprint.text if root == "text" else footprint.model_dump(mode="json", include=KEPT[root])
    track = isinstance(footprint, Track)
    if root == "frame":
        return footprint.frames[0] if track else getattr(footprint, "frame", None)
    box = footprint.boxes[0] if track else getattr(footprint, "box_unit", None)
    if box is None:
        return None
    return list(box) if root == "box" else [rounded((box[0] + box[2]) / 2), rounded((box[1] + box[3]) / 2)]


def walk(reference: str, value: Any, path: list[str | int]) -> Any:
    """Down a JSON value by keys and indices."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError) as error:
            has = ", ".join(value) if isinstance(value, dict) else f"a {type(value).__name__}"
            raise DeadReferenceError(f"{reference}: nothing at {part!r}; there is {has or 'nothing'}") from error
    return value
