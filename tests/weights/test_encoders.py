"""The frozen encoders, on words and pictures whose likeness is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pixelis.weights import fingerprint, is_available
from pixelis.weights.encoders.text_encoder import TextEncoder
from pixelis.weights.encoders.visual_encoder import VisualEncoder, preprocess

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def text() -> TextEncoder:
    if not (is_available("minilm") and is_available("minilm-tokenizer")):
        pytest.skip("run `pixelis models pull minilm`")
    return TextEncoder()


@pytest.fixture(scope="module")
def visual() -> VisualEncoder:
    if not (is_available("efficientnet-lite0") and is_available("imagenet-labels")):
        pytest.skip("run `pixelis models pull efficientnet-lite0 imagenet-labels`")
    return VisualEncoder()


def test_two_sentences_are_as_alike_as_the_full_precision_model_says(text: TextEncoder) -> None:
    a, b, c = text.embed(["A man is eating food.", "A man is eating a piece of bread.", "The girl is carrying a baby."])
    assert a @ b == pytest.approx(0.7553, abs=0.02)  # published for all-MiniLM-L6-v2 in float32
    assert abs(a @ c) < 0.15


def test_a_sentence_has_the_same_vector_whatever_stands_beside_it(text: TextEncoder) -> None:
    alone = text.embed(["a red bus"])[0]
    beside = text.embed(["a red bus", "a very long sentence about something else entirely " * 20])[0]
    assert alone.tobytes() == beside.tobytes()


def test_any_text_has_a_unit_vector(text: TextEncoder) -> None:
    vectors = text.embed(["", "🦊", "word " * 5000])
    assert vectors.shape == (3, text.dimensions)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert text.embed([]).shape == (0, 384)
    assert text.fingerprint == fingerprint("minilm")


def test_a_picture_of_any_shape_has_a_unit_vector(visual: VisualEncoder) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (h, w, 3), dtype=np.uint8) for h, w in ((1, 1), (3, 500), (300, 200))]
    vectors = visual.embed(pictures)
    assert vectors.shape == (3, visual.dimensions)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-6)
    assert visual.embed([]).shape == (0, 1280)
    assert visual.embed(pictures[2:])[0].tobytes() == vectors[2].tobytes()
    assert visual.fingerprint == fingerprint("efficientnet-lite0")


def test_black_and_white_are_scaled_as_the_network_was_trained() -> None:
    assert preprocess(np.zeros((5, 5, 3), np.uint8))[0, 0, 0, 0] == pytest.approx(-127 / 128)
    assert preprocess(np.full((5, 5, 3), 255, np.uint8)).max() == pytest.approx(1.0)


def test_a_truck_is_called_one_and_its_mirror_image_is_nearer_than_groceries(
    visual: VisualEncoder, realdata: Path
) -> None:
    truck, groceries = (
        np.asarray(Image.open(realdata / "seg" / f"sam2_{name}.jpg").convert("RGB")) for name in ("truck", "groceries")
    )
    top = visual.labels([truck], k=3)[0]
    assert {"pickup", "moving van"} <= {label.name for label in top}
    assert top[0].score >= top[1].score >= top[2].score > 0
    a, mirrored, b = visual.embed([truck, truck[:, ::-1].copy(), groceries])
    assert a @ mirrored > 0.9 > a @ b


def test_the_encoders_run_without_torch(text: TextEncoder, visual: VisualEncoder) -> None:
    code = (
        "import sys, numpy as np\n"
        "from pixelis.weights.encoders.text_encoder import TextEncoder\n"
        "from pixelis.weights.encoders.visual_encoder import VisualEncoder\n"
        "TextEncoder().embed(['a']), VisualEncoder().embed([np.zeros((9, 9, 3), np.uint8)])\n"
        "assert 'torch' not in sys.modules and 'onnx' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
