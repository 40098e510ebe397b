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

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.geometry import PixelBox, Size, Track, UnitBox
from pixelis.data.importers.dataset_questions import HEADINGS, TEMPLATES, make_question_item
from pixelis.data.importers.import_result import (
    ImportOptions,
    ImportOutcome,
    MediaLocator,
    origin_parameters,
    stable_seed,
)
from pixelis.data.importers.traces.foreign_files import Problem, TextLine, decode_text, read_lines
from pixelis.items import Reference
from pixelis.media import Medium
from pixelis.world.programs import heading, track_displacement
from pixelis.world.template import ItemDraft

MOT_CLASSES = {
    1: "pedestrian", 2: "person on a vehicle", 3: "car", 4: "bicycle", 5: "motorbike", 6: "vehicle without a motor",
    7: "static person", 8: "distractor", 9: "occluder", 10: "occluder on the ground", 11: "full occluder",
    12: "reflection", 13: "crowd",
}  # fmt: skip
COCO_NAME_OF_CLASS = {
    "pedestrian": "person",
    "person on a vehicle": "person",
    "static person": "person",
    "motorbike": "motorcycle",
}
"""What the detector behind TRK calls them."""
MAX_FOLLOWED_TRACKS = 3
"""Tracks of a sequence that are asked about one by one."""
MAX_CONTEXT_TRACKS = 8
"""Other tracks that such an item keeps as references."""
MIN_FRAMES = 5
MAX_COUNTED_FRAMES = 64
"""Frames of each track, evenly, that an item about all of them keeps: a sequence may have two million boxes."""


class MotRow(NamedTuple):
    """One box of one thing."""

    frame: int
    box: UnitBox


@dataclass
class MotSequence:
    """A folder of the benchmark."""

    folder: Path
    name: str
    frame_folder: str = "img1"
    fps: float = 25.0
    tracks: dict[int, dict[int, UnitBox]] = field(default_factory=dict)
    """For each thing its box on each frame, from 0."""
    classes: dict[int, str] = field(default_factory=dict)


def mot_items(source: Path, import_options: ImportOptions) -> Iterator[ImportOutcome]:
    """Items over a sequence, or over each sequence of a folder."""
    sequence_folders = find_sequence_folders(source)
    if not sequence_folders:
        raise ConfigError(f"{source}: no sequence: want gt/gt.txt in it, or in the folders below it")
    for folder in sequence_folders:
        yield from _sequence_outcomes(folder, import_options)


def find_sequence_folders(source: Path) -> list[Path]:
    if source.name == "gt.txt" and source.is_file():
        return [source.parent.parent]
    if (source / "gt" / "gt.txt").is_file():
        return [source]
    return sorted(file.parent.parent for file in source.glob("*/gt/gt.txt"))


def _sequence_outcomes(folder: Path, import_options: ImportOptions) -> Iterator[ImportOutcome]:
    sequence = MotSequence(folder, folder.name)
    yield from _read_sequence_info(sequence)
    try:
        medium = MediaLocator(folder, import_options).open(f"{folder.name}/{sequence.frame_folder}", fps=sequence.fps)
        medium = medium if medium.kind == "clip" else _raise_not_a_clip(medium)
    except MediaError as error:
        yield Problem(str(folder), str(error))
        return
    yield from _read_rows(sequence, medium)
    tracks = track_references(sequence)
    if not tracks:
        yield Problem(str(folder / "gt" / "gt.txt"), "no row of it can be used")
        return
    yield from questions(sequence, medium, tracks, import_options)


def _raise_not_a_clip(medium: Medium) -> Medium:
    raise MediaError(f"{medium.describe()} is no folder of frames")


def _read_sequence_info(sequence: MotSequence) -> Iterator[Problem]:
    """`seqinfo.ini`; without it the frames are in `img1` at 25 a second."""
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
        reason = str(error).splitlines()[0] if not isinstance(error, OSError) else error.strerror
        yield Problem(str(file), f"taken as img1 at 25 frames a second ({reason})", "changed")


def _read_rows(sequence: MotSequence, medium: Medium) -> Iterator[Problem]:
    file, ignored = sequence.folder / "gt" / "gt.txt", 0
    for line in read_lines(file):
        if isinstance(line, Problem):
            yield line
            continue
        where = f"{file}:{line.number}"
        try:
            values = parse_numbers(line)
            if len(values) > 6 and values[6] == 0:
                ignored += 1
                continue
            row, was_clipped = to_row(values, medium)
        except ValueError as error:
            yield Problem(where, str(error))
            continue
        track_id = int(values[1])
        boxes = sequence.tracks.setdefault(track_id, {})
        if row.frame in boxes:
            yield Problem(where, f"id {track_id} has a box on frame {row.frame + 1} already; the first one counts")
            continue
        if was_clipped:
            yield Problem(where, "the box goes beyond the picture and was clipped", "changed")
        boxes[row.frame] = row.box
        sequence.classes.setdefault(track_id, class_of_row(values))
    if ignored:
        yield Problem(str(file), f"{ignored} rows are marked as not to be scored", "unasked")


