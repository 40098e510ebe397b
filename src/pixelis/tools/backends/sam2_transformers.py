"""SAM 2 through transformers: any checkpoint of `Sam2Model`, from a folder or a hub, behind the same calls as `Sam2`.

Its own image processor wants torchvision, which is not among our packages; ours does the same steps.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from pixelis.core.errors import WeightsError
from pixelis.core.geometry import PixelBox, Size
from pixelis.tools.backends.sam2 import Embedding, MaskCandidate, Rgb, build_prompt, preprocess, rank_candidates
from pixelis.weights.store import hash_path


class Sam2Transformers:
    """A `Sam2Model`. Raises WeightsError where the folder or the hub does not give one."""

    def __init__(self, model: str | Path) -> None:
        # by name, so that the tools' layer opens without torch and the contract that says so can stay simple
        self._torch = import_module("torch")
        transformers = import_module("transformers")
        try:
            self._model = transformers.Sam2Model.from_pretrained(str(model), use_safetensors=True).eval()
        except (OSError, ValueError) as error:
            raise WeightsError(f"{model}: no SAM 2 model there ({str(error).splitlines()[0]})") from error
        self._side = int(self._model.config.prompt_encoder_config.image_size)
        folder = Path(model)
        name = str(getattr(self._model.config, "_commit_hash", None) or model)
        self.fingerprint = hash_path(folder) if folder.is_dir() else hashlib.sha256(name.encode()).hexdigest()

    def embed(self, image_rgb: Rgb) -> Embedding:
        """The encoder's view of a picture."""
        with self._torch.inference_mode():
            features = self._model.get_image_embeddings(self._torch.from_numpy(preprocess(image_rgb, self._side)))
        return Embedding.from_features([feature.numpy() for feature in features])

    def restore(self, content: bytes) -> Embedding:
        """An embedding out of `Embedding.to_bytes`."""
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
        clicks = build_prompt(points, labels, box_px)
        scaled = clicks.points_px * (self._side / np.array(size, np.float32))
        tensor = self._torch.from_numpy
        with self._torch.inference_mode():
            output = self._model(
                image_embeddings=[tensor(feature) for feature in embedding.as_floats()],
                input_points=tensor(scaled)[None, None],  # (1, 1, P, 2)
                input_labels=tensor(clicks.labels.astype(np.int32))[None, None],
                multimask_output=True,
            )
        logits, scores = output.pred_masks[0, 0].numpy(), output.iou_scores[0, 0].numpy()
        return rank_candidates(logits, scores, size, one_click=clicks.is_one_click)
