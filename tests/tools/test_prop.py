"""PROP on drawn scenes with exact truth, on hand-checked photographs and clips, and on bad arguments."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pixelis.core.errors import MediaError, ToolError
from pixelis.core.geometry import Box, Mask, Track
from pixelis.media import Clip, Image, open_media
from pixelis.tools.base import Scene
from pixelis.tools.prop import Prop, PropArgs
from pixelis.weights import is_available

needs_detector = pytest.mark.skipif(not is_available("nanodet"), reason="needs `pixelis models pull nanodet`")


def look(medium, **args):
    return Prop().look(PropArgs.model_validate(args), Scene(medium))


def values(seen):
    return {name: found.value for name, found in seen.output.properties.items()}


def drawn():
    """A red disc of radius 40 at (80, 60), a blue square of side 60 at (270, 180), on white, 400 x 300."""
    frame = np.full((300, 400, 3), 255, np.uint8)
    cv2.circle(frame, (80, 60), 40, (220, 20, 20), -1)
    cv2.rectangle(frame, (240, 150), (299, 209), (20, 20, 220), -1)
    return Image.from_array(frame)


def test_a_drawn_disc_is_described_from_its_box():
    seen = look(drawn(), box=[0.1, 0.06, 0.3, 0.34])
    assert values(seen) == {
        "colour": "red", "size": "medium", "position": "top left", "shape": "circle", "orientation": "none",
        "texture": "plain", "brightness": "medium",
    }  # fmt: skip
    assert seen.output.properties["size"].measures["area_share"] == pytest.approx(0.2 * 0.28)
    assert seen.footprints == (Box(x0=0.1, y0=0.06, x1=0.3, y1=0.34),)
    assert "colour: red" in seen.text
    assert seen.confidence > 0.7


def test_a_mask_is_taken_as_it_is():
    mask = np.zeros((300, 400), bool)
    mask[150:210, 240:300] = True
    given_mask = Mask.from_array(mask)
    seen = look(drawn(), mask={"width": 400, "height": 300, "counts": given_mask.counts})
    found = seen.output.properties
    assert (found["colour"].value, found["shape"].value, found["position"].value) == ("blue", "square", "right")
    assert found["size"].measures["area_px"] == 3600
    assert found["position"].measures == {"x": 0.675, "y": 0.6}
    assert seen.footprints == (given_mask,)


@pytest.mark.parametrize(
    ("of", "count"), [("red circles", 1), ("squares", 1), ("green triangles", 0), ("circles", 1), (None, 2)]
)
def test_drawn_things_are_counted(of, count):
    seen = look(drawn(), attributes=["count"], **({"of": of} if of else {}))
    assert seen.output.properties["count"].measures["count"] == count


def test_a_thing_is_described_by_the_phrase_that_names_it():
    seen = look(drawn(), of="blue square", attributes=["position", "size", "shape"])
    assert list(seen.output.properties) == ["position", "size", "shape"]
    assert (values(seen)["position"], values(seen)["shape"]) == ("right", "square")
    # 60 x 60 of 400 x 300 pixels, from (240, 150)
    assert seen.output.properties["size"].measures["area_share"] == pytest.approx(3600 / 120_000, rel=0.03)
    box = seen.footprints[0]
    assert (box.x0, box.y0, box.x1, box.y1) == pytest.approx((0.6, 0.5, 0.75, 0.7), abs=0.01)


def test_a_phrase_is_looked_for_in_the_box_only_and_counts_beside_it():
    seen = look(drawn(), of="red", box=[0.0, 0.0, 0.5, 0.5], attributes=["count", "colour"])
    assert list(seen.output.properties) == ["count", "colour"]
    assert values(seen) == {"count": "1", "colour": "red"}
    with pytest.raises(ToolError, match="nothing that fits 'blue'"):
        look(drawn(), of="blue", box=[0.0, 0.0, 0.5, 0.5], attributes=["shape"])


def test_a_phrase_with_a_mask_names_the_thing_twice():
    with pytest.raises(ValidationError, match="leave `of` out"):
        look(drawn(), of="red", mask={"width": 1, "height": 1, "counts": "01"}, attributes=["shape"])


def test_the_whole_frame_has_colour_texture_and_brightness():
    assert list(values(look(drawn()))) == ["colour", "texture", "brightness"]
    assert values(look(drawn()))["brightness"] == "bright"


def test_a_track_that_crosses_half_the_width_in_a_second():
    clip = Clip.from_frames([np.zeros((90, 160, 3), np.uint8)] * 11, fps=10)
    boxes = [[0.05 * i, 0.4, 0.05 * i + 0.2, 0.6] for i in range(11)]
    seen = look(clip, track={"frames": list(range(11)), "boxes": boxes}, attributes=["speed", "direction"])
    found = seen.output.properties
    assert found["direction"].value == "right"
    assert found["speed"].measures == {"widths_per_s": pytest.approx(0.5), "px_per_s": pytest.approx(80.0)}
    assert seen.footprints == (Track(track_id=0, frames=tuple(range(11)), boxes=tuple(map(tuple, boxes))),)


def test_a_track_that_turns_is_described_around_the_frame_that_was_asked_for():
    clip = Clip.from_frames([np.zeros((100, 100, 3), np.uint8)] * 41, fps=10)
    there = [[0.02 * i, 0.4, 0.02 * i + 0.1, 0.6] for i in range(21)]
    track = {"frames": list(range(41)), "boxes": there + there[-2::-1]}
    assert values(look(clip, track=track, frame=5, attributes=["direction"])) == {"direction": "right"}
    assert values(look(clip, track=track, frame=35, attributes=["direction"])) == {"direction": "left"}
    assert values(look(clip, track=track, attributes=["direction"])) == {"direction": "to and fro"}


def moving_square(step_x, step_y, camera=0, count=12):
    """A textured square of 40 px that moves over a textured ground; the whole picture shifts by `camera` a frame."""
    rng = np.random.default_rng(3)
    ground = cv2.GaussianBlur(rng.integers(0, 256, (240, 640, 3), dtype=np.uint8), (0, 0), 2)
    square = cv2.GaussianBlur(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8), (0, 0), 1.5)
    frames = []
    for i in range(count):
        frame = ground.copy()
        x, y = 200 + i * step_x, 100 + i * step_y
        frame[y : y + 40, x : x + 40] = square
        frames.append(np.ascontiguousarray(frame[:, 100 + i * camera : 420 + i * camera]))
    return Clip.from_frames(frames, fps=15)


@pytest.mark.parametrize(
    ("step", "heading"), [((4, 0), "right"), ((-4, 0), "left"), ((0, -4), "up"), ((3, 3), "down right")]
)
def test_motion_of_a_box_is_seen_without_a_track(step, heading):
    seen = look(
        moving_square(*step), box=[100 / 320, 100 / 240, 140 / 320, 140 / 240], attributes=["speed", "direction"]
    )
    assert values(seen)["direction"] == heading
    truth = np.hypot(*step) * 15 / 320
    assert seen.output.properties["speed"].measures["widths_per_s"] == pytest.approx(truth, rel=0.2)


def test_motion_of_the_camera_is_not_the_things_own():
    seen = look(
        moving_square(0, 0, camera=3), box=[100 / 320, 100 / 240, 140 / 320, 140 / 240], attributes=["direction"]
    )
    assert values(seen) == {"direction": "still"}


def test_speed_on_a_still_picture_fails_with_a_sentence():
    with pytest.raises(ToolError, match="needs a clip"):
        look(drawn(), box=[0, 0, 0.5, 0.5], attributes=["speed"])


def test_an_unknown_thing_cannot_be_counted():
    with pytest.raises(ToolError, match="name a colour, a shape or a COCO class"):
        look(drawn(), of="quarks")


def test_a_track_beyond_the_end_fails_with_a_sentence():
    clip = Clip.from_frames([np.zeros((9, 16, 3), np.uint8)] * 3, fps=10)
    with pytest.raises(MediaError, match="frame 7 does not exist"):
        look(clip, track={"frames": [0, 7], "boxes": [[0, 0, 0.5, 0.5]] * 2})


# Hand-checked: the truth is what a person sees in the picture. The rules for white in shade, dark pink and faint
# stripes were set while looking at these files, and the boxes chosen by hand: these tests guard; they do not measure.


def test_the_pickup_in_front_of_the_red_wall_is_white(realdata):
    seen = look(open_media(realdata / "seg/sam2_truck.jpg"), box=[0.07, 0.23, 0.95, 0.71])
    found = values(seen)
    assert found["colour"].startswith("white")
    assert (found["size"], found["position"], found["orientation"]) == ("large", "centre", "horizontal")


def test_the_wall_behind_the_pickup_is_plain_and_red_and_its_tail_light_is_red(realdata):
    picture = open_media(realdata / "seg/sam2_truck.jpg")
    wall = values(look(picture, box=[0.55, 0.02, 0.95, 0.22]))
    assert (wall["colour"], wall["texture"], wall["position"]) == ("red", "plain", "top right")
    assert values(look(picture, box=[0.08, 0.43, 0.125, 0.53]))["colour"].startswith("red")


def test_the_wheel_of_the_pickup_is_a_grey_circle(realdata):
    seen = look(open_media(realdata / "seg/sam2_truck.jpg"), box=[0.3, 0.55, 0.35, 0.7], attributes=["colour", "shape"])
    assert values(seen) == {"colour": "grey", "shape": "circle"}


def test_the_nearer_of_two_cars_is_pink_on_a_dark_picture(realdata):
    picture = open_media(realdata / "seg/sam2_cars.jpg")
    assert values(look(picture, box=[0.59, 0.19, 1.0, 0.95], attributes=["colour"])) == {"colour": "pink"}
    assert values(look(picture, attributes=["brightness"])) == {"brightness": "dark"}


def test_the_ball_is_a_white_disc_that_rises_after_four_seconds(realdata):
    clip = open_media(realdata / "video/sam2_05_default_juggle.mp4")
    args = {"box": [0.61, 0.444, 0.68, 0.587], "attributes": ["colour", "shape", "speed", "direction"]}
    seen = look(clip, time_s=4.0, **args)
    found = values(seen)
    assert (found["colour"], found["shape"], found["direction"]) == ("white", "circle", "up")
    # by hand: from (0.643, 0.51) on frame 96 to (0.640, 0.43) on frame 100, so 0.28 widths a second
    assert seen.output.properties["speed"].measures["widths_per_s"] == pytest.approx(0.28, abs=0.05)


@pytest.mark.parametrize(
    ("time_s", "box", "heading"), [(1.5, [0.51, 0.41, 0.68, 0.78], "right"), (4.5, [0.47, 0.53, 0.71, 0.78], "left")]
)
def test_the_dog_runs_after_the_ball_and_back(realdata, time_s, box, heading):
    clip = open_media(realdata / "video/sam2_01_dog.mp4")
    seen = look(clip, time_s=time_s, box=box, attributes=["speed", "direction"])
    assert values(seen)["direction"] == heading
    assert 0.25 < seen.output.properties["speed"].measures["widths_per_s"] < 0.6  # 0.46 by the boxes at 4.5 s


def test_the_wallpaper_is_striped_and_the_skirt_is_blue(realdata):
    clip = open_media(realdata / "video/sam2_bedroom")
    assert values(look(clip, frame=8, box=[0.5, 0.02, 0.8, 0.2], attributes=["texture"])) == {"texture": "striped"}
    assert values(look(clip, frame=8, box=[0.375, 0.45, 0.5, 0.6], attributes=["colour"])) == {"colour": "blue"}


@needs_detector
def test_two_children_are_counted_and_one_truck(realdata):
    clip, truck = open_media(realdata / "video/sam2_bedroom"), open_media(realdata / "seg/sam2_truck.jpg")
    assert values(look(clip, frame=8, of="children")) == {"count": "2"}
    assert values(look(truck, of="trucks")) == {"count": "1"}


numbers = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 12), st.text(max_size=3), st.none())
boxes = st.one_of(st.lists(numbers, max_size=5), st.lists(st.floats(0, 1), min_size=4, max_size=4))
arguments = st.fixed_dictionaries(
    {},
    optional={
        "box": boxes,
        "mask": st.fixed_dictionaries(
            {}, optional={"width": numbers, "height": numbers, "counts": st.text(max_size=8)}
        ),
        "track": st.fixed_dictionaries(
            {}, optional={"frames": st.lists(numbers, max_size=4), "boxes": st.lists(boxes, max_size=4)}
        ),
        "attributes": st.lists(
            st.sampled_from(
                ["colour", "size", "position", "shape", "orientation", "texture", "count", "speed", "direction",
                 "brightness", "smell"]
            ),
            max_size=4,
        ),
        "of": st.sampled_from(["red", "circles", "", "quarks", "red\x00"]),
        "frame": numbers,
        "time_s": numbers,
        "unknown": st.none(),
    },
)  # fmt: skip
MEDIA = (
    Image.from_array(np.random.default_rng(1).integers(0, 256, (13, 17, 3), dtype=np.uint8)),
    Image.from_array(np.zeros((1, 1, 3), np.uint8)),
    Clip.from_frames(list(np.random.default_rng(2).integers(0, 256, (6, 24, 32, 3), dtype=np.uint8)), fps=10),
)


@given(arguments, st.sampled_from(MEDIA))
@settings(max_examples=150)
def test_no_argument_raises_anything_but_the_named_errors(args, medium):
    try:
        seen = look(medium, **args)
    except (ValidationError, ToolError, MediaError):
        return
    assert 0.0 <= seen.confidence <= 1.0


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.sampled_from(MEDIA))
@settings(max_examples=60)
def test_any_box_with_area_is_described(box, medium):
    x0, x1 = sorted((box[0], box[2]))
    y0, y1 = sorted((box[1], box[3]))
    if x0 == x1 or y0 == y1:
        return
    assert set(values(look(medium, box=[x0, y0, x1, y1]))) >= {"colour", "shape", "size"}
