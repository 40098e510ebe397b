"""The cosine from which stage 2 flags a pair, for the encoder in use.

The paper's 0.93 was set for CLIP and DINO; EfficientNet gives a crop of 10 % a side about 0.8. The threshold is
therefore measured on planted crops (a crop is what pHash cannot see), on pictures that are at hand everywhere, so that
it belongs to the encoder and not to a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pixelis.media import Frame
from pixelis.retrieval.features import ImageEncoder
from pixelis.retrieval.planted import LOOKALIKES, bundled_pictures, cropped

CROPS = (0.05, 0.08, 0.10)
MARGIN = 0.09
"""Below the least planted crop: others' pictures are not these."""
LEAST = 0.3
"""An encoder that needs a lower threshold flags nearly everything."""


class Calibration(NamedTuple):
    """A threshold and what it does on the pictures it was set with."""

    threshold: float
    planted: int
    """How many planted crops were measured."""
    recall: float
    """Share of them at or over the threshold."""
    unrelated: float
    """Share of unrelated pairs at or over it: the work that stage 2 makes for confirmation."""


CALIBRATED: dict[str, float] = {
    "0ae18ef195e0654160b753d5ddb31d4973ae517098bef6d8b9c637d719f84141": 0.701,  # EfficientNet-Lite0
}
"""Fingerprint of an encoder to its threshold, as `pixelis data audit --self-check` measured it."""


def calibrate(encoder: ImageEncoder, pictures: Sequence[Frame] | None = None, *, recall: float = 0.99) -> Calibration:
    """The highest threshold that keeps `recall` of the planted crops, less a margin."""
    if pictures is None:
        rendered = [make(seed, template=seed) for make in LOOKALIKES.values() for seed in range(3)]
        pictures = [*bundled_pictures().values(), *rendered]
    originals = encoder.embed(pictures)  # (N, d)
    planted = np.concatenate(
        [(originals * encoder.embed([cropped(p, share) for p in pictures])).sum(axis=1) for share in CROPS]
    )
    others = (originals @ originals.T)[np.triu_indices(len(pictures), 1)]
    threshold = max(LEAST, round(float(np.quantile(planted, 1.0 - recall, method="lower")) - MARGIN, 3))
    return Calibration(
        threshold, len(planted), float((planted >= threshold).mean()), float((others >= threshold).mean())
    )


def threshold_of(encoder: ImageEncoder) -> float:
    """Known for encoders that were calibrated before; measured for any other, in a few seconds."""
    known = CALIBRATED.get(encoder.fingerprint)
    return calibrate(encoder).threshold if known is None else known
