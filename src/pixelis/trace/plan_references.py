r"""References in a plan's arguments to the results of earlier steps.

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

Nothing is evaluated: one regular expression parses the path. Any other string is literal, such as "$5 bill".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pixelis.core.errors import MediaError
from pixelis.core.geometry import Mask, Span, TextSpan, Track, round_unit
from pixelis.media import MediaSet
from pixelis.tools.results import ToolResult

REFERENCE = re.compile(r"\$(\d{1,4})\.([a-z_]\w*)((?:\.[A-Za-z_]\w*|\[-?\d{1,6}\])*)", re.ASCII)
PATH_PART = re.compile(r"\.([A-Za-z_]\w*)|\[(-?\d+)\]")


class DeadReferenceError(ValueError):
    """A reference has no target; the message names the part that fails."""


class MediaValue(NamedTuple):
    """A value in the coordinates of one medium; calls on other media must not use it."""

    value: Any
    media: str


def is_reference(value: object) -> bool:
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def has_references(args: object) -> bool:
    """Whether the arguments contain a reference."""
    if isinstance(args, dict):
        return any(has_references(part) for part in args.values())
    if isinstance(args, list):
        return any(has_references(part) for part in args)
    return is_reference(args)


def resolve(args: dict[str, Any], results: Sequence[ToolResult], media: MediaSet) -> dict[str, Any]:
    """The arguments with references replaced by their values; DeadReferenceError for one without a target."""
    media_references: list[tuple[str, str]] = []
    concrete = substitute(args, results, media_references)
    for reference, reference_media in media_references:
        call_media = concrete.get("media")
        try:
            call_media = media.canonical_name(call_media if isinstance(call_media, str) else None)
        except MediaError:
            continue  # the toolbox reports it better
        if call_media != reference_media:
            places = f"{reference} lies on {reference_media}, and this call looks at {call_media}"
            raise DeadReferenceError(f"{places}: set media")
    return concrete


def substitute(value: Any, results: Sequence[ToolResult], media_references: list[tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {key: substitute(part, results, media_references) for key, part in value.items()}
    if isinstance(value, list):
        return [substitute(part, results, media_references) for part in value]
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    target = follow_reference(match, results)
    if isinstance(target, MediaValue):
        media_references.append((match[0], target.media))
        return target.value
    return target


def follow_reference(match: re.Match[str], results: Sequence[ToolResult]) -> Any:
    """The target of a reference, as a MediaValue if it has coordinates."""
    number, root = int(match[1]), match[2]
    path: list[str | int] = [key or int(index) for key, index in PATH_PART.findall(match[3])]
    if not 1 <= number <= len(results):
        raise DeadReferenceError(f"{match[0]}: there is no step {number} before this one")
    result = results[number - 1]
    if not result.ok:
        raise DeadReferenceError(f"{match[0]}: step {number} ({result.tool}) gave no result ({result.status})")
    if root == "view":
        if result.view is None:
            raise DeadReferenceError(f"{match[0]}: step {number} ({result.tool}) made no view")
        return f"View_{sum(r.view is not None for r in results[: number - 1])}"
    if root in SHORTHANDS:
        return resolve_shorthand(match[0], root, path, result)
    return walk_path(match[0], result.model_dump(mode="json"), [root, *path])


SHORTHANDS = ("box", "point", "mask", "track", "span", "text", "frame")


def resolve_shorthand(reference: str, root: str, path: list[str | int], result: ToolResult) -> Any:
    """The first footprint of a kind, or the one with the index that follows, as an argument."""
    candidates: list[Any] = []
    for footprint in result.footprints:
        value = footprint_argument(root, footprint)
        if value is not None:
            candidates.append(MediaValue(value, footprint.media) if root not in ("span", "text", "frame") else value)
    index = path.pop(0) if path and isinstance(path[0], int) else 0
    if not -len(candidates) <= int(index) < len(candidates):
        raise DeadReferenceError(f"{reference}: the {result.tool} step has {len(candidates)} footprints with a {root}")
    chosen = candidates[int(index)]
    if not path:
        return chosen
    value = walk_path(reference, chosen.value if isinstance(chosen, MediaValue) else chosen, path)
    return MediaValue(value, chosen.media) if isinstance(chosen, MediaValue) and isinstance(value, list) else value


FOOTPRINT_TYPES: dict[str, type[Any]] = {"span": Span, "text": TextSpan, "track": Track, "mask": Mask}
FOOTPRINT_FIELDS = {"span": {"start_s", "end_s"}, "track": {"frames", "boxes"}, "mask": {"width", "height", "counts"}}
"""Fields of footprints that tools accept as arguments."""


def footprint_argument(root: str, footprint: Any) -> Any:
    """The value of a shorthand for a footprint; None if it has none."""
    if root in FOOTPRINT_TYPES:
        if not isinstance(footprint, FOOTPRINT_TYPES[root]):
            return None
        return footprint.text if root == "text" else footprint.model_dump(mode="json", include=FOOTPRINT_FIELDS[root])
    track = isinstance(footprint, Track)
    if root == "frame":
        return footprint.frames[0] if track else getattr(footprint, "frame", None)
    box = footprint.boxes[0] if track else getattr(footprint, "box_unit", None)
    if box is None:
        return None
    return list(box) if root == "box" else [round_unit((box[0] + box[2]) / 2), round_unit((box[1] + box[3]) / 2)]


def walk_path(reference: str, value: Any, path: list[str | int]) -> Any:
    """Follow keys and indices into a JSON value."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError) as error:
            available = ", ".join(value) if isinstance(value, dict) else f"a {type(value).__name__}"
            raise DeadReferenceError(f"{reference}: nothing at {part!r}; there is {available or 'nothing'}") from error
    return value
