"""`pixelis bench`: the quick benchmarks, or one group. Needs a clone of the repository."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.clone import require_clone
from pixelis.cli.progress import LineThrottle, progress_bars, spinner
from pixelis.cli.terminal import print_json
from pixelis.cli.tools import make_toolbox

if TYPE_CHECKING:
    from benchmarks.bench_rows import BenchRow
    from pixelis.dedup.media_collection import ProgressCallback

app = typer.Typer(invoke_without_command=True)
QUICK = {
    "tools": "Tool calls without the cache, compared with the paper's latencies.",
    "equations": "Voting, similarity and process metrics, compared with libraries in the same run.",
    "world": "Images and videos per second, references and necessity labels included.",
    "dedup": "The join of 100,000 hashes, compared with imagededup in the same run.",
}
SLOW = {
    "rollout": "Eight queries with eight samples each, compared with transformers' `generate` in the same run.",
    "sft": "A step of phase 1, compared with transformers' `Trainer` on the same batches in the same run.",
    "rft": "An update of phase 2 with two tool turns, compared with TRL's `GRPOTrainer` with one turn in the same run.",
}
VERBS = {"rollout": "rollouts"}
"""Verbs that are named otherwise than their module."""


@app.callback()
def quick(ctx: typer.Context, as_json: opt.AsJson = False, out: opt.ReportOut = None, quiet: opt.Quiet = False) -> None:
    """Run the quick benchmarks: tools, equations, world and deduplication, under ten minutes on two cores."""
    require_clone("benchmarks")
    if ctx.invoked_subcommand is None:
        report({name: bench_rows(name) for name in QUICK}, as_json=as_json, out=out)


def bench_rows(name: str) -> Iterable[BenchRow]:
    rows: Iterable[BenchRow] = import_module(f"benchmarks.bench_{name}").rows()
    return rows


def bench_verb(name: str) -> Callable[..., None]:
    """The verb of a group that has no options of its own."""

    def verb(as_json: opt.AsJson = False, out: opt.ReportOut = None, quiet: opt.Quiet = False) -> None:
        report({VERBS.get(name, name): bench_rows(name)}, as_json=as_json, out=out)

    return verb


for module, help_text in (QUICK | SLOW).items():
    app.command(VERBS.get(module, module), help=help_text)(bench_verb(module))


@app.command()
def memory(
    figure: Annotated[Path | None, Option(help="Also draw memory over trajectory length, as .svg or .png.")] = None,
    as_json: opt.AsJson = False,
    out: opt.ReportOut = None,
    quiet: opt.Quiet = False,
) -> None:
    """Peak memory of 64 rollouts as a function of trajectory length, each length in a new process."""
    from benchmarks import bench_memory

    with spinner("measuring, each length in a new process"):
        measurements = bench_memory.measure_in_subprocesses()
    fit = bench_memory.fit_line(measurements)
    if not as_json:
        headings = "".join(f"{heading:>9}" for heading in ("calls", "tokens", "before", "peak", "cache"))
        typer.echo(f"{headings}   MB, {measurements[0].sequences} sequences")
        for m in measurements:
            typer.echo(f"{m.chain:>9}{m.tokens:>9}{m.before_mb:>9.0f}{m.peak_mb:>9.0f}{m.cache_mb:>9.0f}")
    scores: dict[str, Any] = {"mb_per_call": fit.slope_mb, "mb_at_start": fit.start_mb, "r2": fit.r2}
    scores |= {"most_mb": max(m.peak_mb for m in measurements), "target_mb": bench_memory.TARGET_MB}
    scores["each"] = [m._asdict() for m in measurements]
    show_scores("a straight line through the peaks", scores, as_json=as_json, out=out)
    if figure is not None:
        bench_memory.draw(measurements, figure)


@app.command()
def index(
    full: Annotated[
        bool, Option("--full", help="Also the paper's 1,250,000 keys; takes 4.5 GB of disk and ten minutes.")
    ] = False,
    size: Annotated[
        list[int] | None, Option(min=1000, help="Number of keys instead of 10,000 and 100,000; may be repeated.")
    ] = None,
    config: opt.Config = None,
    work: Annotated[Path | None, Option(help="A folder in which built indexes are kept for later runs.")] = None,
    as_json: opt.AsJson = False,
    out: opt.ReportOut = None,
    quiet: opt.Quiet = False,
) -> None:
    """Search among 10,000 and 100,000 keys, one thread: latency, recall, file size, memory, cold start."""
    from benchmarks import bench_index
    from pixelis.core.config import load_config
    from pixelis.core.provenance import write_json
    from pixelis.memory.memory_store import MemoryConfig

    settings = load_config(MemoryConfig, config).index
    sizes = (*(size or bench_index.SIZES), *((bench_index.FULL,) if full else ()))
    measurements = []

    def rows(progress: ProgressCallback) -> Iterable[BenchRow]:
        for row, numbers in bench_index.rows(sizes, settings, work=work, progress=progress):
            measurements.append({**numbers._asdict(), "settings": settings.model_dump(mode="json")})
            if out is not None:  # after each size, so that an interrupted run keeps it
                write_json(out.with_suffix(".each.json"), measurements)
            yield row

    with progress_bars() as progress:
        report({"index": rows(progress)}, as_json=as_json, out=out, extra={"each": measurements})
    if out is not None:
        out.with_suffix(".each.json").unlink(missing_ok=True)


@app.command()
def vote(as_json: opt.AsJson = False, out: opt.ReportOut = None, quiet: opt.Quiet = False) -> None:
    """Key, search among 100,000 items and vote of eight rollouts, embeddings precomputed; about two minutes."""
    from benchmarks import bench_vote
    from pixelis.cli.index_files import make_key_maker

    with progress_bars() as progress:
        report({"vote": bench_vote.rows(make_key_maker(), progress=progress)}, as_json=as_json, out=out)


@app.command()
def adapt(as_json: opt.AsJson = False, out: opt.ReportOut = None, quiet: opt.Quiet = False) -> None:
    """A query with 8, 16 and 24 rollouts, and with 8, vote, memory and update, interleaved; about ten minutes."""
    from benchmarks import bench_adapt
    from pixelis.cli.index_files import make_key_maker

    with progress_bars() as progress:
        report({"adapt": bench_adapt.rows(make_key_maker(), progress=progress)}, as_json=as_json, out=out)


@app.command()
def trk(
    det: Annotated[Path, Option(help="Detections in MOTChallenge format.")],
    gt: Annotated[
        Path | None, Option(help="Reference tracks in MOTChallenge format; without them nothing is scored.")
    ] = None,
    media: Annotated[
        Path | None, Option(help="The frames, as a folder or a video, for camera-motion compensation.")
    ] = None,
    as_json: opt.AsJson = False,
    out: opt.ReportOut = None,
    quiet: opt.Quiet = False,
) -> None:
    """Association of TRK on given detections: HOTA, MOTA, IDF1 and id switches, by TrackEval."""
    from benchmarks.bench_trk import bench_trk

    with spinner("tracking the detections"):
        scores = bench_trk(media, det, gt).model_dump()
    show_scores("TRK, association", scores, as_json=as_json, out=out)


@app.command("seg")
def segmentation(
    folder: Annotated[Path, Argument(help="A folder with labelme JSON files and their images.")],
    seg: opt.Seg = "auto",
    limit: Annotated[int | None, opt.limit("Stop after this many objects.")] = None,
    as_json: opt.AsJson = False,
    out: opt.ReportOut = None,
    quiet: opt.Quiet = False,
) -> None:
    """SEG against hand-drawn polygons: mean IoU with a box prompt and with one click."""
    from benchmarks.bench_seg import score_polygons

    with make_toolbox(seg=seg) as toolbox, spinner("segmenting every polygon"):
        scores = score_polygons(folder, toolbox, limit=limit)
        name = toolbox.tools["SEG"].identity().backend
    count = len(scores)
    means = {"box_iou": sum(s.box for s in scores) / count, "click_iou": sum(s.click for s in scores) / count}
    summary = {"backend": name, "objects": count, **means, "each": [s._asdict() for s in scores]}
    show_scores("SEG against polygons, mean IoU", summary, as_json=as_json, out=out)


def show_scores(title: str, scores: dict[str, Any], *, as_json: bool, out: Path | None) -> None:
    """Print named numbers; write them with their provenance."""
    from pixelis.core.provenance import provenance, write_json

    content = {**scores, **provenance()}
    if as_json:
        print_json(content)
    else:
        typer.echo(title)
        for name, value in scores.items():
            if not isinstance(value, list):
                typer.echo(f"  {name:<14}{f'{value:.4f}' if isinstance(value, float) else value}")
    if out is not None:  # after printing: a file that cannot be written must not cost the measurement
        write_json(out, content)


def report(
    groups: dict[str, Iterable[BenchRow]], *, as_json: bool, out: Path | None, extra: dict[str, Any] | None = None
) -> None:
    """Measure and print groups of rows; write them with their provenance."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from pixelis.core.provenance import provenance, write_json

    lines = LineThrottle()
    rows_by_group: dict[str, list[BenchRow]] = {}
    for name, group in groups.items():
        rows_by_group[name] = []
        for row in group:
            rows_by_group[name].append(row)
            lines.write(f"measured {name}: {row.name}, {format_seconds(row.ours_cpu_s)}", always=True)
    json_rows = {name: [asdict(row) for row in rows] for name, rows in rows_by_group.items()}
    content = {**provenance(unit="CPU seconds"), "rows": json_rows, **(extra or {})}
    if as_json:
        print_json(content)
        if out is not None:
            write_json(out, content)
        return
    for name, group_rows in rows_by_group.items():
        table = Table(title=name, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for heading in ("", "ours", "peer", "", "target", ""):
            table.add_column(heading, justify="right" if heading in ("ours",) else "left", overflow="fold")
        for row in group_rows:
            peer_time = "not run" if row.peer and row.peer_cpu_s is None else format_seconds(row.peer_cpu_s)
            table.add_row(row.name, format_seconds(row.ours_cpu_s), peer_time, row.peer, row.target, row.note)
        console = Console()
        console.width = max(console.width, 150) if not console.is_terminal else console.width
        console.print(table)
    if out is not None:
        write_json(out, content)
        typer.echo(f"wrote {out}")


def format_seconds(value: float | None) -> str:
    """CPU time with a suitable unit."""
    if value is None:
        return ""
    if math.isnan(value):
        return "not run"
    if value >= 0.1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
