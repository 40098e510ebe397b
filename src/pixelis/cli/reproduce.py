"""`pixelis reproduce`: the paper's claims, run again on nano in parts that can be stopped and gone on with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pixelis.cli.clone import require_clone
from pixelis.cli.options import AsJson
from pixelis.cli.terminal import print_json, printable, stdout

app = typer.Typer(no_args_is_help=True)
Only = Annotated[
    list[str] | None,
    typer.Option(help="Run only this variant, or only one seed of it, such as ours-1 (may be given several times)."),
]


@app.callback()
def _reproduce() -> None:
    """Verbs below `reproduce`."""
    require_clone("experiments")


@app.command()
def rft(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="What is compared.")] = Path(
        "configs/nano/reproduce_rft.yaml"
    ),
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the runs; what has ended is kept.")] = Path(
        "runs/reproduce/rft"
    ),
    results: Annotated[
        Path,
        typer.Option(help="Folder for table.json, rescored.json (layers and gates), dynamics.svg and process.svg."),
    ] = Path("docs/results/rft"),
    only: Only = None,
    policy: Annotated[str | None, typer.Option(help="π_SFT, in place of the configuration's.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="The corpus, in place of the configuration's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Phase 2: variants of the reward, trained alike and asked the same held-out questions.

    Variants, each with its seeds, are listed in CONFIG. A part of nano takes 15 to 30 minutes of one core; parts that
    were kept beside the table (RESULTS/parts) are taken from there, and all that have ended are in the table.
    """
    from experiments.rft.reproduce_rft import ReproduceRftConfig, reproduce_rft
    from pixelis.cli.train import live_training_view
    from pixelis.core.config import load_config

    changes = {key: value for key, value in (("policy", policy), ("corpus", corpus)) if value is not None}
    with live_training_view(quiet=as_json) as show:
        result = reproduce_rft(
            load_config(ReproduceRftConfig, config, []), out, results, overrides=changes, only=only or (), show=show,
            log=lambda words: typer.echo(words, err=True),
        )  # fmt: skip
    if as_json:
        print_json(result)
        return
    print_rft_table(result["rows"])
    print_outputs(result)


@app.command()
def ttrl(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="What is compared.")] = Path(
        "configs/nano/reproduce_ttrl.yaml"
    ),
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder of the runs; what has ended is kept.")] = Path(
        "runs/reproduce/ttrl"
    ),
    results: Annotated[Path, typer.Option(help="Folder of the kept parts, table.json and the figures.")] = Path(
        "docs/results/ttrl"
    ),
    only: Only = None,
    policy: Annotated[
        str | None, typer.Option(help="Where adaptation starts, in place of the configuration's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Phase 3: variants adapt to the same shifted stream and are asked the same held-out questions.

    Variants, each with its seeds, are listed in CONFIG. A part of nano takes about half an hour of one core. Parts that
    were kept beside the table (RESULTS/parts) are taken from there and not run again: in a fresh clone those are all of
    them, and what is made anew is the table, in five minutes. Another --results begins with nothing: there every part
    is run (a seed of no-adaptation before the others of that seed), or those that --only names.
    """
    from functools import cache

    from experiments.ttrl.reproduce_ttrl import reproduce_ttrl
    from experiments.ttrl.ttrl_runs import ReproduceTtrlConfig
    from pixelis.cli.adapt import live_stream_view
    from pixelis.cli.index_files import make_key_maker
    from pixelis.core.config import load_config

    with live_stream_view(None, quiet=as_json) as view:
        result = reproduce_ttrl(
            load_config(ReproduceTtrlConfig, config, []), out, results, keys=cache(make_key_maker), only=only or (),
            overrides={"policy": policy} if policy else {}, log=lambda words: typer.echo(words, err=True),
            show=view.show_row,
        )  # fmt: skip
    if as_json:
        print_json(result)
        return
    print_ttrl_table(result["rows"])
    print_outputs(result)


def print_outputs(result: dict[str, Any]) -> None:
    """What is left to run, and where the table went."""
    if result["left"]:
        typer.echo(f"not run yet: {printable(', '.join(result['left']))}")
    if result["written"]:
        typer.echo(f"wrote {printable(result['written'])}")


def print_ttrl_table(rows: list[dict[str, Any]]) -> None:
    """Columns that fit a terminal of 80; stress was asked greedily alone."""
    headings = ("variant", "n", "greedy", "95 %", "more", "p", "smp.", "vote", "preq.", "KL95", "AURC")
    table = make_table(headings)
    for row in rows:
        held_out, kl = row["held_out"] or {}, row["kl"]
        greedy = held_out.get("greedy", {})
        table.add_row(
            row["variant"], str(row["seeds"]),
            f"{greedy['mean']:.1f}" if greedy else "not run" if row["asked"] else "as none",
            f"{greedy['low']:.1f}–{greedy['high']:.1f}" if greedy else "", *format_difference(greedy, "over_none"),
            *(f"{held_out[key]['mean']:.1f}" if key in held_out else "" for key in ("sampled", "voted")),
            f"{row['prequential']['voted']['mean']:.1f}", format_short(kl["p95"]) if kl else "",
            format_short(row["selective"]["vote"]["aurc"]["mean"]),
        )  # fmt: skip
    console = stdout()
    console.print(table)
    console.print(
        "n seeds; held-out questions right greedily, and more than without adaptation, in per cent, p adjusted after "
        "Benjamini and Hochberg; right as sampled and by vote; queries of the stream right by vote before they were "
        "learnt from; token KL to π_EMA, P95; area under risk and coverage of the vote",
        style="dim",
    )


def format_short(value: float) -> str:
    """Three digits behind the point, and none before it where that is 0."""
    return f"{value:.3f}".removeprefix("0")


def make_table(headings: tuple[str, ...]) -> Any:
    """Names to the left, numbers to the right, nothing wrapped."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "variant" else "right", no_wrap=True)
    return table


def format_difference(measure: dict[str, Any], base: str) -> tuple[str, str]:
    """A difference and its adjusted p, where the variant was tested."""
    comparison = measure.get(base)
    if not comparison:
        return "", ""
    return f"{comparison['difference']:+.1f}", f"{comparison['p_adjusted']:.3f}" if comparison[
        "p_adjusted"
    ] >= 0.001 else "<.001"


def print_rft_table(rows: list[dict[str, Any]]) -> None:
    """Columns that fit a terminal of 80."""
    headings = ("variant", "n", "right", "95 %", "more", "p", "calls", "dec.", "RaPR", "RaCPR", "KL50", "KL95")
    table = make_table(headings)
    for row in rows:
        accuracy, kl = row["accuracy"], row.get("kl", {})
        table.add_row(
            row["variant"], str(row["seeds"]), f"{accuracy['mean']:.1f}", f"{accuracy['low']:.1f}–{accuracy['high']:.1f}",
            *format_difference(accuracy, "over_sft"),
            *(f"{row[key]['mean']:.2f}" for key in ("calls", "decisive")),
            *(f"{row[key]['mean']:.1f}" for key in ("rapr", "racpr")),
            *(f"{kl[key]:.3f}" if kl else "" for key in ("p50", "p95")),
        )  # fmt: skip
    console = stdout()
    console.print(table)
    console.print(
        "n seeds; right, and more than π_SFT, in per cent, p adjusted after Benjamini and Hochberg; calls of a chain, "
        "and the decisive among them; token KL to π_SFT, median and P95",
        style="dim",
    )
