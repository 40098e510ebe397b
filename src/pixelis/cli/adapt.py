"""`pixelis adapt`: phase 3. Answer a stream and adapt on it without labels; inspect rows, revert to any of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from pixelis.cli import options as opt
from pixelis.cli.ask import require_model
from pixelis.cli.progress import live_table
from pixelis.cli.terminal import escape_markup, plain_table, pluralise, print_json, print_report, printable, stdout
from pixelis.cli.tools import add_plugin_folder, tool_overrides
from pixelis.core.errors import ConfigError, TraceError

if TYPE_CHECKING:
    from pixelis.dedup.evaluation_mask import EvaluationMask
    from pixelis.memory.keys import KeyMaker
    from pixelis.training.ttrl.train import TtrlReport
    from pixelis.training.ttrl.ttrl_config import TtrlConfig


class StreamDefaultGroup(TyperGroup):
    """`adapt search space` means `adapt run search space`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known_verbs = (*self.commands, "--help")
        return super().parse_args(ctx, ["run", *args] if args and args[0] not in known_verbs else args)


app = typer.Typer(no_args_is_help=True, cls=StreamDefaultGroup)
RunFolder = Annotated[Path, opt.out("The run folder; `run` resumes an unfinished run in it.")]
DEFAULT_RUN_FOLDER = Path("runs/ttrl")


