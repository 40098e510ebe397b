"""The front door: `pixelis.ask(media, question)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pixelis.media import Medium
    from pixelis.rollout.answering import Answer
    from pixelis.rollout.models import Model
    from pixelis.tools.toolbox import Toolbox

DEFAULT_MODEL = "nano-sft"
"""Shipped with the package."""
LONGEST_QUESTION = 4000
"""Characters; a longer one is refused with a sentence."""


def ask(
    media: str | Path | Medium | Sequence[str | Path | Medium],
    question: str,
    *,
    model: str = DEFAULT_MODEL,
    samples: int = 1,
    seed: int = 0,
) -> Answer:
    """Answer a question about pictures and clips with tools, and show the evidence.

    `model` is a shipped name, a folder that `pixelis train sft` wrote, a hub id, or `openai:URL#name` for a server,
    whose key is read from the environment variable PIXELIS_API_KEY. Several samples are put to a vote.
    """
    from pixelis.errors import ConfigError
    from pixelis.rollout.answering import ask_model

    if not question.strip():
        raise ConfigError("the question is empty")
    if len(question) > LONGEST_QUESTION:
        raise ConfigError(f"the question has {len(question):,} characters; at most {LONGEST_QUESTION:,} are read")
    given = [media] if isinstance(media, str | Path) or not isinstance(media, Sequence) else list(media)
    answering, toolbox = opened(model)
    return ask_model(answering, toolbox, given, question.strip(), samples=samples, seed=seed)


@lru_cache(maxsize=2)
def opened(model: str) -> tuple[Model, Toolbox]:
    """A model and the tools, kept for the next question."""
    from pixelis.rollout.models import open_model
    from pixelis.tools.toolbox import Toolbox

    return open_model(model), Toolbox()
