"""Necessity labels: perturbations by hand on references that fit on the back of an envelope."""

from __future__ import annotations

import numpy as np
import pytest

from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track
from pixelis.items import MediumFacts
from pixelis.world import Reference
from pixelis.world.programs import GRID_SIDE_PX, Facts, displacement, heading, line_text
from pixelis.world.tool_necessity import (
    NecessityCase,
    compute_necessities,
    mask_characters,
    move_span,
    replace_property,
    resize_region,
    shuffle_identities,
)

FRAME = MediumFacts(name="Image_0", sha256="0" * 64, width=GRID_SIDE_PX, height=GRID_SIDE_PX)
GROUND = Reference(name="ground", footprint=Box(label="ground", x0=0, y0=0, x1=1, y1=1), properties={"colour": "brown"})


def square(name: str, left: int, top: int, side: int, colour: str = "red") -> Reference:
    grid = np.zeros((GRID_SIDE_PX, GRID_SIDE_PX), dtype=bool)
    grid[top : top + side, left : left + side] = True
    return Reference(name=name, footprint=Mask.from_array(grid, label="red square"), properties={"colour": colour})


def colour_case(side: int) -> NecessityCase:
    thing = square("thing", 100, 100, side)
    return NecessityCase(
        program=lambda facts: str(facts.region("red square").properties["colour"]),
        score=lambda answer: float(answer == "red"),
        references=(GROUND, thing),
        evidence=frozenset({"thing"}),
        parameters={"attribute": "colour"},
        media=(FRAME,),
        reads_operands=False,
        seed=1,
    )


def test_of_a_small_thing_dilated_by_eight_pixels_the_ground_is_most() -> None:
    grown = resize_region(square("thing", 100, 100, 20), 8, [GROUND])  # 400 of about 1,237 cells
    assert grown is not None
    assert grown.properties["colour"] == "brown"


def test_a_large_thing_stays_itself_dilated_and_eroded() -> None:
    for by in (8, -8):
        kept = resize_region(square("thing", 100, 100, 90), by, [GROUND])
        assert kept is not None
        assert kept.properties["colour"] == "red"
    shrunk = resize_region(square("thing", 100, 100, 90), -8, [GROUND])
    assert shrunk is not None
    assert isinstance(shrunk.footprint, Mask)
    assert shrunk.footprint.area == pytest.approx(74 * 74 / GRID_SIDE_PX**2)


def test_a_thing_of_sixteen_pixels_is_eroded_away() -> None:
    assert resize_region(square("thing", 100, 100, 16), -8, [GROUND]) is None


def test_the_colour_of_a_small_thing_needs_seg_and_prop_and_that_of_a_large_one_nothing() -> None:
    small, large = compute_necessities(colour_case(20)), compute_necessities(colour_case(90))
    assert {tool for tool, label in small.items() if label.required} == {"SEG", "PROP"}
    assert not any(label.required for label in large.values())
    assert large["PROP"].perturbed_answer != "red"  # the test ran, but a glance settles the colour
    assert small["SEG"].answer == "red"
    assert small["SEG"].perturbed_answer == "brown"


def test_what_is_under_fourteen_pixels_needs_zoom() -> None:
    tiny = compute_necessities(colour_case(13))["ZOOM"]
    assert tiny.required
    assert tiny.perturbed_answer == ""


def test_two_things_that_grow_together_count_as_one() -> None:
    pair = [square("a", 100, 100, 30), square("b", 140, 100, 30)]
    assert Facts(pair).count("red square") == 2
    grown = [r for thing in pair if (r := resize_region(thing, 8, [GROUND])) is not None]
    assert Facts(grown).count("red square") == 1


def test_masked_text_says_nothing() -> None:
    quad = ((0.1, 0.1), (0.3, 0.1), (0.3, 0.2), (0.1, 0.2))
    blotted = mask_characters(Reference(name="t", footprint=TextSpan(text="Room: K7-42", quad=quad)))
    assert line_text(Facts([blotted]).lines()[0]) == "####: ##-##"


def walk(name: str, number: int, ends: tuple[float, float]) -> Reference:
    xs = np.linspace(*ends, 5)
    boxes = tuple((x, 0.4, x + 0.1, 0.5) for x in (round(float(v), 3) for v in xs))
    return Reference(name=name, footprint=Track(label=name, track_id=number, frames=tuple(range(5)), boxes=boxes))


def test_shuffled_identities_end_elsewhere_but_begin_where_they_were() -> None:
    before = [walk("a", 0, (0.1, 0.4)), walk("b", 1, (0.8, 0.5))]
    after = shuffle_identities(before, seed=3)
    first, second = Facts(after).track("a"), Facts(before).track("b")
    assert first.boxes[0] == Facts(before).track("a").boxes[0]
    assert first.boxes[-1] == second.boxes[-1]
    assert heading(*displacement(Facts(before).track("a"), 1.0)) == "right"


def test_a_track_alone_has_nobody_to_swap_with() -> None:
    alone = [walk("a", 0, (0.1, 0.4))]
    assert shuffle_identities(alone, seed=3) == alone


def test_a_random_window_is_as_long_and_shares_less_than_half() -> None:
    true = Reference(name="s", footprint=Span(start_s=4.0, end_s=6.0))
    for seed in range(20):
        window = move_span(true, 12.0, np.random.default_rng(seed)).footprint
        assert isinstance(window, Span)
        assert window.seconds == pytest.approx(2.0)
        assert min(window.end_s, 6.0) - max(window.start_s, 4.0) < 1.0


def test_a_replaced_property_is_another_of_its_kind() -> None:
    thing = Reference(name="t", footprint=GROUND.footprint, properties={"colour": "red", "width": 4.0})
    assert replace_property(thing, "colour").properties["colour"] == "orange"
    assert replace_property(thing, "width").properties["width"] == pytest.approx(7.0)
