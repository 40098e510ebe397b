"""`pixelis train`: the three phases, each from a file of settings to a run folder."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.terminal import EVERY_S, AsJson, duration, print_json, printable

if TYPE_CHECKING:
    from pixelis.train.dry_run import Plan
    from pixelis.train.rft import RftReport
    from pixelis.train.rft_config import RftConfig
    from pixelis.train.sft import SftReport
    from pixelis.train.sft_config import SftConfig

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
    from pixelis.config import load_config
    from pixelis.train.sft import train_sft
    from pixelis.train.sft_config import SftConfig

    settings = load_config(SftConfig, config, overrides or [])
    if dry_run:
        from pixelis.train.dry_run import dry_run as reckon

        print_plan(reckon(settings), settings, as_json=as_json)
        return
    with bar(quiet=as_json) as show:
        report = train_sft(settings, out, show=show)
    if report.rank:
        return  # the first process speaks for all
    if as_json:
        print_json(report._asdict())
    else:
        print_report(report, settings.corpus if report.held_out else None)


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
    from pixelis.config import load_config
    from pixelis.train.rft import train_rft
    from pixelis.train.rft_config import RftConfig

    settings = load_config(RftConfig, config, overrides or [])
    if dry_run:
        from pixelis.train.dry_run import dry_run_rft

        print_plan(dry_run_rft(settings), settings, as_json=as_json)
        return
    with board(quiet=as_json, target=settings.kl.target) as show:
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
def board(*, quiet: bool, target: float = 0.15) -> Iterator[Callable[[dict[str, float], int, int], None]]:
    """A live table on a terminal: reward and its terms, KL against the corridor around its target, chains, tools."""
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from pixelis.equations.pid import corridor, in_corridor

    console = Console(stderr=True)
    low, high = corridor(target)
    began: list[tuple[float, int]] = []
    quiet = quiet or os.environ.get("RANK", "0") != "0"  # the first process speaks for all
    told = [time.monotonic()]
    drawn = console.is_terminal and not quiet
    with Live(console=console, transient=True, refresh_per_second=2) if drawn else nullcontext() as live:

        def show(now: dict[str, float], step: int, total: int) -> None:
            if quiet:
                return
            if began and step <= began[-1][1]:
                began.clear()  # another run, as the parts of `reproduce` are
            if not began and step > 1:
                console.print(f"going on after update {step - 1}", style="dim")
            began.append((time.monotonic(), step))
            past = step - began[0][1]
            left = (began[-1][0] - began[0][0]) * (total - step) / past if past else math.nan
            if live is None:
                if step in (1, total) or time.monotonic() - told[0] >= EVERY_S:
                    told[0] = time.monotonic()
                    typer.echo(told_briefly(now, step, total, left), err=True)
                return
            table = Table.grid(padding=(0, 3))
            inside = in_corridor(now["kl"], low=low, high=high)
            side = "under" if now["kl"] < low else "over"
            where = "in the corridor" if inside else f"{side} the corridor of {low:.2f} to {high:.2f}"
            mix = "  ".join(f"{key[4:]} {100 * value:.0f}" for key, value in now.items() if key.startswith("mix_"))
            shares = "  ".join(f"{key[6:]} {100 * v:.0f}" for key, v in now.items() if key.startswith("share_") and v)
            time_left = "" if math.isnan(left) else f", {duration(left)} left"
            for name, words in (
                ("update", f"{step} of {total}{time_left}"),
                ("reward", f"{now['reward']:+.3f}; % of its variance in groups: {shares}"),
                ("terms", f"final {now['final']:+.2f}, curiosity {now['curiosity_raw']:.3f}, "
                          f"coherence {now['coherence_raw']:+.2f}, penalty {now['penalty']:.2f}"),
                ("answers", f"{now['accuracy']:.1f} % right, {now['answered']:.0f} % answered"),
                ("token KL", f"{now['kl']:.4f}, {where}; β {now['beta']:.4f}"),
                ("chains", f"{now['calls']:.2f} calls, {now['decisive']:.2f} decisive; {now['entropy']:.3f} nats"),
                ("process", f"RaPR {now['rapr']:.1f}, RaCPR {now['racpr']:.1f} ({now['qualified']:.0f} % qualified)"),
                ("tools, %", mix),
                ("seconds", f"rollouts {now['seconds_rollout']:.1f}, update {now['seconds_update']:.1f}; "
                            f"{100 * now['cache_hits']:.0f} % of calls from the cache"),
            ):  # fmt: skip
                table.add_row(name, words)
            live.update(table)

        yield show


def told_briefly(now: dict[str, float], step: int, total: int, left: float) -> str:
    """One line about an update, where there is no terminal to draw on."""
    time_left = "" if math.isnan(left) else f", {duration(left)} left"
    return (
        f"update {step} of {total}: reward {now['reward']:+.3f}, {now['accuracy']:.0f} % right, KL {now['kl']:.4f}, "
        f"β {now['beta']:.4f}, {now['calls']:.2f} calls, RaPR {now['rapr']:.0f}, RaCPR {now['racpr']:.1f}{time_left}"
    )


def went_on(report: RftReport | SftReport) -> str:
    """Whether what was printed was done now."""
    if report.ended_before:
        return " before, exported again"
    return ", gone on with" if report.resumed else ""


def print_rft(report: RftReport) -> None:
    from pixelis.train.rft_export import LAST

    few = min(LAST, report.updates)
    typer.echo(
        f"{report.updates} updates, {report.rollouts:,} rollouts in {duration(report.seconds)}{went_on(report)}; "
        f"last {few}: {report.accuracy:.1f} % right, {report.calls:.2f} calls, token KL {report.kl:.3f}, "
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
def bar(*, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """A progress bar on a terminal: what is being done, loss, tokens a second, time left; else a line now and then."""
    import time

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}"))
    told = [time.monotonic()]
    quiet = quiet or os.environ.get("RANK", "0") != "0"  # the first process speaks for all
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as shown:
        task = shown.add_task("starting", total=1.0, words="")

        def show(now: Any) -> None:
            if not quiet and not console.is_terminal and time.monotonic() - told[0] < EVERY_S:
                return
            told[0] = time.monotonic()
            words = [] if math.isnan(now.loss) else [f"loss {now.loss:.3f}"]
            words += [f"{now.tokens_per_s:,.0f} tokens/s"] if now.tokens_per_s else []
            words += [f"{duration(now.seconds_left)} left"] if now.seconds_left is not None else []
            shown.update(task, description=now.what, completed=now.share, words=", ".join(words))
            if not quiet and not console.is_terminal:
                typer.echo(f"{now.what}: {100 * now.share:.0f} %, {', '.join(words)}", err=True)

        yield show


def print_report(report: SftReport, held_out: Path | None) -> None:
    dev = "no dev split, hence no dev loss" if report.dev_loss is None else f"dev loss {report.dev_loss:.4f}"
    typer.echo(
        f"{report.examples} examples, {report.epochs:.2f} epochs, {report.steps} steps in {duration(report.seconds)}"
        f"{went_on(report)} ({report.tokens_per_s:,.0f} tokens/s); {dev}"
    )
    if not report.dynamics:
        typer.echo("the corpus has answers but no calls: the policy learnt to answer at once, without g_φ and h_ψ")
    typer.echo(f"wrote {printable(report.policy)}, {report.parameters:,} parameters")
    if held_out:
        typer.echo(f"next: pixelis eval {printable(str(held_out))} -m {printable(report.policy)}")


def as_time(hours: float) -> str:
    return f"{hours:,.1f} h" if hours >= 1 else f"{hours * 60:.0f} min" if hours >= 1 / 60 else f"{hours * 3600:.0f} s"


def print_plan(plan: Plan, settings: SftConfig | RftConfig, *, as_json: bool) -> None:
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
            f"cost             {plan.flops:.2e} operations, about {as_time(plan.hours)}"
            + (f", about ${plan.cost:,.2f} at ${device.per_hour:g} a device and hour" if device.per_hour else "")
        )
    else:
        typer.echo("tokens, cost     unknown without a corpus")
    for note in plan.notes:
        typer.echo(f"note             {printable(note)}")
