"""Names of colours, shapes and textures, on colours and figures whose names everybody agrees on."""

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis.tools.vision.colours import COLOURS, colour_mask, colour_name, dominant_colours, index_map, parse_colour
from pixelis.tools.vision.shapes import (
    SHAPES,
    classify_shape,
    classify_texture,
    orientation_deg,
    parse_shape,
    segment_figure,
)

AGREED = {
    "red": [(255, 0, 0), (220, 20, 60), (139, 0, 0), (214, 39, 40)],
    "orange": [(255, 165, 0), (255, 140, 0), (255, 127, 14)],
    "yellow": [(255, 255, 0), (255, 215, 0)],
    "green": [(0, 255, 0), (0, 128, 0), (34, 139, 34), (128, 128, 0), (154, 205, 50)],
    "cyan": [(0, 255, 255), (0, 128, 128), (64, 224, 208)],
    "blue": [(0, 0, 255), (0, 0, 128), (30, 144, 255), (70, 130, 180), (135, 206, 235)],
    "purple": [(128, 0, 128), (75, 0, 130), (138, 43, 226), (148, 103, 189)],
    "pink": [(255, 192, 203), (255, 105, 180), (255, 20, 147)],
    "brown": [(139, 69, 19), (101, 67, 33), (160, 82, 45)],
    "beige": [(245, 245, 220), (210, 180, 140), (245, 222, 179)],
    "white": [(255, 255, 255), (245, 245, 245)],
    "grey": [(128, 128, 128), (192, 192, 192), (80, 80, 80), (112, 128, 144)],
    "black": [(0, 0, 0), (25, 25, 25)],
}


@pytest.mark.parametrize("name", COLOURS)
def test_web_colours_have_their_everyday_names(name):
    assert {colour_name(rgb) for rgb in AGREED[name]} == {name}


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("gray", "grey"), ("violet", "purple"), ("magenta", "pink"), ("navy", "blue"), ("teal", "cyan"),
        ("Reddish", "red"), ("bluish", "blue"), (" tan ", "beige"), ("dog", None), ("", None), ("ish", None),
    ],
)  # fmt: skip
def test_words_for_colours_are_understood(word, name):
    assert parse_colour(word) == name


def test_every_pixel_has_one_name_and_membership_says_the_same():
    image = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    names = index_map(image)
    for i, name in enumerate(COLOURS):
        tight, loose = colour_mask(image, name), colour_mask(image, name, loose=True)
        assert np.array_equal(tight, names == i)
        assert not (tight & ~loose).any()


def test_a_shaded_red_ball_is_red_all_over():
    y, x = np.mgrid[-50:51, -50:51]
    inside = x**2 + y**2 <= 50**2
    light = np.clip(0.25 + 0.75 * (1 - np.hypot(x + 15, y + 15) / 90), 0, 1)  # a quarter of the light on the far side
    ball = (light[..., None] * [220, 30, 30]).astype(np.uint8)[inside]
    (name, share), *_ = dominant_colours(ball)
    assert name == "red"
    assert share > 0.9


def test_a_flag_of_two_halves_has_two_colours_of_half_each():
    flag = np.array([[0, 0, 255]] * 50 + [[255, 255, 0]] * 50, dtype=np.uint8)
    assert dict(dominant_colours(flag)) == {"blue": 0.5, "yellow": 0.5}


def test_no_pixels_have_no_colour():
    assert dominant_colours(np.zeros((0, 3), dtype=np.uint8)) == []


def polygon(points, size=400):
    mask = np.zeros((size, size), np.uint8)
    cv2.fillPoly(mask, [np.round(np.asarray(points) * 16).astype(np.int32)], 1, shift=4)
    return mask.astype(bool)


def regular(corners, radius, turn, inner=None):
    count = corners * (2 if inner else 1)
    angle = np.deg2rad(turn) + np.arange(count) * 2 * np.pi / count
    reach = np.where(np.arange(count) % 2 == 0, radius, radius * inner) if inner else np.full(count, radius)
    return np.stack([200 + reach * np.cos(angle), 200 + reach * np.sin(angle)], axis=1)


def turned(points, turn):
    cos, sin = np.cos(np.deg2rad(turn)), np.sin(np.deg2rad(turn))
    return np.asarray(points) @ np.array([[cos, sin], [-sin, cos]]) + 200


def oval(a, b, turn):
    mask = np.zeros((400, 400), np.uint8)
    cv2.ellipse(mask, (200, 200), (a, b), turn, 0, 360, 1, -1)
    return mask.astype(bool)


