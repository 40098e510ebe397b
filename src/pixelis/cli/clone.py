"""What only a clone of the repository holds: benchmarks and experiments are not in the wheel."""

from __future__ import annotations

import sys
from pathlib import Path

from pixelis.core.errors import ConfigError

CLONE = Path(__file__).resolve().parents[3]


def require_clone(package: str) -> None:
    """Make a top-level package of the clone importable; ConfigError where pixelis was installed without one."""
    if not (CLONE / package / "__init__.py").is_file():
        raise ConfigError(f"this verb needs a clone of the repository: the installed package has no {package}/")
    if str(CLONE) not in sys.path:
        sys.path.insert(0, str(CLONE))
