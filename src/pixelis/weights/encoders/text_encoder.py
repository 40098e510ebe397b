"""Sentences to unit vectors: all-MiniLM-L6-v2, the mean over its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pixelis.core.extras import require
from pixelis.weights import fingerprint, weight_path
from pixelis.weights.session import open_session

DIMENSIONS = 384
MAX_TOKENS = 256
"""The model's maximum; the rest of a longer text is dropped."""


class TextEncoder:
    """MiniLM with int8 weights. Raises WeightsError if its files have not been pulled."""

    dimensions = DIMENSIONS

    def __init__(self) -> None:
        self._session = open_session(weight_path("minilm"))
        read_tokenizer = require("tokenizers", "the text encoder").Tokenizer.from_file
        self._tokenizer = read_tokenizer(str(weight_path("minilm-tokenizer")))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._untruncated_tokenizer = read_tokenizer(str(weight_path("minilm-tokenizer")))
        """Cuts texts of any length."""
        self._untruncated_tokenizer.no_padding()
        self._untruncated_tokenizer.no_truncation()
        self.fingerprint = fingerprint("minilm")

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """A unit vector for each text, (N, 384)."""
        if not texts:
            return np.zeros((0, DIMENSIONS), np.float32)
        means = np.stack([self._mean(text) for text in texts])
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)

    def cut(self, text: str, *, first: int | None = None, last: int | None = None) -> str:
        """The first or the last tokens of a text, as a substring of it."""
        spans = self._untruncated_tokenizer.encode(text, add_special_tokens=False).offsets
        selected = spans[:first] if last is None else spans[max(0, len(spans) - last) :]
        return text[selected[0][0] : selected[-1][1]] if selected else ""

    def _mean(self, text: str) -> NDArray[np.float32]:
        # one at a time: the int8 layers scale by the largest value in the batch, so a neighbour would change the vector
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)  # (1, T)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        states = self._session.run(["last_hidden_state"], inputs)[0]  # (1, T, 384)
        mean: NDArray[np.float32] = states[0].mean(axis=0)
        return mean
