"""`pixelis bench`: the quick rows, or one group of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.clone import require_clone
from pixelis.cli.options import AsJson
from pixelis.cli.progress import progress_bars, spinner
from pixelis.cli.terminal import print_json

if TYPE_CHECKING:
    from benchmarks.bench_rows import BenchRow
    from pixelis.dedup.media_collection import ProgressCallback

app = typer.Typer(invoke_without_command=True)

Out = Annotated[Path | None, typer.Option("-o", "--out", help="Also write the rows to this JSON file.")]


@app.callback()
def quick(context: typer.Context, as_json: AsJson = False, out: Out = None) -> None:
    """The quick rows: tools, equations, world and de-duplication, under ten minutes on two cores."""
    require_clone("benchmarks")
    if context.invoked_subcommand is None:
        from benchmarks import bench_dedup, bench_equations, bench_tools, bench_world

        groups = {
            "tools": bench_tools.rows(),
            "equations": bench_equations.rows(),
            "world": bench_world.rows(),
            "dedup": bench_dedup.rows(),
        }
        report(groups, as_json=as_json, out=out)


@app.command()
def tools(as_json: AsJson = False, out: Out = None) -> None:
    """Tool calls, cache off, beside the paper's latencies."""
    from benchmarks import bench_tools

    report({"tools": bench_tools.rows()}, as_json=as_json, out=out)


@app.command()
def equations(as_json: AsJson = False, out: Out = None) -> None:
    """Voting, similarity and process metrics, beside libraries in the same run."""
    from benchmarks import bench_equations

    report({"equations": bench_equations.rows()}, as_json=as_json, out=out)


@app.command()
def world(as_json: AsJson = False, out: Out = None) -> None:
    """Pictures and clips a second, references and necessity labels included."""
    from benchmarks import bench_world

    report({"world": bench_world.rows()}, as_json=as_json, out=out)


@app.command()
def rollouts(as_json: AsJson = False, out: Out = None) -> None:
    """Eight queries, eight samples each, beside transformers' `generate` in the same run."""
    from benchmarks import bench_rollout

    report({"rollouts": bench_rollout.rows()}, as_json=as_json, out=out)


@app.command()
def sft(as_json: AsJson = False, out: Out = None) -> None:
    """A step of phase 1, beside transformers' `Trainer` on the same batches in the same run."""
    from benchmarks import bench_sft

    report({"sft": bench_sft.rows()}, as_json=as_json, out=out)


@app.command()
def rft(as_json: AsJson = False, out: Out = None) -> None:
    """An update of phase 2 with two tool turns, beside TRL's `GRPOTrainer` with one turn in the same run."""
    from benchmarks import bench_rft

    report({"rft": bench_rft.rows()}, as_json=as_json, out=out)


