"""`pixelis reproduce`: the paper's experiments on nano, in parts that can be resumed. Needs a clone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.clone import require_clone
from pixelis.cli.progress import LineThrottle
from pixelis.cli.terminal import plain_table, print_json, printable, stdout

Row = dict[str, Any]
app = typer.Typer(no_args_is_help=True)
Only = Annotated[opt.Texts, Option(help="Run only this variant, or one seed of it, such as ours-1; may be repeated.")]


@app.callback()
def _reproduce() -> None:
    """Repeat the experiments of the paper on nano."""
    require_clone("experiments")


@app.command()
def rft(
    config: Annotated[Path, Argument(metavar="CONFIG", help="The variants to compare.")] = Path(
        "configs/nano/reproduce_rft.yaml"
    ),
    out: Annotated[Path, opt.out("Folder of the runs; finished parts in it are reused.")] = Path("runs/reproduce/rft"),
    results: Annotated[
        Path, Option(help="Folder for table.json, rescored.json (layers and gates) and the figures.")
    ] = Path("docs/results/rft"),
    only: Only = None,
    policy: Annotated[str | None, Option(help="π_SFT, in place of the one in CONFIG.")] = None,
    corpus: Annotated[Path | None, Option(help="The corpus, in place of the one in CONFIG.")] = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Phase 2: variants of the reward, trained in the same way and evaluated on the same held-out questions.

    CONFIG lists the variants and their seeds. One part takes 15 to 30 minutes on one core. Parts archived in
    RESULTS/parts are reused; the table has every finished part.
    """
    from experiments.rft.reproduce_rft import ReproduceRftConfig, reproduce_rft
    from pixelis.cli.train import live_training_view
    from pixelis.core.config import load_config

    changes = {key: value for key, value in (("policy", policy), ("corpus", corpus)) if value is not None}
    with live_training_view() as show:
        result = reproduce_rft(
            load_config(ReproduceRftConfig, config, []), out, results, overrides=changes, only=only or (), show=show,
            log=LineThrottle().log,
        )  # fmt: skip
    print_result(result, print_rft_table, as_json=as_json)


@app.command()
def ttrl(
    config: Annotated[Path, Argument(metavar="CONFIG", help="The variants to compare.")] = Path(
        "configs/nano/reproduce_ttrl.yaml"
    ),
    out: Annotated[Path, opt.out("Folder of the runs; finished parts in it are reused.")] = Path("runs/reproduce/ttrl"),
    results: Annotated[
        Path, Option(help="Folder for table.json, the figures and the archives of finished parts.")
    ] = Path("docs/results/ttrl"),
    only: Only = None,
    policy: Annotated[str | None, Option(help="The start policy, in place of the one in CONFIG.")] = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Phase 3: variants adapt to the same shifted stream and are evaluated on the same held-out questions.

    CONFIG lists the variants and their seeds. One part takes about half an hour on one core. Parts archived in
    RESULTS/parts are reused: in a fresh clone these are all of them, and only the table is computed, in five minutes.
    With another --results every part is run, or those named by --only (each seed of no-adaptation first).
    """
    from functools import cache

    from experiments.ttrl.reproduce_ttrl import reproduce_ttrl
    from experiments.ttrl.ttrl_runs import ReproduceTtrlConfig
    from pixelis.cli.adapt import live_stream_view
    from pixelis.cli.index_files import make_key_maker
    from pixelis.core.config import load_config

    with live_stream_view(None) as view:
        result = reproduce_ttrl(
            load_config(ReproduceTtrlConfig, config, []), out, results, keys=cache(make_key_maker), only=only or (),
            overrides={"policy": policy} if policy else {}, log=LineThrottle().log,
            show=view.show_row,
        )  # fmt: skip
    print_result(result, print_ttrl_table, as_json=as_json)


def print_result(result: dict[str, Any], print_table: Callable[[list[Row]], None], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    print_table(result["rows"])
    if result["left"]:
        typer.echo(f"not yet run: {printable(', '.join(result['left']))}")
    if result["written"]:
        typer.echo(f"wrote {printable(result['written'])}")


def print_ttrl_table(rows: list[Row]) -> None:
    """A table of at most 80 columns; stress variants are evaluated greedily only."""
    headings = ("variant", "n", "greedy", "95 %", "gain", "p", "smp.", "vote", "preq.", "KL95", "AURC")
    table = plain_table(*headings, left=("variant",), padding=(0, 1, 0, 0))
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
        "n: seeds; held-out questions answered correctly with greedy decoding, and the gain over no adaptation, in per "
        "cent, p adjusted after Benjamini and Hochberg; correct when sampled and by vote; stream queries correct by "
        "vote before training on them; token KL to π_EMA, P95; area under the risk-coverage curve of the vote",
        style="dim",
    )


def format_short(value: float) -> str:
    """Three decimals, without a leading 0."""
    return f"{value:.3f}".removeprefix("0")


def format_difference(measure: dict[str, Any], base: str) -> tuple[str, str]:
    """The difference and its adjusted p, if the variant was tested."""
    comparison = measure.get(base)
    if not comparison:
        return "", ""
    p = comparison["p_adjusted"]
    return f"{comparison['difference']:+.1f}", f"{p:.3f}" if p >= 0.001 else "<.001"


def print_rft_table(rows: list[Row]) -> None:
    """A table of at most 80 columns."""
    headings = ("variant", "n", "acc.", "95 %", "gain", "p", "calls", "dec.", "RaPR", "RaCPR", "KL50", "KL95")
    table = plain_table(*headings, left=("variant",), padding=(0, 1, 0, 0))
    for row in rows:
        accuracy, kl = row["accuracy"], row.get("kl", {})
        table.add_row(
            row["variant"], str(row["seeds"]), f"{accuracy['mean']:.1f}",
            f"{accuracy['low']:.1f}–{accuracy['high']:.1f}",
            *format_difference(accuracy, "over_sft"),
            *(f"{row[key]['mean']:.2f}" for key in ("calls", "decisive")),
            *(f"{row[key]['mean']:.1f}" for key in ("rapr", "racpr")),
            *(f"{kl[key]:.3f}" if kl else "" for key in ("p50", "p95")),
        )  # fmt: skip
    console = stdout()
    console.print(table)
    console.print(
        "n: seeds; accuracy and its gain over π_SFT in per cent, p adjusted after Benjamini and Hochberg; calls and "
        "decisive calls per trajectory; token KL to π_SFT, median and P95",
        style="dim",
    )
