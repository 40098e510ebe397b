"""The front door: `pixelis.ask(media, question)`."""

from __future__ import annotations

import atexit
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pixelis.media import Medium
    from pixelis.rollout.models import Model
    from pixelis.scoring.answering import Answer
    from pixelis.tools.toolbox import Toolbox

DEFAULT_MODEL = "nano-rft"
"""Shipped with the package."""
KEPT: dict[tuple[str, bool, tuple[int, ...]], tuple[Model, Toolbox]] = {}
"""The model and the tools of the last question."""
RUNS_OF_BLANKS = re.compile(r"[^\S\n]+")
"""They mean nothing to a person, and are tokens of their own to a policy."""
LONGEST_QUESTION = 4000
"""Characters; a longer one is refused with a sentence."""


def ask(
    media: str | Path | Medium | Sequence[str | Path | Medium],
    question: str,
    *,
    model: str = DEFAULT_MODEL,
    samples: int = 1,
    seed: int = 0,
    strict_calls: bool = False,
) -> Answer:
    """Answer a question about pictures and clips with tools, and show the evidence.

    `model` is a shipped name, a folder that `pixelis train sft` wrote, a hub id, or `openai:URL#name` for a server,
    whose key is read from the environment variable PIXELIS_API_KEY. Several samples are put to a vote. With
    `strict_calls` every call is held to its tool's schema while it is written, which needs weights in this process.
    """
    from pixelis.errors import ConfigError
    from pixelis.media import Medium, open_media
    from pixelis.scoring.answering import ask_model

    if not question.strip():
        raise ConfigError("the question is empty")
    if len(question) > LONGEST_QUESTION:
        raise ConfigError(f"the question has {len(question):,} characters; at most {LONGEST_QUESTION:,} are read")
    given = [media] if isinstance(media, str | Path) or not isinstance(media, Sequence) else list(media)
    given = [each if isinstance(each, Medium) else open_media(Path(each)) for each in given]  # sooner than the model
    answering, toolbox = opened(model, strict_calls=strict_calls)
    plain = RUNS_OF_BLANKS.sub(" ", question.strip())
    return ask_model(answering, toolbox, given, plain, samples=samples, seed=seed)


def opened(model: str, *, strict_calls: bool = False) -> tuple[Model, Toolbox]:
    """A model and the tools, kept for the next question until another model is asked or its files change."""
    from pixelis.rollout.models import open_model
    from pixelis.tools.toolbox import Toolbox

    key = model, strict_calls, changed(Path(model))
    if key not in KEPT:
        let_go()
        KEPT[key] = open_model(model, strict_calls=strict_calls), Toolbox()
    return KEPT[key]


def changed(folder: Path) -> tuple[int, ...]:
    """When the files of a folder were written; nothing for a name that is none."""
    return tuple(sorted(path.stat().st_mtime_ns for path in folder.iterdir())) if folder.is_dir() else ()


@atexit.register
def let_go() -> None:
    """Close the model and the tools that were kept."""
    for model, toolbox in KEPT.values():
        model.close()
        toolbox.close()
    KEPT.clear()
