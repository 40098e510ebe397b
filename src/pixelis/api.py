"""The public functions for asking and evaluating; `pixelis` exports them beside the classes of other modules."""

from __future__ import annotations

import atexit
import html
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from PIL import Image as Pil

from pixelis.core.errors import ConfigError, MediaError
from pixelis.core.extras import missing_extra
from pixelis.media import Image, Medium, open_media
from pixelis.media.image import to_upright_rgb
from pixelis.media.opening import open_bytes
from pixelis.policy.model_names import DEFAULT_MODEL
from pixelis.rollout.answer_reading import shorten
from pixelis.voting.answers import VotedAnswer, ask_model

if TYPE_CHECKING:
    from pixelis.data.corpus.record import Split
    from pixelis.evaluation.harness import Evaluation
    from pixelis.rollout.episode import Limits
    from pixelis.rollout.models import Model
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig

MediaInput = str | Path | bytes | Pil.Image | np.ndarray | Medium
"""A path, the bytes of a picture file, a Pillow image, an array of 8-bit pixels, or a medium that is open."""
LOADED_POLICIES: dict[Hashable, LoadedPolicy] = {}
"""The policy of the last question to `ask`."""
WHITESPACE_RUN = re.compile(r"[^\S\n]+")
"""It means nothing to a person, and is tokens of its own to a policy."""
MAX_QUESTION_CHARS = 4000
FRAME_HEIGHT_PX = 720
"""Height of an evidence page in a notebook."""


class Answer(VotedAnswer):
    """What `ask` returns: the answer or the reason why there is none, the trace behind it, and its evidence page."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One line, as a prompt shows it."""
        text = repr(shorten(self.answer)) if self.answer is not None else f"no answer: {self.reason}"
        calls = len(self.trace.steps)
        return f"<Answer {text}, confidence {self.confidence:.2f}, {calls} call{'s' * (calls != 1)}>"

    def _repr_html_(self) -> str:
        """The evidence page in a notebook, in a frame of its own."""
        page = html.escape(self.page(), quote=True)
        return f'<iframe sandbox="allow-scripts" width="100%" height="{FRAME_HEIGHT_PX}" srcdoc="{page}"></iframe>'

    def page(self, trace_path: Path | None = None) -> str:
        """The evidence page: one HTML file with its pictures in it."""
        from pixelis.view import make_exhibit, report

        exhibit = make_exhibit(
            self.trace, trace_path, thresholds=self.thresholds, opened=self.media, artifact_bytes=self.blobs
        )
        full = replace(exhibit, withheld=self.reason, confidence=self.confidence, vote=self.vote, caveat=self.caveat)
        return report([full])

    def save(self, path: str | Path) -> Path:
        """Write the evidence page, and beside it the trace with its artifacts, as `page.jsonl`; the page's path.

        A trace refers to media by path and hash. Media that came as bytes or pixels are in the page, not on disk: to
        replay such a trace, save them yourself first and ask about the files.
        """
        from pixelis.trace import codec
        from pixelis.view.page_file import page_and_trace_paths, write_page

        page_path, trace_path = page_and_trace_paths(Path(path))
        codec.write([self.trace], trace_path, self.blobs)
        write_page(self.page(trace_path), page_path)
        return page_path


class LoadedPolicy:
    """A policy and its tools, kept for many questions. Close it, or use it as a context manager."""

    def __init__(self, model: Model, toolbox: Toolbox, *, owns_toolbox: bool = True) -> None:
        self.model, self.toolbox, self._owns_toolbox = model, toolbox, owns_toolbox

    def ask(
        self,
        media: MediaInput | Sequence[MediaInput],
        question: str,
        *,
        samples: int = 1,
        seed: int = 0,
        limits: Limits | None = None,
    ) -> Answer:
        """Answer a question about pictures and clips. Several samples are put to a vote, which may abstain."""
        query_media, query_text = check_query(media, question)
        return Answer(
            *ask_model(self.model, self.toolbox, query_media, query_text, samples=samples, seed=seed, limits=limits)
        )

    def close(self) -> None:
        """Release the model, and the toolbox unless it came from the caller."""
        self.model.close()
        if self._owns_toolbox:
            self.toolbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def load_policy(
    model: str = DEFAULT_MODEL, *, tools: ToolboxConfig | Toolbox | None = None, strict_calls: bool = False
) -> LoadedPolicy:
    """Load a policy for many questions.

    `model` is a shipped name, a folder that a training run wrote, a hub id, or `openai:URL#name` for a server, whose
    key is read from the environment variable PIXELIS_API_KEY. `tools` configures the toolbox; a Toolbox of your own
    stays yours to close. With `strict_calls` every call is constrained to its tool's schema while it is decoded, which
    needs weights in this process.
    """
    from pixelis.rollout.models import open_model
    from pixelis.tools.toolbox import Toolbox

    try:
        opened_model = open_model(model, strict_calls=strict_calls)
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"the policy {model}", "policy") or error from error
    if isinstance(tools, Toolbox):
        return LoadedPolicy(opened_model, tools, owns_toolbox=False)
    return LoadedPolicy(opened_model, Toolbox(tools))


