"""`pixelis ask`: answer a question about images and videos, with evidence."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.progress import spinner
from pixelis.cli.terminal import escape_markup, print_json, stdout
from pixelis.cli.tools import make_toolbox
from pixelis.core.errors import ConfigError
from pixelis.policy.model_names import DEFAULT_MODEL

if TYPE_CHECKING:
    from pixelis.api import Answer

USAGE = 'pixelis ask photo.jpg "how many cars?"'
MAX_RESULT_CHARS = 200
MAX_LISTED_ANSWERS = 5


def ask(
    words: Annotated[
        list[str],
        Argument(
            metavar='MEDIA... "QUESTION"', help="Images and videos, and the question in quotes, before or after them."
        ),
    ],
    model: opt.Model = DEFAULT_MODEL,
    samples: Annotated[
        int, Option("--samples", "-n", min=1, max=64, help="How many answers to sample and put to a vote.")
    ] = 1,
    out: Annotated[Path | None, opt.out("Write the evidence page to this file, and the trace beside it.")] = None,
    seed: opt.Seed = 0,
    strict_calls: opt.StrictCalls = False,
    seg: opt.Seg = "auto",
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    fps: opt.Fps = 25.0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Ask a question about images and videos.

    Exit status: 0 answered, 1 no answer (the reason is printed), 2 an error.
    """
    from pixelis.api import check_query, load_policy
    from pixelis.media import open_media
    from pixelis.view.page_file import page_and_trace_paths

    paths, question = split_question(words)
    require_model(model)
    if out:
        page_and_trace_paths(out)  # an error for a page that cannot be written, before the model is asked
    media, question = check_query([open_media(path, fps=fps) for path in paths], question)
    start = time.monotonic()
    tools = make_toolbox(plugin, disable, seg=seg, deadline_s=deadline)
    with tools, spinner(f"{model} is looking"), load_policy(model, strict_calls=strict_calls, tools=tools) as policy:
        answer = policy.ask(media, question, samples=samples, seed=seed)
    seconds = f"{answer.seconds:.1f} s, after {time.monotonic() - start - answer.seconds:.1f} s of loading the model"
    if not as_json:
        print_answer(answer)  # before the page is written: a full disk must not cost the answer
    page = answer.save(out) if out else None
    if as_json:
        print_json(to_json_object(answer, model, page))
    else:
        stdout().print(
            f"[dim]{seconds}{f'; evidence in {escape_markup(str(page))}, trace beside it' if page else ''}[/]"
        )
    raise typer.Exit(0 if answer.answer is not None else 1)


def split_question(words: list[str]) -> tuple[list[str], str]:
    """The media and the question: the argument that is not a file; of several, the last that reads like a question."""
    others = [word for word in words if not os.path.exists(word)]
    if not others:
        raise ConfigError(f"the question is missing, only files are given: {USAGE}")
    question = next((word for word in reversed(others) if " " in word or word.endswith("?")), others[-1])
    media = [word for word in words if word is not question]
    if not media:
        raise ConfigError(f"give at least one image or video: {USAGE}")
    if len(others) > 2 and all(word.isalpha() for word in others[:-1]):
        raise ConfigError(f"several arguments are not files ({', '.join(others[:5])}); quote the question: {USAGE}")
    return media, question


def require_model(name: str) -> None:
    """ConfigError at once for a model name that cannot be loaded."""
    from pixelis.policy.model_names import SERVER_PREFIX, find_checkpoint

    if not name.startswith(SERVER_PREFIX):
        find_checkpoint(name)


def to_json_object(answer: Answer, model: str, page: Path | None) -> dict[str, Any]:
    return {
        "answer": answer.answer,
        "confidence": round(answer.confidence, 4),
        "reason": answer.reason,
        "caveat": answer.caveat,
        "model": model,
        "thought": answer.trace.answer_thought,
        "steps": [
            {"thought": s.thought, "tool": s.call.tool, "args": s.call.args, "status": s.result.status,
             "text": s.result.text or s.result.error}
            for s in answer.trace.steps
        ],
        "votes": [vote._asdict() for vote in answer.votes],
        "vote": answer.vote,
        "seconds": round(answer.seconds, 3),
        "page": str(page) if page else None,
    }  # fmt: skip


def print_answer(answer: Answer) -> None:
    from pixelis.rollout.answer_reading import shorten

    console = stdout()
    for number, step in enumerate(answer.trace.steps, start=1):
        arguments = ", ".join(f"{key}={value}" for key, value in step.call.args.items())
        first_line, *_ = (step.result.text or step.result.error or step.result.status).splitlines() or [""]
        console.print(f"[dim]{number}.[/] {escape_markup(step.thought)}")
        console.print(f"   [bold]{escape_markup(step.call.tool)}[/] {escape_markup(arguments)}")
        console.print(f"   [dim]{escape_markup(shorten(first_line, MAX_RESULT_CHARS))}[/]")
    if answer.trace.answer_thought:
        console.print(f"[dim]{escape_markup(answer.trace.answer_thought)}[/]")
    if answer.answer is None:
        console.print(f"[yellow]I cannot tell[/]: {escape_markup(answer.reason)}")
    else:
        console.print(f"[bold]{escape_markup(answer.answer)}[/]  [dim]confidence {answer.confidence:.2f}[/]")
        if answer.caveat:
            console.print(f"[yellow]{escape_markup(answer.caveat)}[/]")
    if sum(vote.samples for vote in answer.votes) > 1:
        listed = [f"{vote.answer} {vote.share:.0%} ({vote.samples})" for vote in answer.votes[:MAX_LISTED_ANSWERS]]
        if (unlisted := len(answer.votes) - MAX_LISTED_ANSWERS) > 0:
            listed.append(f"and {unlisted} more")
        unanswered = len(answer.vote["ballots"]) - sum(v.samples for v in answer.votes) if answer.vote else 0
        tail = f"; {unanswered} without an answer" if unanswered else ""
        console.print(f"[dim]votes: {escape_markup(', '.join(listed) + tail)}[/]")
