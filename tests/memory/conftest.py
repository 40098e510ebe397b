"""What the tests of the retrieval memory share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # `memories`, which several files share
