"""`pixelis adapt`: phase 3. Answer a stream, learn from it without labels, look at every row, go back to any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperGroup

from pixelis.cli.options import AsJson
from pixelis.cli.progress import LINE_INTERVAL_S as LOG_INTERVAL_S
from pixelis.cli.terminal import escape_markup, pluralise, print_json, printable, stdout

if TYPE_CHECKING:
    from pixelis.dedup.evaluation_mask import EvaluationMask
    from pixelis.memory.keys import KeyMaker
    from pixelis.training.ttrl.train import TtrlReport
    from pixelis.training.ttrl.ttrl_config import TtrlConfig


class StreamDefaultGroup(TyperGroup):
    """`adapt search space` is `adapt run search space`: a stream needs no verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known_verbs = (*self.commands, "--help")
        return super().parse_args(ctx, ["run", *args] if args and args[0] not in known_verbs else args)


app = typer.Typer(no_args_is_help=True, cls=StreamDefaultGroup)
RunFolder = Annotated[Path, typer.Option("-o", "--out", help="The folder of the adaptation.")]
DEFAULT_RUN_FOLDER = Path("runs/ttrl")


@app.callback()
def _adapt() -> None:
    """Phase 3. `pixelis adapt STREAM…` answers a stream and learns from it, as `run` does (`pixelis adapt run --help`
    lists its options); the other verbs look at what came of it."""


