"""Pixel similarity of copies and look-alikes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from skimage.metrics import structural_similarity

from pixelis.dedup.media_collection import MediaCollection
from pixelis.dedup.pixel_verify import DedupConfig, PixelVerifier
from pixelis.dedup.similarity import (
    ComparisonImage,
    PixelSimilarity,
    compare_images,
    hue_agreement,
    match_tones,
    small_ssim,
    stretch_affine,
)
from pixelis.dedup.synthetic_duplicates import (
    VARIANTS,
    crop_border,
    flip_horizontal,
    render_chart,
    render_slide,
    render_table,
)
from pixelis.dedup.thumbnail_match import make_thumbnail, match_thumbnails, thumbnail_correlation

Pixels = NDArray[np.uint8]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["astronaut", "coffee", "text"])
def test_a_changed_copy_is_the_same(variant: str, name: str, pictures: dict[str, Pixels]) -> None:
    found = compare_images(
        ComparisonImage.from_frame(pictures[name]), ComparisonImage.from_frame(VARIANTS[variant](pictures[name]))
    )
    assert found.overlap >= 0.97
    assert found.colour >= 0.8


@pytest.mark.parametrize("make", [render_slide, render_table, render_chart])
@pytest.mark.parametrize("variant", ["jpeg10", "crop5", "crop10", "darker"])
def test_a_changed_slide_table_or_chart_is_the_same(make: object, variant: str) -> None:
    original = make(3, template=1)  # type: ignore[operator]
    assert (
        compare_images(
            ComparisonImage.from_frame(original), ComparisonImage.from_frame(VARIANTS[variant](original))
        ).overlap
        >= 0.97
    )


@pytest.mark.parametrize("make", [render_slide, render_table, render_chart])
def test_another_content_in_the_same_template_is_not_the_same(make: object) -> None:
    a, b = (make(seed, template=1) for seed in (3, 4))  # type: ignore[operator]
    found = compare_images(ComparisonImage.from_frame(a), ComparisonImage.from_frame(b))
    assert found.ssim > 0.75  # which is why SSIM alone does not tell them apart
    assert found.overlap < 0.9


def test_a_mirror_image_is_not_the_same_until_it_is_mirrored(pictures: dict[str, Pixels]) -> None:
    a, b = (
        ComparisonImage.from_frame(pictures["astronaut"]),
        ComparisonImage.from_frame(flip_horizontal(pictures["astronaut"])),
    )
    assert compare_images(a, b).overlap < 0.5
    assert compare_images(a.mirrored, b).overlap > 0.99


def test_a_flat_picture_is_the_same_as_no_other(pictures: dict[str, Pixels]) -> None:
    black = ComparisonImage.from_frame(np.zeros((80, 100, 3), np.uint8))
    assert compare_images(black, ComparisonImage.from_frame(pictures["coffee"])).overlap < 0.5
    assert compare_images(black, black).overlap == 1.0


def test_a_picture_in_other_colours_keeps_its_structure_and_not_its_hue(pictures: dict[str, Pixels]) -> None:
    original = pictures["coffee"]
    swapped = np.ascontiguousarray(original[:, :, ::-1])
    assert compare_images(ComparisonImage.from_frame(original), ComparisonImage.from_frame(swapped)).colour < 0.5


def test_brightness_scales_a_colour_and_keeps_its_hue() -> None:
    colour = np.full((20, 20, 2), 40.0, np.float32)
    everywhere = np.ones((20, 20), bool)
    assert hue_agreement(colour, 0.5 * colour, everywhere) == 1.0
    assert hue_agreement(colour, -colour, everywhere) == 0.0
    assert hue_agreement(colour, 0 * colour, everywhere) == 1.0  # grey


def test_a_tone_curve_undoes_clipping_exactly_where_nothing_else_changed() -> None:
    source = np.tile(np.arange(0, 256, 8, dtype=np.float32), (32, 1))
    target = np.minimum(source * 1.5, 255)
    assert np.abs(match_tones(source, target, np.ones(source.shape, bool)) - target).max() < 1e-3


def test_small_ssim_is_scikit_images_for_a_picture_that_needs_no_scaling() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.random((60, 90), dtype=np.float32) * 255 for _ in range(2))
    assert small_ssim(a, b) == pytest.approx(structural_similarity(a, b, data_range=255.0))


def test_stretching_maps_corners_onto_corners() -> None:
    large, small = (
        ComparisonImage.from_frame(np.zeros((40, 80, 3), np.uint8)),
        ComparisonImage.from_frame(np.zeros((20, 20, 3), np.uint8)),
    )
    matrix = stretch_affine(large, small)  # pixel edges: -0.5 and size - 0.5
    assert matrix @ [-0.5, -0.5, 1] == pytest.approx([-0.5, -0.5])
    assert matrix @ [19.5, 19.5, 1] == pytest.approx([79.5, 39.5])


def test_a_crop_is_placed_where_it_was_cut(pictures: dict[str, Pixels]) -> None:
    original = pictures["astronaut"]  # 512 x 512
    part = np.ascontiguousarray(original[51:, 51:])  # a tenth from the left and the top
    found = match_thumbnails(make_thumbnail(original), make_thumbnail(part))
    assert found.second_is_crop
    assert (found.width, found.height) == pytest.approx((0.9, 0.9), abs=0.06)
    assert (found.left, found.top) == pytest.approx((0.1, 0.1), abs=0.04)
    assert found.score > 0.85


def test_thumbnails_of_a_crop_fit_and_those_of_strangers_do_not(pictures: dict[str, Pixels]) -> None:
    coffee = make_thumbnail(pictures["coffee"])
    assert thumbnail_correlation(coffee, make_thumbnail(crop_border(pictures["coffee"], 0.1))) > 0.8
    assert thumbnail_correlation(coffee, make_thumbnail(pictures["astronaut"])) < 0.6


@pytest.mark.parametrize(
    ("ssim", "overlap", "kind"),
    [(0.74, 0.25, "different"), (0.75, 0.0, "template"), (0.1, 0.26, "template"), (0.9, 0.9, "template")],
)
def test_what_stays_is_a_template_from_an_ssim_of_075_or_an_overlap_over_a_quarter(
    ssim: float, overlap: float, kind: str
) -> None:
    none = MediaCollection([], [])
    found = PixelSimilarity(**{**dict.fromkeys(PixelSimilarity._fields, 1.0), "ssim": ssim, "overlap": overlap})
    assert PixelVerifier(none, none, DedupConfig(), 0.7)._classify_different(found) == kind
    assert (
        PixelVerifier(none, none, DedupConfig(template_ssim=1.0, template_overlap=1.0), 0.7)._classify_different(found)
        == "different"
    )
