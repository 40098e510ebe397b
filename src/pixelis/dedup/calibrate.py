"""The cosine from which stage 2 flags a pair, for the encoder in use.

The paper's 0.93 was set for CLIP and DINO; EfficientNet gives a crop of 10 % a side about 0.8. The threshold is
therefore measured on planted crops (a crop is what pHash cannot see), on pictures that are at hand everywhere, so that
it belongs to the encoder and not to a corpus.
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
"""Below the least planted crop: others' pictures are not these."""
MIN_THRESHOLD = 0.3
"""An encoder that needs a lower threshold flags nearly everything."""


class ThresholdCalibration(NamedTuple):
    """A threshold and what it does on the pictures it was set with."""

    threshold: float
    planted: int
    """How many planted crops were measured."""
    recall: float
    """Share of them at or over the threshold."""
    unrelated: float
    """Share of unrelated pairs at or over it: the work that stage 2 makes for confirmation."""


CALIBRATED_THRESHOLDS: dict[str, float] = {
    "0ae18ef195e0654160b753d5ddb31d4973ae517098bef6d8b9c637d719f84141": 0.701,  # EfficientNet-Lite0
}
"""Fingerprint of an encoder to its threshold, as `pixelis data audit --self-check` measured it."""


def calibrate(
    encoder: ImageEncoder, pictures: Sequence[Frame] | None = None, *, recall: float = 0.99
) -> ThresholdCalibration:
    """The highest threshold that keeps `recall` of the planted crops, less a margin."""
    if pictures is None:
        rendered = [render(seed, template=seed) for render in LOOKALIKES.values() for seed in range(3)]
        pictures = [*bundled_images().values(), *rendered]
    originals = encoder.embed(pictures)  # (N, d)
    planted_cosines = np.concatenate(
        [(originals * encoder.embed([crop_border(p, share) for p in pictures])).sum(axis=1) for share in CROP_SHARES]
    )
    unrelated_cosines = (originals @ originals.T)[np.triu_indices(len(pictures), 1)]
    threshold = max(
        MIN_THRESHOLD, round(float(np.quantile(planted_cosines, 1.0 - recall, method="lower")) - SAFETY_MARGIN, 3)
    )
    return ThresholdCalibration(
        threshold,
        len(planted_cosines),
        float((planted_cosines >= threshold).mean()),
        float((unrelated_cosines >= threshold).mean()),
    )


def get_threshold(encoder: ImageEncoder) -> float:
    """Known for encoders that were calibrated before; measured for any other, in a few seconds."""
    threshold = CALIBRATED_THRESHOLDS.get(encoder.fingerprint)
    return calibrate(encoder).threshold if threshold is None else threshold