@app.command()
def run(
    stream: Annotated[
        opt.Texts,
        Argument(
            metavar="STREAM or KEY=VALUE",
            help="Families of the world (all six by default), corpora or files of items; keys of the configuration.",
        ),
    ] = None,
    config: opt.Config = None,
    out: RunFolder = DEFAULT_RUN_FOLDER,
    limit: Annotated[int, opt.limit("At most this many queries of each task.")] = 50,
    split: Annotated[
        Literal["dev", "dev-cal", "test"], Option(help="Which seeds of the world, or which split of a corpus.")
    ] = "test",
    shift: Annotated[opt.Texts, Option(help="A distribution shift, such as lighting:3; several alternate.")] = None,
    course: Annotated[
        Literal["steady", "abrupt", "gradual", "returning"],
        Option(help="When the shift applies: always, from the middle on, growing, or in the middle third."),
    ] = "steady",
    evaluation: Annotated[
        opt.Paths, Option(help="Evaluation media (a folder, a list or a corpus split): answered, never trained on.")
    ] = None,
    seg: opt.SegOfConfig = None,
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Answer the queries of a stream, and train on those whose vote is accepted.

    Run the same command again to resume after an interruption; recorded answers are never lost. Exit status: 1 if the
    run stopped before the end of the stream.
    """
    from pixelis.core.config import load_config
    from pixelis.training.ttrl.ttrl_config import TtrlConfig

    arguments = stream or []
    overrides = [word for word in arguments if "=" in word]
    settings = load_config(TtrlConfig, config, [*tool_overrides("", plugin, disable, seg, deadline), *overrides])
    require_model(settings.policy)
    if settings.plugins:
        add_plugin_folder()
    from pixelis.cli.index_files import make_key_maker
    from pixelis.evaluation.streams import make_stream
    from pixelis.training.ttrl.journal import LEDGER, read_rows
    from pixelis.training.ttrl.train import adapt

    names = [word for word in arguments if "=" not in word]
    if split == "dev-cal" and (settings.calibration.items_per_family or settings.canary.items_per_family):
        raise ConfigError(
            "split dev-cal holds the calibration and canary questions, which are never trained on: choose another "
            "--split, or set calibration.items_per_family=0 canary.items_per_family=0"
        )
    query_stream = make_stream(names, split=split, limit=limit, shifts=shift or (), course=course)
    keys = make_key_maker() if settings.neighbours or evaluation or settings.memory is not None else None
    mask = resolve_run_mask(settings, evaluation or [], keys)
    with live_stream_view(len(query_stream), previous_rows=read_rows(out / LEDGER)) as view:
        report = adapt(
            settings, query_stream.items(), out, keys=keys, mask=mask, show=view.show_row, on_question=view.show_probe,
            dev_cal=make_stream([], split="dev-cal", limit=settings.calibration.items_per_family).items,
            canaries=make_stream(
                [], split="dev-cal", limit=settings.canary.items_per_family, skip=settings.calibration.items_per_family
            ).items,
        )  # fmt: skip
    print_report(report._asdict(), lambda: print_ttrl_report(report, out), as_json=as_json)
    if report.resumed and report.queries > len(query_stream):
        typer.echo(f"the run had already answered more than these {len(query_stream)} queries", err=True)
    if report.dropped:
        dropped_rows = pluralise(report.dropped, "row")
        typer.echo(f"{dropped_rows} of an unfinished batch were dropped; resuming asks them again", err=True)
    if report.stopped:
        typer.echo(f"stopped: {report.stopped}", err=True)
        raise typer.Exit(1)


class StreamView(NamedTuple):
    """Callbacks of a live view."""

    show_row: Callable[[dict[str, Any], int], None]
    """A ledger row, and the number of rows."""
    show_probe: Callable[[str, int], None]
    """The name of calibration or canary questions, and how many have been asked."""


@contextmanager
def live_stream_view(total: int | None, *, previous_rows: Sequence[dict[str, Any]] = ()) -> Iterator[StreamView]:
    """Position, last answer and vote, effect on the policy. `total` is None for several streams in sequence;
    `previous_rows` are those of the run that is resumed."""
    shown_rows, total_text = list(previous_rows), "" if total is None else f" of {total}"
    with live_table() as show_table:

        def show_row(row: dict[str, Any], completed: int) -> None:
            if shown_rows and row["query"] <= shown_rows[-1]["query"]:
                shown_rows.clear()  # the next stream of `reproduce`
            shown_rows.append(row)
            outcomes = Counter(row_outcome(shown_row) for shown_row in shown_rows)
            outcome_counts = ", ".join(f"{kind} {count}" for kind, count in outcomes.items())
            accuracy_text, share = describe_accuracy(shown_rows), row["vote"]["share"]
            table = (
                ("query", f"{completed}{total_text}; {row['item']} {row['shift']}"),
                ("question", row["question"][:100]),
                ("answer", f"{row['answer'] or '–'}: {100 * share:.0f} % of the weight"),
                ("outcome", f"{row_outcome(row)}{': ' if row['why'] else ''}{row['why']}"),
                ("so far", outcome_counts),
                ("correct", accuracy_text),
                ("policy", describe_kl(row)),
            )
            line = f"query {row['query']}{total_text}: {outcome_counts}; correct: {accuracy_text}; {describe_kl(row)}"
            show_table(table, line, always=row["query"] == total)

        def show_probe(probe_name: str, completed: int) -> None:
            text = f"asking {probe_name}: {completed} so far"
            show_table([(text, "")], text, always=not completed)

        yield StreamView(show_row, show_probe)


def describe_accuracy(rows: Sequence[dict[str, Any]]) -> str:
    """Of the answered queries, as in the final report."""
    if all(row["score"] is None for row in rows):
        return "no references"
    scores = [row["score"] for row in rows if row["answered"] and row["score"] is not None]
    return f"{100 * sum(scores) / len(scores):.1f} % of the answers" if scores else "no answer yet"


def describe_kl(row: dict[str, Any]) -> str:
    if row["kl"] is None or row["drift"] is None:
        return row["refused"] or row["leak"] or "learning is off"
    return f"KL to π_EMA {format_nats(row['kl'])}, to the start {format_nats(row['drift'])}; β {row['beta']:.4f}"


def format_nats(kl: float) -> str:
    """A KL with four decimals, or that it is smaller; rounding may leave a value just below 0."""
    return f"{abs(kl):.4f} nats" if abs(kl) >= 5e-5 or kl == 0.0 else "<0.0001 nats"


def resolve_run_mask(settings: TtrlConfig, evaluation: list[Path], keys: KeyMaker | None) -> EvaluationMask | None:
    """The mask of the given media, or that of the given memory."""
    from pixelis.cli.index_files import load_mask, media_from_sources
    from pixelis.dedup.evaluation_mask import EvaluationMask

    memory_mask = load_mask(settings.memory) if settings.memory is not None else None
    if not evaluation or keys is None:
        return memory_mask
    if memory_mask is not None:
        raise ConfigError(
            f"{settings.memory} already has an evaluation mask: build a memory with another one "
            "(`pixelis index build --evaluation`), or leave out memory="
        )
    return EvaluationMask.build(media_from_sources(evaluation), keys.visual)


def row_outcome(row: dict[str, Any]) -> str:
    if row["learnt"]:
        return "all alike" if row.get("alike") else "trained on"
    return "answered" if row["answered"] else "abstained"


def print_ttrl_report(report: TtrlReport, out: Path) -> None:
    accuracy = "" if report.accuracy is None else f", {report.accuracy:.1f} % of the answers correct"
    alike = f" ({report.alike} of them without effect: all rollouts alike)" if report.alike else ""
    start = {0.0: " (π_SFT)", None: ""}.get(report.start_kl, f" (itself {report.start_kl or 0.0:.3f} from π_SFT)")
    out_option_text = "" if out == DEFAULT_RUN_FOLDER else f" -o {out}"
    for line in (
        f"{pluralise(report.queries, 'query', 'queries')}, {report.answered:.0f} % answered{accuracy}; "
        f"accepted for training: {report.accepted}{alike}; {pluralise(report.refused, 'update')} refused; "
        f"KL to the start{start}: {format_nats(report.drift)} per token on the last batch; "
        f"{report.bytes / 1e6:.0f} MB on disk",
        f"wrote {report.policy}; see `pixelis adapt log{out_option_text}`, `show` and `revert`",
    ):
        stdout().print(escape_markup(line))


@app.command()
def log(
    out: RunFolder = DEFAULT_RUN_FOLDER,
    last: Annotated[int, Option(min=1, help="Number of rows.")] = 20,
    as_json: opt.AsJson = False,
) -> None:
    """List the last rows of an adaptation run."""
    from pixelis.rollout.answer_reading import shorten
    from pixelis.training.ttrl.journal import LEDGER, read_rows, without_votes
    from pixelis.training.ttrl.ttrl_export import read_run_config

    read_run_config(out)
    rows = list(without_votes(read_rows(out / LEDGER)))[-last:]
    if as_json:
        print_json(rows)
        return
    last_column = "answer, question, why not trained on"
    table = plain_table("query", "outcome", "score", "KL", "drift", "weights", last_column, left=(last_column,))
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
    query: Annotated[int, Argument(min=1, help="Number of the row, from 1.")],
    out: RunFolder = DEFAULT_RUN_FOLDER,
    page: Annotated[Path | None, Option(help="Also write the vote as an HTML page.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Show one row: the question, every term of its vote, and what would have changed the result."""
    from pixelis.training.ttrl.journal import LEDGER, read_rows
    from pixelis.training.ttrl.ttrl_export import read_run_config

    read_run_config(out)
    rows = read_rows(out / LEDGER)
    if query > len(rows):
        raise TraceError(f"{out} has {len(rows)} rows")
    row = rows[query - 1]
    if page is not None:
        from pixelis.core.atomic import write_atomic
        from pixelis.view.vote_page import vote_page

        write_atomic(page, vote_page(row).encode())
    if as_json:
        print_json(row)
        return
    print_row(row)
    if page is not None:
        typer.echo(f"wrote {printable(str(page))}")


def print_row(row: dict[str, Any]) -> None:
    from pixelis.view.vote_page import describe_vote

    stdout().print(f"{row['query']}. {escape_markup(row['question'])}")
    headings = ("rollout", "answer", "tools", "exp(−H)", "Cal", "VisFid", "r", "weight")
    table = plain_table(*headings, left=("answer", "tools"))
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
    query: Annotated[int, Argument(min=0, help="Number of the row to revert to; 0 is the start.")],
    out: RunFolder = DEFAULT_RUN_FOLDER,
) -> None:
    """Revert a run to its state after a row, bit for bit: weights, optimizer, averages, controller and memory."""
    from pixelis.training.ttrl.ttrl_export import revert_adaptation

    row = revert_adaptation(out, query)
    weights = str(row["weights"])[:10] if query else "of the start"
    typer.echo(f"reverted {out} to row {query}: {pluralise(row['updates'], 'update')}, weights {weights}")
