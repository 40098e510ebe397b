"""The templates of the pages, and their filters."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined

from pixelis.view.draw import clean


@lru_cache(maxsize=1)
def environment() -> Environment:
    env = Environment(
        loader=PackageLoader("pixelis.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters["clean"] = clean
    env.filters["seconds"] = seconds
    return env


def asset(name: str) -> str:
    return resources.files("pixelis.view").joinpath("templates", name).read_text("utf-8")


def content_hash(text: str) -> str:
    """The hash by which a Content-Security-Policy allows an inline block."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def seconds(value: float) -> str:
    """A duration in milliseconds or seconds."""
    return f"{value * 1000:.0f} ms" if value < 0.95 else f"{value:.1f} s"