@app.command()
def memory(
    figure: Annotated[Path | None, typer.Option(help="Also draw memory over chain length, as .svg or .png.")] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Peak memory of 64 rollouts over the length of their chains, each length in a fresh process."""
    from benchmarks import bench_memory

    with spinner("rolling chains out, each length in a process of its own"):
        measurements = bench_memory.measure_in_subprocesses()
    fit = bench_memory.fit_line(measurements)
    if not as_json:
        typer.echo(
            f"{'calls':>6}{'tokens':>8}{'before':>10}{'peak':>10}{'cache':>10}   MB, {measurements[0].sequences} sequences"
        )
        for measurement in measurements:
            typer.echo(
                f"{measurement.chain:>6}{measurement.tokens:>8}{measurement.before_mb:>10.0f}{measurement.peak_mb:>10.0f}{measurement.cache_mb:>10.0f}"
            )
    scores = {
        "mb_per_call": fit.slope_mb,
        "mb_at_start": fit.start_mb,
        "r2": fit.r2,
        "most_mb": max(measurement.peak_mb for measurement in measurements),
        "target_mb": bench_memory.TARGET_MB,
        "each": [measurement._asdict() for measurement in measurements],
    }
    show_scores("a straight line through the peaks", scores, as_json=as_json, out=out)
    if figure is not None:
        bench_memory.draw(measurements, figure)


@app.command()
def dedup(as_json: AsJson = False, out: Out = None) -> None:
    """The join of 100,000 hashes, and beside imagededup in the same run."""
    from benchmarks import bench_dedup

    report({"dedup": bench_dedup.rows()}, as_json=as_json, out=out)


@app.command()
def index(
    full: Annotated[
        bool, typer.Option("--full", help="Also 1,250,000 keys, the paper's size: 4.5 GB of disk, ten minutes.")
    ] = False,
    size: Annotated[
        list[int] | None, typer.Option(min=1000, help="So many keys instead of 10,000 and 100,000; may be repeated.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Settings of the memory, such as configs/memory/no-opq.yaml.")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="A folder that keeps what was built, for the next run.")] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """Search in memories of 10,000 and 100,000 keys, one thread: latency, recall, file size, memory, cold start."""
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
            if out is not None:  # each size as soon as it is known
                write_json(out.with_suffix(".each.json"), measurements)
            yield row

    with progress_bars() as progress:
        report({"index": rows(progress)}, as_json=as_json, out=out, extra={"each": measurements})
    if out is not None:
        out.with_suffix(".each.json").unlink(missing_ok=True)


@app.command()
def vote(as_json: AsJson = False, out: Out = None) -> None:
    """Key, search among 100,000 memories and vote of eight rollouts, embeddings at hand; about two minutes."""
    from benchmarks import bench_vote
    from pixelis.cli.index_files import make_key_maker

    with progress_bars() as progress:
        report({"vote": bench_vote.rows(make_key_maker(), progress=progress)}, as_json=as_json, out=out)


@app.command()
def adapt(as_json: AsJson = False, out: Out = None) -> None:
    """A query of 8, 16 and 24 rollouts alone, and of 8 with vote, memory and learning, in turns; about ten minutes."""
    from benchmarks import bench_adapt
    from pixelis.cli.index_files import make_key_maker

    with progress_bars() as progress:
        report({"adapt": bench_adapt.rows(make_key_maker(), progress=progress)}, as_json=as_json, out=out)


@app.command()
def trk(
    det: Annotated[Path, typer.Option(help="Detections as MOTChallenge rows.")],
    gt: Annotated[
        Path | None, typer.Option(help="Gold tracks as MOTChallenge rows; without them nothing is scored.")
    ] = None,
    media: Annotated[
        Path | None, typer.Option(help="The frames, a folder or a clip, for camera-motion compensation.")
    ] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """TRK's association on given detections: HOTA, MOTA, IDF1 and id switches, by TrackEval."""
    from benchmarks.bench_trk import bench_trk

    with spinner("tracking the detections"):
        scores = bench_trk(media, det, gt).model_dump()
    show_scores("TRK, association", scores, as_json=as_json, out=out)


@app.command()
def seg(
    folder: Annotated[Path, typer.Argument(help="A folder with labelme JSON files and their pictures.")],
    backend: Annotated[str, typer.Option("--seg", help="auto, classical, sam2 or sam2-transformers.")] = "auto",
    limit: Annotated[int | None, typer.Option(help="Stop after this many objects.")] = None,
    as_json: AsJson = False,
    out: Out = None,
) -> None:
    """SEG against hand-drawn polygons: mean IoU with a box prompt and with one click."""
    from benchmarks.bench_seg import score_polygons
    from pixelis.cli.tools import make_toolbox

    with make_toolbox(seg=backend) as toolbox, spinner("segmenting every polygon"):
        scores = score_polygons(folder, toolbox, limit=limit)
        name = toolbox.tools["SEG"].identity().backend
    summary = {
        "backend": name,
        "objects": len(scores),
        "box_iou": sum(s.box for s in scores) / len(scores),
        "click_iou": sum(s.click for s in scores) / len(scores),
        "each": [s._asdict() for s in scores],
    }
    show_scores("SEG against polygons, mean IoU", summary, as_json=as_json, out=out)


def show_scores(title: str, scores: dict[str, Any], *, as_json: bool, out: Path | None) -> None:
    """A few named numbers, with where they come from."""
    from pixelis.core.provenance import provenance, write_json

    content = {**scores, **provenance()}
    if as_json:
        print_json(content)
    else:
        typer.echo(title)
        for name, value in scores.items():
            if not isinstance(value, list):
                typer.echo(f"  {name:<14}{f'{value:.4f}' if isinstance(value, float) else value}")
    if out is not None:  # after it was said: a file that cannot be written must not cost the measurement
        write_json(out, content)


def report(
    groups: dict[str, Iterable[BenchRow]], *, as_json: bool, out: Path | None, extra: dict[str, Any] | None = None
) -> None:
    """Measure, print, and write with where the numbers come from."""
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from pixelis.core.provenance import provenance, write_json

    rows_by_group: dict[str, list[BenchRow]] = {}
    for name, group in groups.items():
        rows_by_group[name] = []
        for row in group:
            rows_by_group[name].append(row)
            typer.echo(f"measured {name}: {row.name}, {format_seconds(row.ours_cpu_s)}", err=True)
    content = {**provenance(unit="CPU seconds"), "rows": {n: [asdict(r) for r in g] for n, g in rows_by_group.items()}}
    content |= extra or {}
    if as_json:
        print_json(content)
        if out is not None:
            write_json(out, content)
        return
    for name, group_rows in rows_by_group.items():
        table = Table(title=name, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for heading in ("", "ours", "beside it", "", "target", ""):
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
    """CPU time in a unit that reads well."""
    if value is None:
        return ""
    if math.isnan(value):
        return "not run"
    if value >= 0.1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.1f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"
