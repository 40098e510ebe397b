"""The templates of the pages, and their filters."""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pixelis import __version__
from pixelis.view.draw import clean

TERMS = (
    ("certainty", "exp(−H)", "how certain the policy was of the tokens of its decisive steps"),
    ("calibrated", "Cal", "the calibrated probability of answer and tools"),
    (
        "fidelity",
        "VisFid",
        "agreement of its decisive regions, tracks and texts with those of other rollouts, whatever their answer; "
        "0.5 without another to compare with; near-duplicates do not count for each other",
    ),
    (
        "reliability",
        "r",
        "how often this sequence of tools agreed with the majority on earlier queries (Dawid–Skene); for a rare "
        "sequence, the share of the other rollouts that agree with it here",
    ),
)
"""The terms of a vote's weight: their keys in the record, their symbols, and what they are."""


@lru_cache(maxsize=1)
def environment() -> Environment:
    loader = PackageLoader("pixelis.view")
    env = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    env.filters["clean"] = clean
    env.filters["seconds"] = seconds
    return env


def render_page(template: str, *, script: str = "", **context: Any) -> str:
    """A whole page, with its style, and a policy that lets nothing else in."""
    style = asset("page.css")
    scripts = f"script-src '{content_hash(script)}'; " if script else ""
    policy = f"default-src 'none'; img-src data:; style-src '{content_hash(style)}'; {scripts}"
    return environment().get_template(template).render(
        **context, style=Markup(style), script=Markup(script), terms=TERMS, version=__version__,  # noqa: S704 - our files
        policy=f"{policy}base-uri 'none'; form-action 'none'",
    )  # fmt: skip


def asset(name: str) -> str:
    return resources.files("pixelis.view").joinpath("templates", name).read_text("utf-8")


def content_hash(text: str) -> str:
    """The hash by which a Content-Security-Policy allows an inline block."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def seconds(value: float) -> str:
    """A duration in milliseconds or seconds."""
    return f"{value * 1000:.0f} ms" if value < 0.95 else f"{value:.1f} s"