def parse_numbers(line: TextLine) -> list[float]:
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


def class_of_row(values: list[float]) -> str:
    """By the eighth column of MOT16 and later; MOT15 has ten columns, the last three a place in the world."""
    return MOT_CLASSES.get(int(values[7]), "pedestrian") if len(values) in (8, 9) else "pedestrian"


def to_row(values: list[float], medium: Medium) -> tuple[MotRow, bool]:
    """A row's box on its frame, and whether it was cut to the picture."""
    frame, track_id = int(values[0]) - 1, int(values[1])
    if not 0 <= frame < medium.frame_count or not 0 <= track_id < 2**31:
        raise ValueError(f"frame {frame + 1}, id {track_id}: the clip has frames 1 to {medium.frame_count}, ids from 0")
    left, top, width, height = values[2] - 1, values[3] - 1, values[4], values[5]
    box = PixelBox(left, top, left + width, top + height)
    size: Size = medium.size
    was_clipped = left < -1 or top < -1 or box.right > size.width + 1 or box.bottom > size.height + 1
    return MotRow(frame, box.to_unit(size)), was_clipped


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
    sequence: MotSequence, medium: Medium, tracks: list[Reference], import_options: ImportOptions
) -> Iterator[ImportOutcome]:
    """How many there are, how many cross, and where some of them go."""
    rng = np.random.default_rng(stable_seed("mot", sequence.name))
    aspect = medium.size.height / medium.size.width
    facts = {**origin_parameters("motchallenge", sequence.name, medium, import_options), "aspect": aspect}

    def ask(kind: str, key: str, refs: list[Reference], evidence: list[Reference], parameters: dict[str, Any],
            options: tuple[str, ...] = ()) -> ImportOutcome:  # fmt: skip
        names = [r.name for r in evidence]
        draft = ItemDraft((medium,), refs, names, {**facts, **parameters}, options=options, traits={"footage"})
        return make_question_item(
            kind, draft, id=f"{kind}/{sequence.name}/{key}", seed=stable_seed(kind, sequence.name, key)
        )

    thinned_tracks = [thin_track(r) for r in tracks]
    for name in sorted({str(r.properties["class"]) for r in tracks}):
        class_tracks = [r for r in thinned_tracks if r.properties["class"] == name]
        parameters = {"target": name, "coco": COCO_NAME_OF_CLASS.get(name, name)}
        yield ask("mot.count", name, thinned_tracks, class_tracks, parameters)
        if TEMPLATES["mot.crossing"].solve(class_tracks, parameters) != "0":
            yield ask("mot.crossing", name, thinned_tracks, class_tracks, parameters)
    moving_tracks = [r for r in tracks if len(r.footprint.frames) >= MIN_FRAMES and _direction(r, aspect) != "still"]  # type: ignore[union-attr]
    for k in sorted(rng.permutation(len(moving_tracks))[:MAX_FOLLOWED_TRACKS].tolist()):
        target = moving_tracks[k]
        direction, track = _direction(target, aspect), target.footprint
        other_directions = [str(w) for w in rng.permutation([w for w in HEADINGS if w != direction])[:3]]
        offered_directions = tuple(str(w) for w in rng.permutation([direction, *other_directions]))
        context_tracks = [r for r in tracks if r is not target][:MAX_CONTEXT_TRACKS]
        heading_parameters: dict[str, Any] = {
            "target": track.label,
            "class": target.properties["class"],
            "box": tuple(round(v, 2) for v in track.boxes[0]),  # type: ignore[union-attr]
            "frame": track.frames[0],  # type: ignore[union-attr]
        }
        yield ask(
            "mot.heading",
            str(track.track_id),
            [target, *context_tracks],
            [target],
            heading_parameters,
            offered_directions,
        )  # type: ignore[union-attr]
    if not moving_tracks:
        yield Problem(
            str(sequence.folder), "nothing in it is seen long enough, or moves far enough, to ask where", "unasked"
        )


def thin_track(reference: Reference) -> Reference:
    """A track on some of its frames, the first and the last among them."""
    track = reference.footprint
    if not isinstance(track, Track) or len(track.frames) <= MAX_COUNTED_FRAMES:
        return reference
    indices = np.linspace(0, len(track.frames) - 1, MAX_COUNTED_FRAMES).round().astype(int).tolist()
    update = {"frames": tuple(track.frames[k] for k in indices), "boxes": tuple(track.boxes[k] for k in indices)}
    return reference.model_copy(update={"footprint": track.model_copy(update=update)})


def _direction(reference: Reference, aspect: float) -> str:
    track = reference.footprint
    return heading(*track_displacement(track, aspect)) if isinstance(track, Track) else "still"
