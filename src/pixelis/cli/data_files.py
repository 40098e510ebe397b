"""`pixelis data import` and `pixelis data export`: datasets and traces of others in, Parquet out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pixelis.cli.terminal import AsJson, escaped, print_json, printable, stdout, waiting

if TYPE_CHECKING:
    from pixelis.data.importers import Tally

SHOWN = 12
"""Reasons that are printed; all of them are in the file of problems."""
app = typer.Typer(no_args_is_help=True)


@app.command("import")
def import_(
    kind: Annotated[
        Literal["coco", "mot", "ocr", "spans", "questions", "traces"],
        typer.Argument(
            metavar="KIND",
            help="What SOURCE holds: coco (instances), mot (tracks), ocr (words in pictures), "
            "spans (moments in clips), questions (your own, one JSON object a line) or traces (of other projects).",
            show_default=False,
        ),
    ],
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Its annotations or logs: a file or a folder.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write; items.jsonl or trace.jsonl if left out.")
    ] = None,
    media: Annotated[
        Path | None, typer.Option("--media", "-m", help="Folder of the pictures or clips, if it is not near SOURCE.")
    ] = None,
    licence: Annotated[str, typer.Option(help="Licence of the media, where the files do not say.")] = "",
    watermark: Annotated[
        Literal["unknown", "none", "visible"],
        typer.Option(help="Whether the media have watermarks, where the files do not say."),
    ] = "unknown",
    project: Annotated[
        Literal["auto", "pixel-reasoner", "deepeyes", "taco", "openthinkimg"],
        typer.Option("--from", help="Which project wrote the traces; auto tells it from their calls."),
    ] = "auto",
    without_answers: Annotated[
        bool,
        typer.Option("--without-answers", help="Of questions: also those whose answer nobody knows, for `adapt`."),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after this many items or traces.")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn a dataset into items, or traces of others into ours (docs/own_datasets.md).

    Exit status: 0 if all of it was taken over, 1 if entries were skipped, 2 if nothing could be read.
    """
    from pixelis.data.importers import IMPORTERS, Wishes, write_items, write_traces
    from pixelis.data.importers.files import problems_path
    from pixelis.errors import ConfigError
    from pixelis.trace.foreign import read_foreign

    out = out or Path("trace.jsonl" if kind == "traces" else "items.jsonl")
    if not source.exists():
        raise ConfigError(f"{source}: no such file or folder")
    if media is not None and not media.is_dir():
        raise ConfigError(f"{media}: no such folder")
    with waiting(f"reading {source}", quiet=as_json):
        if kind == "traces":
            found = read_foreign(source, source=None if project == "auto" else project, media=media, beside=out)
            tally = write_traces(found, out, limit=limit)
        else:
            wishes = Wishes(
                media=media, licence=licence, watermark=watermark, without_answers=without_answers, beside=out
            )
            tally = write_items(IMPORTERS[kind](source, wishes), out, limit=limit)
    _show(tally, "traces" if kind == "traces" else "items", out, problems_path(out), as_json)
    if kind != "traces" and tally.taken and not as_json:
        build = f"pixelis data build {printable(str(out))} -o corpus/{printable(out.stem)}"
        adapt = f"pixelis adapt {printable(str(out))} -c configs/nano/ttrl.yaml -o runs/{printable(out.stem)}"
        typer.echo(f"next: {adapt}" if without_answers else f"next: {build}, or {adapt}")
    raise typer.Exit(tally.status)


def items_of(source: Path, folder: Path, media: Path | None, *, quiet: bool) -> tuple[Path, Tally]:
    """The items of a user's own file for a corpus in `folder`; every line that was not taken over is told."""
    from pixelis.data.importers import Wishes, as_items
    from pixelis.data.importers.files import problems_path
    from pixelis.errors import ConfigError

    if media is not None and not media.is_dir():
        raise ConfigError(f"{media}: no such folder")
    out = folder.with_name(f"{folder.name}.items.jsonl")
    with waiting(f"reading {source}", quiet=quiet):
        path, tally = as_items(source, out, Wishes(media=media, beside=out))
    if path == out and not quiet:
        _show(tally, "items", out, problems_path(out), as_json=False)
    return path, tally


@app.command()
def export(
    corpus: Annotated[
        Path,
        typer.Argument(metavar="CORPUS", help="A corpus folder, or a file of items or traces.", show_default=False),
    ],
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder to make; one that is not empty is left alone.")
    ] = Path("parquet"),
    accepted: Annotated[bool, typer.Option("--accepted", help="Of a corpus, only what acceptance took.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write Parquet that Hugging Face `datasets` opens; pixels are not exported (docs/own_datasets.md).

    Exit status: 0 if all of it was written, 1 if rows were skipped, 2 if nothing could be read.
    """
    from pixelis.data.parquet import export as write
    from pixelis.errors import ConfigError

    if not corpus.exists():
        raise ConfigError(f"{corpus}: no such file or folder")
    with waiting(f"writing {out}", quiet=as_json):
        tally = write(corpus, out, accepted=accepted)
    _show(tally, "rows", out, None, as_json)
    raise typer.Exit(tally.status)


def _show(tally: Tally, what: str, out: Path, problems: Path | None, as_json: bool) -> None:
    kinds = {kind: tally.problems[kind] for kind in ("skipped", "changed", "unasked")}
    if as_json:
        report: dict[str, Any] = {"path": str(out) if tally.taken else None, what: tally.taken, **kinds}
        report["reasons"] = dict(tally.reasons.most_common())
        if tally.calls:
            report["calls"] = dict(tally.calls)
        if problems:
            report["problems"] = str(problems)
        print_json(report)
        return
    console = stdout()
    few = sum(tally.problems.values()) == len(tally.first)
    for problem in tally.first if few else ():
        console.print(f"{escaped(problem.where)}: {problem.kind}: {escaped(problem.reason)}")
    for reason, count in () if few else tally.reasons.most_common(SHOWN):
        console.print(f"{count:>7} {escaped(reason)}")
    if not few and len(tally.reasons) > SHOWN:
        console.print(f"        and {len(tally.reasons) - SHOWN} other reasons")
    for name, count in sorted(tally.calls.items()):
        console.print(f"{count:>7} calls {escaped(name)}")
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.items())
    wrote = f"wrote [bold]{escaped(str(out))}[/]" if tally.taken else "[red]nothing could be read[/]"
    where = f"; every problem with its place: {escaped(str(problems))}" if problems and tally.reasons else ""
    console.print(f"{wrote} ({what}: {tally.taken}; {told}){where}")
