"""Paints that keep their colour name in light and shade, so that questions, SEG and PROP agree."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pixelis.tools.vision.colours import COLOURS, index_map
from pixelis.world.vocabulary import choose

Rgb = tuple[int, int, int]

PAINTS: dict[str, tuple[Rgb, ...]] = {
    "red": ((214, 40, 40), (190, 24, 32), (232, 48, 44), (168, 22, 30)),
    "orange": ((250, 150, 30), (252, 160, 48), (255, 144, 40)),
    "yellow": ((244, 216, 40), (236, 204, 20), (250, 228, 80), (228, 200, 32)),
    "green": ((40, 160, 64), (64, 180, 56), (24, 128, 56), (96, 190, 70)),
    "cyan": ((32, 196, 200), (20, 172, 176), (72, 210, 214), (10, 150, 156)),
    "blue": ((40, 88, 208), (28, 64, 176), (60, 120, 224), (24, 80, 200)),
    "purple": ((136, 52, 184), (112, 40, 160), (152, 80, 204), (120, 60, 190)),
    "pink": ((236, 96, 160), (240, 120, 176), (228, 64, 140), (244, 136, 190)),
    "brown": ((132, 80, 40), (112, 64, 32), (148, 92, 50)),
    "beige": ((232, 208, 164), (240, 216, 176), (224, 200, 152)),
    "white": ((246, 248, 248), (250, 250, 250), (242, 246, 248)),
    "grey": ((120, 126, 128), (104, 110, 112), (136, 142, 144)),
    "black": ((24, 24, 26), (16, 18, 20), (32, 30, 32)),
}
VIVID = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
"""The colours of things; muted ones belong to grounds, plates and pages."""
DARKEST, LIGHTEST = 226, 270
"""The range of light on a thing, of 256, in which every paint keeps its name."""
MIN_COLOUR_SHARE = 0.0008
"""A ground contains a colour if more than this share of its pixels has that name."""


def choose_paint(rng: Generator, colour: str) -> Rgb:
    """One of the paints of that name."""
    return choose(rng, PAINTS[colour])


def apply_light(rgb: Rgb, light: int) -> Rgb:
    """The paint under a light, in 256ths."""
    return tuple(min(c * light // 256, 255) for c in rgb)  # type: ignore[return-value]


def colour_shares(pixels: NDArray[np.uint8]) -> dict[str, float]:
    """The shares of a picture's colours by name, from every third pixel, in light and in half shade."""
    subsampled = np.ascontiguousarray(pixels[::3, ::3])
    shares = np.zeros(len(COLOURS))
    for view in (subsampled, (subsampled.astype(np.uint16) * 176 // 256).astype(np.uint8)):
        view_shares = np.bincount(index_map(view).ravel(), minlength=len(COLOURS)) / (
            subsampled.shape[0] * subsampled.shape[1]
        )
        shares = np.maximum(shares, view_shares)
    return {name: float(share) for name, share in zip(COLOURS, shares, strict=True) if share > MIN_COLOUR_SHARE}


def free_colours(ground_shares: dict[str, float], min_count: int = 5) -> tuple[str, ...]:
    """Vivid colours that a ground does not contain, filled up to `min_count` with the rarest that it does."""
    free = [name for name in VIVID if name not in ground_shares]
    rare = sorted((name for name in VIVID if name in ground_shares), key=lambda name: ground_shares[name])
    return tuple(free + rare[: max(min_count - len(free), 0)])


def dominant_name(pixels: NDArray[np.uint8]) -> str:
    """The most frequent colour name of a picture."""
    return COLOURS[int(np.bincount(index_map(pixels[::3, ::3]).ravel(), minlength=len(COLOURS)).argmax())]
