"""`pixelis world`: look at items of the procedural world."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from pixelis.cli import options as opt
from pixelis.cli.terminal import print_json
from pixelis.core.errors import MediaError

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _world() -> None:
    """Look at items of the procedural world."""


@app.command()
def show(
    family: Annotated[
        str | None,
        Option(help="search, choice, motion, document, lecture or space; by default the template's, or search."),
    ] = None,
    seed: opt.Seed = 0,
    difficulty: Annotated[int | None, Option(help="1 to 5; drawn from the seed by default.")] = None,
    template: Annotated[str | None, Option(help="A question template, such as document.cell.")] = None,
    shift: opt.Shift = "",
    photographs: Annotated[Path | None, Option(help="A folder of images to use as backgrounds.")] = None,
    out: Annotated[Path, opt.out("The image file to write.", "--output")] = Path("world.png"),
    marks: Annotated[
        bool, Option("--marks/--no-marks", help="Draw the references; those that decide the answer are red.")
    ] = True,
    sheet: Annotated[bool, Option("--sheet", help="Write a contact sheet of all families instead.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Render an item with its references, a video as a filmstrip, and print its question and answer."""
    from PIL import Image as Pil

    from pixelis.world.generate import generate
    from pixelis.world.shifts import parse_shift, shift_item
    from pixelis.world.show import contact_sheet, render_item

    if sheet:
        picture, item = contact_sheet(seed=seed, difficulty=difficulty or 3), None
    else:
        family = family or (template.partition(".")[0] if template else "search")
        rendered = generate(family, seed=seed, difficulty=difficulty, template_id=template, photographs=photographs)  # type: ignore[arg-type]
        if shift:
            name, severity = parse_shift(shift)
            rendered = shift_item(rendered, name, severity, seed)
        picture, item = render_item(rendered, marks=marks), rendered.item
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        image = Pil.fromarray(picture)
        if sheet:  # sheets go into documents, so keep them small
            image = image.quantize(256, method=Pil.Quantize.MAXCOVERAGE)
        image.save(out)
    except (OSError, ValueError) as error:
        raise MediaError(f"{out} cannot be written ({error}); give a .png or .jpg file in a writable folder") from error
    if item is None:
        typer.echo(f"wrote {out}")
    elif as_json:
        print_json({"question": item.question, "wrote": str(out), **item.model_dump(mode="json")})
    else:
        answer_note = f" ({item.answer})" if item.options else ""
        typer.echo(f"{item.question}\nanswer: {item.answer_text}{answer_note}")
        typer.echo(f"needs: {', '.join(item.required_tools) or 'no tool'}\nwrote {out}")
