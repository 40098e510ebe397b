"""Names of colours: thirteen everyday words for every pixel, looked up in a table.

The rules behind the table take the hue from HSV (which keeps blue apart from purple) and lightness and chroma from
CIELAB (which say what people call grey, brown, beige and pink). Pixels are rounded to 32 steps a channel first.
"""

from __future__ import annotations

from functools import cache

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.media.medium import Frame

Floats = NDArray[np.float64]


ACHROMATIC = frozenset({"white", "grey", "black"})

SYNONYMS = {
    "red": "crimson scarlet maroon burgundy ruby vermilion",
    "orange": "amber coral",
    "yellow": "gold golden mustard",
    "green": "lime olive emerald mint chartreuse jade",
    "cyan": "teal turquoise aqua aquamarine",
    "blue": "navy azure cobalt sky-blue ultramarine",
    "purple": "violet indigo lilac lavender mauve",
    "pink": "magenta fuchsia rosy",
    "brown": "sienna bronze chestnut tawny",
    "beige": "tan cream ivory khaki sandy",
    "white": "snowy",
    "grey": "gray silver silvery charcoal slate",
    "black": "ebony jet-black",
}
COLOURS = tuple(SYNONYMS)
CANONICAL = {word: name for name, words in SYNONYMS.items() for word in words.split()} | {n: n for n in COLOURS}

SHADES: dict[str, tuple[str, ...]] = {
    "red": ("brown", "pink", "orange"),
    "orange": ("brown", "beige", "red"),
    "yellow": ("brown", "beige", "green", "orange"),
    "green": ("cyan", "yellow"),
    "cyan": ("blue", "green"),
    "blue": ("cyan", "purple"),
    "purple": ("pink", "blue"),
    "pink": ("purple", "red", "brown"),
    "brown": ("orange", "beige", "red"),
    "beige": ("brown", "orange"),
}
"""What a thing of this colour turns into in shade, in sun or under a highlight, while its hue stays."""

STEPS = 32


def parse_colour(word: str) -> str | None:
    """The colour that a word means, if it is one: "gray" is grey, "navy" is blue, "reddish" is red."""
    word = word.strip().lower()
    if word in CANONICAL:
        return CANONICAL[word]
    stem = word.removesuffix("ish")
    return next((CANONICAL[s] for s in (stem, stem + "e", stem[:-1]) if s in CANONICAL), None) if stem != word else None


def colour_name(rgb: tuple[int, int, int]) -> str:
    """The everyday name of one colour."""
    pixel = np.array([[rgb]], dtype=np.uint8)
    return COLOURS[int(index_map(pixel)[0, 0])]


def index_map(image_rgb: Frame) -> NDArray[np.uint8]:
    """For each pixel the place of its colour's name in COLOURS: (..., 3) of uint8 to (...)."""
    return _cell_names().take(table_cells(image_rgb))


def colour_mask(image_rgb: Frame, name: str, *, loose: bool = False) -> NDArray[np.bool_]:
    """Which pixels of (..., 3) have this colour; `loose` counts those too that are on the border of the name.

    `name` is one of COLOURS (see `parse_colour`); ValueError otherwise.
    """
    return _cell_mask(COLOURS.index(name), loose).take(table_cells(image_rgb))


def table_cells(image_rgb: Frame) -> NDArray[np.uint16]:
    """Each pixel's cell in the table of 32 x 32 x 32 colours."""
    red, green, blue = _channel_tables()
    image = np.asarray(image_rgb)
    indices = red.take(image[..., 0])
    indices |= green.take(image[..., 1])
    indices |= blue.take(image[..., 2])
    return indices


def dominant_colours(pixels: NDArray[np.uint8]) -> list[tuple[str, float]]:
    """Colour names of (N, 3) pixels with their shares, largest first.

    Shade and highlights count to the colour that they belong to: a red ball's dark side, brown by itself but of the
    same hue, is red. Nothing comes back for no pixels.
    """
    if len(pixels) == 0:
        return []
    weights = np.bincount(table_cells(pixels), minlength=STEPS**3).astype(np.float64) / len(pixels)
    occupied = np.flatnonzero(weights)
    weights, names = weights[occupied], _cell_names()[occupied].astype(np.intp)
    hue, _, lightness, chroma = (v[occupied] for v in _cell_measures())
    names = _adjust_for_lighting(names, weights, lightness, chroma)
    shares = np.bincount(names, weights, minlength=len(COLOURS))
    for index in np.argsort(-shares, kind="stable"):
        members = names == index
        share = float(weights[members].sum())
        if share < 0.1 or COLOURS[index] in ACHROMATIC:
            continue
        mean_hue = _mean_angle(hue[members], weights[members] * chroma[members])
        is_similar_hue = (np.abs((hue - mean_hue + 180.0) % 360.0 - 180.0) < 14.0) & (chroma > 8.0)
        for shade in SHADES[COLOURS[index]]:
            other = (names == COLOURS.index(shade)) & is_similar_hue
            if weights[other].sum() <= share:
                names[other] = index
    shares = np.bincount(names, weights, minlength=len(COLOURS))
    order = np.argsort(-shares, kind="stable")
    return [(COLOURS[i], round(float(shares[i]), 4)) for i in order if shares[i] > 0.0]


