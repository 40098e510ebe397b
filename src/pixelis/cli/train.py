"""`pixelis train`: the three phases, each from a file of settings to a run folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.terminal import AsJson, print_json, printable

if TYPE_CHECKING:
    from pixelis.train.dry_run import Plan
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
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the file, changed for this run: epochs=2 lr=1e-3."),
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

        plan = reckon(settings)
        if as_json:
            print_json({**plan._asdict(), "memory": {**plan.memory._asdict(), "total": plan.memory.total}})
        else:
            print_plan(plan, settings)
        return
    with bar(quiet=as_json) as show:
        report = train_sft(settings, out, show=show)
    if report.rank:
        return  # the first process speaks for all
    if as_json:
        print_json(report._asdict())
    else:
        print_report(report, settings.corpus if report.held_out else None)


@contextmanager
def bar(*, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """A progress bar on a terminal: what is being done, loss, tokens a second, time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as shown:
        task = shown.add_task("starting", total=1.0, words="")

        def show(now: Any) -> None:
            words = [] if math.isnan(now.loss) else [f"loss {now.loss:.3f}"]
            words += [f"{now.tokens_per_s:,.0f} tokens/s"] if now.tokens_per_s else []
            words += [f"{duration(now.seconds_left)} left"] if now.seconds_left is not None else []
            shown.update(task, description=now.what, completed=now.share, words=", ".join(words))

        yield show


def duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes}:{rest:02d}"


def print_report(report: SftReport, held_out: Path | None) -> None:
    went_on = ", gone on with" if report.resumed else ""
    dev = "no dev split, hence no dev loss" if report.dev_loss is None else f"dev loss {report.dev_loss:.4f}"
    typer.echo(
        f"{report.examples} examples, {report.epochs:.2f} epochs, {report.steps} steps in {duration(report.seconds)}"
        f"{went_on} ({report.tokens_per_s:,.0f} tokens/s); {dev}"
    )
    if not report.dynamics:
        typer.echo("the corpus has answers but no calls: the policy learnt to answer at once, without g_φ and h_ψ")
    typer.echo(f"wrote {printable(report.policy)}, {report.parameters:,} parameters")
    if held_out:
        typer.echo(f"next: pixelis eval {printable(str(held_out))} -m {printable(report.policy)}")


def print_plan(plan: Plan, settings: SftConfig) -> None:
    device, memory = settings.device_facts, plan.memory
    typer.echo(f"parameters       {plan.parameters:,}; trained, argument heads included: {plan.trained:,}")
    typer.echo(
        f"memory           {memory.total:.2f} GB on each of {device.count} x {device.name} ({device.memory_gb:g} GB): "
        f"weights {memory.weights:.2f}, gradients {memory.gradients:.2f}, optimizer {memory.optimizer:.2f}, "
        f"activations about {memory.activations:.2f}" + ("" if plan.fits else "; DOES NOT FIT")
    )
    typer.echo(f"examples         {plan.examples:,} of about {plan.tokens_per_example:,.0f} tokens")
    typer.echo(f"tokens           {plan.tokens:,} in {settings.epochs:g} epochs, {plan.steps:,} steps")
    typer.echo(
        f"cost             {plan.flops:.2e} operations, about {plan.hours:.2f} h, about ${plan.cost:,.2f} "
        f"at ${device.per_hour:g} a device and hour"
    )
    for note in plan.notes:
        typer.echo(f"note             {printable(note)}")
