"""`pixelis cache`: show and clear the cache of tool results."""

from __future__ import annotations

import typer

from pixelis.cli import options as opt
from pixelis.cli.progress import spinner
from pixelis.cli.terminal import print_json
from pixelis.core.errors import ConfigError

app = typer.Typer(no_args_is_help=True)


@app.command()
def info(as_json: opt.AsJson = False) -> None:
    """Show the number of cached results and their size on disk."""
    from pixelis.tools.cache import ResultCache

    cache = ResultCache()
    usage = cache.info()
    cache.close()
    if as_json:
        print_json(usage._asdict())
    else:
        usage_text = f"{usage.bytes / 2**20:.1f} MiB of at most {usage.limit_bytes / 2**30:.0f} GiB"
        typer.echo(f"{usage.entries} results, {usage_text}, in {usage.path}")


@app.command()
def clear(as_json: opt.AsJson = False) -> None:
    """Delete all cached results; tools compute them again."""
    from pixelis.tools.cache import ResultCache

    cache = ResultCache()
    entries = size = 0
    try:
        before = cache.info()
        entries, size = before.entries, before.bytes
    except ConfigError:
        pass  # damaged: clearing repairs it
    with spinner("clearing the cache"):
        cache.clear()
    cache.close()
    if as_json:
        print_json({"path": str(cache.path), "entries": entries, "bytes": size})
    else:
        typer.echo(f"deleted {entries} results, {size / 2**20:.1f} MiB")
