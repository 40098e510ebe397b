"""`pixelis train`: phases 1 and 2, each from a configuration file to a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from pixelis.cli import options as opt
from pixelis.cli.progress import live_table, progress_bars
from pixelis.cli.terminal import format_duration, print_json, print_report, printable

if TYPE_CHECKING:
    from pixelis.training.common.run_folder import Progress
    from pixelis.training.dry_run import RunEstimate
    from pixelis.training.grpo.rft_config import RftConfig
    from pixelis.training.grpo.train import RftReport
    from pixelis.training.sft.sft_config import SftConfig
    from pixelis.training.sft.train import SftReport

app = typer.Typer(no_args_is_help=True)
RunFolder = Annotated[Path, opt.out("The run folder; an unfinished run in it is resumed.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only estimate memory, tokens, steps, hours and cost; needs no GPU.")]


@app.command()
def sft(
    config: opt.ConfigArgument,
    overrides: opt.Overrides = None,
    out: RunFolder = Path("runs/sft"),
    dry_run: DryRun = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Phase 1: supervised fine-tuning on a corpus. OUT/policy is the checkpoint.

    Run the same command again to resume after an interruption. Under torchrun every process takes its share.
    """
    from pixelis.core.config import load_config
    from pixelis.training.sft.sft_config import SftConfig

    settings = load_config(SftConfig, config, overrides or [])
    if dry_run:
        from pixelis.training.dry_run import dry_run as estimate_sft

        print_plan(estimate_sft(settings), settings, as_json=as_json)
        return
    from pixelis.training.sft.train import train_sft

    with sft_progress() as show:
        report = train_sft(settings, out, show=show)
    if report.rank:
        return  # only the first process reports
    print_report(
        report._asdict(), lambda: print_sft(report, settings.corpus if report.held_out else None), as_json=as_json
    )


