"""`pixelis train`: the three phases, each from a file of settings to a run folder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.options import AsJson
from pixelis.cli.progress import LINE_INTERVAL_S as LOG_INTERVAL_S
from pixelis.cli.terminal import format_duration, print_json, printable

if TYPE_CHECKING:
    from pixelis.training.common.dry_run import RunEstimate
    from pixelis.training.grpo.rft_config import RftConfig
    from pixelis.training.grpo.train import RftReport
    from pixelis.training.sft.sft_config import SftConfig
    from pixelis.training.sft.train import SftReport

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _train() -> None:
    """Verbs below `train`."""


@app.command()
def sft(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML file such as configs/nano/sft.yaml.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the file, changed for this run: epochs=2 lr=1e-3."),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The run folder; an unfinished run in it is gone on with.")
    ] = Path("runs/sft"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take: memory, tokens, steps, hours, cost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Phase 1: teach a policy from a corpus; OUT/policy is the checkpoint that other verbs open.

    Kill it at any moment and run the same command: it goes on. Under torchrun every process takes its share.
    """
    from pixelis.core.config import load_config
    from pixelis.training.sft.sft_config import SftConfig
    from pixelis.training.sft.train import train_sft

    settings = load_config(SftConfig, config, overrides or [])
    if dry_run:
        from pixelis.training.common.dry_run import dry_run as reckon

        print_plan(reckon(settings), settings, as_json=as_json)
        return
    with sft_progress_bar(quiet=as_json) as show:
        report = train_sft(settings, out, show=show)
    if report.rank:
        return  # the first process speaks for all
    if as_json:
        print_json(report._asdict())
    else:
        print_sft(report, settings.corpus if report.held_out else None)


@app.command()
def rft(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML file such as configs/nano/rft.yaml.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Keys of the file, changed for this run: reward.coherence=0."),
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The run folder; an unfinished run in it is gone on with.")
    ] = Path("runs/rft"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take: memory, tokens, hours, cost.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Phase 2: improve a policy on its own rollouts; OUT/policy is the checkpoint, OUT/curves.svg the figure.

    Kill it at any moment and run the same command: it goes on. Under torchrun every process takes its share.
    Exit status 1: it stopped before its end, since tool use or variety had collapsed.
    """
    from pixelis.core.config import load_config
    from pixelis.training.grpo.rft_config import RftConfig
    from pixelis.training.grpo.train import train_rft

    settings = load_config(RftConfig, config, overrides or [])
    if dry_run:
        from pixelis.training.common.dry_run import dry_run_rft

        print_plan(dry_run_rft(settings), settings, as_json=as_json)
        return
    with live_training_view(quiet=as_json, target=settings.kl.target) as show:
        report = train_rft(settings, out, show=show)
    if report.rank:
        return
    if as_json:
        print_json(report._asdict())
    else:
        print_rft(report)
    if report.stopped:
        raise typer.Exit(1)


@contextmanager
def live_training_view(*, quiet: bool, target: float = 0.15) -> Iterator[Callable[[dict[str, float], int, int], None]]:
    """A live table on a terminal: reward and its terms, KL against the corridor around its target, chains, tools."""
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from pixelis.equations.pid import corridor, in_corridor

    console = Console(stderr=True)
    low, high = corridor(target)
    step_times: list[tuple[float, int]] = []
    quiet = quiet or os.environ.get("RANK", "0") != "0"  # the first process speaks for all
    last_logged = [time.monotonic()]
    is_live = console.is_terminal and not quiet
    with Live(console=console, transient=True, refresh_per_second=2) if is_live else nullcontext() as live:

        def show(metrics: dict[str, float], step: int, total: int) -> None:
            if quiet:
                return
            if step_times and step <= step_times[-1][1]:
                step_times.clear()  # another run, as the parts of `reproduce` are
            if not step_times and step > 1:
                console.print(f"going on after update {step - 1}", style="dim")
            step_times.append((time.monotonic(), step))
            steps_done = step - step_times[0][1]
            seconds_left = (
                (step_times[-1][0] - step_times[0][0]) * (total - step) / steps_done if steps_done else math.nan
            )
            if live is None:
                if step in (1, total) or time.monotonic() - last_logged[0] >= LOG_INTERVAL_S:
                    last_logged[0] = time.monotonic()
                    typer.echo(format_update(metrics, step, total, seconds_left), err=True)
                return
            table = Table.grid(padding=(0, 3))
            inside = in_corridor(metrics["kl"], low=low, high=high)
            side = "under" if metrics["kl"] < low else "over"
            corridor_text = "in the corridor" if inside else f"{side} the corridor of {low:.2f} to {high:.2f}"
            mix = "  ".join(f"{key[4:]} {100 * value:.0f}" for key, value in metrics.items() if key.startswith("mix_"))
            shares = "  ".join(
                f"{key[6:]} {100 * v:.0f}" for key, v in metrics.items() if key.startswith("share_") and v
            )
            time_left = "" if math.isnan(seconds_left) else f", {format_duration(seconds_left)} left"
            for name, text in (
                ("update", f"{step} of {total}{time_left}"),
                ("reward", f"{metrics['reward']:+.3f}; % of its variance in groups: {shares}"),
                ("terms", f"final {metrics['final']:+.2f}, curiosity {metrics['curiosity_raw']:.3f}, "
                          f"coherence {metrics['coherence_raw']:+.2f}, penalty {metrics['penalty']:.2f}"),
                ("answers", f"{metrics['accuracy']:.1f} % right, {metrics['answered']:.0f} % answered"),
                ("token KL", f"{metrics['kl']:.4f}, {corridor_text}; β {metrics['beta']:.4f}"),
                ("chains", f"{metrics['calls']:.2f} calls, {metrics['decisive']:.2f} decisive; {metrics['entropy']:.3f} nats"),
                ("process", f"RaPR {metrics['rapr']:.1f}, RaCPR {metrics['racpr']:.1f} ({metrics['qualified']:.0f} % qualified)"),
                ("tools, %", mix),
                ("seconds", f"rollouts {metrics['seconds_rollout']:.1f}, update {metrics['seconds_update']:.1f}; "
                            f"{100 * metrics['cache_hits']:.0f} % of calls from the cache"),
            ):  # fmt: skip
                table.add_row(name, text)
            live.update(table)

        yield show


def format_update(metrics: dict[str, float], step: int, total: int, seconds_left: float) -> str:
    """One line about an update, where there is no terminal to draw on."""
    time_left = "" if math.isnan(seconds_left) else f", {format_duration(seconds_left)} left"
    return (
        f"update {step} of {total}: reward {metrics['reward']:+.3f}, {metrics['accuracy']:.0f} % right, KL {metrics['kl']:.4f}, "
        f"β {metrics['beta']:.4f}, {metrics['calls']:.2f} calls, RaPR {metrics['rapr']:.0f}, RaCPR {metrics['racpr']:.1f}{time_left}"
    )


def resume_note(report: RftReport | SftReport) -> str:
    """Whether what was printed was done now."""
    if report.ended_before:
        return " before, exported again"
    return ", gone on with" if report.resumed else ""


def print_rft(report: RftReport) -> None:
    from pixelis.training.grpo.rft_export import LAST_UPDATES

    last_updates = min(LAST_UPDATES, report.updates)
    typer.echo(
        f"{report.updates} updates, {report.rollouts:,} rollouts in {format_duration(report.seconds)}{resume_note(report)}; "
        f"last {last_updates}: {report.accuracy:.1f} % right, {report.calls:.2f} calls, token KL {report.kl:.3f}, "
        f"β {report.beta:.3f}"
    )
    if report.skipped:
        typer.echo(f"{report.skipped} updates were skipped: nothing could be learnt from them (see metrics.jsonl)")
    for name in report.dead:
        typer.echo(f"the term {name} is dead: under 1 % of the reward's variance")
    if report.stopped:
        typer.echo(f"stopped early: {report.stopped}")
    typer.echo(f"wrote {printable(report.policy)} and curves.svg beside it")
    typer.echo(f"next: pixelis eval -m {printable(report.policy)}")


@contextmanager
def sft_progress_bar(*, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """A progress bar on a terminal: what is being done, loss, tokens a second, time left; else a line now and then."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}"))
    last_logged = [time.monotonic()]
    quiet = quiet or os.environ.get("RANK", "0") != "0"  # the first process speaks for all
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress_bar:
        task = progress_bar.add_task("starting", total=1.0, words="")

        def show(progress: Any) -> None:
            if not quiet and not console.is_terminal and time.monotonic() - last_logged[0] < LOG_INTERVAL_S:
                return
            last_logged[0] = time.monotonic()
            parts = [] if math.isnan(progress.loss) else [f"loss {progress.loss:.3f}"]
            parts += [f"{progress.tokens_per_s:,.0f} tokens/s"] if progress.tokens_per_s else []
            parts += [f"{format_duration(progress.seconds_left)} left"] if progress.seconds_left is not None else []
            progress_bar.update(task, description=progress.what, completed=progress.share, words=", ".join(parts))
            if not quiet and not console.is_terminal:
                typer.echo(f"{progress.what}: {100 * progress.share:.0f} %, {', '.join(parts)}", err=True)

        yield show


