"""`pixelis score`: the evaluators alone, on files in the usual formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.terminal import print_json

app = typer.Typer(no_args_is_help=True, help="Score files of predictions.")

Gold = Annotated[Path, Argument(metavar="GOLD", help="The references.")]
Predicted = Annotated[Path, Argument(metavar="PRED", help="The predictions.")]

MAX_COLUMNS = 6


@app.command()
def tracks(
    gold: Gold,
    predicted: Predicted,
    as_json: opt.AsJson = False,
    benchmark: Annotated[
        Literal["auto", "MOT15", "MOT16", "MOT17", "MOT20"],
        Option(
            help="Benchmark whose rules drop ignored boxes and distractors; auto is MOT17, or MOT15 without classes."
        ),
    ] = "auto",
) -> None:
    """HOTA, CLEAR-MOT and IDF1 of MOTChallenge txt files or folders of them: TrackEval's numbers, 0 to 1."""
    from pixelis.evaluation.score_files import track_report

    _show("tracks", track_report(gold, predicted, benchmark=None if benchmark == "auto" else benchmark), as_json)


@app.command()
def text(gold: Gold, predicted: Predicted, as_json: opt.AsJson = False) -> None:
    """ANLS, character error rate and exact match of JSONL (id, answers) or of two plain text files."""
    from pixelis.evaluation.score_files import text_report

    _show("text", text_report(gold, predicted), as_json)


@app.command()
def masks(
    gold: Gold,
    predicted: Predicted,
    as_json: opt.AsJson = False,
    objects: Annotated[bool, Option("--objects", help="Score each object of the gold masks separately.")] = False,
) -> None:
    """J (IoU), boundary F and Dice of folders of mask PNGs with the same names, as DAVIS 2017 defines them."""
    from pixelis.evaluation.score_files import mask_report

    _show("masks", mask_report(gold, predicted, objects=objects), as_json)


@app.command()
def spans(gold: Gold, predicted: Predicted, as_json: opt.AsJson = False) -> None:
    """R1@θ and mAP of QVHighlights JSONL in percent, as its official scorer writes them."""
    from pixelis.evaluation.score_files import span_report

    _show("spans", span_report(gold, predicted), as_json)


@app.command()
def answers(
    gold: Gold,
    predicted: Predicted,
    as_json: opt.AsJson = False,
    reading: Annotated[
        Literal["official", "lmms"], Option(help="How MRA extracts the number: as VSI-Bench or as lmms-eval does.")
    ] = "official",
) -> None:
    """Accuracy of JSONL answers (id, answer, options, kind): choice, exact, relaxed numeric, VSI-Bench's MRA, ANLS."""
    from pixelis.evaluation.score_files import answer_report

    _show("answers", answer_report(gold, predicted, reading=reading), as_json)


def _show(title: str, report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    from rich.console import Console

    console = Console()
    numbers = {name: {"value": value} for name, value in report.items() if isinstance(value, int | float)}
    console.print(_table(title, numbers))
    for name, part in report.items():
        if isinstance(part, dict):
            rows = {k: v for k, v in part.items() if isinstance(v, dict)}
            console.print(_table(name, rows or {k: {"value": v} for k, v in part.items()}))


def _table(title: str, rows: dict[str, dict[str, Any]]) -> Any:
    """One line per row; rows that are too wide are transposed, or cut to the first measures."""
    from rich.table import Table

    columns = list(dict.fromkeys(c for row in rows.values() for c, v in row.items() if not isinstance(v, tuple | list)))
    if len(columns) > MAX_COLUMNS >= len(rows):
        return _table(title, {c: {name: row.get(c) for name, row in rows.items()} for c in columns})
    table = Table(title, *columns[:MAX_COLUMNS])
    for name, row in rows.items():
        table.add_row(name, *(_number(row.get(c)) for c in columns[:MAX_COLUMNS]))
    return table


def _number(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
