"""A discriminative correlation filter, as in DSST's translation filter: locates an object in a window around its box.

It learns on every frame what separates the object from its surroundings, so it follows a deforming object, where the
points of optical flow are lost. OpenCV 5 has no such tracker among its main modules.
"""

from __future__ import annotations

from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import PixelBox
from pixelis.media.medium import Frame

SIDE = 64
"""Cells along a side of the window."""
CONTEXT = 2.5
"""Side of the window in sides of the object."""
LEARNING_RATE = 0.06
"""Learning rate of the filter."""
RIDGE = 1e-2
"""Regularisation of the filter against frequencies that the object hardly has."""

_ramp = np.minimum(np.arange(SIDE), SIDE - np.arange(SIDE)).astype(np.float32)
TARGET = np.fft.rfft2(np.exp(-0.5 * (_ramp[:, None] ** 2 + _ramp[None] ** 2) / 2.0**2)).astype(np.complex64)
"""The target response: a peak of two cells at no shift."""
HANN = np.outer(np.hanning(SIDE), np.hanning(SIDE)).astype(np.float32)


class Peak(NamedTuple):
    """The maximum of the filter's response."""

    box_px: PixelBox
    sharpness: float
    """Peak over the rest of the response, in standard deviations of the rest."""


class CorrelationFilter:
    """The filter of one object; `update` it only with confident boxes."""

    def __init__(self, image: Frame, box_px: PixelBox) -> None:
        spectra = np.fft.rfft2(features(image, *search_window(box_px)))
        self._numerator = TARGET * spectra.conj()  # (C, SIDE, SIDE // 2 + 1)
        self._denominator = (spectra * spectra.conj()).real.sum(axis=0)

    def update(self, image: Frame, box_px: PixelBox) -> None:
        spectra = np.fft.rfft2(features(image, *search_window(box_px)))
        self._numerator = (1 - LEARNING_RATE) * self._numerator + LEARNING_RATE * TARGET * spectra.conj()
        power = (spectra * spectra.conj()).real.sum(axis=0)
        self._denominator = (1 - LEARNING_RATE) * self._denominator + LEARNING_RATE * power

    def find(self, image: Frame, box_px: PixelBox, scale: float = 1.0) -> Peak:
        """Locate the object near this box, in a box `scale` times as large."""
        (x, y), side = search_window(box_px)
        spectra = np.fft.rfft2(features(image, (x, y), side * scale))
        ridge = RIDGE * float(self._denominator.mean())
        response = np.fft.irfft2((self._numerator * spectra).sum(axis=0) / (self._denominator + ridge), s=(SIDE, SIDE))
        sharpness, shift_y, shift_x = locate_peak(response)
        cell = side * scale / SIDE
        half_x, half_y = (box_px.right - box_px.left) * scale / 2, (box_px.bottom - box_px.top) * scale / 2
        x, y = x + shift_x * cell, y + shift_y * cell
        return Peak(PixelBox(x - half_x, y - half_y, x + half_x, y + half_y), sharpness)


def locate_peak(response: NDArray[np.float64]) -> tuple[float, float, float]:
    """Sharpness of the highest cell, and its shift down and to the right (the response wraps around)."""
    row, column = divmod(int(np.argmax(response)), SIDE)
    is_sidelobe = np.ones(response.shape, dtype=bool)
    is_sidelobe[np.ix_(np.arange(row - 5, row + 6) % SIDE, np.arange(column - 5, column + 6) % SIDE)] = False
    sidelobe = response[is_sidelobe]
    sharpness = (float(response[row, column]) - float(sidelobe.mean())) / max(float(sidelobe.std()), 1e-9)
    return sharpness, (row + SIDE // 2) % SIDE - SIDE // 2, (column + SIDE // 2) % SIDE - SIDE // 2


def search_window(box_px: PixelBox) -> tuple[tuple[float, float], float]:
    """Centre and side of the square window around a box."""
    width, height = box_px.right - box_px.left, box_px.bottom - box_px.top
    centre = ((box_px.left + box_px.right) / 2, (box_px.top + box_px.bottom) / 2)
    return centre, CONTEXT * max((width * height) ** 0.5, max(width, height) / 1.6)


def features(image: Frame, centre: tuple[float, float], side: float) -> NDArray[np.float32]:
    """(C, SIDE, SIDE): three colours and four directions of edges, under a Hann window."""
    height, width = image.shape[:2]
    x0, y0 = round(centre[0] - side / 2), round(centre[1] - side / 2)
    x1, y1 = x0 + max(round(side), 2), y0 + max(round(side), 2)
    columns, rows = np.clip((x0, x1), 0, width), np.clip((y0, y1), 0, height)
    patch = image[min(rows[0], height - 1) : max(rows[1], 1), min(columns[0], width - 1) : max(columns[1], 1)]
    pad_top, pad_bottom, pad_left, pad_right = (max(v, 0) for v in (-y0, y1 - height, -x0, x1 - width))
    if pad_top or pad_bottom or pad_left or pad_right:
        patch = cv2.copyMakeBorder(patch, pad_top, pad_bottom, pad_left, pad_right, cv2.BORDER_REPLICATE)
    window = cv2.resize(patch, (SIDE, SIDE), interpolation=cv2.INTER_AREA if side > SIDE else cv2.INTER_LINEAR)
    colours = window.astype(np.float32) / 255.0
    grey = colours.mean(axis=2)
    across, down = cv2.Sobel(grey, cv2.CV_32F, 1, 0), cv2.Sobel(grey, cv2.CV_32F, 0, 1)
    edges = [np.maximum(v, 0.0) for v in (across, -across, down, -down)]
    channels = [colours[:, :, c] - colours[:, :, c].mean() for c in range(3)] + edges
    return np.stack(channels) * HANN
