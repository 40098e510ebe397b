"""Importer of MOTChallenge: `seqinfo.ini`, `img1/` and `gt/gt.txt` of a sequence, or of each sequence in a folder.

Rows that the benchmark does not score (a 0 in the seventh column) are skipped and counted. Boxes and frames count from
1 there and from 0 here.
"""

from __future__ import annotations

import configparser
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import PixelBox, Track, UnitBox
from pixelis.data.corpus.text_lines import Problem, TextLine, decode_text, parse_lines
from pixelis.data.importers.dataset_questions import HEADINGS, TEMPLATES, QuestionMaker
from pixelis.data.importers.import_options import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    origin_parameters,
    stable_seed,
)
from pixelis.items import Reference
from pixelis.media import Medium
from pixelis.world.programs import displacement, heading

MOT_CLASSES = {
    1: "pedestrian", 2: "person on a vehicle", 3: "car", 4: "bicycle", 5: "motorbike", 6: "vehicle without a motor",
    7: "static person", 8: "distractor", 9: "occluder", 10: "occluder on the ground", 11: "full occluder",
    12: "reflection", 13: "crowd",
}  # fmt: skip
COCO_NAME_OF_CLASS = {
    "pedestrian": "person", "person on a vehicle": "person", "static person": "person", "motorbike": "motorcycle",
}  # fmt: skip
"""The names of the detector behind TRK."""
MAX_FOLLOWED_TRACKS = 3
"""Tracks of a sequence that have a question of their own."""
MAX_CONTEXT_TRACKS = 8
"""Other tracks that such an item has as references."""
MIN_FRAMES = 5
MAX_COUNTED_FRAMES = 64
"""Frames of each track, evenly spaced, in an item about all tracks: a sequence may have two million boxes."""


class MotRow(NamedTuple):
    """One box of one track."""

    track_id: int
    frame: int
    box: UnitBox
    class_name: str
    was_clipped: bool


@dataclass
class MotSequence:
    """One sequence of the benchmark."""

    folder: Path
    name: str
    frame_folder: str = "img1"
    fps: float = 25.0
    tracks: dict[int, dict[int, UnitBox]] = field(default_factory=dict)
    """For each track its box on each frame, from 0."""
    classes: dict[int, str] = field(default_factory=dict)


