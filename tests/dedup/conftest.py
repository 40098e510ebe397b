"""Fixtures of the de-duplication tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image


@pytest.fixture
def save(tmp_path: Path) -> Callable[[str, NDArray[np.uint8]], Path]:
    """Writes a picture below the test's folder."""

    def write(name: str, pixels: NDArray[np.uint8]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return path

    return write
