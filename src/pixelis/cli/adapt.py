"""`pixelis adapt`: phase 3. Answer a stream, learn from it without labels, look at every row, go back to any."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperGroup

from pixelis.cli.terminal import EVERY_S, AsJson, counted, escaped, print_json, printable, stdout

if TYPE_CHECKING:
    from pixelis.retrieval.keys import KeyMaker
    from pixelis.retrieval.mask import EvaluationMask
    from pixelis.train.ttrl import TtrlReport
    from pixelis.train.ttrl_config import TtrlConfig


class StreamFirst(TyperGroup):
    """`adapt search space` is `adapt run search space`: a stream needs no verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = (*self.commands, "--help")
        return super().parse_args(ctx, ["run", *args] if args and args[0] not in known else args)


app = typer.Typer(no_args_is_help=True, cls=StreamFirst)
Run = Annotated[Path, typer.Option("-o", "--out", help="The folder of the adaptation.")]
WHERE = Path("runs/ttrl")


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
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder; what is unfinished is gone on with.")] = WHERE,
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
    from pixelis.cli.index_files import key_maker
    from pixelis.config import load_config
    from pixelis.errors import ConfigError
    from pixelis.eval.streams import stream_of
    from pixelis.train.adaptation import LEDGER, read_rows
    from pixelis.train.ttrl import adapt
    from pixelis.train.ttrl_config import TtrlConfig

    given = stream or []
    settings = load_config(TtrlConfig, config, [word for word in given if "=" in word])
    names = [word for word in given if "=" not in word]
    if split == "dev-cal" and (settings.calibration.items or settings.canary.items):
        raise ConfigError(
            "dev-cal holds the questions of calibration and the canaries, which are never learnt from: choose another "
            "--split, or calibration.items=0 canary.items=0"
        )
    chosen = stream_of(names, split=split, limit=limit, shifts=shift or (), course=course)
    keys = key_maker() if settings.neighbours or evaluation or settings.memory is not None else None
    mask = mask_of(settings, evaluation or [], keys)
    with board(len(chosen), quiet=as_json, before=read_rows(out / LEDGER)) as view:
        report = adapt(
            settings, chosen.items(), out, keys=keys, mask=mask, show=view.show, asking=view.asking,
            dev_cal=stream_of([], split="dev-cal", limit=settings.calibration.items).items,
            canaries=stream_of(
                [], split="dev-cal", limit=settings.canary.items, skip=settings.calibration.items
            ).items,
        )  # fmt: skip
    if as_json:
        print_json(report._asdict())
    else:
        print_adapted(report, out)
    if report.resumed and report.queries > len(chosen):
        typer.echo(f"it had answered more than these {len(chosen)} before: nothing was asked", err=True)
    if report.dropped:
        rows = counted(report.dropped, "row")
        typer.echo(f"{rows} of a batch that a killed run had not ended: dropped; whoever goes on asks again", err=True)
    if report.stopped:
        typer.echo(f"stopped: {report.stopped}", err=True)
        raise typer.Exit(1)


class Board(NamedTuple):
    """What a live view is told."""

    show: Callable[[dict[str, Any], int], None]
    """A row, and how many there are."""
    asking: Callable[[str, int], None]
    """Questions that are no queries of the stream, and how many of them have been asked."""


