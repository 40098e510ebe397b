"""`pixelis data`: build a corpus and count it; de-duplication, audits and files are mounted from their own modules."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli import data_dedup, data_files, data_photographs
from pixelis.cli.terminal import LOG_INTERVAL_S, AsJson, format_duration, print_json, printable, stdout

if TYPE_CHECKING:
    from pixelis.data.build.build_corpus import BuildProgress, BuildReport
    from pixelis.data.corpus.corpus_stats import CorpusCounts as Counts
    from pixelis.data.importers import ImportResult

app = typer.Typer(no_args_is_help=True)


@app.command()
def build(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML file such as configs/nano/corpus.yaml, or your own questions or items as JSON lines.",
            show_default=False,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the file, changed for this corpus: n=500 teacher.detour_rate=0."),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder to make; an unfinished one is gone on with.")
    ] = Path("corpus"),
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="Processes; the corpus is the same whatever their number.")
    ] = 2,
    media: Annotated[
        Path | None,
        typer.Option("--media", help="Folder of the pictures or clips of your own questions, if not near them."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Have a teacher solve items of the world or your own, or go on where a build was stopped (docs/reference/corpus.md).

    Your own questions (docs/tutorials/own_questions.md) are imported into OUT.items.jsonl first; each is taught by the oracle where it
    knows the way, else by its answer alone. Exit status: 0 if the corpus is whole, 1 if items are left undone or lines
    were skipped.
    """
    from pixelis.core.config import load_config
    from pixelis.data.build.build_corpus import build as make
    from pixelis.data.corpus.corpus_config import CorpusConfig
    from pixelis.weights import is_available

    is_own_items = config.suffix == ".jsonl"
    imported: ImportResult | None = None
    if is_own_items:
        items, imported = data_files.import_user_items(config, out, media, quiet=as_json)
        base_overrides = [f"items={json.dumps([str(items)])}", f"n={imported.count}", "teacher.kind=auto"]
        settings = load_config(CorpusConfig, None, [*base_overrides, *(overrides or [])])
    else:
        settings = load_config(CorpusConfig, config, overrides or [])
    if settings.teacher.kind == "plugin" or settings.toolbox.plugins:
        sys.path.insert(0, str(Path.cwd()))  # plugins may lie in the current folder
    if not is_available("nanodet"):
        typer.echo("no detector here (`pixelis models pull`): SEG and PROP know colours and shapes only", err=True)
    with build_progress_bar(quiet=as_json) as show:
        report = make(settings, out, workers=workers, on_progress=show)
    skipped = imported.problem_counts["skipped"] if imported else 0
    if as_json:
        print_json({**report._asdict(), "whole": report.is_complete, **({"skipped": skipped} if is_own_items else {})})
    else:
        print_build(report)
        if is_own_items and report.is_complete:
            print_user_items(report)
    raise typer.Exit(0 if report.is_complete and not skipped else 1)


