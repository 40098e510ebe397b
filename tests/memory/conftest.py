"""What the tests of the retrieval memory share."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pixelis.dedup.synthetic_duplicates import bundled_images
from pixelis.weights import is_available
from pixelis.weights.encoders.visual_encoder import VisualEncoder

sys.path.insert(0, str(Path(__file__).parent))  # `memories`, which several files share


@pytest.fixture(scope="session")
def encoder() -> VisualEncoder:
    if not is_available("efficientnet-lite0"):
        pytest.skip("run `pixelis models pull efficientnet-lite0`")
    return VisualEncoder()


@pytest.fixture(scope="session")
def pictures() -> dict[str, NDArray[np.uint8]]:
    return bundled_images()
