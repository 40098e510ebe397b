"""Shifts: pixels change, sizes stay, the same seed gives the same bytes, and references stay true."""

from __future__ import annotations

import numpy as np
import pytest

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Mask, Track
from pixelis.world import SHIFTS, RenderedItem, apply_shift, generate, shift_item, template


@pytest.fixture(scope="module")
def picture() -> RenderedItem:
    return generate("choice", seed=2, difficulty=2, template_id="choice.extreme")


@pytest.fixture(scope="module")
def clip() -> RenderedItem:
    return generate("motion", seed=2, difficulty=2, template_id="motion.mover")


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_shift_changes_pixels_and_keeps_its_promise_about_size(shift: str, clip: RenderedItem) -> None:
    before = clip.media[0]
    (after,) = apply_shift(shift, 3, 0, clip.media)
    assert after.sha256 != before.sha256
    assert after.frame_count == before.frame_count
    assert after.duration_s == pytest.approx(before.duration_s)
    if shift == "resize":
        assert 0.0 < abs(after.size.width / before.size.width - 1.0) <= 0.0201
    else:
        assert after.size == before.size


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_shift_is_the_same_for_the_same_seed(shift: str, clip: RenderedItem) -> None:
    one, again, other = (apply_shift(shift, 4, seed, clip.media)[0].sha256 for seed in (1, 1, 2))
    assert one == again
    if shift not in (
        "jpeg",
        "video_compression",
        "contrast",
        "resize",
        "motion_blur",
    ):  # these choose little or nothing
        assert one != other


@pytest.mark.parametrize("shift", ["lighting", "contrast", "motion_blur", "noise", "jpeg", "occlusion"])
def test_severity_takes_a_picture_further_away(shift: str, picture: RenderedItem) -> None:
    clean = picture.media[0].frame(0).astype(int)
    seeds = range(6)
    far = [
        np.mean(
            [
                np.abs(apply_shift(shift, s, seed, picture.media)[0].frame(0).astype(int) - clean).mean()
                for seed in seeds
            ]
        )
        for s in (1, 3, 5)
    ]
    assert far[0] < far[1] < far[2]


def test_resize_keeps_within_two_percent_at_every_severity(picture: RenderedItem) -> None:
    for severity in range(1, 6):
        (after,) = apply_shift("resize", severity, 3, picture.media)
        assert abs(after.size.width / picture.media[0].size.width - 1) <= 0.02


def test_jitter_shows_each_track_where_its_frame_says(clip: RenderedItem) -> None:
    moved = shift_item(clip, "frame_jitter", 5, seed=1)
    source = {clip.media[0].frame(i).tobytes(): i for i in range(clip.media[0].frame_count)}
    order = [source[moved.media[0].frame(i).tobytes()] for i in range(moved.media[0].frame_count)]
    assert max(abs(a - b) for a, b in enumerate(order)) == 1
    for before, after in zip(clip.item.references, moved.item.references, strict=True):
        if isinstance(before.footprint, Track) and isinstance(after.footprint, Track):
            for frame in after.footprint.frames:
                assert after.footprint.box_at(frame) == before.footprint.box_at(order[frame])


def test_occlusion_takes_what_it_hides_out_of_the_masks(picture: RenderedItem) -> None:
    hidden = shift_item(picture, "occlusion", 5, seed=4)
    changed = picture.media[0].frame(0) != hidden.media[0].frame(0)
    fewer = 0
    for before, after in zip(picture.item.references, hidden.item.references, strict=True):
        if isinstance(before.footprint, Mask) and isinstance(after.footprint, Mask):
            lost = before.footprint.array & ~after.footprint.array
            assert changed.any(axis=2)[lost].mean() > 0.9 if lost.any() else True
            fewer += bool(lost.any())
    assert fewer > 0


def test_a_shifted_item_says_so_and_asks_the_same(picture: RenderedItem) -> None:
    noisy = shift_item(picture, "noise", 3, seed=9)
    assert noisy.item.shift is not None
    assert (noisy.item.shift.name, noisy.item.shift.severity) == ("noise", 3)
    assert noisy.item.question == picture.item.question
    assert noisy.item.answer == picture.item.answer
    assert noisy.item.media[0].sha256 == noisy.media[0].sha256 != picture.media[0].sha256


def test_a_shift_that_does_not_exist_is_refused(picture: RenderedItem) -> None:
    with pytest.raises(ConfigError, match="there is no shift 'rain'"):
        apply_shift("rain", 1, 0, picture.media)
    with pytest.raises(ConfigError, match="severity 6"):
        apply_shift("noise", 6, 0, picture.media)


def test_an_item_under_a_shift_is_still_answered_by_its_references() -> None:
    for family, shift in (("choice", "occlusion"), ("space", "occlusion"), ("motion", "frame_jitter")):
        for seed in range(40):
            made = shift_item(generate(family, seed=seed), shift, 5, seed=seed)  # type: ignore[arg-type]
            found = template(made.item.template).solve(made.item.references, made.item.parameters)
            assert found == made.item.answer_text, made.item.id
