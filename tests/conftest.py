"""What all tests share."""

from pathlib import Path

import pytest

REALDATA = Path(__file__).resolve().parents[2] / "shared" / "realdata"


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder of public pictures, clips and texts beside the clone; tests that use it skip where it is absent."""
    if not REALDATA.is_dir():
        pytest.skip(f"needs the public files in {REALDATA}")
    return REALDATA