@contextmanager
def build_progress_bar(*, quiet: bool) -> Iterator[Callable[[BuildProgress], None]]:
    """A progress bar on a terminal: items a second, accepted share, the cache's hit rate, time left; else a line now
    and then."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}"))
    last_logged = [time.monotonic()]
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress_bar:
        task = progress_bar.add_task("", total=None, words="starting")

        def show(progress: Any) -> None:
            time_left = f", {format_duration(progress.remaining_s)} left" if progress.remaining_s is not None else ""
            text = f"{progress.items_per_s:.1f} items/s, {progress.acceptance_rate:.0%} accepted, cache {progress.cache_hit_rate:.0%} hits{time_left}"
            progress_bar.update(task, total=progress.total, completed=progress.completed, words=text)
            if not quiet and not console.is_terminal and time.monotonic() - last_logged[0] >= LOG_INTERVAL_S:
                last_logged[0] = time.monotonic()
                typer.echo(f"item {progress.completed} of {progress.total}: {text}", err=True)

        yield show


def print_build(report: BuildReport) -> None:
    typer.echo(
        f"{report.records} records, {report.made} of them made now in {format_duration(report.seconds)} "
        f"({report.items_per_s:.2f} items/s, cache {report.cache_hit_rate:.0%} hits)"
    )
    if report.timeouts:
        typer.echo(f"{report.timeouts} calls ran out of time and are recorded so: another machine may give other bytes")
    if report.is_complete:
        typer.echo(f"wrote {report.folder}, {report.accepted} accepted, corpus {report.corpus}")
        return
    remaining = ", ".join(f"{count} ({reason})" for reason, count in report.undone.items())
    typer.echo(f"not whole: {remaining} left undone: {printable(report.detail)}", err=True)
    typer.echo("run the same command again to go on", err=True)


def print_user_items(report: BuildReport) -> None:
    """What became of somebody's own items, and what comes next."""
    from pixelis.data.corpus.corpus import Corpus

    rows = list(Corpus(report.folder).rows())
    splits = Counter(row.split for row in rows)
    typer.echo("splits, by media: " + ", ".join(f"{name} {splits[name]}" for name in dict.fromkeys(splits)))
    if answer_only := sum(not row.steps for row in rows):
        typer.echo(
            f"{answer_only} of {len(rows)} are learnt as answers alone: they have no references, or the tools do not find "
            "them; a VLM can teach calls (teacher.kind=vlm teacher.server.url=… teacher.server.model=…)"
        )
    for name in ("dev", "test"):
        if not splits[name]:
            typer.echo(f"no items in {name}: it takes pictures that no other split has")
    folder = printable(report.folder)
    typer.echo(f"next: pixelis train sft configs/nano/own.yaml corpus={folder} -o runs/{printable(Path(folder).name)}")


@app.command()
def stats(
    corpus: Annotated[
        Path, typer.Argument(metavar="CORPUS", help="The folder of a finished corpus.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Count a corpus: trajectories, steps, calls by tool and refusals, beside the paper's own numbers."""
    from pixelis.data.corpus import corpus_stats as counting
    from pixelis.data.corpus.corpus import Corpus

    store = Corpus(corpus)
    counts = counting.count_corpus(store)
    content = counting.stats_to_json(store, counts)
    if as_json:
        print_json(content)
    else:
        print_stats(content, counts)


def print_stats(content: dict[str, Any], counts: Counts) -> None:
    from rich.table import Table

    console = stdout()
    table = Table("", "here", "paper", "of", box=None, pad_edge=False, header_style="dim")
    for row in content["rows"]:
        as_integer = row["name"] in ("trajectories", "media in two splits")
        table.add_row(
            row["name"], format_figure(row["ours"], as_integer), format_figure(row["paper"], as_integer), str(row["of"])
        )
    console.print(table)
    for title, cells in (("family", content["families"]), ("difficulty", content["difficulties"])):
        group_table = Table(
            title, "records", "accepted", "right", "steps", "needs a tool", box=None, header_style="dim"
        )
        for name, cell in cells.items():
            shares = [f"{cell[key]:.0%}" for key in ("accepted", "right")]
            group_table.add_row(
                name, str(cell["records"]), *shares, f"{cell['steps']:.1f}", f"{cell['tool_needed']:.0%}"
            )
        console.print(group_table)
    if counts.reasons:
        reasons_text = ", ".join(f"{reason}: {count}" for reason, count in counts.reasons.most_common(8))
        console.print(f"not accepted because of: {printable(reasons_text)}", markup=False)
    console.print(f"corpus {content['corpus']}")


def format_figure(value: float | None, as_integer: bool) -> str:
    return "–" if value is None else f"{value:,.0f}" if as_integer else f"{value:.2f}"


# in the order in which a corpus is made: --help lists them so
app.command()(data_dedup.dedup)
app.command()(data_dedup.audit)
app.add_typer(data_files.app)
app.command()(data_photographs.photographs)
