"""OCR with the real PP-OCR, on real pages and on text drawn here."""

import numpy as np
import pytest
from PIL import Image as Pil
from PIL import ImageDraw, ImageFont

from pixelis.media import Image, open_media
from pixelis.metrics.text import cer
from pixelis.tools.backends.ppocr import OcrLine, sort_reading_order
from pixelis.tools.base import Scene
from pixelis.tools.execute import parse_args
from pixelis.tools.ocr import Ocr, add_margin


@pytest.fixture(scope="module")
def ocr():
    return Ocr()


def read(ocr, image, **args):
    return ocr.look(parse_args(ocr, args), Scene(image))


def squeezed(text: str) -> str:
    return " ".join(text.split())


def sign(*words: tuple[str, int, int], size=(640, 240)) -> Image:
    picture = Pil.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    for word, x, y in words:
        draw.text((x, y), word, fill="black", font=ImageFont.load_default(36))
    return Image.from_array(np.asarray(picture))


@pytest.mark.parametrize(("page", "bound"), [("phototest", 0.01), ("eurotext", 0.02)])
def test_a_page_is_read_whichever_way_up_it_lies(ocr, realdata, page, bound):
    upright = open_media(realdata / "ocr" / f"{page}.tif").frame(0)
    reference = squeezed((realdata / "ocr" / f"{page}.txt").read_text())
    assert cer(reference, squeezed(read(ocr, Image.from_array(upright)).output.text)) <= bound
    for quarter_turns in (1, 2, 3):
        turned = Image.from_array(np.ascontiguousarray(np.rot90(upright, quarter_turns)))
        seen = read(ocr, turned)
        assert cer(reference, squeezed(seen.output.text)) <= 0.05
        assert seen.output.turned_degrees == (4 - quarter_turns) * 90


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("en_rec.jpg", "To facilitate the shot type analysis in videos, we collect MovieShots, a large-scale"),
        ("latin.jpg", "Alphabetum in mundo hodie frequentissime adhibitum est alphabetum Latinum."),
        ("issue_170.png", "TEST"),
        ("empty_black.jpg", ""),
        ("img_exif_orientation.jpg", "我是中国人"),
        ("black_font_color_transparent.png", "我是中国人"),
    ],
)
def test_the_texts_that_the_index_of_real_files_states(ocr, realdata, file, text):
    assert read(ocr, open_media(realdata / "ocr" / f"rapidocr_{file}")).output.text == text


def test_the_corners_of_a_line_on_a_turned_page_lie_where_it_stands(ocr):
    upright = sign(("EXIT TO THE LEFT", 40, 100))
    turned = Image.from_array(np.ascontiguousarray(np.rot90(upright.pixels)))  # counter-clockwise: x becomes up
    x0, y0, x1, y1 = read(ocr, upright).footprints[0].box_unit
    a, b, c, d = read(ocr, turned).footprints[0].box_unit
    assert (a, b, c, d) == pytest.approx((y0, 1 - x1, y1, 1 - x0), abs=0.03)


def test_only_what_stands_in_the_region_is_returned_and_where_it_stands(ocr):
    image = sign(("LEFT", 60, 90), ("RIGHT", 420, 90))
    seen = read(ocr, image, box=[0.5, 0.2, 1.0, 0.8])
    assert seen.output.text == "RIGHT"
    x0, _, x1, _ = seen.footprints[0].box_unit
    assert x0 == pytest.approx(420 / 640, abs=0.02)
    assert x1 == pytest.approx(530 / 640, abs=0.03)


def test_no_text_is_an_empty_reading_and_not_a_failure(ocr):
    seen = read(ocr, Image.from_array(np.full((64, 64, 3), 128, dtype=np.uint8)))
    assert (seen.output.text, seen.footprints, seen.confidence) == ("", (), 0.0)


def test_a_region_of_one_pixel_reads_as_nothing(ocr):
    assert read(ocr, sign(("A", 10, 10)), box=[0.9, 0.9, 0.9005, 0.9005]).output.text == ""


def test_the_same_page_gives_the_same_bytes(ocr):
    image = sign(("PLATFORM 9", 60, 60), ("12:45", 60, 140))
    assert read(ocr, image) == read(Ocr(), image)


def line(text: str, x0: float, y0: float, x1: float, y1: float) -> OcrLine:
    return OcrLine(text, np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], dtype=np.float32), 1.0)


def test_two_columns_of_running_text_are_read_one_after_the_other():
    left = [line(f"l{i}", 0, 30 * i, 300, 30 * i + 20) for i in range(4)]
    right = [line(f"r{i}", 340, 30 * i, 640, 30 * i + 20) for i in range(4)]
    mixed = [pair for both in zip(left, right, strict=True) for pair in both]
    assert [r.text for r in sort_reading_order(mixed)] == ["l0", "l1", "l2", "l3", "r0", "r1", "r2", "r3"]


def test_the_cells_of_a_table_are_read_along_the_row():
    cells = [line(f"{row}{column}", 100 * column, 30 * row, 100 * column + 40, 30 * row + 20)
             for column in range(3) for row in range(3)]  # fmt: skip
    assert [r.text for r in sort_reading_order(cells)] == ["00", "01", "02", "10", "11", "12", "20", "21", "22"]


def test_the_margin_around_a_region_stays_inside_the_frame():
    from pixelis.core.geometry import Size

    assert add_margin((0.0, 0.4, 1.0, 0.6), Size(100, 100)) == pytest.approx((0.0, 0.35, 1.0, 0.65))


def test_the_upper_line_of_a_slanted_sign_comes_first():
    def slanted(text, x, y):
        along, down = np.array([100.0, 30.0]), np.array([-10.0, 33.0])
        corner = np.array([x, y], dtype=float)
        quad = np.array([corner, corner + along, corner + along + down, corner + down], dtype=np.float32)
        return OcrLine(text, quad, 1.0)

    upper, lower = slanted("FOR", 60, 10), slanted("SALE", 0, 35)  # their boxes overlap in y
    assert [r.text for r in sort_reading_order([lower, upper])] == ["FOR", "SALE"]
