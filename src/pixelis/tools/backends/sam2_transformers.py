"""SAM 2 through transformers: any checkpoint of `Sam2Model`, from a folder or a hub, behind the same calls as `Sam2`.

The image processor of transformers needs torchvision, which is not a dependency; ours does the same steps.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from pixelis.core.errors import WeightsError
from pixelis.core.extras import require
from pixelis.tools.backends.sam2 import Embedding, Floats, Rgb, Sam2, preprocess
from pixelis.weights.store import hash_path


class Sam2Transformers(Sam2):
    """A `Sam2Model`. Raises WeightsError where neither the folder nor the hub has one."""

    def __init__(self, model: str | Path) -> None:
        self._torch, transformers = (require(name, "SEG through transformers") for name in ("torch", "transformers"))
        try:
            self._model = transformers.Sam2Model.from_pretrained(str(model), use_safetensors=True).eval()
        except (OSError, ValueError) as error:
            raise WeightsError(f"{model}: no SAM 2 model there ({str(error).splitlines()[0]})") from error
        self._side = int(self._model.config.prompt_encoder_config.image_size)
        folder = Path(model)
        name = str(getattr(self._model.config, "_commit_hash", None) or model)
        self.fingerprint = hash_path(folder) if folder.is_dir() else hashlib.sha256(name.encode()).hexdigest()

    def embed(self, image_rgb: Rgb) -> Embedding:
        with self._torch.inference_mode():
            features = self._model.get_image_embeddings(self._torch.from_numpy(preprocess(image_rgb, self._side)))
        return Embedding.from_features([feature.numpy() for feature in features])

    def _decode(self, features: list[Floats], points: Floats, labels: Floats) -> tuple[Floats, Floats]:
        tensor = self._torch.from_numpy
        with self._torch.inference_mode():
            output = self._model(
                image_embeddings=[tensor(feature) for feature in features],
                input_points=tensor(points)[None, None],  # (1, 1, P, 2)
                input_labels=tensor(labels.astype(np.int32))[None, None],
                multimask_output=True,
            )
        return output.pred_masks[0, 0].numpy(), output.iou_scores[0, 0].numpy()
