"""`pixelis data import` and `pixelis data export`: external datasets and traces in, Parquet out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.progress import spinner
from pixelis.cli.terminal import escape_markup, print_json, printable, stdout
from pixelis.core.errors import ConfigError

if TYPE_CHECKING:
    from pixelis.data.importers import ImportResult

MAX_REASONS = 12
"""Printed; the file of problems has all of them."""
app = typer.Typer(no_args_is_help=True)


@app.command("import")
def import_(
    kind: Annotated[
        Literal["coco", "mot", "ocr", "spans", "questions", "traces"],
        Argument(
            metavar="KIND",
            help="Kind of SOURCE: coco (instances), mot (tracks), ocr (words in images), spans (moments in videos), "
            "questions (your own, one JSON object per line) or traces (of other projects).",
        ),
    ],
    source: Annotated[Path, Argument(metavar="SOURCE", help="A file or folder of annotations or logs.")],
    out: Annotated[Path | None, opt.out("The file to write; items.jsonl by default, trace.jsonl for traces.")] = None,
    media: opt.MediaFolder = None,
    licence: Annotated[str, Option(help="Licence of the media, if the files do not state it.")] = "",
    watermark: Annotated[
        Literal["unknown", "none", "visible"],
        Option(help="Whether the media have watermarks, if the files do not state it."),
    ] = "unknown",
    project: Annotated[
        Literal["auto", "pixel-reasoner", "deepeyes", "taco", "openthinkimg"],
        Option("--from", help="Project that wrote the traces; auto recognises it by its calls."),
    ] = "auto",
    without_answers: Annotated[
        bool, Option("--without-answers", help="Also import questions without an answer, for `adapt`.")
    ] = False,
    limit: Annotated[int | None, opt.limit("Stop after this many items or traces.")] = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Convert a dataset to items, or traces of other projects to pixelis traces (docs/how-to/own_datasets.md).

    Exit status: 0 if everything was imported, 1 if entries were skipped, 2 if nothing could be read.
    """
    from pixelis.data.importers import IMPORTERS, ImportOptions, write_items, write_traces
    from pixelis.data.importers.imported_items import problems_path
    from pixelis.data.importers.traces.foreign_traces import read_foreign

    out = out or Path("trace.jsonl" if kind == "traces" else "items.jsonl")
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder")
    if media is not None and not media.is_dir():
        raise ConfigError(f"{media}: no such folder")
    with spinner(f"reading {source}"):
        if kind == "traces":
            origin = None if project == "auto" else project
            tally = write_traces(read_foreign(source, source=origin, media=media, beside=out), out, limit=limit)
        else:
            import_options = ImportOptions(
                media=media, licence=licence, watermark=watermark, allow_unanswered=without_answers, items_path=out
            )
            tally = write_items(IMPORTERS[kind](source, import_options), out, limit=limit)
    _print_tally(tally, "traces" if kind == "traces" else "items", out, problems_path(out), as_json)
    if kind != "traces" and tally.count and not as_json:
        build = f"pixelis data build {printable(str(out))} -o corpus/{printable(out.stem)}"
        adapt = f"pixelis adapt {printable(str(out))} -c configs/nano/ttrl.yaml -o runs/{printable(out.stem)}"
        typer.echo(f"next: {adapt}" if without_answers else f"next: {build}, or {adapt}")
    raise typer.Exit(tally.exit_status)


def import_user_items(source: Path, folder: Path, media: Path | None, *, quiet: bool) -> tuple[Path, ImportResult]:
    """Import a user's own questions for a corpus in `folder`, and report every line that was skipped."""
    from pixelis.data.importers import ImportOptions, find_or_import_items
    from pixelis.data.importers.imported_items import problems_path

    if media is not None and not media.is_dir():
        raise ConfigError(f"{media}: no such folder")
    out = folder.with_name(f"{folder.name}.items.jsonl")
    with spinner(f"reading {source}"):
        path, tally = find_or_import_items(source, out, ImportOptions(media=media, items_path=out))
    if path == out and not quiet:
        _print_tally(tally, "items", out, problems_path(out), as_json=False)
    return path, tally


@app.command()
def export(
    corpus: Annotated[Path, Argument(metavar="CORPUS", help="A corpus folder, or a file of items or traces.")],
    out: Annotated[Path, opt.out("The folder to write; it must be empty or new.")] = Path("parquet"),
    accepted: Annotated[bool, Option("--accepted", help="Export only the accepted records of a corpus.")] = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write Parquet files for Hugging Face `datasets`, without pixels (docs/how-to/own_datasets.md).

    Exit status: 0 if everything was written, 1 if rows were skipped, 2 if nothing could be read.
    """
    from pixelis.data.corpus.parquet import export_parquet as write

    if not corpus.exists():
        raise ConfigError(f"{corpus}: no such file or folder")
    with spinner(f"writing {out}"):
        tally = write(corpus, out, accepted=accepted)
    _print_tally(tally, "rows", out, None, as_json)
    raise typer.Exit(tally.exit_status)


def _print_tally(tally: ImportResult, noun: str, out: Path, problems: Path | None, as_json: bool) -> None:
    kinds = {kind: tally.problem_counts[kind] for kind in ("skipped", "changed", "unasked")}
    if as_json:
        report: dict[str, Any] = {"path": str(out) if tally.count else None, noun: tally.count, **kinds}
        report["reasons"] = dict(tally.reason_counts.most_common())
        if tally.call_counts:
            report["calls"] = dict(tally.call_counts)
        if problems:
            report["problems"] = str(problems)
        print_json(report)
        return
    console = stdout()
    list_each = sum(tally.problem_counts.values()) == len(tally.first_problems)
    for problem in tally.first_problems if list_each else ():
        console.print(f"{escape_markup(problem.where)}: {problem.kind}: {escape_markup(problem.reason)}")
    for reason, count in () if list_each else tally.reason_counts.most_common(MAX_REASONS):
        console.print(f"{count:>7} {escape_markup(reason)}")
    if not list_each and len(tally.reason_counts) > MAX_REASONS:
        console.print(f"        and {len(tally.reason_counts) - MAX_REASONS} other reasons")
    for name, count in sorted(tally.call_counts.items()):
        console.print(f"{count:>7} calls {escape_markup(name)}")
    counts_text = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    written_text = f"wrote [bold]{escape_markup(str(out))}[/]" if tally.count else "[red]nothing could be read[/]"
    listed = problems is not None and tally.reason_counts
    problems_note = f"; every problem with its place: {escape_markup(str(problems))}" if listed else ""
    console.print(f"{written_text} ({noun}: {tally.count}; {counts_text}){problems_note}")
