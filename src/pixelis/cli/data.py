"""`pixelis data`: build a corpus and count it; the other verbs are in modules of their own."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import data_dedup, data_files, data_photographs
from pixelis.cli import options as opt
from pixelis.cli.progress import progress_bars
from pixelis.cli.terminal import format_duration, plain_table, print_json, print_report, printable, stdout
from pixelis.cli.tools import add_plugin_folder, tool_overrides

if TYPE_CHECKING:
    from pixelis.data.build.build_corpus import BuildProgress, BuildReport
    from pixelis.data.corpus.corpus_stats import CorpusCounts
    from pixelis.data.importers import ImportResult

app = typer.Typer(no_args_is_help=True)


@app.command()
def build(
    config: Annotated[
        Path,
        Argument(
            metavar="CONFIG",
            help="A YAML file such as configs/nano/corpus.yaml, or your own questions or items as JSON lines.",
        ),
    ],
    overrides: opt.Overrides = None,
    out: Annotated[Path, opt.out("Folder of the corpus; an unfinished build in it is resumed.")] = Path("corpus"),
    workers: Annotated[int, Option(min=1, max=64, help="Number of processes; it does not change the corpus.")] = 2,
    media: opt.MediaFolder = None,
    seg: opt.SegOfConfig = None,
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Build a corpus: a teacher solves generated items or your own (docs/reference/corpus.md).

    Run the same command again to resume. Your own questions (docs/tutorials/own_questions.md) are imported into
    OUT.items.jsonl first; the oracle solves those it can, the others are kept with their answer alone. Exit status: 0
    the corpus is complete, 1 items are left or lines were skipped.
    """
    from pixelis.core.config import load_config
    from pixelis.data.build.build_corpus import build as build_corpus
    from pixelis.data.corpus.corpus_config import CorpusConfig
    from pixelis.weights import is_available

    option_overrides = [*tool_overrides("toolbox.", plugin, disable, seg, deadline), *(overrides or [])]
    imported: ImportResult | None = None
    if config.suffix == ".jsonl":
        items, imported = data_files.import_user_items(config, out, media, quiet=as_json)
        base_overrides = [f"items={json.dumps([str(items)])}", f"n={imported.count}", "teacher.kind=auto"]
        settings = load_config(CorpusConfig, None, [*base_overrides, *option_overrides])
    else:
        settings = load_config(CorpusConfig, config, option_overrides)
    if settings.teacher.kind == "plugin" or settings.toolbox.plugins:
        add_plugin_folder()
    if not is_available("nanodet"):
        typer.echo("no object detector (run `pixelis models pull`): SEG and PROP use colours and shapes only", err=True)
    with progress_bars() as show:
        report = build_corpus(
            settings, out, workers=workers,
            on_progress=lambda progress: show("items", progress.completed, progress.total, describe_build(progress)),
        )  # fmt: skip
    skipped = imported.problem_counts["skipped"] if imported else 0
    if as_json:
        print_json({**report._asdict(), "whole": report.is_complete, **({"skipped": skipped} if imported else {})})
    else:
        print_build(report)
        if imported and report.is_complete:
            print_user_items(report)
    raise typer.Exit(0 if report.is_complete and not skipped else 1)


def describe_build(progress: BuildProgress) -> str:
    time_left = f", {format_duration(progress.remaining_s)} left" if progress.remaining_s is not None else ""
    return (
        f"{progress.items_per_s:.1f} items/s, {progress.acceptance_rate:.0%} accepted, "
        f"cache {progress.cache_hit_rate:.0%} hits{time_left}"
    )


def print_build(report: BuildReport) -> None:
    typer.echo(
        f"{report.records} records, {report.made} of them new, in {format_duration(report.seconds)} "
        f"({report.items_per_s:.2f} items/s, cache {report.cache_hit_rate:.0%} hits)"
    )
    if report.timeouts:
        typer.echo(f"{report.timeouts} calls timed out; another machine may produce a different corpus")
    if report.is_complete:
        typer.echo(f"wrote {report.folder}, {report.accepted} accepted, corpus {report.corpus}")
        return
    remaining = ", ".join(f"{count} ({reason})" for reason, count in report.undone.items())
    typer.echo(f"not complete: {remaining} left: {printable(report.detail)}", err=True)
    typer.echo("run the same command again to resume", err=True)


def print_user_items(report: BuildReport) -> None:
    """Splits of the user's own items, and the next command."""
    from pixelis.data.corpus.corpus import Corpus

    rows = list(Corpus(report.folder).rows())
    splits = Counter(row.split for row in rows)
    typer.echo("splits, by media: " + ", ".join(f"{name} {splits[name]}" for name in dict.fromkeys(splits)))
    if answer_only := sum(not row.steps for row in rows):
        typer.echo(
            f"{answer_only} of {len(rows)} have an answer but no tool calls: without references, or the tools do not "
            "find them; a VLM can supply calls (teacher.kind=vlm teacher.server.url=… teacher.server.model=…)"
        )
    for name in ("dev", "test"):
        if not splits[name]:
            typer.echo(f"no items in {name}: a split needs media that no other split has")
    folder = printable(report.folder)
    typer.echo(f"next: pixelis train sft configs/nano/own.yaml corpus={folder} -o runs/{printable(Path(folder).name)}")


@app.command()
def stats(
    corpus: Annotated[Path, Argument(metavar="CORPUS", help="Folder of a finished corpus.")],
    as_json: opt.AsJson = False,
) -> None:
    """Count a corpus: trajectories, steps, calls per tool and rejections, next to the paper's numbers."""
    from pixelis.data.corpus import corpus_stats as counting
    from pixelis.data.corpus.corpus import Corpus

    store = Corpus(corpus)
    counts = counting.count_corpus(store)
    content = counting.stats_to_json(store, counts)
    print_report(content, lambda: print_stats(content, counts), as_json=as_json)


def print_stats(content: dict[str, Any], counts: CorpusCounts) -> None:
    console = stdout()
    table = plain_table("", "here", "paper", "of", left=("", "of"))
    for row in content["rows"]:
        as_integer = row["name"] in ("trajectories", "media in two splits")
        figures = (format_figure(row[key], as_integer) for key in ("ours", "paper"))
        table.add_row(row["name"], *figures, str(row["of"]))
    console.print(table)
    for title, cells in (("family", content["families"]), ("difficulty", content["difficulties"])):
        group_table = plain_table(title, "records", "accepted", "correct", "steps", "needs a tool", left=(title,))
        for name, cell in cells.items():
            shares = [f"{cell[key]:.0%}" for key in ("accepted", "right")]
            steps, tool_needed = f"{cell['steps']:.1f}", f"{cell['tool_needed']:.0%}"
            group_table.add_row(name, str(cell["records"]), *shares, steps, tool_needed)
        console.print(group_table)
    if counts.reasons:
        reasons_text = ", ".join(f"{reason}: {count}" for reason, count in counts.reasons.most_common(8))
        console.print(f"reasons for rejection: {printable(reasons_text)}", markup=False)
    console.print(f"corpus {content['corpus']}")


def format_figure(value: float | None, as_integer: bool) -> str:
    return "–" if value is None else f"{value:,.0f}" if as_integer else f"{value:.2f}"


# --help lists the verbs in the order in which a corpus is made
app.command()(data_dedup.dedup)
app.command()(data_dedup.audit)
app.add_typer(data_files.app)
app.command()(data_photographs.photographs)
