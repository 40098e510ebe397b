"""The cosine from which stage 2 flags a pair, for the current encoder.

The paper's 0.93 was set for CLIP and DINO; EfficientNet gives a crop of 10 % per side about 0.8. The threshold is
therefore measured on synthetic crops (pHash does not detect crops) of pictures that are available everywhere, so that
it depends on the encoder and not on a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pixelis.dedup.media_features import ImageEncoder
from pixelis.dedup.synthetic_duplicates import LOOKALIKES, bundled_images, crop_border
from pixelis.media import Frame

CROP_SHARES = (0.05, 0.08, 0.10)
SAFETY_MARGIN = 0.09
"""Subtracted from the measured threshold, because users' pictures differ from these."""
MIN_THRESHOLD = 0.3
"""An encoder that needs a lower threshold flags nearly everything."""


class ThresholdCalibration(NamedTuple):
    """A threshold and its effect on the pictures it was measured on."""

    threshold: float
    planted: int
    """Number of synthetic crops."""
    recall: float
    """Share of them at or above the threshold."""
    unrelated: float
    """Share of unrelated pairs at or above it, which have to be verified."""


CALIBRATED_THRESHOLDS: dict[str, float] = {
    "0ae18ef195e0654160b753d5ddb31d4973ae517098bef6d8b9c637d719f84141": 0.701,  # EfficientNet-Lite0
}
"""Threshold by an encoder's fingerprint, as measured by `pixelis data audit --self-check`."""


def calibrate(
    encoder: ImageEncoder, pictures: Sequence[Frame] | None = None, *, recall: float = 0.99
) -> ThresholdCalibration:
    """The highest threshold that flags `recall` of the synthetic crops, less a margin."""
    if pictures is None:
        rendered = [render(seed, template=seed) for render in LOOKALIKES.values() for seed in range(3)]
        pictures = [*bundled_images().values(), *rendered]
    originals = encoder.embed(pictures)  # (N, d)
    planted_cosines = np.concatenate(
        [(originals * encoder.embed([crop_border(p, share) for p in pictures])).sum(axis=1) for share in CROP_SHARES]
    )
    unrelated_cosines = (originals @ originals.T)[np.triu_indices(len(pictures), 1)]
    lowest_flagged = float(np.quantile(planted_cosines, 1.0 - recall, method="lower"))
    threshold = max(MIN_THRESHOLD, round(lowest_flagged - SAFETY_MARGIN, 3))
    return ThresholdCalibration(
        threshold,
        len(planted_cosines),
        float((planted_cosines >= threshold).mean()),
        float((unrelated_cosines >= threshold).mean()),
    )


def get_threshold(encoder: ImageEncoder) -> float:
    """The stored threshold of a calibrated encoder; measured, in a few seconds, for any other."""
    threshold = CALIBRATED_THRESHOLDS.get(encoder.fingerprint)
    return calibrate(encoder).threshold if threshold is None else threshold