@app.command()
def rft(
    config: opt.ConfigArgument,
    overrides: opt.Overrides = None,
    out: RunFolder = Path("runs/rft"),
    dry_run: DryRun = False,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Phase 2: reinforcement fine-tuning on the policy's own rollouts. OUT/policy is the checkpoint.

    Run the same command again to resume after an interruption. Under torchrun every process takes its share. Exit
    status: 1 if training stopped early because tool use or entropy collapsed.
    """
    from pixelis.core.config import load_config
    from pixelis.training.grpo.rft_config import RftConfig

    settings = load_config(RftConfig, config, overrides or [])
    if dry_run:
        from pixelis.training.dry_run import dry_run_rft

        print_plan(dry_run_rft(settings), settings, as_json=as_json)
        return
    from pixelis.core.extras import require
    from pixelis.training.grpo.train import train_rft

    require("matplotlib", "`pixelis train rft`")  # it draws the curves after the last update
    with live_training_view(target=settings.kl.target) as show:
        report = train_rft(settings, out, show=show)
    if report.rank:
        return
    print_report(report._asdict(), lambda: print_rft(report), as_json=as_json)
    if report.stopped:
        raise typer.Exit(1)


@contextmanager
def live_training_view(*, target: float = 0.15) -> Iterator[Callable[[dict[str, float], int, int], None]]:
    """Reward and its terms, KL against its corridor, trajectories and tools."""
    import time

    step_times: list[tuple[float, int]] = []
    with live_table() as show_rows:

        def show(metrics: dict[str, float], step: int, total: int) -> None:
            if step_times and step <= step_times[-1][1]:
                step_times.clear()  # the next run of `reproduce`
            step_times.append((time.monotonic(), step))
            (first_time, first_step), (last_time, _) = step_times[0], step_times[-1]
            time_left = ""
            if step > first_step:
                seconds_left = (last_time - first_time) * (total - step) / (step - first_step)
                time_left = f", {format_duration(seconds_left)} left"
            rows = [("update", f"{step} of {total}{time_left}"), *update_rows(metrics, target)]
            is_first = len(step_times) == 1
            show_rows(rows, format_update(metrics, step, total) + time_left, always=is_first or step == total)

        yield show


def update_rows(metrics: dict[str, float], target: float) -> tuple[tuple[str, str], ...]:
    """Names and values of the live table."""
    from pixelis.equations.pid import corridor, in_corridor

    low, high = corridor(target)
    side = "below" if metrics["kl"] < low else "above"
    inside = in_corridor(metrics["kl"], low=low, high=high)
    corridor_text = "in the corridor" if inside else f"{side} the corridor of {low:.2f} to {high:.2f}"
    mix = "  ".join(f"{key[4:]} {100 * value:.0f}" for key, value in metrics.items() if key.startswith("mix_"))
    shares = "  ".join(f"{key[6:]} {100 * v:.0f}" for key, v in metrics.items() if key.startswith("share_") and v)
    return (
        ("reward", f"{metrics['reward']:+.3f}; % of its variance within groups: {shares}"),
        ("terms", f"final {metrics['final']:+.2f}, curiosity {metrics['curiosity_raw']:.3f}, "
                  f"coherence {metrics['coherence_raw']:+.2f}, penalty {metrics['penalty']:.2f}"),
        ("answers", f"{metrics['accuracy']:.1f} % correct, {metrics['answered']:.0f} % answered"),
        ("token KL", f"{metrics['kl']:.4f}, {corridor_text}; β {metrics['beta']:.4f}"),
        ("trajectory", f"{metrics['calls']:.2f} calls, {metrics['decisive']:.2f} decisive; "
                       f"{metrics['entropy']:.3f} nats"),
        ("process", f"RaPR {metrics['rapr']:.1f}, RaCPR {metrics['racpr']:.1f} "
                    f"({metrics['qualified']:.0f} % qualified)"),
        ("tools, %", mix),
        ("seconds", f"rollouts {metrics['seconds_rollout']:.1f}, update {metrics['seconds_update']:.1f}; "
                    f"{100 * metrics['cache_hits']:.0f} % of calls from the cache"),
    )  # fmt: skip


def format_update(metrics: dict[str, float], step: int, total: int) -> str:
    """One line per update, for a log."""
    return (
        f"update {step} of {total}: reward {metrics['reward']:+.3f}, {metrics['accuracy']:.0f} % correct, "
        f"KL {metrics['kl']:.4f}, β {metrics['beta']:.4f}, {metrics['calls']:.2f} calls, "
        f"RaPR {metrics['rapr']:.0f}, RaCPR {metrics['racpr']:.1f}"
    )


def resume_note(report: RftReport | SftReport) -> str:
    """Whether the printed run was done by this command."""
    if report.ended_before:
        return " (finished before, exported again)"
    return " (resumed)" if report.resumed else ""


def print_rft(report: RftReport) -> None:
    from pixelis.training.grpo.rft_export import LAST_UPDATES

    last_updates = min(LAST_UPDATES, report.updates)
    typer.echo(
        f"{report.updates} updates, {report.rollouts:,} rollouts in {format_duration(report.seconds)}"
        f"{resume_note(report)}; last {last_updates}: {report.accuracy:.1f} % correct, {report.calls:.2f} calls, "
        f"token KL {report.kl:.3f}, β {report.beta:.3f}"
    )
    if report.skipped:
        typer.echo(f"{report.skipped} updates were skipped (see metrics.jsonl)")
    for name in report.dead:
        typer.echo(f"the term {name} is inactive: less than 1 % of the reward's variance")
    if report.stopped:
        typer.echo(f"stopped early: {report.stopped}")
    typer.echo(f"wrote {printable(report.policy)} and curves.svg beside it")
    typer.echo(f"next: pixelis eval -m {printable(report.policy)}")


@contextmanager
def sft_progress() -> Iterator[Callable[[Progress], None]]:
    with progress_bars() as show_bar:

        def show(progress: Progress) -> None:
            parts = [] if math.isnan(progress.loss) else [f"loss {progress.loss:.3f}"]
            parts += [f"{progress.tokens_per_s:,.0f} tokens/s"] if progress.tokens_per_s else []
            parts += [f"{format_duration(progress.seconds_left)} left"] if progress.seconds_left is not None else []
            show_bar(progress.what, progress.share, 1.0, ", ".join(parts))

        yield show


def print_sft(report: SftReport, held_out: Path | None) -> None:
    dev = "no dev split, so no dev loss" if report.dev_loss is None else f"dev loss {report.dev_loss:.4f}"
    typer.echo(
        f"{report.examples} examples, {report.epochs:.2f} epochs, {report.steps} steps in "
        f"{format_duration(report.seconds)}{resume_note(report)} ({report.tokens_per_s:,.0f} tokens/s); {dev}"
    )
    if not report.dynamics:
        outcome = "the policy learned to answer at once; g_φ and h_ψ are untrained"
        typer.echo(f"the corpus has answers but no calls: {outcome}")
    typer.echo(f"wrote {printable(report.policy)}, {report.parameters:,} parameters")
    if held_out:
        typer.echo(f"next: pixelis eval {printable(str(held_out))} -m {printable(report.policy)}")


def format_hours(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:.0f} min" if hours >= 1 / 60 else f"{hours * 3600:.0f} s"


def print_plan(plan: RunEstimate, settings: SftConfig | RftConfig, *, as_json: bool) -> None:
    if as_json:
        print_json({**plan._asdict(), "memory": {**plan.memory._asdict(), "total": plan.memory.total}})
        return
    device, memory = settings.device_facts, plan.memory
    heads = ", argument heads included" if plan.what == "examples" else ""
    cost = f", about ${plan.cost:,.2f} at ${device.per_hour:g} per device and hour" if device.per_hour else ""
    rows = [
        ("parameters", f"{plan.parameters:,}; trained{heads}: {plan.trained:,}"),
        ("memory", f"{memory.total:.2f} GB on each of {device.count} x {device.name} ({device.memory_gb:g} GB): "
                   f"weights {memory.weights:.2f}, gradients {memory.gradients:.2f}, optimizer {memory.optimizer:.2f}, "
                   f"compute copies {memory.copies:.2f}, activations about {memory.activations:.2f}; "
                   + ("fits" if plan.fits else "DOES NOT FIT")),
    ]  # fmt: skip
    if plan.tokens_per_example:
        rows += [
            (plan.what, f"{plan.examples:,} of about {plan.tokens_per_example:,.0f} tokens"),
            ("tokens", f"{plan.tokens:,} in {plan.over}"),
            ("cost", f"{plan.flops:.2e} FLOPs, about {format_hours(plan.hours)}{cost}"),
        ]
    else:
        rows.append(("tokens, cost", "unknown without a corpus"))
    for name, text in [*rows, *(("note", printable(note)) for note in plan.notes)]:
        typer.echo(f"{name:<17}{text}")
