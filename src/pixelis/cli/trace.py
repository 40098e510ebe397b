"""The verbs about traces: `run` executes a plan into one, `replay` proves one, `report` shows one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.terminal import AsJson, escape_markup, print_json, spinner, stdout
from pixelis.cli.tools import Disable, Fps, Plugins

if TYPE_CHECKING:
    from pixelis.media import MediaSet
    from pixelis.tools.results import Execution, ToolCall
    from pixelis.trace import Trace
    from pixelis.trace.replay import ReplayReport

MediaPaths = Annotated[
    list[Path] | None, typer.Option("--media", "-m", help="A picture, a clip or a folder of frames; may be repeated.")
]
Seg = Annotated[str, typer.Option("--seg", help="SEG's backend: auto, classical, sam2 or sam2-transformers.")]
TraceFile = Annotated[Path, typer.Argument(help="A trace file (JSON lines).", show_default=False)]


def run(
    plan: Annotated[
        Path, typer.Argument(help="A list of calls as JSON: see docs/reference/trace_format.md.", show_default=False)
    ],
    media: MediaPaths = None,
    out: Annotated[Path, typer.Option("-o", "--out", help="The trace file to write.")] = Path("trace.jsonl"),
    append: Annotated[bool, typer.Option("--append", help="Add to the file instead of replacing it.")] = False,
    seg: Seg = "auto",
    fps: Fps = 25.0,
    as_json: AsJson = False,
    disable: Disable = [],  # noqa: B006 - Typer copies it
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Execute a given list of calls into a trace. Exit status 1: it was written, and some call in it failed."""
    settings = {"seg": seg, "disabled": disable, "plugins": plugin}
    trace = record_plan(plan, media or [], out, append=append, fps=fps, settings=settings, quiet=as_json)
    if as_json:
        print_json(trace_summary(trace, out))
    else:
        print_run(trace, out)
    raise typer.Exit(0 if all(step.result.ok for step in trace.steps) else 1)


def record_plan(
    plan: Path,
    media: list[Path],
    out: Path,
    *,
    append: bool = False,
    fps: float = 25.0,
    settings: dict[str, Any] | None = None,
    quiet: bool = False,
) -> Trace:
    """A plan from its file, executed and written."""
    from pixelis.cli.tools import make_toolbox
    from pixelis.media import MediaSet, open_media
    from pixelis.trace import codec
    from pixelis.trace.plan import read_plan, run_plan

    call_plan = read_plan(plan)
    codec.check_target(out)
    media_set = MediaSet(tuple(open_media(path, fps=fps) for path in media))
    with make_toolbox(**(settings or {})) as toolbox, spinner(f"{len(call_plan.steps)} calls", quiet=quiet):
        recording = run_plan(call_plan, media_set, toolbox, beside=out)
    if append:
        codec.append(recording.trace, out, recording.blobs)
    else:
        codec.write([recording.trace], out, recording.blobs)
    return recording.trace


