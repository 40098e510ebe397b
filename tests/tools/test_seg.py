"""SEG: drawn things by colour and shape, photographs by the detector and SAM 2, clicks and boxes."""

import cv2
import numpy as np
import pytest

from pixelis.core.errors import ToolError
from pixelis.media import Image, open_media
from pixelis.tools.base import Scene
from pixelis.tools.cache import PerceptionCache
from pixelis.tools.execute import parse_args
from pixelis.tools.seg import SAM2_WEIGHTS, Seg, resolve_checkpoint
from pixelis.tools.vision.grounding import coco_class, parse_phrase
from pixelis.weights import is_available, weights_dir

needs_detector = pytest.mark.skipif(not is_available("nanodet"), reason="needs `pixelis models pull`")
needs_sam2 = pytest.mark.skipif(not all(map(is_available, SAM2_WEIGHTS)), reason="needs `pixelis models pull`")


def scene_with(*things: tuple[str, tuple[int, int, int], tuple[int, int]]) -> tuple[Image, list[np.ndarray]]:
    """Shapes on speckled grey, with their true masks."""
    rng = np.random.default_rng(3)
    picture = rng.integers(95, 125, (300, 400, 1), dtype=np.uint8).repeat(3, axis=2)
    truths = []
    for kind, colour, (x, y) in things:
        mask = np.zeros(picture.shape[:2], dtype=np.uint8)
        if kind == "circle":
            cv2.circle(mask, (x, y), 40, 1, -1)
        elif kind == "square":
            cv2.rectangle(mask, (x - 35, y - 35), (x + 35, y + 35), 1, -1)
        else:
            cv2.fillPoly(mask, [np.array([[x, y - 45], [x - 45, y + 40], [x + 45, y + 40]])], 1)
        picture[mask > 0] = colour
        truths.append(mask > 0)
    return Image.from_array(picture), truths


RED, BLUE, GREEN = (205, 30, 35), (30, 60, 200), (30, 150, 60)
PICTURE, TRUTHS = scene_with(
    ("circle", RED, (80, 80)), ("square", RED, (200, 80)), ("circle", BLUE, (320, 80)), ("triangle", GREEN, (100, 220))
)


@pytest.fixture(scope="module")
def classical():
    return Seg("classical")


def look(tool, image, target, **args):
    return tool.look(parse_args(tool, {"target": target, **args}), Scene(image))


