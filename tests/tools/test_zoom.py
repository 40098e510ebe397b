"""ZOOM: which pixels a view shows, how far it enlarges, and views of views."""

import io

import numpy as np
import pytest
from PIL import Image as Pil

from pixelis.media import Image, MediaSet
from pixelis.tools.results import ToolCall
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.tools.zoom import view_size

GRADIENT = np.stack(np.broadcast_arrays(np.arange(200)[None, :], np.arange(100)[:, None], 7), axis=2).astype(np.uint8)
"""200 x 100 pixels: red is x, green is y."""
MEDIA = MediaSet((Image.from_array(GRADIENT),))


@pytest.fixture(scope="module")
def zoom():
    with Toolbox(ToolboxConfig(isolate=False, cache=False)) as box:
        yield lambda where=MEDIA, /, **args: box.run(ToolCall(tool="ZOOM", args=args), where)


def pixels_of(execution) -> np.ndarray:
    (content,) = execution.blobs.values()
    return np.asarray(Pil.open(io.BytesIO(content)))


def test_a_box_shows_its_pixels_enlarged_at_most_four_times(zoom):
    seen = zoom(box=[0.5, 0.5, 0.75, 1.0])  # 50 x 50 pixels: 512 would be over ten times
    assert seen.result.output["magnification"] == 4.0
    assert pixels_of(seen).shape == (200, 200, 3)
    assert pixels_of(seen)[100, 100, 0] == pytest.approx(125, abs=1)  # the middle of x from 100 to 150


def test_a_large_crop_is_scaled_down_to_1024():
    assert view_size_of(4000, 3000) == (1024, 768)


def view_size_of(width: int, height: int) -> tuple[int, int]:
    from pixelis.core.geometry import Size

    return tuple(view_size(Size(width, height))[0])


@pytest.mark.parametrize(("crop", "view"), [((600, 400), (600, 400)), ((256, 128), (512, 256)), ((1, 1), (4, 4))])
def test_a_crop_between_is_enlarged_to_512_or_left_as_it_is(crop, view):
    assert view_size_of(*crop) == view


def test_scale_two_shows_the_middle_half(zoom):
    assert zoom(scale=2.0).result.footprints[0].box_unit == (0.25, 0.25, 0.75, 0.75)


def test_scale_around_a_center_near_the_edge_is_cut_to_the_frame(zoom):
    assert zoom(scale=2.0, center=[1.0, 0.5]).result.footprints[0].box_unit == (0.75, 0.25, 1.0, 0.75)


def test_zooming_out_of_the_whole_frame_shows_the_whole_frame(zoom):
    assert zoom(scale=0.5).result.footprints[0].box_unit == (0.0, 0.0, 1.0, 1.0)


def test_a_view_of_a_view_lies_where_it_should_in_the_first_picture(zoom):
    first = zoom(box=[0.5, 0.0, 1.0, 1.0])
    media = MEDIA.with_view(first.result.view)
    second = zoom(media, media="View_0", box=[0.5, 0.5, 1.0, 1.0])
    assert second.result.footprints[0].box_unit == (0.75, 0.5, 1.0, 1.0)
    assert second.result.footprints[0].media == "Image_0"
    assert pixels_of(second)[0, 0].tolist()[:2] == pytest.approx([150, 50], abs=2)


def test_stepping_back_from_a_view_shows_what_lies_around_it(zoom):
    media = MEDIA.with_view(zoom(box=[0.5, 0.5, 0.75, 0.75]).result.view)
    back = zoom(media, media="View_0", scale=0.5)
    assert back.result.footprints[0].box_unit == (
        0.375,
        0.37,
        0.875,
        0.88,
    )  # rows 37.5 to 87.5: the whole pixels touched


def test_a_view_is_cut_again_byte_for_byte_from_its_recipe(zoom):
    seen = zoom(box=[0.1, 0.1, 0.6, 0.9])
    media = MEDIA.with_view(seen.result.view)
    assert (media.medium("View_0").frame(0) == pixels_of(seen)).all()
