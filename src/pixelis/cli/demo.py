"""`pixelis demo`: two given plans on bundled media, from calls to evidence pages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PLANS = (("photograph", "astronaut_sign.jpg"), ("clip", "cockatoo.mp4"))


def demo(
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder for the traces and pages.")] = Path("demo"),
) -> None:
    """Run both plans. The calls are written down in the plans: no model chose them, and the pages say so."""
    from pixelis.cli import trace
    from pixelis.tools.toolbox import Toolbox

    with Toolbox() as toolbox:
        backend = toolbox.tools["SEG"].identity().backend
    if backend == "classical":
        typer.echo("SAM 2 is not here (`pixelis models pull` needs npm): SEG uses classical regions.")
    assets = Path(__file__).parents[1] / "demo"
    for plan, medium in PLANS:
        typer.echo(f"\n{plan}: the plan in {plan}.json on {medium}")
        record, page = out / f"{plan}.jsonl", out / f"{plan}.html"
        trace.print_run(trace.record_plan(assets / f"{plan}.json", [assets / medium], record), record)
        trace.report(record, page)
    typer.echo(
        f"\nOpen {out}/photograph.html and {out}/clip.html in a browser. Then try your own picture:\n"
        "  .venv/bin/pixelis tools run OCR --media PICTURE --html page.html\n"
        '  .venv/bin/pixelis tools run SEG --media PICTURE --args \'{"target": "the red car"}\' --html seg.html'
    )
