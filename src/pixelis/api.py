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
    from pixelis.tools.toolbox import Toolbox
    from pixelis.voting.answers import Answer

DEFAULT_MODEL = "nano-rft"
"""Shipped with the package."""
LOADED_MODELS: dict[tuple[str, bool, tuple[int, ...]], tuple[Model, Toolbox]] = {}
"""The model and the tools of the last question."""
WHITESPACE_RUN = re.compile(r"[^\S\n]+")
"""They mean nothing to a person, and are tokens of their own to a policy."""
MAX_QUESTION_CHARS = 4000
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
    from pixelis.core.errors import ConfigError
    from pixelis.media import Medium, open_media
    from pixelis.voting.answers import ask_model

    if not question.strip():
        raise ConfigError("the question is empty")
    if len(question) > MAX_QUESTION_CHARS:
        raise ConfigError(f"the question has {len(question):,} characters; at most {MAX_QUESTION_CHARS:,} are read")
    media_list = [media] if isinstance(media, str | Path) or not isinstance(media, Sequence) else list(media)
    media_list = [
        entry if isinstance(entry, Medium) else open_media(Path(entry)) for entry in media_list
    ]  # sooner than the model
    loaded_model, toolbox = load_model_and_toolbox(model, strict_calls=strict_calls)
    normalised_question = WHITESPACE_RUN.sub(" ", question.strip())
    return ask_model(loaded_model, toolbox, media_list, normalised_question, samples=samples, seed=seed)


def load_model_and_toolbox(model: str, *, strict_calls: bool = False) -> tuple[Model, Toolbox]:
    """A model and the tools, kept for the next question until another model is asked or its files change."""
    from pixelis.rollout.models import open_model
    from pixelis.tools.toolbox import Toolbox

    key = model, strict_calls, modification_times(Path(model))
    if key not in LOADED_MODELS:
        release()
        LOADED_MODELS[key] = open_model(model, strict_calls=strict_calls), Toolbox()
    return LOADED_MODELS[key]


def modification_times(folder: Path) -> tuple[int, ...]:
    """When the files of a folder were written; nothing for a name that is none."""
    return tuple(sorted(path.stat().st_mtime_ns for path in folder.iterdir())) if folder.is_dir() else ()


@atexit.register
def release() -> None:
    """Close the model and the tools that were kept."""
    for model, toolbox in LOADED_MODELS.values():
        model.close()
        toolbox.close()
    LOADED_MODELS.clear()
