"""`pixelis cache`: what the result cache holds, and emptying it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.command()
def info(as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """How many results are kept, and how much disk they take."""
    from pixelis.tools.cache import ResultCache

    cache = ResultCache()
    found = cache.info()
    cache.close()
    if as_json:
        typer.echo(json.dumps(found._asdict()))
    else:
        share = f"{found.bytes / 2**20:.1f} MiB of at most {found.limit_bytes / 2**30:.0f} GiB"
        typer.echo(f"{found.entries} results, {share}, in {found.path}")


@app.command()
def clear() -> None:
    """Forget every kept result. They can all be computed again."""
    from pixelis.tools.cache import ResultCache

    cache = ResultCache()
    before = cache.info()
    cache.clear()
    cache.close()
    typer.echo(f"forgot {before.entries} results, {before.bytes / 2**20:.1f} MiB")
