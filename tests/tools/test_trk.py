"""TRK: association, motion, and the real clips."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from pydantic import ValidationError

from pixelis.core.errors import MediaError, ToolError
from pixelis.core.geometry import Mask, PixelBox, Size, UnitBox
from pixelis.media import Clip, Image, open_media
from pixelis.media.sources import ArraySource
from pixelis.metrics.overlap import box_iou
from pixelis.tools.backends.botsort import FrameDetections, associate, class_agnostic_nms
from pixelis.tools.backends.botsort_tracker import AssociationSettings
from pixelis.tools.backends.correlation import CorrelationFilter
from pixelis.tools.backends.flow import CameraMotion, flow_box
from pixelis.tools.base import Observation, Scene, WorkLimits
from pixelis.tools.trk import Trk, TrkArgs, direction
from pixelis.weights import is_available

needs_detector = pytest.mark.skipif(not is_available("nanodet"), reason="needs `pixelis models pull nanodet`")


def noise(height: int, width: int, seed: int, blur: float = 2.0) -> np.ndarray:
    """A texture that has corners everywhere."""
    grain = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return np.asarray(cv2.normalize(cv2.GaussianBlur(grain, (0, 0), blur), None, 0, 255, cv2.NORM_MINMAX))


def reddish(seed: int) -> np.ndarray:
    patch = noise(60, 60, seed, 1.5)
    patch[:, :, 1:] //= 4
    return patch


def sliding_clip(frames: int = 50, hidden: range = range(0)) -> tuple[Clip, list[UnitBox]]:
    """A red patch of 60 pixels that goes 6 right and 2 down a frame over a grey ground, and where it is."""
    ground, patch = noise(240, 480, 1), reddish(2)
    pictures, boxes = [], []
    for i in range(frames):
        picture, x, y = ground.copy(), 20 + 6 * i, 30 + 2 * i
        if i not in hidden:
            picture[y : y + 60, x : x + 60] = patch
        pictures.append(picture)
        boxes.append(PixelBox(x, y, x + 60, y + 60).to_unit(Size(480, 240)))
    return Clip(ArraySource(tuple(pictures), 12.5), sha256="sliding"), boxes


def look(clip: Clip, limits: WorkLimits | None = None, **args: object) -> Observation:
    scene = Scene(clip, name="Video_0", limits=limits or WorkLimits())
    return Trk().look(TrkArgs.model_validate(args), scene)


def row(
    frame: int, *boxes: tuple[float, float, float, float], score: float = 0.9, label: str = "dog"
) -> FrameDetections:
    array = np.array(boxes, dtype=np.float64).reshape(-1, 4)
    return FrameDetections(frame, array, np.full(len(array), score), (label,) * len(array))


# --- association ---------------------------------------------------------------------------------------------------


def test_a_track_that_begins_late_keeps_its_first_frame() -> None:
    late = [row(f, *([(10 + f, 10, 50 + f, 90)] if f >= 3 else [])) for f in range(10)]
    assert [r.frame for r in associate(late)] == list(range(3, 10))


def test_a_gap_is_filled_on_the_straight_line_between_its_ends() -> None:
    rows = associate([row(f, *([(10 + f, 10, 50 + f, 90)] if f not in (5, 6) else [])) for f in range(12)])
    assert [r.frame for r in rows] == list(range(12))
    assert rows[5].box_px == pytest.approx((15, 10, 55, 90))
    assert rows[5].score == pytest.approx(0.45)


def test_what_is_seen_twice_only_is_no_track() -> None:
    assert not associate([row(f, *([(10, 10, 50, 90)] if f in (4, 5) else [])) for f in range(12)])


def test_a_faint_detection_carries_a_track_on_but_starts_none() -> None:
    faint = [row(f, (10, 10, 50, 90), score=0.3) for f in range(5, 10)]
    assert not associate(faint)
    assert len(associate([row(f, (10, 10, 50, 90)) for f in range(5)] + faint)) == 10


def test_a_track_is_called_what_most_of_its_detections_are_called() -> None:
    rows = associate([row(f, (10, 10, 50, 90), label="cat" if f % 3 == 0 else "dog") for f in range(9)])
    assert {r.label for r in rows} == {"dog"}


def test_two_that_pass_each_other_keep_their_ids() -> None:
    passing = [row(f, (10 + 4 * f, 10, 50 + 4 * f, 90), (170 - 4 * f, 60, 210 - 4 * f, 140)) for f in range(40)]
    rows = associate(passing)
    assert len({r.track_id for r in rows}) == 2
    assert all(abs(r.box_px[0] - (10 + 4 * r.frame)) < 1e-6 for r in rows if r.track_id == rows[0].track_id)


def test_wider_reach_holds_a_thing_that_leaps_by_its_own_width() -> None:
    leaping = [row(f, (10 + 42 * f + (9 if f % 2 else 0), 10, 50 + 42 * f, 90)) for f in range(8)]
    assert not associate(leaping)
    assert (
        len({r.track_id for r in associate(leaping, AssociationSettings(box_buffer=0.8, newborn_similarity=0.1))}) == 1
    )


def test_of_two_names_for_one_thing_the_surer_stays() -> None:
    boxes = np.array([(0.0, 0, 10, 10), (0.0, 0, 10, 11), (30.0, 0, 40, 10)])
    assert class_agnostic_nms(boxes, np.array([0.4, 0.6, 0.5])) == [1, 2]


# --- motion --------------------------------------------------------------------------------------------------------


def test_the_camera_motion_is_what_the_picture_was_shifted_by() -> None:
    ground, camera = noise(400, 600, 5), CameraMotion()
    nothing = np.empty((0, 4))
    assert camera.step(ground[100:340, 100:420].copy(), nothing) == pytest.approx(np.eye(2, 3))
    motion = camera.step(ground[70:310, 140:460].copy(), nothing)
    assert motion == pytest.approx(np.array([[1, 0, -40], [0, 1, 30]]), abs=0.2)


def test_flow_moves_a_box_with_its_patch_and_not_with_the_ground() -> None:
    clip, _ = sliding_clip(3)
    moved = flow_box(clip.frame(0), clip.frame(1), PixelBox(20, 30, 80, 90))
    assert moved is not None
    assert moved.box_px == pytest.approx((26, 32, 86, 92), abs=1.0)
    assert moved.quality > 0.8


def test_the_correlation_filter_answers_at_the_patch_and_bluntly_where_it_is_gone() -> None:
    clip, _ = sliding_clip(5, hidden=range(4, 5))
    learnt = CorrelationFilter(clip.frame(0), PixelBox(20, 30, 80, 90))
    peak = learnt.find(clip.frame(3), PixelBox(20, 30, 80, 90))
    assert peak.box_px == pytest.approx((38, 36, 98, 96), abs=2.5)
    assert peak.sharpness > 2 * learnt.find(clip.frame(4), PixelBox(44, 38, 104, 98)).sharpness


# --- the tool ------------------------------------------------------------------------------------------------------


def test_a_thing_that_no_detector_knows_is_followed_by_flow_to_the_end() -> None:
    clip, boxes = sliding_clip()
    seen = look(clip, box=boxes[0])
    (track,) = seen.footprints
    assert track.frames == tuple(range(50))
    assert min(box_iou(a, b) for a, b in zip(track.boxes, boxes, strict=True)) > 0.7
    (line,) = seen.output.tracks
    assert (line.method, line.direction) == ("flow", "down-right")
    across, down = ((boxes[-1][k] + boxes[-1][k + 2] - boxes[0][k] - boxes[0][k + 2]) / 2 for k in (0, 1))
    assert line.way == pytest.approx((across**2 + down**2) ** 0.5, abs=0.03)
    assert f"down-right {line.way:.2f}, seen 50" in seen.text
    assert seen.confidence is not None
    assert seen.confidence > 0.7
    assert "#1 thing 0.00-3.92s [0.04, 0.12, 0.17, 0.38]" in seen.text


def test_a_thing_that_hides_is_not_reported_while_hidden_and_found_again() -> None:
    clip, boxes = sliding_clip(hidden=range(20, 24))
    (track,) = look(clip, box=boxes[0]).footprints
    assert not set(track.frames) & set(range(21, 24))
    assert box_iou(track.box_at(49), boxes[49]) > 0.6


def test_a_mask_is_followed_as_its_box_is() -> None:
    clip, boxes = sliding_clip(10)
    array = np.zeros((240, 480), dtype=bool)
    array[30:90, 20:80] = True
    mask = Mask.from_array(array).model_dump(include={"width", "height", "counts"})
    assert look(clip, mask=mask).footprints == look(clip, box=boxes[0]).footprints


def test_the_same_call_gives_the_same_bytes() -> None:
    results = [look(sliding_clip(20)[0], box=[0.05, 0.13, 0.17, 0.37]) for _ in range(2)]
    assert len({r.output.model_dump_json() + r.footprints[0].model_dump_json() for r in results}) == 1


def test_frames_are_sampled_at_the_rate_and_up_to_the_horizon() -> None:
    clip = Clip(ArraySource(sliding_clip(50)[0]._source.frames, 50.0), sha256="fast")
    whole = look(clip, box=[0.05, 0.13, 0.17, 0.37])
    assert (whole.output.stride, whole.output.frames_looked_at) == (4, 14)  # 0, 4 … 48, and the last
    assert whole.output.end_frame == 49
    assert not whole.output.cut_at_horizon
    short = look(clip, WorkLimits(track_frames=5), box=[0.05, 0.13, 0.17, 0.37])
    assert (short.output.frames_looked_at, short.output.end_frame) == (5, 16)
    assert short.output.cut_at_horizon
    assert "(horizon)" in short.text


def test_a_range_in_seconds_is_the_range_in_frames() -> None:
    clip, boxes = sliding_clip()
    by_time = look(clip, box=boxes[10], start_s=0.8, end_s=1.6)
    assert by_time.footprints == look(clip, box=boxes[10], start_frame=10, end_frame=20).footprints
    assert by_time.footprints[0].frames[0] == 10


@pytest.mark.parametrize(
    "args",
    [
        {"box": [0.5, 0.1, 0.2, 0.4]},
        {"box": [0.1, 0.1, 0.1, 0.4]},
        {"box": [0.1, 0.1, float("nan"), 0.4]},
        {"box": ["0.1", 0.1, 0.2, 1.4]},
        {"box": [0.1, 0.1, 0.2, 0.4], "label": "dog"},
        {"start_frame": -1},
        {"start_frame": 1, "start_s": 0.5},
        {"mask": {"width": 4, "height": 4, "counts": "zzz"}},
        {"mask": {"width": 2, "height": 2, "counts": "4"}},  # empty
        {"velocity": 3},
    ],
)
def test_wrong_arguments_are_refused(args: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrkArgs.model_validate(args)


def test_what_cannot_be_tracked_is_said_in_a_sentence() -> None:
    clip, boxes = sliding_clip(5)
    with pytest.raises(MediaError, match="frame 9 does not exist"):
        look(clip, box=boxes[0], end_frame=9)
    with pytest.raises(ToolError, match="before it starts"):
        look(clip, box=boxes[0], start_frame=3, end_frame=1)
    with pytest.raises(ToolError, match="still picture"):
        Trk().look(TrkArgs(), Scene(Image.from_array(clip.frame(0))))


def test_without_the_detector_a_box_is_followed_and_a_class_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path))
    clip, boxes = sliding_clip(6)
    assert Trk().identity().backend == "flow"
    assert len(look(clip, box=boxes[0]).footprints[0].frames) == 6
    with pytest.raises(ToolError, match="pixelis models pull nanodet"):
        look(clip, label="dog")


def test_a_box_thinner_than_a_pixel_is_no_error() -> None:
    clip, _ = sliding_clip(5)
    assert look(clip, box=[0.5, 0.5, 0.5000001, 0.5000001]).footprints


@pytest.mark.parametrize(
    ("last", "word"),
    [((0.41, 0.4, 0.61, 0.6), "still"), ((0.4, 0.1, 0.6, 0.3), "up"), ((0.1, 0.6, 0.3, 0.8), "down-left")],
)
def test_directions_have_names(last: UnitBox, word: str) -> None:
    assert direction((0.4, 0.4, 0.6, 0.6), last) == word


# --- the real clips; the places were read off the frames by eye -----------------------------------------------------


def holds(box: UnitBox | None, x_px: float, y_px: float) -> bool:
    return box is not None and box[0] < x_px / 1280 < box[2] and box[1] < y_px / 720 < box[3]


@pytest.mark.weights
@needs_detector
def test_the_dog_is_lost_when_it_leaves_the_frame_and_held_again_to_the_end(realdata: Path) -> None:
    clip = open_media(realdata / "video" / "sam2_01_dog.mp4")
    seen = look(clip, box=[0.352, 0.525, 0.551, 0.771])
    (track,) = seen.footprints
    assert track.label == "dog"
    assert seen.output.tracks[0].method == "both"
    assert not set(track.frames) & set(range(76, 100))  # it has run out of the picture
    for frame, x, y in [(60, 1060, 465), (136, 790, 465), (196, 735, 455), (288, 602, 466)]:
        assert holds(track.box_at(frame), x, y), frame


@pytest.mark.weights
@needs_detector
def test_the_juggled_ball_is_held_to_the_end(realdata: Path) -> None:
    clip = open_media(realdata / "video" / "sam2_05_default_juggle.mp4")
    (track,) = look(clip, box=[0.477, 0.399, 0.540, 0.510]).footprints
    assert len(track.frames) > 115  # of 124
    for frame, x, y in [(22, 720, 447), (44, 682, 566), (134, 602, 377), (156, 613, 471), (246, 835, 547)]:
        assert holds(track.box_at(frame), x, y), frame


@pytest.mark.weights
@needs_detector
def test_all_dogs_are_one_track_before_it_leaves_and_one_after(realdata: Path) -> None:
    clip = open_media(realdata / "video" / "sam2_01_dog.mp4")
    tracks = sorted(look(clip, label="dogs").footprints, key=lambda t: t.frames[0])
    assert [t.label for t in tracks] == ["dog", "dog"]
    assert tracks[0].frames[-1] < 80 < tracks[1].frames[0]
    with pytest.raises(ToolError, match="eighty COCO classes"):
        look(clip, label="unicorn", end_frame=4)
