"""Grounds (wood, grass, brick, cloth, clouds and others) from noise, in integers so that every machine agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pixelis.core.geometry import Size
from pixelis.world.palette import Rgb
from pixelis.world.vocabulary import choose

Grey = NDArray[np.uint8]
Pixels = NDArray[np.uint8]


class Ground(NamedTuple):
    """A ground and its name."""

    pixels: Pixels
    name: str


def fractal_noise(rng: Generator, size: Size, *, cell: int = 128, grain: int = 2, stretch: int = 1) -> Grey:
    """Noise with detail at every scale from `cell` pixels down to `grain`.

    `stretch` elongates it horizontally, as in wood and water.
    """
    width, height, step = -(-size.width // (cell * stretch)) + 2, -(-size.height // cell) + 2, cell
    values = rng.integers(0, 256, (height, width), dtype=np.uint8)
    weight = 112
    while step > 1:
        step //= 2
        values = cv2.resize(values, (values.shape[1] * 2, values.shape[0] * 2), interpolation=cv2.INTER_LINEAR_EXACT)
        values = cv2.GaussianBlur(values, (3, 3), 0)
        if step >= grain:
            detail = rng.integers(-weight, weight + 1, values.shape, dtype=np.int16)
            values = np.clip(values.astype(np.int16) + detail // 2, 0, 255).astype(np.uint8)
            weight = weight * 3 // 4
        limit_h, limit_w = -(-size.height // step) + 3, -(-size.width // (step * stretch)) + 3
        values = values[:limit_h, :limit_w]
    if stretch > 1:
        wide = (values.shape[1] * stretch, values.shape[0])
        values = cv2.resize(values, wide, interpolation=cv2.INTER_LINEAR_EXACT)
    return np.ascontiguousarray(values[: size.height, : size.width])


def mix_greys(first: Grey, second: Grey, share: int) -> Grey:
    """Blend two pictures: `share` 256ths of the first, the rest of the second."""
    weighted_sum = first.astype(np.uint16) * share + second.astype(np.uint16) * (256 - share)
    return (weighted_sum >> 8).astype(np.uint8)


def apply_colour_ramp(values: Grey, *stops: Rgb) -> Pixels:
    """Map noise to colours; the stops are spaced evenly from 0 to 255."""
    marks = np.linspace(0, 255, len(stops))
    table = np.stack([np.interp(np.arange(256), marks, [s[c] for s in stops]) for c in range(3)], axis=-1)
    return np.asarray(cv2.applyColorMap(values, np.rint(table).astype(np.uint8).reshape(256, 1, 3)), dtype=np.uint8)


def add_grain(rng: Generator, pixels: Pixels, amount: int) -> Pixels:
    """Add fine grain from one repeated tile of noise."""
    tile = rng.integers(0, 2 * amount + 1, (97, 131, 1), dtype=np.uint8)
    height, width = pixels.shape[:2]
    noise = np.tile(tile, (height // 97 + 1, width // 131 + 1, 3))[:height, :width]
    return np.asarray(cv2.subtract(cv2.add(pixels, noise), (amount, amount, amount, 0)), dtype=np.uint8)


def _wood(rng: Generator, size: Size) -> Pixels:
    rings = fractal_noise(rng, size, cell=64, grain=8, stretch=8)
    waves = (rings.astype(np.uint16) * 5) % 512
    grain = np.where(waves > 255, 511 - waves, waves).astype(np.uint8)
    board = apply_colour_ramp(mix_greys(grain, rings, 128), *choose(rng, WOODS))
    plank = size.height // int(rng.integers(3, 7))
    for top in range(int(rng.integers(plank)), size.height, plank):
        board[top : top + 2] = board[top : top + 2] // 2
    return board


WOODS: tuple[tuple[Rgb, ...], ...] = (
    ((92, 56, 30), (132, 88, 52), (156, 108, 68)),
    ((68, 44, 30), (94, 62, 42), (116, 80, 56)),
    ((150, 108, 68), (172, 128, 84), (188, 146, 100)),
)


def _grass(rng: Generator, size: Size) -> Pixels:
    blades = fractal_noise(rng, Size(size.height, size.width), cell=32, grain=1, stretch=4).T
    return apply_colour_ramp(np.ascontiguousarray(blades), (30, 62, 24), (58, 104, 40), (104, 148, 66))


def _clouds(rng: Generator, size: Size) -> Pixels:
    values = fractal_noise(rng, size, cell=256, grain=4)
    return apply_colour_ramp(values, (74, 118, 178), (126, 164, 210), (206, 222, 238), (242, 245, 249))


def _cloth(rng: Generator, size: Size) -> Pixels:
    period = int(rng.integers(4, 8))
    y, x = np.arange(2 * period, dtype=np.int64)[:, None], np.arange(2 * period, dtype=np.int64)[None, :]
    thread = (((x // period + y // period) % 2) * 90 + (x % period) * 14 + (y % period) * 8).astype(np.uint8)
    weave = np.tile(thread, (size.height // thread.shape[0] + 1, size.width // thread.shape[1] + 1))
    folds = fractal_noise(rng, size, cell=256, grain=32)
    return apply_colour_ramp(mix_greys(weave[: size.height, : size.width], folds, 110), *choose(rng, CLOTHS))


CLOTHS: tuple[tuple[Rgb, ...], ...] = (
    ((58, 62, 70), (92, 97, 106), (124, 129, 138)),
    ((168, 160, 146), (196, 189, 176), (222, 216, 205)),
    ((40, 52, 84), (58, 74, 112), (84, 100, 142)),
    ((96, 84, 74), (122, 109, 98), (146, 133, 121)),
)


def _brick(rng: Generator, size: Size) -> Pixels:
    high, wide = int(rng.integers(24, 40)), int(rng.integers(56, 96))
    rows, columns = size.height // high + 2, size.width // wide + 3
    tints = rng.integers(70, 200, (rows, columns), dtype=np.uint8)
    y, x = np.arange(size.height), np.arange(size.width)
    row = y // high
    offset_x = x[None, :] + (row[:, None] % 2) * (wide // 2)
    values = tints[row[:, None], offset_x // wide]
    values = mix_greys(values, fractal_noise(rng, size, cell=32, grain=1), 154)
    wall = apply_colour_ramp(values, (84, 58, 48), (122, 84, 68), (150, 112, 94))
    mortar = (y[:, None] % high < 3) | (offset_x % wide < 3)
    wall[mortar] = (168, 162, 152)
    return wall


def _tiles(rng: Generator, size: Size) -> Pixels:
    side = int(rng.integers(48, 96))
    y, x = np.arange(size.height), np.arange(size.width)
    tints = rng.integers(120, 220, (size.height // side + 1, size.width // side + 1), dtype=np.uint8)
    values = tints[(y // side)[:, None], (x // side)[None, :]]
    values = mix_greys(values, fractal_noise(rng, size, cell=64, grain=2), 140)
    floor = apply_colour_ramp(values, *choose(rng, STONES))
    floor[(y[:, None] % side < 2) | (x[None, :] % side < 2)] //= 2
    return floor


STONES: tuple[tuple[Rgb, ...], ...] = (
    ((88, 92, 96), (128, 132, 136), (164, 168, 170)),
    ((176, 168, 156), (204, 197, 186), (228, 223, 214)),
    ((52, 56, 60), (74, 78, 82), (100, 104, 108)),
)


def _noise_ground(
    *palettes: tuple[Rgb, ...], cell: int, grain: int, stretch: int = 1
) -> Callable[[Generator, Size], Pixels]:
    """A ground that is plain noise in one of its palettes."""

    def make(rng: Generator, size: Size) -> Pixels:
        return apply_colour_ramp(
            fractal_noise(rng, size, cell=cell, grain=grain, stretch=stretch), *choose(rng, palettes)
        )

    return make


GROUNDS: dict[str, Callable[[Generator, Size], Pixels]] = {
    "wood": _wood,
    "grass": _grass,
    "clouds": _clouds,
    "cloth": _cloth,
    "brick": _brick,
    "tiles": _tiles,
    "concrete": _noise_ground(*STONES, cell=64, grain=1),
    "sand": _noise_ground(((182, 158, 120), (206, 184, 146), (226, 208, 176)), cell=128, grain=1),
    "water": _noise_ground(((26, 60, 92), (40, 88, 122), (74, 124, 154)), cell=64, grain=4, stretch=4),
    "moss": _noise_ground(((44, 56, 34), (70, 84, 52), (102, 114, 76)), cell=64, grain=1),
    "slate": _noise_ground(((34, 37, 40), (50, 54, 58), (68, 72, 76)), cell=256, grain=2),
    "plaster": _noise_ground(((206, 203, 198), (222, 220, 216), (236, 235, 232)), cell=256, grain=8),
}
SHEETS: dict[str, Callable[[Generator, Size], Pixels]] = {
    "paper": _noise_ground(((236, 233, 226), (244, 242, 237), (250, 249, 246)), cell=256, grain=2),
    "cream": _noise_ground(((234, 226, 208), (241, 234, 218), (247, 242, 230)), cell=256, grain=2),
    "grey paper": _noise_ground(((214, 216, 218), (224, 226, 228), (233, 235, 236)), cell=128, grain=1),
    "chalkboard": _noise_ground(((30, 40, 36), (38, 50, 45), (48, 61, 55)), cell=256, grain=4),
    "night": _noise_ground(((22, 26, 40), (28, 33, 50), (36, 42, 62)), cell=256, grain=8),
}
"""Grounds to write on; the last two are dark."""
DARK_SHEETS = ("chalkboard", "night")
LIGHT_SHEETS = ("paper", "cream", "grey paper")


def make_ground(rng: Generator, size: Size, name: str | None = None) -> Ground:
    """A ground by name, or a random one of GROUNDS."""
    name = name or choose(rng, tuple(GROUNDS))
    make = GROUNDS.get(name) or SHEETS[name]
    return Ground(add_grain(rng, make(rng, size), 5 if name in GROUNDS else 2), name)