@contextmanager
def board(total: int | None, *, quiet: bool, before: Sequence[dict[str, Any]] = ()) -> Iterator[Board]:
    """A live view on a terminal: where the stream is, what was said last, how sure, what it did to the policy.

    Elsewhere a line now and then. Without a total there may be several streams, one after the other. `before` are the
    rows that a run had when it was stopped: they count too.
    """
    import time

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    console = Console(stderr=True)
    seen = list(before)
    told = [time.monotonic()]
    drawn = console.is_terminal and not quiet
    of_all = "" if total is None else f" of {total}"
    with Live(console=console, transient=True, refresh_per_second=2) if drawn else nullcontext() as live:

        def show(row: dict[str, Any], done: int) -> None:
            if quiet:
                return
            if seen and row["query"] <= seen[-1]["query"]:
                seen.clear()  # another stream, as the parts of `reproduce` are
            seen.append(row)
            last = row["query"] == total  # rows of one batch come together
            if live is None and not last and time.monotonic() - told[0] < EVERY_S:
                return
            told[0] = time.monotonic()
            kinds = [outcome(each) for each in seen]
            so_far = ", ".join(f"{kind} {kinds.count(kind)}" for kind in dict.fromkeys(kinds))
            right = told_right(seen)
            if live is None:
                typer.echo(f"query {row['query']}{of_all}: {so_far}; right: {right}; {told_kl(row)}", err=True)
                return
            table = Table.grid(padding=(0, 3))
            vote = row["vote"]
            for name, words in (
                ("query", f"{done}{of_all}; {row['item']} {row['shift']}"),
                ("asked", row["question"][:100]),
                ("said", f"{row['answer'] or '–'}: {100 * vote['share']:.0f} % of weight, margin {vote['margin']:.2f}"),
                ("then", f"{outcome(row)}{': ' if row['why'] else ''}{row['why']}"),
                ("so far", so_far),
                ("right", right),
                ("policy", told_kl(row)),
            ):  # fmt: skip
                table.add_row(name, printable(words))
            live.update(table)

        def asking(which: str, done: int) -> None:
            words = f"asking {which}: {done} so far"
            if live is not None:
                live.update(words)
            elif not quiet and (not done or time.monotonic() - told[0] >= EVERY_S):
                told[0] = time.monotonic()
                typer.echo(words, err=True)

        yield Board(show, asking)


def told_right(rows: Sequence[dict[str, Any]]) -> str:
    """By the same count as at the end: abstained queries have no part in it."""
    if all(row["score"] is None for row in rows):
        return "nobody knows"
    given = [row["score"] for row in rows if row["answered"] and row["score"] is not None]
    return f"{100 * sum(given) / len(given):.1f} % of the given answers" if given else "no answer given yet"


def told_kl(row: dict[str, Any]) -> str:
    if row["kl"] is None or row["drift"] is None:
        return row["refused"] or row["leak"] or "learning is off"
    return f"KL to its average {nats(row['kl'])}, to the start {nats(row['drift'])}; β {row['beta']:.4f}"


def nats(kl: float) -> str:
    """A KL in four decimals, or that it is less than they can say; rounding may leave one of nothing under 0."""
    return f"{abs(kl):.4f} nats" if abs(kl) >= 5e-5 or kl == 0.0 else "<0.0001 nats"


def mask_of(settings: TtrlConfig, evaluation: list[Path], keys: KeyMaker | None) -> EvaluationMask | None:
    """Of the named media, or the one that the given memory was built under."""
    from pixelis.cli.index_files import kept_mask, named_media
    from pixelis.errors import ConfigError
    from pixelis.retrieval.mask import EvaluationMask

    own = kept_mask(settings.memory) if settings.memory is not None else None
    if not evaluation or keys is None:
        return own
    if own is not None:
        raise ConfigError(
            f"{settings.memory} has its mask already, and a run has one mask: `pixelis index build --evaluation` makes "
            "a memory under another, or leave memory= out"
        )
    return EvaluationMask.of(named_media(evaluation), keys.visual)


def outcome(row: dict[str, Any]) -> str:
    if row["learnt"]:
        return "all alike" if row.get("alike") else "learnt"
    return "answered" if row["answered"] else "abstained"