def ask(
    media: MediaInput | Sequence[MediaInput],
    question: str,
    *,
    model: str | LoadedPolicy = DEFAULT_MODEL,
    samples: int = 1,
    seed: int = 0,
    tools: ToolboxConfig | None = None,
    strict_calls: bool = False,
) -> Answer:
    """Answer a question about pictures and clips with tools, and return the evidence.

    `media` is one medium or several: paths, bytes of picture files, Pillow images or arrays of pixels. `model` is a
    name as for `load_policy`, or the policy that it returns, which has its tools already. A model that is given by
    name is kept for the next question.
    """
    query_media, query_text = check_query(media, question)  # before the model loads
    policy = model
    if isinstance(policy, str):
        policy = cached_policy(policy, tools=tools, strict_calls=strict_calls)
    return policy.ask(query_media, query_text, samples=samples, seed=seed)


def evaluate(
    tasks: str | Path | Sequence[str | Path] = (),
    *,
    model: str = DEFAULT_MODEL,
    limit: int = 20,
    split: Split = "test",
    shift: str = "",
    without_tools: bool = False,
    seed: int = 0,
    out: str | Path | None = None,
) -> Evaluation:
    """Score a policy on held-out questions with real tool calls.

    `tasks` are families of the procedural world (all six by default), folders of corpora or files of items; `limit`
    is the number of questions of each, `shift` a degradation as KIND:SEVERITY. `out` is a folder for report.json,
    items.jsonl and traces.jsonl.
    """
    from pixelis.evaluation.run_evaluation import evaluate_model
    from pixelis.evaluation.tasks import make_tasks

    names = [tasks] if isinstance(tasks, str | Path) else tasks
    made_tasks = make_tasks([str(name) for name in names], split=split, shift=shift)
    return evaluate_model(
        model, made_tasks, limit=limit, without_tools=without_tools, seed=seed, out=None if out is None else Path(out)
    )


def check_query(media: MediaInput | Sequence[MediaInput], question: str) -> tuple[tuple[Medium, ...], str]:
    """The media opened and the question with single spaces; an error for what cannot be asked."""
    if not question.strip():
        raise ConfigError("the question is empty")
    if len(question) > MAX_QUESTION_CHARS:
        raise ConfigError(f"the question has {len(question):,} characters; at most {MAX_QUESTION_CHARS:,} are read")
    entries = media if isinstance(media, Sequence) and not isinstance(media, str | bytes) else [media]
    return tuple(to_medium(entry) for entry in entries), WHITESPACE_RUN.sub(" ", question.strip())


def to_medium(value: Any) -> Medium:
    """A medium from anything that `ask` accepts."""
    if isinstance(value, Medium):
        return value
    if isinstance(value, str | Path):
        return open_media(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return open_bytes(bytes(value))
    if isinstance(value, Pil.Image):
        return Image.from_array(to_upright_rgb(value, "the picture"))
    if isinstance(value, np.ndarray):
        return array_to_medium(value)
    raise MediaError(f"a medium is a path, bytes, a Pillow image or an array; this is a {type(value).__name__}")


def array_to_medium(array: np.ndarray) -> Medium:
    """A picture from (height, width[, 1, 3 or 4]) of uint8. The pixels are copied: the caller may go on using them."""
    if array.ndim == 4:
        raise MediaError(f"an array of shape {array.shape} is a clip: pass pixelis.Clip.from_frames(frames, fps=…)")
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or 0 in array.shape or array.shape[2:] not in SHAPES:
        raise MediaError(f"want an array (height, width[, 1, 3 or 4]) of uint8, not {array.shape} of {array.dtype}")
    grey_as_2d = array[:, :, 0] if array.shape[2:] == (1,) else array
    return Image.from_array(to_upright_rgb(Pil.fromarray(np.array(grey_as_2d)), "the array"))


SHAPES = ((), (1,), (3,), (4,))


def cached_policy(model: str, *, tools: ToolboxConfig | None = None, strict_calls: bool = False) -> LoadedPolicy:
    """The policy of the last question, unless another one is wanted or its files changed."""
    key = model, tools, strict_calls, modification_times(Path(model))
    if key not in LOADED_POLICIES:
        release()
        LOADED_POLICIES[key] = load_policy(model, tools=tools, strict_calls=strict_calls)
    return LOADED_POLICIES[key]


def modification_times(folder: Path) -> tuple[int, ...]:
    """When the files of a folder were written; nothing for a name that is not a folder."""
    return tuple(sorted(path.stat().st_mtime_ns for path in folder.iterdir())) if folder.is_dir() else ()


@atexit.register
def release() -> None:
    """Close the policy that `ask` keeps."""
    for policy in LOADED_POLICIES.values():
        policy.close()
    LOADED_POLICIES.clear()