def _adjust_for_lighting(
    names: NDArray[np.intp], weights: Floats, lightness: Floats, chroma: Floats
) -> NDArray[np.intp]:
    """White, grey and black as they are meant within one thing that is partly in shade.

    Shade outdoors is lit by the sky, so that pale blue beside more grey or white is grey; light grey is white where the
    lightest tenth of the thing is; dark grey beside more black is black.
    """
    white, grey, black = (COLOURS.index(name) for name in ("white", "grey", "black"))
    names = names.copy()
    pale = (names == COLOURS.index("blue")) & (lightness > 55.0) & (chroma < 18.0)
    if weights[pale].sum() < weights[(names == grey) | (names == white)].sum():
        names[pale] = grey
    light = ((names == grey) | (names == white)) & (lightness > 55.0)
    if light.any() and _quantile(lightness[light], weights[light], 0.9) > 80.0:
        names[light & (lightness > 62.0)] = white
    dark = (names == grey) & (lightness < 32.0)
    if weights[dark].sum() < weights[names == black].sum():
        names[dark] = black
    return names


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    order = np.argsort(values, kind="stable")
    cumulative = np.cumsum(weights[order])
    return float(values[order][min(int(np.searchsorted(cumulative, share * cumulative[-1])), len(order) - 1)])


def _mean_angle(degrees: Floats, weights: Floats) -> float:
    radians = np.deg2rad(degrees)
    return float(np.rad2deg(np.arctan2((weights * np.sin(radians)).sum(), (weights * np.cos(radians)).sum())))


@cache
def _channel_tables() -> tuple[NDArray[np.uint16], ...]:
    steps = (np.arange(256) * STEPS // 256).astype(np.uint16)
    return steps * np.uint16(STEPS * STEPS), steps * np.uint16(STEPS), steps


@cache
def _cell_measures() -> tuple[Floats, ...]:
    """HSV hue and saturation, CIELAB lightness and chroma at the middle of every cell; each (32768,)."""
    axis = (np.arange(STEPS) + 0.5) / STEPS
    axis = (axis - axis[0]) / (axis[-1] - axis[0])  # the end cells stand for pure black, white and primaries
    grid = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).astype(np.float32)  # (32, 32, 32, 3)
    flat = grid.reshape(1, -1, 3)
    hsv = cv2.cvtColor(flat, cv2.COLOR_RGB2HSV)[0].astype(np.float64)
    lab = cv2.cvtColor(flat, cv2.COLOR_RGB2LAB)[0].astype(np.float64)
    return hsv[:, 0], hsv[:, 1], lab[:, 0], np.hypot(lab[:, 1], lab[:, 2])


@cache
def _cell_names() -> NDArray[np.uint8]:
    hue, _, lightness, chroma = _cell_measures()
    return _classify(hue, lightness, chroma)


@cache
def _cell_mask(index: int, loose: bool) -> NDArray[np.bool_]:
    """Cells of a name; loosely, also those that a small change of light or hue would bring there."""
    mask = _cell_names() == index
    if loose:
        hue, _, lightness, chroma = _cell_measures()
        for turn, light, grey in ((8, 0, 1.0), (-8, 0, 1.0), (0, 7, 1.0), (0, -7, 1.0), (0, 0, 1.25), (0, 0, 0.8)):
            mask = mask | (_classify((hue + turn) % 360.0, lightness + light, chroma * grey) == index)
    return mask


def _classify(hue: Floats, lightness: Floats, chroma: Floats) -> NDArray[np.uint8]:
    """Names by rule; the first rule that holds decides. Hue in degrees of HSV, the rest in CIELAB units."""
    warm = (hue < 62.0) | (hue >= 345.0)
    achromatic = (chroma < 9.0) | ((chroma < 13.0) & ~warm) | ((chroma < 14.0) & (lightness < 30.0))
    reddish = (hue < 13.0) | (hue >= 345.0)
    rules: list[tuple[NDArray[np.bool_], str]] = [
        ((lightness < 20.0) & (chroma < 16.0) | (lightness < 7.0), "black"),
        (achromatic & (lightness > 80.0), "white"),
        (achromatic, "grey"),
        (reddish & (lightness > 64.0) & (chroma > 14.0), "pink"),
        (reddish & (chroma < 32.0), "brown"),
        (reddish, "red"),
        ((hue < 65.0) & (lightness > 66.0) & (chroma < 36.0), "beige"),
        ((hue < 42.0) & ((lightness > 59.0) & (chroma > 55.0) | (chroma > 80.0)), "orange"),
        (hue < 42.0, "brown"),
        ((hue < 68.0) & (lightness > 58.0) & (chroma > 28.0), "yellow"),
        (hue < 54.0, "brown"),
        (hue < 162.0, "green"),
        (hue < 191.0, "cyan"),
        (hue < 252.0, "blue"),
        ((hue >= 295.0) & (lightness > 54.0) & (chroma > 70.0), "pink"),
        ((hue >= 312.0) & (lightness > 52.0) | (hue >= 317.0) & (lightness > 28.0) & (chroma > 45.0), "pink"),
        (hue < 335.0, "purple"),
        (lightness > 44.0, "pink"),
        (np.ones_like(achromatic), "red"),
    ]
    index = np.select([rule for rule, _ in rules], [COLOURS.index(name) for _, name in rules])
    return index.astype(np.uint8)