def iou(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


@pytest.mark.parametrize(
    ("phrase", "thing"),
    [
        ("the red circle", 0),
        ("red square", 1),
        ("the blue disc", 2),
        ("green triangle", 3),
        ("the green thing", 3),
        ("the leftmost red shape", 0),
        ("the triangle", 3),
    ],
)
def test_a_drawn_thing_is_found_by_its_colour_and_shape(classical, phrase, thing):
    seen = look(classical, PICTURE, phrase)
    assert len(seen.footprints) == 1
    assert iou(seen.footprints[0].array, TRUTHS[thing]) > 0.93
    assert seen.output.grounded_by == "regions"


def test_a_colour_alone_finds_every_thing_of_it_the_largest_first(classical):
    seen = look(classical, PICTURE, "red")
    assert len(seen.footprints) == 2
    assert iou(seen.footprints[0].array, TRUTHS[1]) > 0.93  # 71 x 71 = 5041 cells, a circle of radius 40 has 5025


def test_at_most_as_many_as_asked_for(classical):
    assert len(look(classical, PICTURE, "red", limit=1).footprints) == 1


@pytest.mark.parametrize("thing", range(4))
def test_a_click_fills_the_thing_under_it(classical, thing):
    ys, xs = np.nonzero(TRUTHS[thing])
    seen = look(classical, PICTURE, [float(xs.mean()) / 400, float(ys.mean()) / 300])
    assert iou(seen.footprints[0].array, TRUTHS[thing]) > 0.93


def test_a_box_around_a_thing_gives_the_thing(classical):
    seen = look(classical, PICTURE, [0.05, 0.08, 0.35, 0.45])
    assert iou(seen.footprints[0].array, TRUTHS[0]) > 0.85


def test_what_is_not_there_is_a_failure_that_says_so(classical):
    with pytest.raises(ToolError, match="nothing that fits 'the yellow star'"):
        look(classical, PICTURE, "the yellow star")


def test_a_phrase_that_names_nothing_known_asks_for_a_point(classical):
    with pytest.raises(ToolError, match="give a point"):
        look(classical, PICTURE, "the wherewithal")


@pytest.mark.parametrize(
    ("text", "classes", "colours", "shape"),
    [
        ("the red bus", ("bus",), ("red",), None),
        ("two people walking a dog", ("person", "dog"), (), None),
        ("a stop sign", ("stop sign",), (), None),
        ("the orange circle", (), ("orange",), "circle"),
        ("an orange", ("orange",), (), None),
        ("the gray laptops", ("laptop",), ("grey",), None),
        ("the red square", (), ("red",), "square"),
    ],
)
def test_what_phrases_mean(text, classes, colours, shape):
    phrase = parse_phrase(text)
    assert (phrase.classes, phrase.colours, phrase.shape) == (classes, colours, shape)


def test_everyday_words_for_coco_classes():
    words = {"lorry": "truck", "people": "person", "buses": "bus", "bikes": "bicycle", "table": "dining table"}
    assert {word: coco_class(word) for word in words} == words
    assert coco_class("justice") is None


@needs_detector
def test_a_thing_in_a_photograph_is_chosen_by_its_colour(classical, realdata):
    cars = open_media(realdata / "seg" / "sam2_cars.jpg")
    pink, red = (look(classical, cars, f"the {colour} car").footprints[0].box_unit for colour in ("pink", "red"))
    assert pink == pytest.approx((0.59, 0.19, 1.0, 0.96), abs=0.2)  # by eye: the right one
    assert red == pytest.approx((0.12, 0.35, 0.60, 0.70), abs=0.06)  # by eye: the one behind


@pytest.mark.weights
@needs_sam2
@needs_detector
def test_sam2_cuts_the_truck_out_of_its_wall_and_gives_the_same_bytes_again(realdata):
    truck = open_media(realdata / "seg" / "sam2_truck.jpg")
    tool, keep = Seg("sam2"), PerceptionCache(None)
    args = parse_args(tool, {"target": "the white truck"})
    seen = tool.look(args, Scene(truck, perceive=keep))
    again = tool.look(args, Scene(truck, perceive=keep))
    assert seen.footprints == again.footprints
    mask = seen.footprints[0]
    assert mask.box_unit == pytest.approx((0.05, 0.23, 0.95, 0.71), abs=0.03)  # by eye
    assert mask.array[mask.height // 2, mask.width // 2]  # the door
    assert not mask.array[int(mask.height * 0.15), mask.width // 2]  # the red wall
    assert not mask.array[int(mask.height * 0.95), mask.width // 2]  # the road


def test_a_checkpoint_is_known_by_its_content_and_a_pulled_one_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PIXELIS_CACHE", str(tmp_path))
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text("{}")
    first = Seg("sam2-transformers", str(own)).identity().weights
    (own / "config.json").write_text("{ }")
    assert Seg("sam2-transformers", str(own)).identity().weights != first
    hub = "facebook/sam2.1-hiera-large"
    assert resolve_checkpoint(hub) == (hub, "")
    pulled = weights_dir() / "sam2.1-large"
    pulled.mkdir(parents=True)
    pulled.with_name("sam2.1-large.sha256").write_text("ab" * 32)
    assert resolve_checkpoint(hub) == (str(pulled), "ab" * 32)


@needs_detector
def test_both_cars_are_found_and_the_one_on_the_right_is_the_right_one(classical, realdata):
    cars = open_media(realdata / "seg" / "sam2_cars.jpg")
    assert len(look(classical, cars, "cars").footprints) == 2  # by eye
    assert look(classical, cars, "the big car on the right").footprints[0].box_unit[0] > 0.55


@needs_detector
def test_a_white_truck_is_not_blue(classical, realdata):
    truck = open_media(realdata / "seg" / "sam2_truck.jpg")
    assert look(classical, truck, "the white truck").output.grounded_by == "detector"
    with pytest.raises(ToolError, match="the blue truck"):
        look(classical, truck, "the blue truck")


def test_words_that_nothing_knows_are_said(classical):
    seen = look(classical, PICTURE, "the green wherewithal")
    assert seen.output.ignored == ("wherewithal",)
    assert "nothing here knows 'wherewithal'" in seen.text