def mot_items(source: Path, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items about a sequence, or about each sequence of a folder."""
    sequence_folders = find_sequence_folders(source)
    if not sequence_folders:
        raise ConfigError(f"{source}: no sequence: want gt/gt.txt in it, or in the folders below it")
    for folder in sequence_folders:
        yield from _sequence_outcomes(folder, options)


def find_sequence_folders(source: Path) -> list[Path]:
    if source.name == "gt.txt" and source.is_file():
        return [source.parent.parent]
    if (source / "gt" / "gt.txt").is_file():
        return [source]
    return sorted(file.parent.parent for file in source.glob("*/gt/gt.txt"))


def _sequence_outcomes(folder: Path, options: ImportOptions) -> Iterator[ImportOutcome]:
    sequence = MotSequence(folder, folder.name)
    yield from _read_sequence_info(sequence)
    try:
        medium = MediaLocator(folder, options).open(f"{folder.name}/{sequence.frame_folder}", fps=sequence.fps)
        if medium.kind != "clip":
            raise MediaError(f"{medium.describe()} is not a folder of frames")
    except MediaError as error:
        yield Problem(str(folder), str(error))
        return
    yield from _read_rows(sequence, medium)
    tracks = track_references(sequence)
    if not tracks:
        yield Problem(str(folder / "gt" / "gt.txt"), "none of its rows can be used")
        return
    yield from questions(sequence, medium, tracks, options)


def _read_sequence_info(sequence: MotSequence) -> Iterator[Problem]:
    """Read `seqinfo.ini`; without it the frames are in `img1` at 25 per second."""
    file = sequence.folder / "seqinfo.ini"
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(decode_text(file.read_bytes())[0])
        section = parser["Sequence"]
        sequence.name = section.get("name", sequence.name)
        sequence.frame_folder = section.get("imDir", sequence.frame_folder)
        sequence.fps = section.getfloat("frameRate", sequence.fps)
        if not 0.0 < sequence.fps <= 1000.0:
            raise ValueError(f"frameRate {sequence.fps:g}")
    except (OSError, KeyError, ValueError, configparser.Error) as error:
        sequence.fps = 25.0
        reason = error.strerror if isinstance(error, OSError) else str(error).splitlines()[0]
        yield Problem(str(file), f"taken as img1 at 25 frames a second ({reason})", "changed")


def _read_rows(sequence: MotSequence, medium: Medium) -> Iterator[Problem]:
    file, ignored = sequence.folder / "gt" / "gt.txt", 0
    for line in parse_lines(file, lambda line: parse_row(parse_numbers(line), medium)):
        if isinstance(line, Problem):
            yield line
            continue
        if (row := line.value) is None:
            ignored += 1
            continue
        boxes = sequence.tracks.setdefault(row.track_id, {})
        if row.frame in boxes:
            reason = f"id {row.track_id} has a box on frame {row.frame + 1} already; the first one counts"
            yield Problem(line.where, reason)
            continue
        if row.was_clipped:
            yield Problem(line.where, "the box goes beyond the picture and was clipped", "changed")
        boxes[row.frame] = row.box
        sequence.classes.setdefault(row.track_id, row.class_name)
    if ignored:
        yield Problem(str(file), f"{ignored} rows are marked as not to be scored", "unasked")


def parse_numbers(line: TextLine) -> list[float]:
    try:
        values = [float(cell) for cell in re.split(r"[,;\s]+", line.text.strip()) if cell]
    except ValueError:
        raise ValueError(f"{line.text.strip()[:60]!r} is not a row of numbers: want frame, id, x, y, w, h") from None
    if len(values) < 6 or not all(map(math.isfinite, values)):
        raise ValueError(f"{len(values)} columns: want at least frame, id, x, y, w, h, all finite")
    if not values[0].is_integer() or not values[1].is_integer():
        raise ValueError(f"frame {values[0]:g}, id {values[1]:g}: want whole numbers")
    return values


def parse_row(values: list[float], medium: Medium) -> MotRow | None:
    """The box of a row, clipped to its frame; None for a row that is not scored.

    The class is the eighth column of MOT16 and later; MOT15 has ten columns, the last three a position in the world.
    """
    if len(values) > 6 and values[6] == 0:
        return None
    frame, track_id = int(values[0]) - 1, int(values[1])
    if not 0 <= frame < medium.frame_count or not 0 <= track_id < 2**31:
        raise ValueError(f"frame {frame + 1}, id {track_id}: the clip has frames 1 to {medium.frame_count}, ids from 0")
    left, top = values[2] - 1, values[3] - 1
    box, size = PixelBox(left, top, left + values[4], top + values[5]), medium.size
    was_clipped = left < -1 or top < -1 or box.right > size.width + 1 or box.bottom > size.height + 1
    class_name = MOT_CLASSES.get(int(values[7]), "pedestrian") if len(values) in (8, 9) else "pedestrian"
    return MotRow(track_id, frame, box.to_unit(size), class_name, was_clipped)


def track_references(sequence: MotSequence) -> list[Reference]:
    return [
        Reference(
            name=f"track_{track_id}",
            footprint=Track(
                media="Video_0",
                label=f"{sequence.classes[track_id]} {track_id}",
                track_id=track_id,
                frames=tuple(sorted(boxes)),
                boxes=tuple(boxes[frame] for frame in sorted(boxes)),
            ),
            properties={"class": sequence.classes[track_id]},
        )
        for track_id, boxes in sorted(sequence.tracks.items())
        if boxes
    ]


def questions(
    sequence: MotSequence, medium: Medium, tracks: list[Reference], options: ImportOptions
) -> Iterator[ImportOutcome]:
    """How many tracks there are, how many cross the middle, and where some of them go."""
    rng = np.random.default_rng(stable_seed("mot", sequence.name))
    aspect = medium.size.height / medium.size.width
    facts = {**origin_parameters("motchallenge", sequence.name, medium, options), "aspect": aspect}
    maker = QuestionMaker(medium, tracks, facts, (sequence.name,), "footage")
    thinned = [thin_track(r) for r in tracks]
    for name in sorted({str(r.properties["class"]) for r in tracks}):
        members = [r for r in thinned if r.properties["class"] == name]
        parameters = {"target": name, "coco": COCO_NAME_OF_CLASS.get(name, name)}
        key = (sequence.name, name)
        yield maker.ask("mot.count", members, parameters, key=key, references=thinned)
        if TEMPLATES["mot.crossing"].solve(members, parameters) != "0":
            yield maker.ask("mot.crossing", members, parameters, key=key, references=thinned)
    moving = [r for r in tracks if len(_track(r).frames) >= MIN_FRAMES and _direction(r, aspect) != "still"]
    for k in sorted(rng.permutation(len(moving))[:MAX_FOLLOWED_TRACKS].tolist()):
        target, track = moving[k], _track(moving[k])
        direction = _direction(target, aspect)
        others = [str(w) for w in rng.permutation([w for w in HEADINGS if w != direction])[:3]]
        directions = tuple(str(w) for w in rng.permutation([direction, *others]))
        references = [target, *[r for r in tracks if r is not target][:MAX_CONTEXT_TRACKS]]
        heading_parameters = {
            "target": track.label,
            "class": target.properties["class"],
            "box": tuple(round(v, 2) for v in track.boxes[0]),
            "frame": track.frames[0],
        }
        key = (sequence.name, str(track.track_id))
        yield maker.ask("mot.heading", [target], heading_parameters, key=key, references=references, options=directions)
    if not moving:
        reason = "none of its tracks is long enough, or moves far enough, to ask where it goes"
        yield Problem(str(sequence.folder), reason, "unasked")


def thin_track(reference: Reference) -> Reference:
    """A track on some of its frames, the first and the last among them."""
    track = _track(reference)
    if len(track.frames) <= MAX_COUNTED_FRAMES:
        return reference
    indices = np.linspace(0, len(track.frames) - 1, MAX_COUNTED_FRAMES).round().astype(int).tolist()
    update = {"frames": tuple(track.frames[k] for k in indices), "boxes": tuple(track.boxes[k] for k in indices)}
    return reference.model_copy(update={"footprint": track.model_copy(update=update)})


def _track(reference: Reference) -> Track:
    assert isinstance(reference.footprint, Track)  # noqa: S101 - made by `track_references`
    return reference.footprint


def _direction(reference: Reference, aspect: float) -> str:
    return heading(*displacement(_track(reference), aspect))
