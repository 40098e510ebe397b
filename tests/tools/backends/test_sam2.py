"""SAM 2: prompts and kept embeddings by hand; the real network on a drawn disc and on a photograph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from pixelis.core.errors import ToolError, WeightsError
from pixelis.core.geometry import PixelBox, Size
from pixelis.tools.backends.sam2 import Embedding, Sam2, build_prompt, preprocess, rank_candidates
from pixelis.tools.backends.sam2_transformers import Sam2Transformers
from pixelis.weights import is_available

Bools = NDArray[np.bool_]


def iou(a: Bools, b: Bools) -> float:
    return float((a & b).sum() / (a | b).sum())


def ellipse(size: Size, box: PixelBox) -> Bools:
    """The ellipse that fills a box."""
    y, x = np.mgrid[: size.height, : size.width] + 0.5
    cx, cy = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    return np.asarray(
        ((x - cx) / (box.right - box.left)) ** 2 + ((y - cy) / (box.bottom - box.top)) ** 2 <= 0.25, dtype=bool
    )


def test_a_box_comes_before_the_clicks_with_the_labels_two_and_three() -> None:
    points, labels = build_prompt([(5, 6)], [0], PixelBox(1, 2, 3, 4))
    assert points.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert labels.tolist() == [2, 3, 0]


def test_clicks_without_labels_are_inside_and_arrays_are_welcome() -> None:
    assert build_prompt(np.array([[5.5, 6.5]]), None, None)[1].tolist() == [1]
    assert build_prompt(np.array([[5.5, 6.5]]), np.array([1]), None)[1].tolist() == [1]


@pytest.mark.parametrize(("points", "labels"), [(None, None), ([], []), ([(1, 2)], [1, 0]), ([(1, 2)], [2])])
def test_a_prompt_that_says_nothing_or_is_mislabelled_is_refused(points: object, labels: object) -> None:
    with pytest.raises(ToolError, match="SAM 2 wants"):
        build_prompt(points, labels, None)  # type: ignore[arg-type]


def test_white_becomes_the_official_normalised_white() -> None:
    pixels = preprocess(np.full((10, 20, 3), 255, np.uint8), 32)
    assert pixels.shape == (1, 3, 32, 32)
    assert pixels[0, :, 5, 5] == pytest.approx([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])


def test_one_click_prefers_the_whole_over_a_part_of_about_the_same_score() -> None:
    logits = np.full((3, 8, 8), -1, np.float32)
    logits[0, :2, :2] = 1  # the part: 4 of 64 cells
    logits[1, :, :4] = 1  # the whole: 32 of 64 cells
    scores = np.array([0.9, 0.8, 1.0], np.float32)  # the third is empty
    # 0.9 + 0.1 ln(1/16) = 0.623; 0.8 + 0.1 ln(1/2) = 0.731
    by_click = rank_candidates(logits, scores, Size(16, 8), one_click=True)
    by_box = rank_candidates(logits, scores, Size(16, 8), one_click=False)
    assert [segment.score for segment in by_click] == pytest.approx([0.8, 0.9])
    assert [segment.score for segment in by_box] == pytest.approx([0.9, 0.8])
    assert by_click[0].mask.shape == (8, 16)


def test_an_embedding_comes_back_from_its_bytes_unchanged() -> None:
    rng = np.random.default_rng(0)
    embedding = Embedding.from_features([rng.normal(size=(1, 2, 4, 4)).astype(np.float32) for _ in range(3)])
    again = Embedding.from_bytes(embedding.to_bytes())
    assert all(np.array_equal(a, b) for a, b in zip(embedding.features, again.features, strict=True))
    assert again.to_bytes() == embedding.to_bytes()


def test_bytes_that_are_no_embedding_are_refused_whatever_they_are(tmp_path: Path) -> None:
    whole = Embedding.from_features([np.zeros((1, 2, 4, 4), np.float32)]).to_bytes()
    np.savez(tmp_path / "objects.npz", np.array([{"a": 1}], dtype=object))
    np.savez(tmp_path / "floats.npz", np.zeros((1, 2, 4, 4)))
    objects, floats = ((tmp_path / name).read_bytes() for name in ("objects.npz", "floats.npz"))
    for content in (b"", b"nonsense", whole[:100], whole[:-30], objects, floats):
        with pytest.raises(ToolError, match="pixelis cache clear"):
            Embedding.from_bytes(content)


@pytest.fixture(scope="module")
def sam2() -> Sam2:
    if not (is_available("sam2-tiny-encoder") and is_available("sam2-tiny-decoder")):
        pytest.skip("run `pixelis models pull sam2-tiny-encoder`")
    return Sam2()


@pytest.mark.weights
def test_a_disc_is_found_from_a_click_and_from_its_box_and_again_from_the_cache(sam2: Sam2) -> None:
    size, box = Size(640, 480), PixelBox(300, 120, 500, 320)
    disc = ellipse(size, box)
    image = np.random.default_rng(0).normal(120, 6, (480, 640, 3))
    image[disc] = (200, 40, 30)
    embedding = sam2.embed(image.clip(0, 255).astype(np.uint8))
    clicked = sam2.segment(embedding, size, points=[(400, 220)])
    boxed = sam2.segment(embedding, size, box_px=box)
    assert iou(clicked[0].mask, disc) > 0.97
    assert iou(boxed[0].mask, disc) > 0.97
    kept = sam2.segment(sam2.restore(embedding.to_bytes()), size, box_px=box)
    assert kept[0].mask.tobytes() == boxed[0].mask.tobytes()
    assert kept[0].score == boxed[0].score


@pytest.mark.weights
def test_the_wheel_of_a_photographed_truck_is_cut_out_of_its_box(sam2: Sam2, realdata: Path) -> None:
    image = np.asarray(Image.open(realdata / "seg" / "sam2_truck.jpg").convert("RGB"))
    size = Size(image.shape[1], image.shape[0])
    loose = PixelBox(425, 600, 700, 875)  # of SAM's own notebook
    wheel = PixelBox(445, 626, 678, 853)  # read off the picture: the tyre is nearly round
    best = sam2.segment(sam2.embed(image), size, box_px=loose)[0]
    assert iou(best.mask, ellipse(size, wheel)) > 0.93
    assert best.score > 0.9


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random SAM 2 of the same class as the published ones, a hundredth of their size."""
    import torch
    from transformers import Sam2Config, Sam2HieraDetConfig, Sam2Model, Sam2VisionConfig

    torch.manual_seed(0)
    side = 128
    hiera = Sam2HieraDetConfig(
        hidden_size=8,
        num_attention_heads=1,
        image_size=[side, side],
        blocks_per_stage=[1, 2, 2, 1],
        embed_dim_per_stage=[8, 16, 32, 64],
        num_attention_heads_per_stage=[1, 2, 4, 8],
        window_size_per_stage=[4, 4, 4, 4],
        window_positional_embedding_background_size=[7, 7],
        global_attention_blocks=[4],
    )
    vision = Sam2VisionConfig(
        backbone_config=hiera,
        backbone_channel_list=[64, 32, 16, 8],
        backbone_feature_sizes=[[32, 32], [16, 16], [8, 8]],
        fpn_hidden_size=32,
    )
    config = Sam2Config(
        vision_config=vision,
        prompt_encoder_config={"hidden_size": 32, "image_size": side, "patch_size": 16},
        mask_decoder_config={"hidden_size": 32, "mlp_dim": 64, "num_attention_heads": 2, "iou_head_hidden_dim": 32},
    )
    folder = tmp_path_factory.mktemp("sam2")
    Sam2Model(config).save_pretrained(folder)
    return folder


def test_a_random_model_of_transformers_answers_the_same_calls(tiny_model: Path) -> None:
    model = Sam2Transformers(tiny_model)
    image = np.random.default_rng(0).integers(0, 255, (60, 90, 3), dtype=np.uint8)
    embedding = model.embed(image)
    first = model.segment(embedding, Size(90, 60), points=[(40, 30)], labels=[1], box_px=PixelBox(10, 10, 80, 50))
    again = model.segment(model.restore(embedding.to_bytes()), Size(90, 60), points=[(40, 30)], box_px=(10, 10, 80, 50))
    assert all(segment.mask.shape == (60, 90) and 0 <= segment.score <= 1 for segment in first)
    assert [s.mask.tobytes() for s in first] == [s.mask.tobytes() for s in again]
    assert len(model.fingerprint) == 64


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no SAM 2 model there"):
        Sam2Transformers(tmp_path)
