"""Pictures cut into patches, against transformers' own processor."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image as Pil

from pixelis.policy.images import ImageProcessorConfig, extract_patches, fit_token_grid, preprocess


@pytest.mark.parametrize("least", [1, 70 * 70])
@pytest.mark.parametrize("size", [(240, 320), (96, 96), (33, 500), (480, 100), (20, 31)])
def test_patches_are_those_of_transformers(size: tuple[int, int], least: int):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=8, merge_size=2, temporal_patch_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
        size={"shortest_edge": least, "longest_edge": 96 * 96},
    )  # fmt: skip
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = processor(Pil.fromarray(pixels), return_tensors="np")
    optics = ImageProcessorConfig(patch=8, least_pixels=least)
    ours = preprocess("Image_0", pixels, 96 * 96, optics)
    assert theirs["image_grid_thw"].tolist() == [[1, 2 * ours.rows, 2 * ours.columns]]
    assert np.abs(theirs["pixel_values"] - extract_patches(ours, optics)).max() < 1e-6


def test_a_picture_keeps_its_shape_within_its_budget():
    assert fit_token_grid(512, 512, 96 * 96, 16) == (6, 6)
    assert fit_token_grid(1280, 960, 96 * 96, 16) == (
        5,
        6,
    )  # 96·(3/4)^½ = 83.1 high and 110.9 wide: 5 and 6 cells of 16
    assert fit_token_grid(40, 40, 96 * 96, 16) == (2, 2)  # never enlarged beyond the nearest cells


def test_a_line_of_pixels_is_still_a_picture():
    assert fit_token_grid(5000, 1, 96 * 96, 16)[0] >= 1
    assert (
        preprocess("Image_0", np.zeros((1, 5000, 3), np.uint8), 96 * 96, ImageProcessorConfig(patch=8)).token_count
        <= 36
    )
