"""Pictures to unit vectors and to ImageNet labels: EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pixelis.weights import fingerprint, weight_path
from pixelis.weights.session import open_session

SIDE = 224
DIMENSIONS = 1280

Rgb = NDArray[np.uint8]


class Label(NamedTuple):
    """One of ImageNet's thousand classes with its probability."""

    names: tuple[str, ...]
    """The word and its synonyms, the usual one first."""
    score: float

    @property
    def name(self) -> str:
        return self.names[0]


class VisualEncoder:
    """EfficientNet-Lite0. Raises WeightsError if its files have not been pulled."""

    dimensions = DIMENSIONS

    def __init__(self) -> None:
        self._session = open_session(weight_path("efficientnet-lite0"))
        self.fingerprint = fingerprint("efficientnet-lite0")

    def embed(self, images: Sequence[Rgb]) -> NDArray[np.float32]:
        """A unit vector for each picture or crop, (N, 1280)."""
        features = [self._run(image)[0] for image in images]
        if not features:
            return np.zeros((0, DIMENSIONS), np.float32)
        stacked = np.stack(features)
        return stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-12)

    def labels(self, images: Sequence[Rgb], k: int = 5) -> list[list[Label]]:
        """The k most probable classes of each picture, best first."""
        names = weight_path("imagenet-labels").read_text(encoding="utf-8").splitlines()
        results = []
        for image in images:
            logits = self._run(image)[1].astype(np.float64)
            probabilities = np.exp(logits - logits.max())
            probabilities /= probabilities.sum()
            best = np.argsort(-probabilities, kind="stable")[:k]
            results.append([Label(tuple(names[i].split(", ")), float(probabilities[i])) for i in best])
        return results

    def _run(self, image: Rgb) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        # one at a time: a batch of another size rounds differently, and a vector must not depend on its neighbours
        feature, logits = self._session.run(["feature", "logits"], {"image": preprocess(image)})
        return feature[0], logits[0]


def preprocess(image: Rgb) -> NDArray[np.float32]:
    """(1, 3, 224, 224). The whole picture is resized, without a centre crop: its border matters."""
    small = Image.fromarray(image).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    scaled = (np.asarray(small, np.float32) - 127.0) / 128.0
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])