def print_sft(report: SftReport, held_out: Path | None) -> None:
    dev = "no dev split, hence no dev loss" if report.dev_loss is None else f"dev loss {report.dev_loss:.4f}"
    typer.echo(
        f"{report.examples} examples, {report.epochs:.2f} epochs, {report.steps} steps in {format_duration(report.seconds)}"
        f"{resume_note(report)} ({report.tokens_per_s:,.0f} tokens/s); {dev}"
    )
    if not report.dynamics:
        typer.echo("the corpus has answers but no calls: the policy learnt to answer at once, without g_φ and h_ψ")
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
    typer.echo(f"parameters       {plan.parameters:,}; trained{heads}: {plan.trained:,}")
    typer.echo(
        f"memory           {memory.total:.2f} GB on each of {device.count} x {device.name} ({device.memory_gb:g} GB): "
        f"weights {memory.weights:.2f}, gradients {memory.gradients:.2f}, optimizer {memory.optimizer:.2f}, "
        f"copies to compute with {memory.copies:.2f}, activations about {memory.activations:.2f}; "
        + ("fits" if plan.fits else "DOES NOT FIT")
    )
    if plan.tokens_per_example:
        typer.echo(f"{plan.what:<17}{plan.examples:,} of about {plan.tokens_per_example:,.0f} tokens")
        typer.echo(f"tokens           {plan.tokens:,} in {plan.over}")
        typer.echo(
            f"cost             {plan.flops:.2e} operations, about {format_hours(plan.hours)}"
            + (f", about ${plan.cost:,.2f} at ${device.per_hour:g} a device and hour" if device.per_hour else "")
        )
    else:
        typer.echo("tokens, cost     unknown without a corpus")
    for note in plan.notes:
        typer.echo(f"note             {printable(note)}")
