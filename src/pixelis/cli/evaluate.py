"""`pixelis eval`: score a model on tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.ask import require_model
from pixelis.cli.progress import progress_bars
from pixelis.cli.terminal import escape_markup, plain_table, print_report, stdout
from pixelis.cli.tools import make_toolbox_config
from pixelis.policy.model_names import DEFAULT_MODEL

if TYPE_CHECKING:
    from pixelis.evaluation.harness import Evaluation


def evaluate(
    tasks: Annotated[
        opt.Texts,
        Argument(
            metavar="TASK",
            help="Families of the world (all six by default), corpora (corpus/mine, corpus/mine:dev), files of items.",
        ),
    ] = None,
    model: opt.Model = DEFAULT_MODEL,
    limit: Annotated[int, opt.limit("At most this many items of each task.")] = 200,
    split: opt.Split = "test",
    shift: opt.Shift = "",
    without_tools: Annotated[bool, Option("--without-tools", help="Switch all tools off.")] = False,
    strict_calls: opt.StrictCalls = False,
    temperature: Annotated[float, Option(min=0.0, max=2.0, help="Sampling temperature; 0 is greedy.")] = 0.0,
    seed: opt.Seed = 0,
    composite: Annotated[
        bool, Option("--composite", help="Also compute the E_ext cosines that RaCPR needs (items.jsonl).")
    ] = False,
    out: Annotated[Path | None, opt.out("Folder for report.json, items.jsonl and traces.jsonl.")] = None,
    seg: opt.Seg = "classical",
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Score a model on families of the world, each by its benchmark's rule, or on your own items.

    Items of a corpus or a file are scored by their own rules (docs/tutorials/own_questions.md).
    """
    require_model(model)
    from pixelis.evaluation.harness import to_json
    from pixelis.evaluation.run_evaluation import evaluate_model
    from pixelis.evaluation.tasks import make_tasks

    selected_tasks = make_tasks(tasks or [], split=split, shift=shift)
    tools = make_toolbox_config(plugin, disable, seg=seg, deadline_s=deadline, isolate=deadline is not None, workers=2)
    total = sum(task.size(limit) for task in selected_tasks)
    with progress_bars() as show:
        evaluation = evaluate_model(
            model, selected_tasks, limit=limit, without_tools=without_tools, temperature=temperature, seed=seed,
            composite=composite, strict_calls=strict_calls, tools=tools, out=out,
            on_progress=lambda completed: show("items", completed, total),
        )  # fmt: skip
    print_report(to_json(evaluation), lambda: print_evaluation(evaluation, out), as_json=as_json)


LEGEND = (
    "score, valid calls and RaPR (share of steps that the references confirm) in per cent; "
    "calls and decisive steps as means per trajectory"
)


def print_evaluation(evaluation: Evaluation, out: Path | None) -> None:
    table = plain_table("task", "score", "95 %", "valid calls", "calls", "decisive", "RaPR", "items", left=("task",))
    for row in (*evaluation.tasks, evaluation.overall):
        low, high = row.interval
        table.add_row(
            escape_markup(row.name), f"{row.score:.1f}", f"{low:.1f}–{high:.1f}",
            "–" if row.valid_calls is None else f"{row.valid_calls:.1f}",
            f"{row.steps:.1f}", f"{row.decisive:.1f}", f"{row.rapr:.1f}", str(row.items),
        )  # fmt: skip
    console = stdout()
    console.print(escape_markup(evaluation.model), style="bold")
    console.print(table, soft_wrap=False)
    console.print(LEGEND, style="dim")
    tail = f"; wrote {escape_markup(str(out))}" if out else ""
    console.print(f"{evaluation.seconds:.0f} s, {evaluation.cpu_seconds:.0f} CPU s{tail}")
