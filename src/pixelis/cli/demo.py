"""`pixelis demo`: the shipped policy answers questions about bundled media, and the evidence is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pixelis.asking import DEFAULT_MODEL
from pixelis.cli.terminal import Model, escaped, stdout, waiting

if TYPE_CHECKING:
    from pixelis.scoring.answering import Answer

ASSETS = Path(__file__).parents[1] / "demo"
SHIFT, QUERIES, HELD = "lighting:3", 10, 10
"""Of the adaptation at the end: so many of each of two families."""
WIDTHS = {"": 1, "question": 36, "answer": 16, "wanted": 12, "sure": 4}


class Asked(NamedTuple):
    """One question of the demo and what came of it."""

    media: str
    question: str
    right: tuple[str, ...]
    found: Answer
    page: Path

    @property
    def is_right(self) -> bool:
        said = (self.found.answer or "").casefold()
        return said in {text.casefold() for text in self.right}


def demo(
    model: Model = DEFAULT_MODEL,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the traces and pages.")] = Path("demo"),
    adapts: Annotated[
        bool, typer.Option("--adapt/--no-adapt", help="End with a short adaptation to pictures in worse light.")
    ] = True,
) -> None:
    """Ask. The policy chooses every call itself; the right answers are known only to the table that is printed."""
    from pixelis.asking import ask
    from pixelis.cli.ask import write_evidence
    from pixelis.policy.chat_server import PREFIX
    from pixelis.tools.toolbox import Toolbox

    with Toolbox() as toolbox:
        backend = toolbox.tools["SEG"].identity().backend
    if backend == "classical":
        typer.echo("SAM 2 is not here (`pixelis models pull` needs npm): SEG uses classical regions.")
    out.mkdir(parents=True, exist_ok=True)
    questions: list[dict[str, Any]] = json.loads((ASSETS / "questions.json").read_bytes())
    rows: list[Asked] = []
    for number, entry in enumerate(questions, start=1):
        media = [str(ASSETS / entry["media"])]
        with waiting(f"{number} of {len(questions)}: {entry['question']}", quiet=False):
            found = ask(media, entry["question"], model=model)
            page = write_evidence(found, out / f"{number}-{Path(entry['media']).stem}.html", media)
        rows.append(Asked(entry["media"], entry["question"], tuple(entry["right"]), found, page))
        print_row(rows[-1], heading=number == 1)
    stdout().print(f"{sum(row.is_right for row in rows)} of {len(rows)} right")
    if adapts and not model.startswith(PREFIX):  # a model behind a server has no weights that could learn
        adapt_briefly(model, out / "adaptation")
    shown = escaped(str(ASSETS / "coffee.jpg"))
    stdout().print(
        f"\nOpen {out}/*.html in a browser: every call with its picture. Then ask about your own:\n"
        f'  .venv/bin/pixelis ask {shown} "Is there a dog?" -o evidence.html\n'
        '  .venv/bin/pixelis ask street.jpg "How many people are there?" --samples 8\n'
        "What it can and cannot do: src/pixelis/policy/shipped/README.md. `pixelis eval --limit 20` measures it."
    )


def adapt_briefly(model: str, out: Path) -> None:
    """Phase 3 in a minute: a stream in another light, learnt from without labels, with its before and after."""
    from pixelis.cli.adapt import board, nats
    from pixelis.cli.index_files import key_maker
    from pixelis.config import load_config
    from pixelis.errors import WeightsError
    from pixelis.eval.before_after import FAMILIES, before_and_after
    from pixelis.train.ttrl_config import TtrlConfig

    total = QUERIES * len(FAMILIES)
    stdout().print(
        f"\nNow {total} questions in another light ({SHIFT}), learnt from without their answers; a minute or two:"
    )
    given = [f"policy={model}", "name=demo", "calibration.items=0", "canary.items=0"]
    settings = load_config(TtrlConfig, Path("configs/nano/ttrl.yaml"), given)
    try:
        keys = key_maker()
    except WeightsError:
        stdout().print("  (no encoders here, `pixelis models pull` fetches them: nothing is retrieved)")
        keys, settings = None, settings.model_copy(update={"neighbours": 0})
    with board(total, quiet=False) as view:
        found = before_and_after(settings, out, shift=SHIFT, queries=QUERIES, held=HELD, keys=keys, show=view.show)
    report = found.report
    learnt = report.accepted - report.alike
    stdout().print(
        f"  {report.answered:.0f} % answered, learnt from {learnt}, drift {nats(report.drift)} a token\n"
        f"  {found.held} others in that light, greedily: {found.before:.0f} % before, {found.after:.0f} % after "
        f"(one question is {100 / found.held:.0f} points; so few move little)\n"
        f"  `pixelis adapt log -o {out}` shows every row, `adapt show 1 --page vote.html -o {out}` a vote, "
        f"`adapt revert 0 -o {out}` undoes it all"
    )


def print_row(row: Asked, *, heading: bool) -> None:
    """One row of the table, as soon as it is known; columns are as wide as a terminal of 80 allows."""
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=heading, header_style="dim")
    for name, width in WIDTHS.items():
        table.add_column(name, width=width, justify="right" if name == "sure" else "left")
    calls = " ".join(step.call.tool for step in row.found.trace.steps) or "no calls"
    about = f"{row.media}: {calls}, {row.found.seconds:.1f} s, {row.page}"
    reason = f"; {row.found.reason}" if row.found.answer is None else ""
    table.add_row(
        "[green]✓[/]" if row.is_right else "[red]✗[/]",
        escaped(row.question),
        escaped(row.found.answer or "cannot tell"),
        escaped(row.right[0]),
        f"{row.found.confidence:.2f}",
    )
    stdout().print(table)
    # wrapped where nobody looks too: soft wrapping would cut what stands in a padding
    stdout().print(Padding(f"[dim]{escaped(about + reason)}[/]", (0, 0, 0, 3)), soft_wrap=False)
