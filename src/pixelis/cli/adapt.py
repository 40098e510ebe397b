"""`pixelis adapt`: phase 3. Answer a stream, learn from it without labels, look at every row, go back to any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.terminal import AsJson, print_json, printable, stdout

if TYPE_CHECKING:
    from pixelis.train.ttrl import TtrlReport

app = typer.Typer(no_args_is_help=True)
Run = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an adaptation.", show_default=False)]


@app.callback()
def _adapt() -> None:
    """Verbs below `adapt`."""


@app.command()
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file such as configs/nano/ttrl.yaml.")],
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TASK or KEY=VALUE]...", help="What is streamed, as for `pixelis eval`; changed keys."),
    ] = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder; what is unfinished is gone on with.")] = Path(
        "runs/ttrl"
    ),
    limit: Annotated[int, typer.Option(min=1, help="Queries of each task.")] = 50,
    shift: Annotated[str, typer.Option(help="A shift and its severity, such as lighting:3.")] = "",
    as_json: AsJson = False,
) -> None:
    """Answer the queries of a stream and learn from those that the vote is sure of."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    from pixelis.cli.index_files import key_maker
    from pixelis.config import load_config
    from pixelis.eval.tasks import interleaved, tasks_of
    from pixelis.train.ttrl import adapt
    from pixelis.train.ttrl_config import TtrlConfig

    given = tasks or []
    settings = load_config(TtrlConfig, config, [word for word in given if "=" in word])
    chosen = tasks_of([word for word in given if "=" not in word], split="test", shift=shift)
    console = Console(stderr=True)
    columns = (*Progress.get_default_columns(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=console, transient=True, disable=as_json or not console.is_terminal) as shown:
        bar = shown.add_task("queries", total=sum(task.size(limit) for task in chosen), words="")

        def show(row: dict[str, Any], total: int) -> None:
            said = f"{row['answer'] or '–'} ({outcome(row)})"
            kl = "" if row["kl"] is None else f", KL {row['kl']:.3f}, drift {row['drift']:.3f}, β {row['beta']:.3f}"
            shown.update(bar, completed=total, words=printable(said)[:40] + kl)

        keys = key_maker() if settings.neighbours else None
        report = adapt(settings, interleaved(chosen, limit), out, keys=keys, show=show)
    if as_json:
        print_json(report._asdict())
    else:
        print_adapted(report)


def outcome(row: dict[str, Any]) -> str:
    return "learnt" if row["learnt"] else "answered" if row["answered"] else "abstained"


def print_adapted(report: TtrlReport) -> None:
    right = "" if report.accuracy is None else f"; {report.accuracy:.1f} % of the given answers are right"
    typer.echo(
        f"{report.queries} queries, {report.answered:.0f} % answered{right}; learnt from {report.accepted}, "
        f"{report.refused} updates refused, drift {report.drift:.3f}, {report.bytes / 1e6:.0f} MB of states"
    )
    typer.echo(f"wrote {printable(report.policy)}; `pixelis adapt log`, `show` and `revert` know every row")


@app.command()
def log(
    folder: Run, last: Annotated[int, typer.Option(min=1, help="So many rows.")] = 20, as_json: AsJson = False
) -> None:
    """The last rows of an adaptation."""
    from rich.table import Table

    from pixelis.train.adaptation import LEDGER, read_rows, shown

    rows = list(shown(read_rows(folder / LEDGER)))[-last:]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("query", "item", "answer", "right", "what", "KL", "drift", "β", "weights"):
        table.add_column(heading)
    for row in rows:
        what = row["refused"] or outcome(row)
        figures = ["" if row[key] is None else f"{row[key]:.3f}" for key in ("kl", "drift", "beta")]
        right = "" if row["score"] is None else f"{row['score']:.2f}"
        table.add_row(
            str(row["query"]), row["item"], printable(str(row["answer"])), right, what, *figures, row["weights"][:10]
        )
    stdout().print(table)


@app.command()
def show(folder: Run, query: Annotated[int, typer.Argument(min=1, help="Which row, from 1.")]) -> None:
    """One row with every term of its vote."""
    from pixelis.errors import TraceError
    from pixelis.train.adaptation import LEDGER, read_rows

    rows = read_rows(folder / LEDGER)
    if query > len(rows):
        raise TraceError(f"{folder} has {len(rows)} rows")
    typer.echo(json.dumps(rows[query - 1], indent=2, ensure_ascii=False))


@app.command()
def revert(
    folder: Run, query: Annotated[int, typer.Argument(min=0, help="The row to go back to; 0 is the start.")]
) -> None:
    """Go back to what held after a row: weights, moments, averages, controller, baseline, memory; bit for bit."""
    from pixelis.train.ttrl import go_back

    row = go_back(folder, query)
    typer.echo(f"{folder} is at row {query} again, {row['updates']} updates, weights {str(row['weights'])[:10]}")
