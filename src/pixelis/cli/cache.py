"""`pixelis cache`: what the result cache holds, and emptying it."""

from __future__ import annotations

import typer

from pixelis.cli.terminal import AsJson, print_json, waiting

app = typer.Typer(no_args_is_help=True)


@app.command()
def info(as_json: AsJson = False) -> None:
    """How many results are kept, and how much disk they take."""
    from pixelis.tools.cache import ResultCache

    cache = ResultCache()
    found = cache.info()
    cache.close()
    if as_json:
        print_json(found._asdict())
    else:
        share = f"{found.bytes / 2**20:.1f} MiB of at most {found.limit_bytes / 2**30:.0f} GiB"
        typer.echo(f"{found.entries} results, {share}, in {found.path}")


@app.command()
def clear(as_json: AsJson = False) -> None:
    """Forget every kept result. They can all be computed again."""
    from pixelis.errors import ConfigError
    from pixelis.tools.cache import ResultCache

    cache = ResultCache()
    entries = size = 0
    try:
        before = cache.info()
        entries, size = before.entries, before.bytes
    except ConfigError:
        pass  # damaged: clearing is the remedy
    with waiting("clearing the cache", quiet=as_json):
        cache.clear()
    cache.close()
    if as_json:
        print_json({"path": str(cache.path), "entries": entries, "bytes": size})
    else:
        typer.echo(f"forgot {entries} results, {size / 2**20:.1f} MiB")
