"""`pixelis world`: look at what the procedural gym makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _world() -> None:
    """Options before the verb."""


@app.command()
def show(
    family: Annotated[
        str | None,
        typer.Option(
            help="search, choice, motion, document, lecture or space; search, or the template's, if left out."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which item; the same number gives the same bytes.")] = 0,
    difficulty: Annotated[int | None, typer.Option(help="1 to 5; drawn from the seed if left out.")] = None,
    template: Annotated[str | None, typer.Option(help="One question template, such as document.cell.")] = None,
    shift: Annotated[
        str | None, typer.Option(help="A shift and its severity, such as noise:3; 3 if only named.")
    ] = None,
    photographs: Annotated[Path | None, typer.Option(help="A folder of pictures to use as grounds.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write.")] = Path("world.png"),
    marks: Annotated[
        bool,
        typer.Option(
            "--marks/--no-marks", help="Draw the references: what the answer rests on in red, the rest in blue."
        ),
    ] = True,
    sheet: Annotated[bool, typer.Option("--sheet", help="A contact sheet of all families instead.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the item as one JSON object.")] = False,
) -> None:
    """Write an item as a picture, a clip as a filmstrip, with question, answer and references drawn."""
    from PIL import Image as Pil

    from pixelis.core.errors import MediaError
    from pixelis.world.generate import generate
    from pixelis.world.shifts import parse_shift, shift_item
    from pixelis.world.show import contact_sheet as contact_sheet
    from pixelis.world.show import render_item

    if sheet:
        picture, item = contact_sheet(seed=seed, difficulty=difficulty or 3), None
    else:
        family = family or (template.partition(".")[0] if template else "search")
        rendered = generate(family, seed=seed, difficulty=difficulty, template_id=template, photographs=photographs)  # type: ignore[arg-type]
        if shift is not None:
            name, severity = parse_shift(shift)
            rendered = shift_item(rendered, name, severity, seed)
        picture, item = render_item(rendered, marks=marks), rendered.item
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        image = Pil.fromarray(picture)
        (image.quantize(256, method=Pil.Quantize.MAXCOVERAGE) if sheet else image).save(
            output
        )  # a sheet goes into documents: keep it small
    except (OSError, ValueError) as error:
        raise MediaError(
            f"{output} cannot be written ({error}); name a .png or .jpg in a folder you may write"
        ) from error
    if as_json and item is not None:
        typer.echo(json.dumps({"question": item.question, "wrote": str(output), **item.model_dump(mode="json")}))
        return
    if item is not None:
        answer_note = f" ({item.answer})" if item.options else ""
        typer.echo(
            f"{item.question}\nanswer: {item.answer_text}{answer_note}\nneeds: {', '.join(item.required_tools) or 'no tool'}"
        )
    typer.echo(f"wrote {output}")
