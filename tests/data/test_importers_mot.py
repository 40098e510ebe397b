"""MOTChallenge in, from sequences of the real layout that each test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Track
from pixelis.data.importers import ImportOptions, Problem, get_case, mot_items, open_item_media
from pixelis.data.importers.mot import thin_track
from pixelis.items import Item, Reference
from pixelis.world.tool_necessity import compute_necessities

FRAMES, WIDTH, HEIGHT = 10, 200, 100
INFO = "[Sequence]\nname=MOT17-99\nimDir=img1\nframeRate=5\nseqLength=10\nimWidth=200\nimHeight=100\nimExt=.jpg\n"


def walker(own: int, start: float, step: float, top: float = 31, more: str = "1,1,1.0") -> list[str]:
    """Somebody 20 x 40 pixels large, from `start` on, `step` pixels a frame; frames and pixels count from 1."""
    return [f"{f},{own},{start + step * (f - 1):g},{top:g},20,40,{more}" for f in range(1, FRAMES + 1)]


def sequence(folder: Path, rows: list[str], info: str | None = INFO) -> Path:
    (folder / "gt").mkdir(parents=True)
    (folder / "img1").mkdir()
    for k in range(1, FRAMES + 1):
        pixels = np.full((HEIGHT, WIDTH, 3), 10 * k, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "img1" / f"{k:06d}.png")
    (folder / "gt" / "gt.txt").write_text("\n".join(rows) + "\n")
    if info:
        (folder / "seqinfo.ini").write_text(info)
    return folder


def taken(path: Path, **wishes: Any) -> tuple[list[Item], list[Problem]]:
    outcomes = list(mot_items(path, ImportOptions(**wishes)))
    return [o for o in outcomes if isinstance(o, Item)], [o for o in outcomes if isinstance(o, Problem)]


def by_template(items: list[Item]) -> dict[str, Item]:
    return {item.template: item for item in items}


def test_three_walkers_are_counted_and_the_one_who_crosses_too(tmp_path: Path) -> None:
    rows = walker(1, 11, 14) + walker(2, 151, -2) + walker(5, 21, 0, top=51)
    items, problems = taken(sequence(tmp_path / "MOT17-99", rows))
    found = by_template(items)
    assert not problems
    assert found["mot.count"].answer == "3"
    assert found["mot.crossing"].answer == "1"
    assert found["mot.count"].media[0].frames == FRAMES
    assert found["mot.count"].media[0].duration_s == 2.0  # ten frames at five a second


def test_boxes_count_pixels_from_one_there_and_from_zero_here(tmp_path: Path) -> None:
    items, _ = taken(sequence(tmp_path / "s", walker(1, 11, 14)))
    track = by_template(items)["mot.count"].references[0].footprint
    assert isinstance(track, Track)
    assert track.boxes[0] == (10 / 200, 30 / 100, 30 / 200, 70 / 100)
    assert track.frames == tuple(range(FRAMES))


def test_a_heading_needs_tracking_because_shuffled_identities_lead_elsewhere(tmp_path: Path) -> None:
    rows = walker(1, 61, 12) + walker(2, 171, -14, top=41)
    items, _ = taken(sequence(tmp_path / "s", rows))
    ways = {str(i.parameters["target"]): i for i in items if i.template == "mot.heading"}
    assert ways["pedestrian 1"].answer_text == "right"
    assert ways["pedestrian 2"].answer_text == "left"
    need = ways["pedestrian 1"].necessity["TRK"]
    assert need.required
    assert need.perturbed_answer == "down left"  # where the other one ends
    assert "[0.3, 0.3, 0.4, 0.7] on frame 0" in ways["pedestrian 1"].question
    assert compute_necessities(get_case(ways["pedestrian 1"])) == ways["pedestrian 1"].necessity


def test_rows_that_the_benchmark_does_not_score_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = walker(1, 11, 14) + walker(2, 51, 1, more="0,1,0.4") + walker(3, 51, 1, more="0,8,1")
    items, problems = taken(sequence(tmp_path / "s", rows))
    assert by_template(items)["mot.count"].answer == "1"
    assert [(p.kind, p.reason) for p in problems] == [("unasked", "20 rows are marked as not to be scored")]


def test_mot15_rows_without_a_class_are_pedestrians(tmp_path: Path) -> None:
    items, _ = taken(sequence(tmp_path / "s", walker(4, 11, 14, more="1,-1,-1,-1")))
    assert by_template(items)["mot.count"].parameters["target"] == "pedestrian"


def test_a_place_in_the_world_of_mot15_is_not_taken_for_a_class(tmp_path: Path) -> None:
    items, _ = taken(sequence(tmp_path / "s", walker(4, 11, 14, more="1,3.7,-2.1,0")))  # 3 would be a car
    assert by_template(items)["mot.count"].parameters["target"] == "pedestrian"


def test_half_a_frame_is_no_frame(tmp_path: Path) -> None:
    _, problems = taken(sequence(tmp_path / "s", [*walker(1, 11, 14), "2.5,2,11,31,20,40,1,1,1"]))
    assert [(p.kind, p.reason) for p in problems] == [("skipped", "frame 2.5, id 2: want whole numbers")]


def test_bad_rows_are_reported_with_their_line_and_the_others_stay(tmp_path: Path) -> None:
    rows = walker(1, 11, 14)
    rows += ["1,1,5,5,10,10,1,1,1", "99,1,5,5,10,10,1,1,1", "x,y", "3,7,500,500,10,10,1,1,1", "3,8,191,31,60,40,1,1,1"]
    items, problems = taken(sequence(tmp_path / "s", rows))
    assert by_template(items)["mot.count"].answer == "2"
    told = [(p.kind, int(p.where.rpartition(":")[2])) for p in problems]
    assert told == [("skipped", 11), ("skipped", 12), ("skipped", 13), ("skipped", 14), ("changed", 15)]
    assert "id 1 has a box on frame 1 already" in problems[0].reason
    assert "frames 1 to 10" in problems[1].reason


def test_without_seqinfo_the_frames_are_taken_at_25_a_second_and_it_is_said(tmp_path: Path) -> None:
    items, problems = taken(sequence(tmp_path / "s", walker(1, 11, 14), info=None))
    assert items[0].media[0].duration_s == FRAMES / 25
    assert [p.kind for p in problems] == ["changed"]


def test_a_folder_of_sequences_goes_on_after_one_without_frames(tmp_path: Path) -> None:
    sequence(tmp_path / "a", walker(1, 11, 14))
    for file in (tmp_path / "a" / "img1").iterdir():
        file.unlink()
    sequence(tmp_path / "b", walker(1, 11, 14))
    items, problems = taken(tmp_path)
    assert {item.parameters["source_id"] for item in items} == {"MOT17-99"}
    assert [p.kind for p in problems] == ["skipped"]
    assert problems[0].where.endswith("a")


def test_the_clip_of_an_item_opens_again_by_its_path_and_rate(tmp_path: Path) -> None:
    out = tmp_path / "items.jsonl"
    items, _ = taken(sequence(tmp_path / "s", walker(1, 11, 14)), items_path=out, licence="CC BY-NC-SA 3.0")
    assert items[0].parameters["licence"] == "CC BY-NC-SA 3.0"
    assert open_item_media(items[0], out).sources[0].sha256 == items[0].media[0].sha256


def test_a_long_track_keeps_its_first_and_last_frame_among_64() -> None:
    boxes = tuple((k / 1000, 0.1, k / 1000 + 0.1, 0.2) for k in range(600))
    long = Reference(name="track_1", footprint=Track(track_id=1, frames=tuple(range(600)), boxes=boxes))
    track = thin_track(long).footprint
    assert isinstance(track, Track)
    assert (len(track.frames), track.frames[0], track.frames[-1]) == (64, 0, 599)
    assert all(track.box_at(frame) == boxes[frame] for frame in track.frames)


def test_a_folder_without_sequences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gt/gt\.txt"):
        taken(tmp_path)
