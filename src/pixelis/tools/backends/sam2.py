"""SAM 2 Hiera-Tiny on onnxruntime: a picture is embedded once (seconds), then each prompt costs a tenth of a second."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from pixelis.core.errors import ToolError
from pixelis.core.geometry import PixelBox, Size
from pixelis.weights import fingerprint, weight_path
from pixelis.weights.session import open_session

SIDE = 1024
RGB_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
RGB_STD = np.array([0.229, 0.224, 0.225], np.float32)
BOX_LABELS = (2.0, 3.0)
"""Labels that mark two points as the corners of a box."""
WHOLE_OVER_PART = 0.1
"""How much a larger candidate is preferred after one click, per factor e of area.

A click on a face may mean the face or the person; hand-drawn polygons are mostly of the whole. On 192 polygons this
raises the mean IoU of the mask that is shown first from 0.636 to 0.651 (chosen on the same polygons; all of the gain is
on COCO's); 0.3 is worse than none (0.614). See docs/decisions/0002-weights.md.
"""

Rgb = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
Halves = NDArray[np.float16]


class MaskCandidate(NamedTuple):
    """A candidate: which pixels, and the IoU that the model expects of them."""

    mask: Bools
    score: float


@dataclass(frozen=True)
class Embedding:
    """The encoder's features of a picture, in half precision: a cached embedding equals a fresh one."""

    features: tuple[Halves, ...]
    """From fine to coarse; the last one is the embedding proper."""

    @classmethod
    def from_features(cls, features: Sequence[NDArray[np.float32]]) -> Self:
        return cls(tuple(np.asarray(feature, np.float16) for feature in features))

    def to_bytes(self) -> bytes:
        out = io.BytesIO()
        np.savez(out, *self.features)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Raises ToolError on anything that `to_bytes` did not write; runs nothing that the bytes may hold."""
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as archive:
                features = tuple(archive[f"arr_{i}"] for i in range(len(archive.files)))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ToolError(f"a kept SAM 2 embedding cannot be read ({error}); run `pixelis cache clear`") from error
        if not features or any(f.dtype != np.float16 or f.ndim != 4 for f in features):
            raise ToolError("a kept SAM 2 embedding holds other arrays than it should; run `pixelis cache clear`")
        return cls(features)

    def as_floats(self) -> list[Floats]:
        return [feature.astype(np.float32) for feature in self.features]


class Sam2:
    """SAM 2. Raises WeightsError where its files have not been pulled."""

    _side = SIDE

    def __init__(self) -> None:
        self._encoder = open_session(weight_path("sam2-tiny-encoder"))
        self._decoder = open_session(weight_path("sam2-tiny-decoder"))
        fingerprints = fingerprint("sam2-tiny-encoder") + fingerprint("sam2-tiny-decoder")
        self.fingerprint = hashlib.sha256(fingerprints.encode("ascii")).hexdigest()

    def embed(self, image_rgb: Rgb) -> Embedding:
        """Encode a picture; about four seconds on one core."""
        names = ["high_res_feats_0", "high_res_feats_1", "image_embed"]
        return Embedding.from_features(self._encoder.run(names, {"image": preprocess(image_rgb, SIDE)}))

    def restore(self, content: bytes) -> Embedding:
        """The embedding that `Embedding.to_bytes` wrote."""
        return Embedding.from_bytes(content)

    def segment(
        self,
        embedding: Embedding,
        size: Size,
        *,
        points: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        box_px: PixelBox | None = None,
    ) -> list[MaskCandidate]:
        """Up to three candidates, best first, for clicks (x, y) in pixels (label 1: inside, 0: outside) and a box."""
        points_px, point_labels = build_prompt(points, labels, box_px)
        scaled = np.asarray(points_px * (self._side / np.array(size, np.float32)), np.float32)
        logits, scores = self._decode(embedding.as_floats(), scaled, point_labels)
        return rank_candidates(logits, scores, size, one_click=len(point_labels) == 1)

    def _decode(self, features: list[Floats], points: Floats, labels: Floats) -> tuple[Floats, Floats]:
        """Logits (K, h, w) and expected IoU (K,) of the candidates, for points (P, 2) on the square."""
        fine, middle, coarse = features
        logits, scores = self._decoder.run(
            ["masks", "iou_predictions"],
            {
                "image_embed": coarse,
                "high_res_feats_0": fine,
                "high_res_feats_1": middle,
                "point_coords": points[None],  # (1, P, 2)
                "point_labels": labels[None],
                "mask_input": np.zeros((1, 1, 256, 256), np.float32),
                "has_mask_input": np.zeros(1, np.float32),
            },
        )
        return logits[0], scores[0]


def build_prompt(points: ArrayLike | None, labels: ArrayLike | None, box_px: PixelBox | None) -> tuple[Floats, Floats]:
    """Points (P, 2) in pixels and SAM's labels (P,), the box's corners first; ToolError if empty or inconsistent."""
    clicks = np.asarray(() if points is None else points, np.float32).reshape(-1, 2)
    click_labels = np.ones(len(clicks), np.float32) if labels is None else np.asarray(labels, np.float32).reshape(-1)
    if len(click_labels) != len(clicks) or not np.isin(click_labels, (0, 1)).all():
        raise ToolError(f"SAM 2 wants a label 0 or 1 for each of {len(clicks)} points, not {click_labels.tolist()}")
    if box_px is None and not len(clicks):
        raise ToolError("SAM 2 wants a point or a box")
    corners = np.asarray(() if box_px is None else box_px, np.float32).reshape(-1, 2)
    corner_labels = np.asarray(() if box_px is None else BOX_LABELS, np.float32)
    return np.concatenate([corners, clicks]), np.concatenate([corner_labels, click_labels])


def preprocess(image_rgb: Rgb, side: int) -> Floats:
    """(1, 3, side, side), squeezed into the square as SAM 2 was trained."""
    small = Image.fromarray(image_rgb).resize((side, side), Image.Resampling.BILINEAR)
    scaled = (np.asarray(small, np.float32) / 255.0 - RGB_MEAN) / RGB_STD
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None])


def rank_candidates(logits: Floats, scores: Floats, size: Size, *, one_click: bool) -> list[MaskCandidate]:
    """Masks on a frame of `size` from the decoder's logits (K, h, w), best first, without empty ones."""
    shares = (logits > 0).mean(axis=(1, 2))  # (K,)
    rank = scores + WHOLE_OVER_PART * np.log(shares + 1e-6) if one_click else scores
    segments = []
    for k in np.argsort(-rank, kind="stable"):
        mask = cv2.resize(logits[k], tuple(size), interpolation=cv2.INTER_LINEAR) > 0
        if mask.any():
            segments.append(MaskCandidate(mask, float(np.clip(scores[k], 0.0, 1.0))))
    return segments
