"""The front door: `pixelis.ask(media, question)`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pixelis.media import Medium
    from pixelis.rollout.answering import Answer

LONGEST_QUESTION = 4000
"""Characters; a longer one is refused with a sentence."""


def ask(
    media: str | Path | Medium | Sequence[str | Path | Medium],
    question: str,
    *,
    model: str,
    samples: int = 1,
    seed: int = 0,
) -> Answer:
    """Answer a question about pictures and clips with tools, and show the evidence.

    `model` is a folder that `pixelis train sft` wrote, or a hub id. Several samples are put to a vote.
    """
    from pixelis.errors import ConfigError
    from pixelis.rollout.answering import ask_policy

    if not question.strip():
        raise ConfigError("the question is empty")
    if len(question) > LONGEST_QUESTION:
        raise ConfigError(f"the question has {len(question):,} characters; at most {LONGEST_QUESTION:,} are read")
    given = [media] if isinstance(media, str | Path) or not isinstance(media, Sequence) else list(media)
    policy, toolbox = opened(model)
    return ask_policy(policy, toolbox, given, question.strip(), samples=samples, seed=seed)


@lru_cache(maxsize=2)
def opened(model: str) -> tuple[Any, Any]:
    """A policy and the tools, kept for the next question."""
    from pixelis.policy.checkpoint import load_checkpoint
    from pixelis.tools.toolbox import Toolbox

    return load_checkpoint(model).policy, Toolbox()
