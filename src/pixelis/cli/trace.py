"""The verbs about traces: `run` records one from a plan, `replay` verifies one, `report` shows one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.progress import progress_bars, spinner
from pixelis.cli.terminal import escape_markup, plain_table, print_json, print_report, stdout
from pixelis.cli.tools import make_toolbox
from pixelis.core.errors import TraceError

if TYPE_CHECKING:
    from pixelis.media import MediaSet
    from pixelis.tools.results import Execution, ToolCall
    from pixelis.trace import Trace
    from pixelis.trace.replay import ReplayReport

TraceFile = Annotated[Path, Argument(help="A trace file (JSON lines).")]
MAX_RESULT_CHARS = 300


def run(
    plan: Annotated[Path, Argument(help="Tool calls as JSON; see docs/reference/trace_format.md.")],
    media: opt.Media = None,
    out: Annotated[Path, opt.out("The trace file to write.")] = Path("trace.jsonl"),
    append: Annotated[bool, Option("--append", help="Append to the file instead of replacing it.")] = False,
    seg: opt.Seg = "auto",
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    fps: opt.Fps = 25.0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run a list of tool calls and record them as a trace.

    Exit status: 0 if every call succeeded, 1 if one failed; the trace is written either way.
    """
    from pixelis.media import MediaSet, open_media
    from pixelis.trace import codec
    from pixelis.trace.plan import read_plan, run_plan

    calls = read_plan(plan)
    codec.check_target(out)
    query = MediaSet(tuple(open_media(path, fps=fps) for path in media or []))
    message = f"running {len(calls.steps)} calls"
    with make_toolbox(plugin, disable, seg=seg, deadline_s=deadline) as toolbox, spinner(message):
        recording = run_plan(calls, query, toolbox, beside=out)
    trace = recording.trace
    if append:
        codec.append(trace, out, recording.blobs)
    else:
        codec.write([trace], out, recording.blobs)
    print_report(trace_summary(trace, out), lambda: print_run(trace, out), as_json=as_json)
    raise typer.Exit(0 if all(step.result.ok for step in trace.steps) else 1)


def replay(
    trace: TraceFile,
    media: opt.Media = None,
    seg: opt.Seg = "auto",
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run every call of a trace again and compare the results with the recorded ones.

    Folders of frames are read at the recorded rate. Exit status: 0 if all results are identical, 1 if one differs, 2 if
    the trace cannot be read.
    """
    from pixelis.trace import codec
    from pixelis.trace.media_records import reopen_media
    from pixelis.trace.replay import replay as replay_trace

    reports: list[ReplayReport] = []
    # without the cache: a cached result would prove nothing
    toolbox_settings = {"seg": seg, "deadline_s": deadline, "cache": False}
    with make_toolbox(plugin, disable, **toolbox_settings) as toolbox, progress_bars() as show:
        for recorded in codec.read(trace):
            reports.append(replay_trace(recorded, toolbox, reopen_media(recorded, trace, media or [])))
            show("replaying traces", len(reports))
    if not reports:
        raise TraceError(f"{trace} contains no traces")
    is_identical = all(report.identical for report in reports)
    content = {"identical": is_identical, "traces": [replay_summary(report) for report in reports]}
    print_report(content, lambda: print_replay(reports), as_json=as_json)
    raise typer.Exit(0 if is_identical else 1)


def report(
    trace: TraceFile,
    out: Annotated[Path, opt.out("The HTML page to write.")] = Path("evidence.html"),
    media: opt.Media = None,
    show: Annotated[bool, Option("--open", help="Open the page in the browser.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write the evidence page of a trace: one HTML file that works offline."""
    from pixelis.tools.toolbox import builtin_thresholds
    from pixelis.trace import codec
    from pixelis.view import make_exhibit
    from pixelis.view import report as page_of
    from pixelis.view.page_file import check_page, write_page

    check_page(out)
    with spinner("drawing the page"):
        recorded = codec.read(trace, check_artifacts=False)
        exhibits = [make_exhibit(one, trace, media or [], thresholds=builtin_thresholds()) for one in recorded]
        if not exhibits:
            raise TraceError(f"{trace} contains no traces")
        page_bytes = write_page(page_of(exhibits), out)
    missing = [reason for e in exhibits for reason in e.missing.values()]
    if as_json:
        print_json({"path": str(out), "bytes": page_bytes, "traces": len(exhibits), "missing": missing})
    else:
        console = stdout()
        for reason in missing:
            console.print(f"[yellow]{escape_markup(reason)}")
        size = f"{page_bytes / 2**20:.1f} MB; traces: {len(exhibits)}"
        console.print(f"wrote [bold]{escape_markup(str(out))}[/] ({size})")
    if show:
        typer.launch(out.resolve().as_uri())


def write_call_page(call: ToolCall, media: MediaSet, execution: Execution, out: Path) -> None:
    """Write the evidence page of a single call, and its trace beside the page."""
    from datetime import UTC, datetime

    from pixelis.tools.toolbox import builtin_thresholds
    from pixelis.trace import codec
    from pixelis.trace.recorder import TraceRecorder
    from pixelis.view import make_exhibit
    from pixelis.view import report as page_of
    from pixelis.view.page_file import write_page

    trace_path = out.with_suffix(".jsonl")
    codec.check_target(trace_path)
    recorder = TraceRecorder(media)
    recorder.add_step(call, execution)
    trace = recorder.seal(query="", origin="plan", created_at=datetime.now(UTC), trace_path=trace_path)
    codec.write([trace], trace_path, execution.blobs)
    exhibit = make_exhibit(trace, trace_path, thresholds=builtin_thresholds(), artifact_bytes=execution.blobs)
    write_page(page_of([exhibit]), out)


def trace_summary(trace: Trace, path: Path) -> dict[str, Any]:
    keys = {"tool", "status", "text", "confidence", "seconds"}
    steps = [step.result.model_dump(mode="json", include=keys) for step in trace.steps]
    return {"path": str(path), "id": trace.id, "origin": trace.origin, "seal": trace.seal, "steps": steps}


def print_run(trace: Trace, path: Path) -> None:
    from pixelis.rollout.answer_reading import shorten

    table = plain_table("", "call", "status", "conf.", "time", "result", left=("call", "status", "result"))
    for number, step in enumerate(trace.steps, start=1):
        result = step.result
        confidence = "" if result.confidence is None else f"{result.confidence:.2f}"
        status = f"[{'green' if result.ok else 'red'}]{result.status}[/]"
        text = escape_markup(shorten(result.text, MAX_RESULT_CHARS))
        table.add_row(str(number), escape_markup(result.tool), status, confidence, f"{result.seconds:.2f} s", text)
    console = stdout()
    console.print(table, soft_wrap=False)
    path_text = escape_markup(str(path))
    console.print(f"wrote [bold]{path_text}[/]; its calls were given as a plan. Verify it: pixelis replay {path_text}")


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
