"""Pixelis: a pixel-space vision-language agent with executable tools and replayable evidence."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "ask"]


def __getattr__(name: str) -> Any:
    if name == "ask":  # on first use: it brings torch
        return import_module("pixelis.api").ask
    raise AttributeError(f"module 'pixelis' has no attribute {name!r}")