def replay(
    trace: TraceFile,
    media: MediaPaths = None,
    seg: Seg = "auto",
    as_json: AsJson = False,
    disable: Disable = [],  # noqa: B006 - Typer copies it
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Execute every call of a trace again: 0 if all is identical, 1 if a step differs, 2 if it cannot be read."""
    from pixelis.cli.tools import make_toolbox
    from pixelis.core.errors import TraceError
    from pixelis.trace import codec
    from pixelis.trace.media_records import reopen_media
    from pixelis.trace.replay import replay as execute_again

    reports: list[ReplayReport] = []
    # Without the cache: a kept result would prove nothing.
    settings = {"seg": seg, "disabled": disable, "plugins": plugin, "cache": False}
    with make_toolbox(**settings) as toolbox, spinner("executing every call again", quiet=as_json):
        for recorded in codec.read(trace):
            reports.append(execute_again(recorded, toolbox, reopen_media(recorded, trace, media or [])))
    if not reports:
        raise TraceError(f"{trace} holds no traces")
    if as_json:
        print_json({"identical": all(r.identical for r in reports), "traces": [replay_summary(r) for r in reports]})
    else:
        print_replay(reports)
    raise typer.Exit(0 if all(report.identical for report in reports) else 1)


def report(
    trace: TraceFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="The page to write.")] = Path("evidence.html"),
    media: MediaPaths = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the evidence page of a trace: one HTML file that opens without a network."""
    from pixelis.core.errors import TraceError
    from pixelis.tools.toolbox import builtin_thresholds
    from pixelis.trace import codec
    from pixelis.view import make_exhibit
    from pixelis.view import report as page_of

    with spinner("drawing the page", quiet=as_json):
        exhibits = [
            make_exhibit(recorded, trace, media or [], thresholds=builtin_thresholds())
            for recorded in codec.read(trace, check_artifacts=False)
        ]
        if not exhibits:
            raise TraceError(f"{trace} holds no traces")
        page_bytes = write_page(page_of(exhibits), out)
    missing = [reason for e in exhibits for reason in e.missing.values()]
    if as_json:
        print_json({"path": str(out), "bytes": page_bytes, "traces": len(exhibits), "missing": missing})
    else:
        console = stdout()
        for reason in missing:
            console.print(f"[yellow]{escape_markup(reason)}")
        console.print(
            f"wrote [bold]{escape_markup(str(out))}[/] ({page_bytes / 2**20:.1f} MB; traces: {len(exhibits)})"
        )
    if show:
        typer.launch(out.resolve().as_uri())


def write_call_page(call: ToolCall, media: MediaSet, execution: Execution, out: Path) -> None:
    """The evidence page of a single call that somebody typed, and beside it the trace that proves it."""
    from datetime import UTC, datetime

    from pixelis.tools.toolbox import builtin_thresholds
    from pixelis.trace import codec
    from pixelis.trace.recorder import TraceRecorder
    from pixelis.view import make_exhibit
    from pixelis.view import report as page_of

    trace_path = out.with_suffix(".jsonl")
    codec.check_target(trace_path)
    recorder = TraceRecorder(media)
    recorder.add_step(call, execution)
    trace = recorder.seal(query="", origin="plan", created_at=datetime.now(UTC), trace_path=trace_path)
    codec.write([trace], trace_path, execution.blobs)
    write_page(
        page_of([make_exhibit(trace, trace_path, thresholds=builtin_thresholds(), artifact_bytes=execution.blobs)]), out
    )


def write_page(page: str, out: Path) -> int:
    """Put the page in place, whole; the number of its bytes. Nothing but an older page is replaced."""
    from pixelis.core.errors import TraceError
    from pixelis.core.provenance import atomic_write

    content = page.encode()
    check_page(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(out) as file:
            file.write(content)
    except OSError as error:
        raise TraceError(f"{out} cannot be written ({error.strerror})") from error
    return len(content)


def check_page(out: Path) -> None:
    """TraceError where a page may not be put: on a folder, or on a file that is none."""
    from pixelis.core.errors import TraceError

    try:
        if out.is_dir():
            raise TraceError(f"{out} is a folder: give the name of a file in it, such as {out / 'evidence.html'}")
        if out.exists() and (not out.is_file() or not looks_like_page(out)):
            raise TraceError(f"{out} exists and is no evidence page: nothing was written")
    except OSError as error:
        raise TraceError(f"{out} cannot be written ({error.strerror})") from error


def looks_like_page(file: Path) -> bool:
    """An empty file does too."""
    with file.open("rb") as stream:
        return b"<!doctype html>".startswith(stream.read(15))


def trace_summary(trace: Trace, path: Path) -> dict[str, Any]:
    steps = [
        {
            "tool": s.result.tool,
            "status": s.result.status,
            "text": s.result.text,
            "confidence": s.result.confidence,
            "seconds": s.result.seconds,
        }
        for s in trace.steps
    ]
    return {"path": str(path), "id": trace.id, "origin": trace.origin, "seal": trace.seal, "steps": steps}


def print_run(trace: Trace, path: Path) -> None:
    from rich.table import Table

    table = Table("", "call", "status", "sure", "time", "what came back", box=None, pad_edge=False, header_style="dim")
    for number, step in enumerate(trace.steps, start=1):
        result = step.result
        confidence = "" if result.confidence is None else f"{result.confidence:.2f}"
        colour = "green" if result.ok else "red"
        text = result.text if len(result.text) <= 300 else result.text[:299] + "…"
        time = f"{result.seconds:.2f} s"
        table.add_row(
            str(number),
            escape_markup(result.tool),
            f"[{colour}]{result.status}[/]",
            confidence,
            time,
            escape_markup(text),
        )
    console = stdout()
    console.print(table)
    path_text = escape_markup(str(path))
    console.print(f"wrote [bold]{path_text}[/]; the calls were given as a plan. Prove it: pixelis replay {path_text}")


def replay_summary(report: ReplayReport) -> dict[str, Any]:
    difference = report.first_difference
    return {
        "id": report.trace_id,
        "identical": report.identical,
        "sentence": report.sentence(),
        "first_difference": difference and {"step": difference.step, "tool": difference.tool, "how": difference.detail},
        "steps": [{"step": s.step, "tool": s.tool, "outcome": s.outcome, "detail": s.detail} for s in report.steps],
    }


def print_replay(reports: list[ReplayReport]) -> None:
    console = stdout()
    for report in reports:
        colour = "green" if report.identical else "red"
        console.print(f"{escape_markup(report.trace_id)}  [{colour}]{escape_markup(report.sentence())}[/]")
