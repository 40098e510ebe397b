"""Footprints as SVG, in the pixels of what they are drawn on."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from pixelis.core.geometry import Box, Mask, Size, Span, TextSpan, Track
from pixelis.view.draw import SvgCanvas, clean, draw, make_marks

HUNDRED = SvgCanvas(Size(200, 100))


def parsed(footprints, canvas=HUNDRED):
    markup = draw(make_marks(footprints, "s1"), canvas)
    return ET.fromstring(f"<svg>{markup}</svg>")  # noqa: S314 - our own markup, and this is the proof that it is XML


def numbers(text):
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", text)]


def test_a_box_lies_where_its_unit_coordinates_say():
    rect = parsed([Box(x0=0.25, y0=0.5, x1=0.75, y1=0.9)]).find(".//rect")
    assert [float(rect.get(k)) for k in ("x", "y", "width", "height")] == [50, 50, 100, 40]


def test_on_a_view_a_box_of_the_source_is_moved_into_the_views_pixels():
    view = SvgCanvas(Size(200, 100), window=(0.5, 0.5, 1.0, 1.0))
    rect = parsed([Box(x0=0.5, y0=0.5, x1=0.75, y1=1.0)], view).find(".//rect")
    assert [float(rect.get(k)) for k in ("x", "y", "width", "height")] == [0, 0, 100, 100]


def test_a_masks_outline_encloses_the_masks_area_and_keeps_its_hole():
    grid = np.zeros((100, 200), dtype=bool)
    grid[20:80, 40:160] = True
    grid[40:60, 80:120] = False
    path = parsed([Mask.from_array(grid)]).find(".//path")
    rings = [numbers(ring) for ring in path.get("d").split("M")[1:]]
    assert path.get("fill-rule") == "evenodd"
    assert len(rings) == 2
    corners = [np.array(ring).reshape(-1, 2) for ring in rings]
    areas = [abs(np.dot(c[:, 0], np.roll(c[:, 1], 1)) - np.dot(c[:, 1], np.roll(c[:, 0], 1))) / 2 for c in corners]
    assert areas[0] == pytest.approx(120 * 60, rel=0.05)
    assert areas[1] == pytest.approx(40 * 20, rel=0.15)


def test_text_runs_along_its_own_direction():
    upward = ((0.5, 0.9), (0.5, 0.1), (0.55, 0.1), (0.55, 0.9))
    text = parsed([TextSpan(text="UP", quad=upward)]).find(".//text")
    assert "rotate(-90.00)" in text.get("transform")
    assert numbers(text.get("transform"))[:2] == [100, 90]
    assert float(text.get("textLength")) == pytest.approx(0.97 * 80)


def test_a_track_shows_its_way_and_its_box_on_this_frame():
    track = Track(track_id=11, label="dog", frames=(0, 5), boxes=((0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 1.0, 1.0)))
    seen = parsed([track], HUNDRED._replace(frame=5))
    assert numbers(seen.find(".//polyline").get("points"))[:4] == [50, 25, 150, 75]
    assert float(seen.find(".//rect").get("x")) == 100
    assert "".join(seen.find(".//text").itertext()) == "dog 11"
    assert "c3" in seen.find(".//g").get("class")  # 11 modulo 8: the id, not the place in the list
    between = parsed([track], HUNDRED._replace(frame=3))
    assert between.find(".//rect") is None
    assert between.find(".//polyline").get("class") == "trail ahead"
    assert parsed([track], HUNDRED._replace(frame=9)).find(".//g") is None


def test_what_lies_on_another_frame_or_in_time_only_is_not_drawn():
    assert len(parsed([Box(frame=3, x0=0, y0=0, x1=1, y1=1), Span(start_s=0, end_s=1)])) == 0


def test_hostile_labels_stay_text():
    label = "</text><script>alert(1)</script>"
    quad = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))
    for footprint in (Box(x0=0, y0=0, x1=1, y1=1, label=label), TextSpan(text=label, quad=quad)):
        tree = parsed([footprint])
        assert tree.find(".//script") is None
        assert label in "".join(tree.itertext())


def test_control_characters_are_made_visible():
    assert clean("a\x00b\x1b[31m\u202e\n") == "a\ufffdb\ufffd[31m\ufffd\n"
    parsed([Box(x0=0, y0=0, x1=1, y1=1, label="a\x00\x07")])


def test_a_mask_outside_of_the_window_is_not_drawn():
    grid = np.zeros((10, 10), dtype=bool)
    grid[0, 0] = True
    assert len(parsed([Mask.from_array(grid)], SvgCanvas(Size(50, 50), window=(0.5, 0.5, 1.0, 1.0)))) == 0