def print_adapted(report: TtrlReport, out: Path) -> None:
    right = "" if report.accuracy is None else f"; {report.accuracy:.1f} % of the given answers are right"
    begun = {0.0: " (π_SFT)", None: ""}.get(report.start_kl, f" (itself {report.start_kl or 0.0:.3f} from π_SFT)")
    alike = f" ({report.alike} of them had nothing to teach: all rollouts alike)" if report.alike else ""
    where = "" if out == WHERE else f" -o {out}"
    for line in (
        f"{counted(report.queries, 'query', 'queries')}, {report.answered:.0f} % answered{right}; accepted to learn "
        f"from: {report.accepted}{alike}; {counted(report.refused, 'update')} refused; drift from the start{begun}: "
        f"{nats(report.drift)} a token on the last batch; {report.bytes / 1e6:.0f} MB of states, updates, rows, memory",
        f"wrote {report.policy}; `pixelis adapt log{where}`, `show` and `revert`",
    ):
        stdout().print(escaped(line))


@app.command()
def log(
    out: Run = WHERE, last: Annotated[int, typer.Option(min=1, help="So many rows.")] = 20, as_json: AsJson = False
) -> None:
    """The last rows of an adaptation."""
    from rich.table import Table

    from pixelis.rollout.answering import shortened
    from pixelis.train.adaptation import LEDGER, read_rows, shown
    from pixelis.train.ttrl_export import config_of

    config_of(out)
    rows = list(shown(read_rows(out / LEDGER)))[-last:]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("query", "what", "right", "KL", "drift", "weights", "answer, question, why not learnt from"):
        last_one = heading.startswith("answer")
        table.add_column(heading, no_wrap=not last_one, overflow="fold" if last_one else "ellipsis")
    for row in rows:
        right = "" if row["score"] is None else f"{row['score']:.2g}"
        figures = ("" if row[key] is None else nats(row[key]).removesuffix(" nats") for key in ("kl", "drift"))
        told = f"{escaped(shortened(row['answer'] or '–'))}\n[dim]{escaped(shortened(row['question'], 50))}[/]"
        told += f"\n[dim]{escaped(row['why'])}[/]" if row["why"] else ""
        table.add_row(str(row["query"]), outcome(row), right, *figures, row["weights"][:8], told)
    if not rows:
        typer.echo("no rows yet")
        return
    stdout().print(table)


@app.command()
def show(
    query: Annotated[int, typer.Argument(min=1, help="Which row, from 1.")],
    out: Run = WHERE,
    page: Annotated[Path | None, typer.Option(help="Write its vote, term by term, as a page here.")] = None,
    as_json: AsJson = False,
) -> None:
    """One row: what was asked, every term of its vote, and what would have flipped it."""
    from pixelis.errors import TraceError
    from pixelis.train.adaptation import LEDGER, read_rows
    from pixelis.train.ttrl_export import config_of

    config_of(out)
    rows = read_rows(out / LEDGER)
    if query > len(rows):
        raise TraceError(f"{out} has {len(rows)} rows")
    row = rows[query - 1]
    if page is not None:
        from pixelis.rundir import write_whole
        from pixelis.view.vote import vote_page

        write_whole(page, vote_page(row).encode())
    if as_json:
        print_json(row)
        return
    print_row(row)
    if page is not None:
        typer.echo(f"wrote {printable(str(page))}")


def print_row(row: dict[str, Any]) -> None:
    from rich.table import Table

    from pixelis.view.vote import sentences

    stdout().print(f"{row['query']}. {escaped(row['question'])}")
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
    for sentence in sentences(row):
        stdout().print(escaped(sentence))


@app.command()
def revert(
    query: Annotated[int, typer.Argument(min=0, help="The row to go back to; 0 is the start.")], out: Run = WHERE
) -> None:
    """Go back to what held after a row: weights, moments, averages, controller, baseline, memory; bit for bit."""
    from pixelis.train.ttrl_export import go_back

    row = go_back(out, query)
    weights = str(row["weights"])[:10] if query else "those that it began with"
    typer.echo(f"{out} is at row {query} again, {counted(row['updates'], 'update')}, weights {weights}")
