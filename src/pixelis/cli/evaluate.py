"""`pixelis eval`: score a model on tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pixelis.api import DEFAULT_MODEL
from pixelis.cli.terminal import AsJson, Model, StrictCalls, escape_markup, print_json, stdout

if TYPE_CHECKING:
    from pixelis.evaluation.harness import Evaluation


def evaluate(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TASK",
            help="Families of the world (all six if left out), corpora (corpus/mine, corpus/mine:dev), files of items.",
        ),
    ] = None,
    model: Model = DEFAULT_MODEL,
    limit: Annotated[int, typer.Option(min=1, help="Items of each task.")] = 200,
    split: Annotated[
        Literal["train", "dev", "dev-cal", "test"],
        typer.Option(help="Which held-out seeds of the world, or which part of a corpus."),
    ] = "test",
    shift: Annotated[str, typer.Option(help="A shift and its severity, such as noise:3; 3 if only named.")] = "",
    without_tools: Annotated[bool, typer.Option("--without-tools", help="Every call gives nothing.")] = False,
    strict_calls: StrictCalls = False,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    composite: Annotated[
        bool, typer.Option("--composite", help="Also compare neighbouring steps by E_ext, for RaCPR (items.jsonl).")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for report.json, items.jsonl and traces.jsonl.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Score a model on families of the world, by the rule of the benchmark that each stands for, or on your own items.

    Items of a corpus or a file are scored by their own rules (docs/own_data.md).
    """
    from rich.console import Console
    from rich.progress import Progress

    from pixelis.evaluation.harness import to_json as content_of
    from pixelis.evaluation.run_evaluation import evaluate_model
    from pixelis.evaluation.tasks import make_tasks

    selected_tasks = make_tasks(tasks or [], split=split, shift=shift)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress_bar:
        bar = progress_bar.add_task(escape_markup(model), total=sum(task.size(limit) for task in selected_tasks))
        evaluation = evaluate_model(
            model, selected_tasks, limit=limit, without_tools=without_tools, temperature=temperature, seed=seed,
            composite=composite, strict_calls=strict_calls, out=out,
            on_progress=lambda done: progress_bar.update(bar, completed=done),
        )  # fmt: skip
    if as_json:
        print_json(content_of(evaluation))
    else:
        print_evaluation(evaluation, out)


LEGEND = (
    "score, valid calls and RaPR (steps that hold up against what is true) are per cent; "
    "calls, and the decisive among them, are means of a chain"
)


def print_evaluation(evaluation: Evaluation, out: Path | None) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    name = escape_markup(evaluation.model)
    for heading in (name, "score", "95 %", "valid calls", "calls", "decisive", "RaPR", "items"):
        table.add_column(heading, justify="left" if heading == name else "right", no_wrap=heading == name)
    for row in (*evaluation.tasks, evaluation.overall):
        low, high = row.interval
        figures: tuple[Any, ...] = (
            f"{row.score:.1f}", f"{low:.1f}–{high:.1f}", "–" if row.valid_calls is None else f"{row.valid_calls:.1f}",
            f"{row.steps:.1f}", f"{row.decisive:.1f}", f"{row.rapr:.1f}", str(row.items),
        )  # fmt: skip
        table.add_row(escape_markup(row.name), *figures)
    console = stdout()
    console.print(table)
    console.print(f"[dim]{LEGEND}[/]")
    tail = f"; wrote {escape_markup(str(out))}" if out else ""
    console.print(f"{evaluation.seconds:.0f} s, {evaluation.cpu_seconds:.0f} CPU s{tail}")
