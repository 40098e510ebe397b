"""MOTChallenge in: `seqinfo.ini`, `img1/` and `gt/gt.txt` of a sequence, or of each sequence in a folder.

Rows that the benchmark itself does not score (a 0 in the seventh column) are left out and counted. Boxes and frames
count from 1 there and from 0 here.
"""

from __future__ import annotations

import configparser
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pixelis.data.importers.outcome import Outcome, Shelf, Wishes, origin, seed_of
from pixelis.data.importers.questions import HEADINGS, TEMPLATES, asked
from pixelis.errors import ConfigError, MediaError
from pixelis.geometry import PixelBox, Size, Track, UnitBox
from pixelis.media import Medium
from pixelis.trace.foreign_files import Line, Problem, decoded, lines
from pixelis.world.item import Reference
from pixelis.world.programs import heading, moved
from pixelis.world.template import Draft

CLASSES = {
    1: "pedestrian", 2: "person on a vehicle", 3: "car", 4: "bicycle", 5: "motorbike", 6: "vehicle without a motor",
    7: "static person", 8: "distractor", 9: "occluder", 10: "occluder on the ground", 11: "full occluder",
    12: "reflection", 13: "crowd",
}  # fmt: skip
COCO_NAMES = {
    "pedestrian": "person",
    "person on a vehicle": "person",
    "static person": "person",
    "motorbike": "motorcycle",
}
"""What the detector behind TRK calls them."""
FOLLOWED = 3
"""Tracks of a sequence that are asked about one by one."""
AROUND = 8
"""Other tracks that such an item keeps as references."""
LEAST_FRAMES = 5
COUNTED_FRAMES = 64
"""Frames of each track, evenly, that an item about all of them keeps: a sequence may have two million boxes."""


class Row(NamedTuple):
    """One box of one thing."""

    frame: int
    box: UnitBox


@dataclass
class Sequence:
    """A folder of the benchmark."""

    folder: Path
    name: str
    frames: str = "img1"
    fps: float = 25.0
    tracks: dict[int, dict[int, UnitBox]] = field(default_factory=dict)
    """For each thing its box on each frame, from 0."""
    classes: dict[int, str] = field(default_factory=dict)


def mot_items(source: Path, wishes: Wishes) -> Iterator[Outcome]:
    """Items over a sequence, or over each sequence of a folder."""
    found = folders(source)
    if not found:
        raise ConfigError(f"{source}: no sequence: want gt/gt.txt in it, or in the folders below it")
    for folder in found:
        yield from _sequence(folder, wishes)


def folders(source: Path) -> list[Path]:
    if source.name == "gt.txt" and source.is_file():
        return [source.parent.parent]
    if (source / "gt" / "gt.txt").is_file():
        return [source]
    return sorted(file.parent.parent for file in source.glob("*/gt/gt.txt"))


def _sequence(folder: Path, wishes: Wishes) -> Iterator[Outcome]:
    sequence = Sequence(folder, folder.name)
    yield from _info(sequence)
    try:
        medium = Shelf(folder, wishes).open(f"{folder.name}/{sequence.frames}", fps=sequence.fps)
        medium = medium if medium.kind == "clip" else _no_clip(medium)
    except MediaError as error:
        yield Problem(str(folder), str(error))
        return
    yield from _rows(sequence, medium)
    tracks = references(sequence)
    if not tracks:
        yield Problem(str(folder / "gt" / "gt.txt"), "no row of it can be used")
        return
    yield from questions(sequence, medium, tracks, wishes)


def _no_clip(medium: Medium) -> Medium:
    raise MediaError(f"{medium.describe()} is no folder of frames")


def _info(sequence: Sequence) -> Iterator[Problem]:
    """`seqinfo.ini`; without it the frames are in `img1` at 25 a second."""
    file = sequence.folder / "seqinfo.ini"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(decoded(file.read_bytes())[0])
        section = parser["Sequence"]
        sequence.name = section.get("name", sequence.name)
        sequence.frames = section.get("imDir", sequence.frames)
        sequence.fps = section.getfloat("frameRate", sequence.fps)
        if not 0.0 < sequence.fps <= 1000.0:
            raise ValueError(f"frameRate {sequence.fps:g}")
    except (OSError, KeyError, ValueError, configparser.Error) as error:
        sequence.fps = 25.0
        reason = str(error).splitlines()[0] if not isinstance(error, OSError) else error.strerror
        yield Problem(str(file), f"taken as img1 at 25 frames a second ({reason})", "changed")


def _rows(sequence: Sequence, medium: Medium) -> Iterator[Problem]:
    file, ignored = sequence.folder / "gt" / "gt.txt", 0
    for line in lines(file):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{file}:{line.number}"
        try:
            values = numbers(line)
            if len(values) > 6 and values[6] == 0:
                ignored += 1
                continue
            row, cut = placed(values, medium)
        except ValueError as error:
            yield Problem(where, str(error))
            continue
        identity = int(values[1])
        boxes = sequence.tracks.setdefault(identity, {})
        if row.frame in boxes:
            yield Problem(where, f"id {identity} has a box on frame {row.frame + 1} already; the first one counts")
            continue
        if cut:
            yield Problem(where, "the box goes beyond the picture and was clipped", "changed")
        boxes[row.frame] = row.box
        sequence.classes.setdefault(identity, class_of(values))
    if ignored:
        yield Problem(str(file), f"{ignored} rows are marked as not to be scored", "unasked")