PLUS = [[-1, -3], [1, -3], [1, -1], [3, -1], [3, 1], [1, 1], [1, 3], [-1, 3], [-1, 1], [-3, 1], [-3, -1], [-1, -1]]
FIGURES = {
    "circle": lambda r, turn: oval(r, r, 0),
    "ellipse": lambda r, turn: oval(r, int(0.6 * r), turn),
    "rectangle": lambda r, turn: polygon(turned(np.array([[-1, -0.5], [1, -0.5], [1, 0.5], [-1, 0.5]]) * r, turn)),
    "bar": lambda r, turn: polygon(turned(np.array([[-1, -0.1], [1, -0.1], [1, 0.1], [-1, 0.1]]) * r, turn)),
    "triangle": lambda r, turn: polygon(regular(3, r, turn)),
    "square": lambda r, turn: polygon(regular(4, r, 45 + turn / 5)),
    "diamond": lambda r, turn: polygon(np.array([[0, -1], [0.7, 0], [0, 1], [-0.7, 0]]) * r + 200),
    "pentagon": lambda r, turn: polygon(regular(5, r, turn)),
    "hexagon": lambda r, turn: polygon(regular(6, r, turn)),
    "star": lambda r, turn: polygon(regular(5, r, turn, inner=0.42)),
    "cross": lambda r, turn: polygon(turned(np.array(PLUS) * r / 3, turn)),
    "ring": lambda r, turn: oval(r, r, 0) & ~oval(int(0.6 * r), int(0.6 * r), 0),
}


@pytest.mark.parametrize("name", sorted(FIGURES))
@pytest.mark.parametrize("radius", [14, 40, 150])
@pytest.mark.parametrize("turn", [0, 13, 41, 77])
def test_drawn_figures_are_named_whatever_their_size_and_turn(name, radius, turn):
    found = classify_shape(FIGURES[name](radius, turn))
    assert found.name == name
    assert 0.8 <= found.score <= 1.0


def test_an_empty_mask_has_no_shape_and_no_direction():
    empty = np.zeros((20, 30), bool)
    assert classify_shape(empty) == ("irregular", 0.0)
    assert orientation_deg(empty) is None


@pytest.mark.parametrize("degrees", [0, 30, 60, 90, -30, -60])
def test_the_long_axis_is_measured_counter_clockwise_as_seen(degrees):
    bar = FIGURES["bar"](100, -degrees)  # y points down: a turn by -30 in pixels is seen as +30
    assert orientation_deg(bar) == pytest.approx(degrees, abs=1.0)


def test_a_square_has_no_direction():
    assert orientation_deg(FIGURES["square"](60, 0)) is None


@pytest.mark.parametrize(
    ("word", "name"),
    [("discs", "circle"), ("oval", "ellipse"), ("boxes", "rectangle"), ("Star", "star"), ("dog", None)],
)
def test_words_for_shapes_are_understood(word, name):
    assert parse_shape(word) == name


@given(st.integers(1, 24), st.integers(1, 24), st.randoms(use_true_random=False))
@settings(max_examples=60)
def test_any_mask_has_a_known_shape(width, height, random):
    mask = np.array([[random.random() < 0.5 for _ in range(width)] for _ in range(height)])
    found = classify_shape(mask)
    assert found.name in SHAPES
    assert 0.0 <= found.score <= 1.0


Y, X = np.mgrid[:120, :160]
PATTERNS = {
    "plain": np.full((120, 160), 80),
    "striped": 127 + 100 * (X // 10 % 2),
    "checkered": 50 + 150 * ((X // 12 + Y // 12) % 2),
    "noisy": np.random.default_rng(0).integers(0, 256, (120, 160)),
}


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_drawn_patterns_are_named(name):
    assert classify_texture(PATTERNS[name].astype(np.uint8), np.ones((120, 160), bool)).name == name


def test_slow_shading_is_plain_and_one_edge_is_no_stripe():
    everywhere = np.ones((120, 160), bool)
    assert classify_texture((60 + X * 0.8).astype(np.uint8), everywhere).name == "plain"
    assert classify_texture((50 + 150 * (X > 80)).astype(np.uint8), everywhere).name == "textured"


def test_a_disc_in_a_box_is_told_apart_from_the_sky_around_it():
    frame = np.full((200, 300, 3), (135, 206, 235), np.uint8)
    cv2.circle(frame, (150, 100), 40, (200, 30, 30), -1)
    found = segment_figure(frame, (105, 55, 195, 145))
    truth = np.zeros((200, 300), np.uint8)
    cv2.circle(truth, (150, 100), 40, 1, -1)
    inside = truth[55:145, 105:195].astype(bool)
    assert (found & inside).sum() / (found | inside).sum() > 0.95


def test_a_box_that_fills_the_frame_has_no_ground():
    assert segment_figure(np.zeros((50, 60, 3), np.uint8), (0, 0, 60, 50)) is None
