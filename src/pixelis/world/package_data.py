"""Words and sentences of the package, kept as YAML beside the code that uses them."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import yaml


@cache
def read_package_yaml(package: str, name: str) -> Any:
    """The content of a YAML file of a package. It is shared: do not change it."""
    return yaml.safe_load(resources.files(package).joinpath(name).read_bytes())
