"""Text as pixels: five fonts of the package, drawn by FreeType independently of the machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import ImageFont

from pixelis.world.vocabulary import choose

ASSETS = Path(__file__).parent / "assets"
FONTS = {
    "slab": "RobotoSlab-Bold.otf",
    "serif": "DejaVuSerif.ttf",
    "mono": "DejaVuSansMono-Bold.ttf",
    "sans": "Cantarell-Bold.otf",
    "hand": "ComicNeue-Bold.otf",
}


class Ink(NamedTuple):
    """The coverage of a text, cropped to its ink."""

    alpha: NDArray[np.uint8]
    """(height, width), 0 to 255."""

    @property
    def width(self) -> int:
        return int(self.alpha.shape[1])

    @property
    def height(self) -> int:
        return int(self.alpha.shape[0])


def choose_font(rng: Generator) -> str:
    return choose(rng, tuple(FONTS))


@cache
def load_font(name: str, px: int) -> ImageFont.FreeTypeFont:
    """A font at a size in pixels; the basic layout engine is the same in every build of Pillow."""
    return ImageFont.truetype(str(ASSETS / FONTS[name]), px, layout_engine=ImageFont.Layout.BASIC)


def render_text(text: str, name: str, px: int) -> Ink:
    """Draw a text. Raises ValueError if it leaves no ink."""
    mask = load_font(name, px).getmask(text, mode="L")
    alpha = np.asarray(mask, dtype=np.uint8).reshape(mask.size[1], mask.size[0])
    rows, columns = np.flatnonzero(alpha.any(axis=1)), np.flatnonzero(alpha.any(axis=0))
    if not len(rows):
        raise ValueError(f"{text!r} leaves no ink")
    return Ink(np.ascontiguousarray(alpha[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]))


def text_width(text: str, name: str, px: int) -> int:
    """The width of a text in pixels."""
    return int(np.ceil(load_font(name, px).getlength(text)))
