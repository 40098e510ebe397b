"""Verifiers against references whose scores were worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import Field

from pixelis.core.geometry import Box, Footprint, Mask, Span, TextSpan, Track, Value
from pixelis.media import ViewRecipe
from pixelis.tools.results import ToolResult
from pixelis.verification.operators import region_overlap, verify_step


class Known(Value):
    footprint: Footprint
    properties: dict[str, str | int | float] = Field(default_factory=dict)


def known(footprint: Any, **properties: Any) -> Known:
    return Known(footprint=footprint, properties=properties)


def ok(tool: str, *footprints: Any, **fields: Any) -> ToolResult:
    return ToolResult(tool=tool, status="ok", footprints=footprints, **fields)


def mask(left: int, right: int, *, label: str = "red square", media: str = "Image_0", side: int = 20) -> Mask:
    """Columns `left` to `right` of the upper half of a grid."""
    grid = np.zeros((side, side), dtype=bool)
    grid[: side // 2, left:right] = True
    return Mask.from_array(grid, label=label, media=media)


def text(said: str, x0: float, x1: float, y0: float = 0.4) -> TextSpan:
    quad = ((x0, y0), (x1, y0), (x1, y0 + 0.1), (x0, y0 + 0.1))
    return TextSpan(text=said, quad=quad)


def test_a_region_shifted_by_half_its_width_has_a_third_of_the_union_in_common():
    verdict = verify_step(ok("SEG", mask(5, 15)), [known(mask(0, 10))])
    assert verdict is not None
    assert verdict.score == pytest.approx(1 / 3)
    assert not verdict.passed


def test_a_region_passes_at_an_iou_of_a_half():
    verdict = verify_step(ok("SEG", mask(0, 10)), [known(mask(0, 5)), known(mask(12, 15))])
    assert verdict is not None
    assert verdict.score == pytest.approx(0.5)
    assert verdict.passed


def test_a_region_on_nothing_counts_by_its_area():
    verdict = verify_step(ok("SEG", mask(0, 10), mask(16, 18)), [known(mask(0, 10))])
    assert verdict is not None
    assert verdict.score == pytest.approx(10 / 12)  # ten columns right, two on nothing


def test_masks_on_grids_of_different_size_are_compared_on_the_coarser():
    assert region_overlap(mask(0, 10), mask(0, 20, side=40)) == pytest.approx(1.0)


def test_a_region_on_a_picture_without_references_has_no_verdict():
    assert verify_step(ok("SEG", mask(0, 10, media="Image_1")), [known(mask(0, 10))]) is None


def test_a_failed_call_has_no_verdict():
    assert verify_step(ToolResult.failed("SEG", "nothing"), [known(mask(0, 10))]) is None


def test_a_crop_that_holds_half_of_a_thing_just_passes():
    box = known(Box(x0=0.4, y0=0.4, x1=0.6, y1=0.6))
    elsewhere = known(Box(x0=0.0, y0=0.0, x1=0.1, y1=0.1))
    view = ViewRecipe(media="Image_0", frame=0, box=(0.5, 0.0, 1.0, 1.0), width=10, height=10)
    verdict = verify_step(ok("ZOOM", view=view), [box, elsewhere])
    assert verdict is not None
    assert (verdict.passed, verdict.score) == (True, pytest.approx(0.5))
    missed = verify_step(ok("ZOOM", view=view), [elsewhere])
    assert missed is not None
    assert not missed.passed


def track(frames: range, shift: float = 0.0, number: int = 0, y: float = 0.4) -> Track:
    boxes = tuple((0.1 + 0.01 * f + shift, y, 0.2 + 0.01 * f + shift, y + 0.2) for f in frames)
    return Track(media="Video_0", track_id=number, frames=tuple(frames), boxes=boxes)


LOOKED = {"start_frame": 0, "end_frame": 9, "stride": 1}


def test_a_track_is_held_against_the_thing_it_began_on():
    references = [known(track(range(20))), known(track(range(20), number=1, y=0.7))]
    verdict = verify_step(ok("TRK", track(range(10), number=5), output=LOOKED), references)
    assert verdict is not None
    assert (verdict.passed, verdict.score) == (True, pytest.approx(1.0))


def test_a_track_lost_halfway_has_the_root_of_a_half_times_a_half_for_hota():
    verdict = verify_step(ok("TRK", track(range(5)), output=LOOKED), [known(track(range(20)))])
    assert verdict is not None
    assert verdict.score == pytest.approx(0.5)  # DetA 5/10, AssA 5/10


def test_a_track_beside_its_thing_fails():
    verdict = verify_step(ok("TRK", track(range(10), shift=0.5), output=LOOKED), [known(track(range(20)))])
    assert verdict is not None
    assert not verdict.passed


def test_one_wrong_letter_of_eight_passes_and_two_do_not():
    reference = known(text("Krogeand", 0.2, 0.4))
    one = verify_step(ok("OCR", text("Krogeanb", 0.2, 0.4)), [reference])
    two = verify_step(ok("OCR", text("Kroqeanb", 0.2, 0.4)), [reference])
    assert one is not None
    assert two is not None
    assert (one.passed, one.score) == (True, pytest.approx(0.875))
    assert (two.passed, two.score) == (False, pytest.approx(0.75))


def test_punctuation_and_width_of_letters_do_not_count_in_text():
    verdict = verify_step(ok("OCR", text("Ｒoom: K-42!", 0.2, 0.4)), [known(text("Room K42", 0.2, 0.4))])
    assert verdict is not None
    assert verdict.score == pytest.approx(1.0)


def test_a_letter_read_from_a_figure_weighs_as_much_as_it_is_long():
    verdict = verify_step(
        ok("OCR", text("Krogeand", 0.2, 0.4), text("O", 0.8, 0.9)), [known(text("Krogeand", 0.2, 0.4))]
    )
    assert verdict is not None
    assert verdict.score == pytest.approx(8 / 9)


def span(start: float, end: float) -> Span:
    return Span(media="Video_0", start_s=start, end_s=end)


def test_a_segment_needs_both_overlap_and_nearness():
    near = verify_step(ok("TEMP", span(1.0, 2.0), output={"frames": []}), [known(span(1.25, 2.0))])
    assert near is not None
    assert (near.passed, near.score, near.offset_s) == (True, pytest.approx(0.75), pytest.approx(0.125))
    far = verify_step(ok("TEMP", span(0.0, 10.0), output={"frames": []}), [known(span(3.0, 9.0))])
    assert far is not None
    assert far.score == pytest.approx(0.6)
    assert far.offset_s == pytest.approx(1.0)
    assert not far.passed


def test_frames_by_time_have_no_verdict():
    assert verify_step(ok("TEMP", span(1.0, 1.0), output={"frames": [4]}), [known(span(0.0, 2.0))]) is None


def test_a_property_matches_by_its_word():
    box = Box(x0=0.4, y0=0.4, x1=0.6, y1=0.6)
    reference = known(box, colour="red", shape="star")

    def said(**values: str) -> ToolResult:
        return ok("PROP", box, output={"properties": {k: {"value": v} for k, v in values.items()}})

    assert verify_step(said(colour="red and grey"), [reference]).passed  # type: ignore[union-attr]
    both = verify_step(said(colour="red", shape="circle"), [reference])
    assert both is not None
    assert (both.passed, both.score) == (False, pytest.approx(0.5))
    assert verify_step(said(texture="plain"), [reference]) is None