@app.command()
def run(
    stream: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STREAM or KEY=VALUE",
            help="Families of the world (all six if left out), corpora, files of items; and keys of the settings.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A YAML file such as configs/nano/ttrl.yaml.")
    ] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder; what is unfinished is gone on with.")
    ] = DEFAULT_RUN_FOLDER,
    limit: Annotated[int, typer.Option(min=1, help="Queries of each task.")] = 50,
    split: Annotated[
        Literal["dev", "dev-cal", "test"], typer.Option(help="Which held-out seeds of the world, or part of a corpus.")
    ] = "test",
    shift: Annotated[
        list[str] | None,
        typer.Option(help="A shift and its severity, such as lighting:3; 3 if only named; several take turns."),
    ] = None,
    course: Annotated[
        Literal["steady", "abrupt", "gradual", "returning"],
        typer.Option(help="How shifts come: always, from the middle on, growing, or in the middle third alone."),
    ] = "steady",
    evaluation: Annotated[
        list[Path] | None,
        typer.Option(help="Media of evaluation (a folder, a list, a corpus split): answered, never learnt from."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer the queries of a stream, and learn from those that the vote is sure of.

    Kill it at any moment and run the same command: it goes on, and nothing that was acknowledged is lost.
    """
    from pixelis.cli.index_files import make_key_maker
    from pixelis.core.config import load_config
    from pixelis.core.errors import ConfigError
    from pixelis.evaluation.streams import make_stream
    from pixelis.training.ttrl.journal import LEDGER, read_rows
    from pixelis.training.ttrl.train import adapt
    from pixelis.training.ttrl.ttrl_config import TtrlConfig

    arguments = stream or []
    settings = load_config(TtrlConfig, config, [word for word in arguments if "=" in word])
    names = [word for word in arguments if "=" not in word]
    if split == "dev-cal" and (settings.calibration.items_per_family or settings.canary.items_per_family):
        raise ConfigError(
            "dev-cal holds the questions of calibration and the canaries, which are never learnt from: choose another "
            "--split, or calibration.items_per_family=0 canary.items_per_family=0"
        )
    query_stream = make_stream(names, split=split, limit=limit, shifts=shift or (), course=course)
    keys = make_key_maker() if settings.neighbours or evaluation or settings.memory is not None else None
    mask = resolve_run_mask(settings, evaluation or [], keys)
    with live_stream_view(len(query_stream), quiet=as_json, previous_rows=read_rows(out / LEDGER)) as view:
        report = adapt(
            settings, query_stream.items(), out, keys=keys, mask=mask, show=view.show_row, on_question=view.show_probe,
            dev_cal=make_stream([], split="dev-cal", limit=settings.calibration.items_per_family).items,
            canaries=make_stream(
                [], split="dev-cal", limit=settings.canary.items_per_family, skip=settings.calibration.items_per_family
            ).items,
        )  # fmt: skip
    if as_json:
        print_json(report._asdict())
    else:
        print_ttrl_report(report, out)
    if report.resumed and report.queries > len(query_stream):
        typer.echo(f"it had answered more than these {len(query_stream)} before: nothing was asked", err=True)
    if report.dropped:
        dropped_rows = pluralise(report.dropped, "row")
        typer.echo(
            f"{dropped_rows} of a batch that a killed run had not ended: dropped; whoever goes on asks again", err=True
        )
    if report.stopped:
        typer.echo(f"stopped: {report.stopped}", err=True)
        raise typer.Exit(1)


class StreamView(NamedTuple):
    """What a live view is told."""

    show_row: Callable[[dict[str, Any], int], None]
    """A row, and how many there are."""
    show_probe: Callable[[str, int], None]
    """Questions that are no queries of the stream, and how many of them have been asked."""


@contextmanager
def live_stream_view(
    total: int | None, *, quiet: bool, previous_rows: Sequence[dict[str, Any]] = ()
) -> Iterator[StreamView]:
    """A live view on a terminal: where the stream is, what was said last, how sure, what it did to the policy.

    Elsewhere a line now and then. Without a total there may be several streams, one after the other. `before` are the
    rows that a run had when it was stopped: they count too.
    """
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True)
    shown_rows = list(previous_rows)
    last_logged = [time.monotonic()]
    is_live = console.is_terminal and not quiet
    total_text = "" if total is None else f" of {total}"
    with Live(console=console, transient=True, refresh_per_second=2) if is_live else nullcontext() as live:

        def show_row(row: dict[str, Any], completed: int) -> None:
            if quiet:
                return
            if shown_rows and row["query"] <= shown_rows[-1]["query"]:
                shown_rows.clear()  # another stream, as the parts of `reproduce` are
            shown_rows.append(row)
            is_last = row["query"] == total  # rows of one batch come together
            if live is None and not is_last and time.monotonic() - last_logged[0] < LOG_INTERVAL_S:
                return
            last_logged[0] = time.monotonic()
            outcomes = [row_outcome(shown_row) for shown_row in shown_rows]
            outcome_counts = ", ".join(f"{kind} {outcomes.count(kind)}" for kind in dict.fromkeys(outcomes))
            accuracy_text = describe_accuracy(shown_rows)
            if live is None:
                typer.echo(
                    f"query {row['query']}{total_text}: {outcome_counts}; right: {accuracy_text}; {describe_kl(row)}",
                    err=True,
                )
                return
            table = Table.grid(padding=(0, 3))
            vote = row["vote"]
            for name, text in (
                ("query", f"{completed}{total_text}; {row['item']} {row['shift']}"),
                ("asked", row["question"][:100]),
                ("said", f"{row['answer'] or '–'}: {100 * vote['share']:.0f} % of weight, margin {vote['margin']:.2f}"),
                ("then", f"{row_outcome(row)}{': ' if row['why'] else ''}{row['why']}"),
                ("so far", outcome_counts),
                ("right", accuracy_text),
                ("policy", describe_kl(row)),
            ):  # fmt: skip
                table.add_row(name, printable(text))
            live.update(table)

        def show_probe(probe_name: str, completed: int) -> None:
            text = f"asking {probe_name}: {completed} so far"
            if live is not None:
                live.update(text)
            elif not quiet and (not completed or time.monotonic() - last_logged[0] >= LOG_INTERVAL_S):
                last_logged[0] = time.monotonic()
                typer.echo(text, err=True)

        yield StreamView(show_row, show_probe)


def describe_accuracy(rows: Sequence[dict[str, Any]]) -> str:
    """By the same count as at the end: abstained queries have no part in it."""
    if all(row["score"] is None for row in rows):
        return "nobody knows"
    answered_scores = [row["score"] for row in rows if row["answered"] and row["score"] is not None]
    return (
        f"{100 * sum(answered_scores) / len(answered_scores):.1f} % of the given answers"
        if answered_scores
        else "no answer given yet"
    )


def describe_kl(row: dict[str, Any]) -> str:
    if row["kl"] is None or row["drift"] is None:
        return row["refused"] or row["leak"] or "learning is off"
    return f"KL to its average {format_nats(row['kl'])}, to the start {format_nats(row['drift'])}; β {row['beta']:.4f}"


def format_nats(kl: float) -> str:
    """A KL in four decimals, or that it is less than they can say; rounding may leave one of nothing under 0."""
    return f"{abs(kl):.4f} nats" if abs(kl) >= 5e-5 or kl == 0.0 else "<0.0001 nats"


def resolve_run_mask(settings: TtrlConfig, evaluation: list[Path], keys: KeyMaker | None) -> EvaluationMask | None:
    """Of the named media, or the one that the given memory was built under."""
    from pixelis.cli.index_files import load_mask, media_from_sources
    from pixelis.core.errors import ConfigError
    from pixelis.dedup.evaluation_mask import EvaluationMask

    memory_mask = load_mask(settings.memory) if settings.memory is not None else None
    if not evaluation or keys is None:
        return memory_mask
    if memory_mask is not None:
        raise ConfigError(
            f"{settings.memory} has its mask already, and a run has one mask: `pixelis index build --evaluation` makes "
            "a memory under another, or leave memory= out"
        )
    return EvaluationMask.build(media_from_sources(evaluation), keys.visual)


def row_outcome(row: dict[str, Any]) -> str:
    if row["learnt"]:
        return "all alike" if row.get("alike") else "learnt"
    return "answered" if row["answered"] else "abstained"


def print_ttrl_report(report: TtrlReport, out: Path) -> None:
    accuracy_text = "" if report.accuracy is None else f"; {report.accuracy:.1f} % of the given answers are right"
    start_text = {0.0: " (π_SFT)", None: ""}.get(report.start_kl, f" (itself {report.start_kl or 0.0:.3f} from π_SFT)")
    alike_text = f" ({report.alike} of them had nothing to teach: all rollouts alike)" if report.alike else ""
    out_option = "" if out == DEFAULT_RUN_FOLDER else f" -o {out}"
    for line in (
        f"{pluralise(report.queries, 'query', 'queries')}, {report.answered:.0f} % answered{accuracy_text}; accepted to learn "
        f"from: {report.accepted}{alike_text}; {pluralise(report.refused, 'update')} refused; drift from the start{start_text}: "
        f"{format_nats(report.drift)} a token on the last batch; {report.bytes / 1e6:.0f} MB of states, updates, rows, memory",
        f"wrote {report.policy}; `pixelis adapt log{out_option}`, `show` and `revert`",
    ):
        stdout().print(escape_markup(line))


@app.command()
def log(
    out: RunFolder = DEFAULT_RUN_FOLDER,
    last: Annotated[int, typer.Option(min=1, help="So many rows.")] = 20,
    as_json: AsJson = False,
) -> None:
    """The last rows of an adaptation."""
    from rich.table import Table

    from pixelis.rollout.answer_reading import shorten
    from pixelis.training.ttrl.journal import LEDGER, read_rows, without_votes
    from pixelis.training.ttrl.ttrl_export import read_run_config

    read_run_config(out)
    rows = list(without_votes(read_rows(out / LEDGER)))[-last:]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("query", "what", "right", "KL", "drift", "weights", "answer, question, why not learnt from"):
        is_last_column = heading.startswith("answer")
        table.add_column(heading, no_wrap=not is_last_column, overflow="fold" if is_last_column else "ellipsis")
    for row in rows:
        score_text = "" if row["score"] is None else f"{row['score']:.2g}"
        figures = ("" if row[key] is None else format_nats(row[key]).removesuffix(" nats") for key in ("kl", "drift"))
        cell = f"{escape_markup(shorten(row['answer'] or '–'))}\n[dim]{escape_markup(shorten(row['question'], 50))}[/]"
        cell += f"\n[dim]{escape_markup(row['why'])}[/]" if row["why"] else ""
        table.add_row(str(row["query"]), row_outcome(row), score_text, *figures, row["weights"][:8], cell)
    if not rows:
        typer.echo("no rows yet")
        return
    stdout().print(table)


@app.command()
def show(
    query: Annotated[int, typer.Argument(min=1, help="Which row, from 1.")],
    out: RunFolder = DEFAULT_RUN_FOLDER,
    page: Annotated[Path | None, typer.Option(help="Write its vote, term by term, as a page here.")] = None,
    as_json: AsJson = False,
) -> None:
    """One row: what was asked, every term of its vote, and what would have flipped it."""
    from pixelis.core.errors import TraceError
    from pixelis.training.ttrl.journal import LEDGER, read_rows
    from pixelis.training.ttrl.ttrl_export import read_run_config

    read_run_config(out)
    rows = read_rows(out / LEDGER)
    if query > len(rows):
        raise TraceError(f"{out} has {len(rows)} rows")
    row = rows[query - 1]
    if page is not None:
        from pixelis.core.provenance import write_atomic
        from pixelis.view.vote_page import vote_page

        write_atomic(page, vote_page(row).encode())
    if as_json:
        print_json(row)
        return
    print_row(row)
    if page is not None:
        typer.echo(f"wrote {printable(str(page))}")


def print_row(row: dict[str, Any]) -> None:
    from rich.table import Table

    from pixelis.view.vote_page import describe_vote

    stdout().print(f"{row['query']}. {escape_markup(row['question'])}")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("rollout", "answer", "tools", "exp(−H)", "Cal", "VisFid", "r", "weight"):
        table.add_column(heading, justify="right" if heading not in ("answer", "tools") else "left")
    for number, ballot in enumerate(row["vote"]["ballots"], start=1):
        terms = [f"{ballot[key]:.2f}" for key in ("calibrated", "fidelity", "reliability")]
        table.add_row(
            str(number), printable(str(ballot["spelt"] or "–")), " ".join(ballot["tools"]),
            f"{math.exp(-ballot['entropy']):.2f}", *terms, f"{ballot['weight']:.3f}",
        )  # fmt: skip
    stdout().print(table)
    for sentence in describe_vote(row):
        stdout().print(escape_markup(sentence))


@app.command()
def revert(
    query: Annotated[int, typer.Argument(min=0, help="The row to go back to; 0 is the start.")],
    out: RunFolder = DEFAULT_RUN_FOLDER,
) -> None:
    """Go back to what held after a row: weights, moments, averages, controller, baseline, memory; bit for bit."""
    from pixelis.training.ttrl.ttrl_export import revert_adaptation

    row = revert_adaptation(out, query)
    weights = str(row["weights"])[:10] if query else "those that it began with"
    typer.echo(f"{out} is at row {query} again, {pluralise(row['updates'], 'update')}, weights {weights}")
