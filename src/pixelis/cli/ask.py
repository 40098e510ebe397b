"""`pixelis ask`: a question about pictures and clips, answered with evidence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.api import DEFAULT_MODEL
from pixelis.cli.terminal import AsJson, Model, StrictCalls, escape_markup, print_json, spinner, stdout

if TYPE_CHECKING:
    from pixelis.voting.answers import Answer


def ask(
    words: Annotated[
        list[str], typer.Argument(metavar='MEDIA... "QUESTION"', help="Pictures and clips, then the question.")
    ],
    model: Model = DEFAULT_MODEL,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, max=64, help="Several are put to a vote.")] = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write the evidence page here, and the trace beside it.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same samples.")] = 0,
    strict_calls: StrictCalls = False,
    as_json: AsJson = False,
) -> None:
    """Ask. Exit status: 0 answered, 1 it cannot be told (the reason is printed), 2 an error."""
    from pixelis.api import ask as put
    from pixelis.core.errors import ConfigError

    *media, question = words
    if not media:
        raise ConfigError(
            'give at least one picture or clip, then the question: pixelis ask photo.jpg "how many cars?"'
        )
    if out:
        check_output_path(out)
    start = time.monotonic()
    with spinner(f"{model} is looking", quiet=as_json):
        answer = put(media, question, model=model, samples=samples, seed=seed, strict_calls=strict_calls)
    if as_json:
        print_json(to_json_object(answer, model, write_evidence(answer, out, media) if out else None))
    else:
        load_seconds = time.monotonic() - start - answer.seconds
        print_answer(answer)  # before anything is written: what was found is not lost with a full disk
        page = write_evidence(answer, out, media) if out else None
        tail = f"; evidence in {escape_markup(str(page))}" if page else ""
        stdout().print(f"[dim]{answer.seconds:.1f} s, after {load_seconds:.1f} s of opening the model{tail}[/]")
    raise typer.Exit(0 if answer.answer is not None else 1)


def check_output_path(out: Path) -> None:
    """Refuse a page that could not be written, before anything is asked."""
    from pixelis.cli.trace import check_page
    from pixelis.core.errors import ConfigError
    from pixelis.trace import codec

    trace_path = out.with_suffix(".jsonl")
    if trace_path == out:
        raise ConfigError(f"{out}: the trace is written there; want another ending for the page, such as .html")
    check_page(out)
    codec.check_target(trace_path)


def write_evidence(answer: Answer, out: Path, media: list[str]) -> Path:
    """The trace, and its page."""
    from pixelis.cli import trace as pages
    from pixelis.tools.toolbox import builtin_thresholds
    from pixelis.trace import codec
    from pixelis.view import make_exhibit
    from pixelis.view import report as page_of

    trace_path = out.with_suffix(".jsonl")
    codec.write([answer.trace], trace_path, answer.blobs)
    page_exhibit = make_exhibit(
        answer.trace, trace_path, [Path(m) for m in media], thresholds=builtin_thresholds(), withheld=answer.reason, confidence=answer.confidence,
        vote=answer.vote, caveat=answer.caveat,
    )  # fmt: skip
    pages.write_page(page_of([page_exhibit]), out)
    return out


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


MAX_RESULT_CHARS = 200
"""Of a tool's result, in the terminal."""
MAX_LISTED_ANSWERS = 5
"""Answers that are listed there."""


def print_answer(answer: Answer) -> None:
    from pixelis.rollout.answer_reading import shorten

    console = stdout()
    for number, step in enumerate(answer.trace.steps, start=1):
        arguments_text = ", ".join(f"{key}={value}" for key, value in step.call.args.items())
        result_lines = (step.result.text or step.result.error or step.result.status).splitlines()
        console.print(f"[dim]{number}.[/] {escape_markup(step.thought)}")
        console.print(f"   [bold]{escape_markup(step.call.tool)}[/] {escape_markup(arguments_text)}")
        console.print(f"   [dim]{escape_markup(shorten(result_lines[0], MAX_RESULT_CHARS)) if result_lines else ''}[/]")
    if answer.trace.answer_thought:
        console.print(f"[dim]{escape_markup(answer.trace.answer_thought)}[/]")
    if answer.answer is None:
        console.print(f"[yellow]I cannot tell[/]: {escape_markup(answer.reason)}")
    else:
        console.print(f"[bold]{escape_markup(answer.answer)}[/]  [dim]confidence {answer.confidence:.2f}[/]")
        if answer.caveat:
            console.print(f"[yellow]{escape_markup(answer.caveat)}[/]")
    if sum(vote.samples for vote in answer.votes) > 1:
        votes_text = ", ".join(
            f"{vote.answer} {vote.share:.0%} ({vote.samples})" for vote in answer.votes[:MAX_LISTED_ANSWERS]
        )
        unanswered = len(answer.vote["ballots"]) - sum(v.samples for v in answer.votes) if answer.vote else 0
        unlisted = len(answer.votes) - MAX_LISTED_ANSWERS
        votes_text += f", and {unlisted} more" if unlisted > 0 else ""
        votes_text += f"; {unanswered} without an answer" if unanswered else ""
        console.print(f"[dim]votes: {escape_markup(votes_text)}[/]")
