"""The two networks of PP-OCR around their files, beside rapidocr's own code, which they replace."""

from importlib.resources import files

import cv2
import numpy as np
import pytest
from rapidocr import RapidOCR
from rapidocr.ch_ppocr_rec import TextRecInput

from pixelis.media import open_media
from pixelis.tools.backends.line_reader import DETECTION_SIDE, LineReader
from pixelis.tools.backends.ppocr import rectify


@pytest.fixture(scope="module")
def rapidocr():
    return RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": 4096,
            "Det.limit_type": "max",
            "Det.limit_side_len": DETECTION_SIDE,
            "Rec.rec_batch_num": 1,
            "EngineConfig.onnxruntime.intra_op_num_threads": 1,
            "EngineConfig.onnxruntime.inter_op_num_threads": 1,
        }
    )


@pytest.fixture(scope="module")
def page():
    return np.ascontiguousarray(open_media(files("pixelis") / "demo" / "page.jpg").frame(0)[:, :, ::-1])


def variant(page, name):
    height, width = page.shape[:2]
    if name == "slanted":
        return cv2.warpAffine(page, cv2.getRotationMatrix2D((width / 2, height / 2), 17.0, 1.0), (width, height))
    crops = {"whole": (0, height, 0, width), "strip": (700, 730, 40, 700), "narrow": (200, 600, 300, 322)}
    top, bottom, left, right = crops[name]
    return np.ascontiguousarray(page[top:bottom, left:right])


@pytest.mark.parametrize("name", ["whole", "slanted", "strip", "narrow"])
def test_corners_texts_and_confidences_are_those_of_rapidocr(name, page, rapidocr):
    picture, reader = variant(page, name), LineReader()
    boxes = rapidocr(picture, use_det=True, use_cls=False, use_rec=False).boxes
    expected = np.zeros((0, 4, 2)) if boxes is None else np.asarray(boxes)
    assert reader.detect(picture).tolist() == expected.tolist()
    crops = [rectify(picture, quad.astype(np.float32)) for quad in expected[:3]]
    if crops:
        output = rapidocr._load_rec_model()(TextRecInput(img=crops))
        assert reader.recognise(crops) == list(zip(output.txts, output.scores, strict=True))


def test_a_sliver_holds_no_lines():
    assert len(LineReader().detect(np.zeros((2, 5000, 3), np.uint8))) == 0
