"""`pixelis ask`: a question about pictures and clips, answered with evidence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.asking import DEFAULT_MODEL
from pixelis.cli.terminal import AsJson, Model, StrictCalls, escaped, print_json, stdout, waiting

if TYPE_CHECKING:
    from pixelis.scoring.answering import Answer


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
    from pixelis.asking import ask as put
    from pixelis.errors import ConfigError

    *media, question = words
    if not media:
        raise ConfigError(
            'give at least one picture or clip, then the question: pixelis ask photo.jpg "how many cars?"'
        )
    if out:
        check_out(out)
    start = time.monotonic()
    with waiting(f"{model} is looking", quiet=as_json):
        found = put(media, question, model=model, samples=samples, seed=seed, strict_calls=strict_calls)
    if as_json:
        print_json(as_object(found, model, write_evidence(found, out, media) if out else None))
    else:
        opening = time.monotonic() - start - found.seconds
        print_answer(found)  # before anything is written: what was found is not lost with a full disk
        page = write_evidence(found, out, media) if out else None
        tail = f"; evidence in {escaped(str(page))}" if page else ""
        stdout().print(f"[dim]{found.seconds:.1f} s, after {opening:.1f} s of opening the model{tail}[/]")
    raise typer.Exit(0 if found.answer is not None else 1)


def check_out(out: Path) -> None:
    """Refuse a page that could not be written, before anything is asked."""
    from pixelis.cli.trace import check_page
    from pixelis.errors import ConfigError
    from pixelis.trace import codec

    record = out.with_suffix(".jsonl")
    if record == out:
        raise ConfigError(f"{out}: the trace is written there; want another ending for the page, such as .html")
    check_page(out)
    codec.check_target(record)


def write_evidence(found: Answer, out: Path, media: list[str]) -> Path:
    """The trace, and its page."""
    from pixelis.cli import trace as pages
    from pixelis.tools.toolbox import ToolboxConfig, build_tools
    from pixelis.trace import codec
    from pixelis.view import exhibit
    from pixelis.view import report as page_of

    record = out.with_suffix(".jsonl")
    codec.write([found.trace], record, found.blobs)
    thresholds = {name: tool.decisive_confidence for name, tool in build_tools(ToolboxConfig()).items()}
    shown = exhibit(
        found.trace, record, [Path(m) for m in media], thresholds, withheld=found.reason, confidence=found.confidence,
        vote=found.vote, caveat=found.caveat,
    )  # fmt: skip
    pages.write_page(page_of([shown]), out)
    return out


def as_object(found: Answer, model: str, page: Path | None) -> dict[str, Any]:
    return {
        "answer": found.answer,
        "confidence": round(found.confidence, 4),
        "reason": found.reason,
        "caveat": found.caveat,
        "model": model,
        "thought": found.trace.answer_thought,
        "steps": [
            {"thought": s.thought, "tool": s.call.tool, "args": s.call.args, "status": s.result.status,
             "text": s.result.text or s.result.error}
            for s in found.trace.steps
        ],
        "votes": [vote._asdict() for vote in found.votes],
        "vote": found.vote,
        "seconds": round(found.seconds, 3),
        "page": str(page) if page else None,
    }  # fmt: skip


SAID_LETTERS = 200
"""Of a tool's result, in the terminal."""
VOTES = 5
"""Answers that are listed there."""


def print_answer(found: Answer) -> None:
    from pixelis.rollout.answering import shortened

    console = stdout()
    for number, step in enumerate(found.trace.steps, start=1):
        given = ", ".join(f"{key}={value}" for key, value in step.call.args.items())
        said = (step.result.text or step.result.error or step.result.status).splitlines()
        console.print(f"[dim]{number}.[/] {escaped(step.thought)}")
        console.print(f"   [bold]{escaped(step.call.tool)}[/] {escaped(given)}")
        console.print(f"   [dim]{escaped(shortened(said[0], SAID_LETTERS)) if said else ''}[/]")
    if found.trace.answer_thought:
        console.print(f"[dim]{escaped(found.trace.answer_thought)}[/]")
    if found.answer is None:
        console.print(f"[yellow]I cannot tell[/]: {escaped(found.reason)}")
    else:
        console.print(f"[bold]{escaped(found.answer)}[/]  [dim]confidence {found.confidence:.2f}[/]")
        if found.caveat:
            console.print(f"[yellow]{escaped(found.caveat)}[/]")
    if sum(vote.samples for vote in found.votes) > 1:
        shown = ", ".join(f"{vote.answer} {vote.share:.0%} ({vote.samples})" for vote in found.votes[:VOTES])
        silent = len(found.vote["ballots"]) - sum(v.samples for v in found.votes) if found.vote else 0
        rest = len(found.votes) - VOTES
        shown += f", and {rest} more" if rest > 0 else ""
        shown += f"; {silent} without an answer" if silent else ""
        console.print(f"[dim]votes: {escaped(shown)}[/]")