def numbers(line: Line) -> list[float]:
    cells = [cell for cell in re.split(r"[,;\s]+", line.text.strip()) if cell]
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        raise ValueError(f"{line.text.strip()[:60]!r} is no row of numbers: want frame, id, x, y, w, h") from None
    if len(values) < 6 or not all(map(math.isfinite, values)):
        raise ValueError(f"{len(values)} columns: want at least frame, id, x, y, w, h, all finite")
    if not values[0].is_integer() or not values[1].is_integer():
        raise ValueError(f"frame {values[0]:g}, id {values[1]:g}: want whole numbers")
    return values


def class_of(values: list[float]) -> str:
    """By the eighth column of MOT16 and later; MOT15 has ten columns, the last three a place in the world."""
    return CLASSES.get(int(values[7]), "pedestrian") if len(values) in (8, 9) else "pedestrian"


def placed(values: list[float], medium: Medium) -> tuple[Row, bool]:
    """A row's box on its frame, and whether it was cut to the picture."""
    frame, identity = int(values[0]) - 1, int(values[1])
    if not 0 <= frame < medium.frame_count or not 0 <= identity < 2**31:
        raise ValueError(f"frame {frame + 1}, id {identity}: the clip has frames 1 to {medium.frame_count}, ids from 0")
    left, top, width, height = values[2] - 1, values[3] - 1, values[4], values[5]
    box = PixelBox(left, top, left + width, top + height)
    size: Size = medium.size
    cut = left < -1 or top < -1 or box.right > size.width + 1 or box.bottom > size.height + 1
    return Row(frame, box.to_unit(size)), cut


def references(sequence: Sequence) -> list[Reference]:
    return [
        Reference(
            name=f"track_{identity}",
            footprint=Track(
                media="Video_0",
                label=f"{sequence.classes[identity]} {identity}",
                track_id=identity,
                frames=tuple(sorted(boxes)),
                boxes=tuple(boxes[frame] for frame in sorted(boxes)),
            ),
            properties={"class": sequence.classes[identity]},
        )
        for identity, boxes in sorted(sequence.tracks.items())
        if boxes
    ]


def questions(sequence: Sequence, medium: Medium, tracks: list[Reference], wishes: Wishes) -> Iterator[Outcome]:
    """How many there are, how many cross, and where some of them go."""
    rng = np.random.default_rng(seed_of("mot", sequence.name))
    aspect = medium.size.height / medium.size.width
    facts = {**origin("motchallenge", sequence.name, medium, wishes), "aspect": aspect}

    def ask(kind: str, own: str, kept: list[Reference], evidence: list[Reference], parameters: dict[str, Any],
            options: tuple[str, ...] = ()) -> Outcome:  # fmt: skip
        names = [r.name for r in evidence]
        draft = Draft((medium,), kept, names, {**facts, **parameters}, options=options, traits={"footage"})
        return asked(kind, draft, id=f"{kind}/{sequence.name}/{own}", seed=seed_of(kind, sequence.name, own))

    thinned = [thin(r) for r in tracks]
    for name in sorted({str(r.properties["class"]) for r in tracks}):
        own = [r for r in thinned if r.properties["class"] == name]
        parameters = {"target": name, "coco": COCO_NAMES.get(name, name)}
        yield ask("mot.count", name, thinned, own, parameters)
        if TEMPLATES["mot.crossing"].solve(own, parameters) != "0":
            yield ask("mot.crossing", name, thinned, own, parameters)
    moving = [r for r in tracks if len(r.footprint.frames) >= LEAST_FRAMES and _way(r, aspect) != "still"]  # type: ignore[union-attr]
    for k in sorted(rng.permutation(len(moving))[:FOLLOWED].tolist()):
        followed = moving[k]
        way, track = _way(followed, aspect), followed.footprint
        others = [str(w) for w in rng.permutation([w for w in HEADINGS if w != way])[:3]]
        offered = tuple(str(w) for w in rng.permutation([way, *others]))
        others_around = [r for r in tracks if r is not followed][:AROUND]
        about: dict[str, Any] = {
            "target": track.label,
            "class": followed.properties["class"],
            "box": tuple(round(v, 2) for v in track.boxes[0]),  # type: ignore[union-attr]
            "frame": track.frames[0],  # type: ignore[union-attr]
        }
        yield ask("mot.heading", str(track.track_id), [followed, *others_around], [followed], about, offered)  # type: ignore[union-attr]
    if not moving:
        yield Problem(
            str(sequence.folder), "nothing in it is seen long enough, or moves far enough, to ask where", "unasked"
        )


def thin(reference: Reference) -> Reference:
    """A track on some of its frames, the first and the last among them."""
    track = reference.footprint
    if not isinstance(track, Track) or len(track.frames) <= COUNTED_FRAMES:
        return reference
    kept = np.linspace(0, len(track.frames) - 1, COUNTED_FRAMES).round().astype(int).tolist()
    update = {"frames": tuple(track.frames[k] for k in kept), "boxes": tuple(track.boxes[k] for k in kept)}
    return reference.model_copy(update={"footprint": track.model_copy(update=update)})


def _way(reference: Reference, aspect: float) -> str:
    track = reference.footprint
    return heading(*moved(track, aspect)) if isinstance(track, Track) else "still"
