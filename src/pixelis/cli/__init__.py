"""The command line: each verb parses its options, makes one call, and prints the result.

Nothing heavy is imported here, so that `pixelis --help` answers at once.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer
from typer import Option

from pixelis.cli import (
    adapt,
    ask,
    bench,
    cache,
    data,
    demo,
    doctor,
    evaluate,
    index,
    models,
    reproduce,
    score,
    tools,
    trace,
    train,
    world,
)  # fmt: skip

EXIT_STATUSES = (
    "Exit status: 0 success; 1 a negative result (no answer, a failed call or check, skipped items; see the help of "
    "each verb); 2 wrong input or another error, in one line; 130 interrupted."
)
INTERRUPTED_MESSAGE = "interrupted; finished work is kept, and most verbs resume with the same command"

app = typer.Typer(
    name="pixelis",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Visual question answering with executable tools on images and videos, and evidence that can be replayed.",
    epilog=EXIT_STATUSES,
)
app.command("ask")(ask.ask)
app.add_typer(tools.app, name="tools", help="List the tools, print their schemas, run one.")
app.command("run")(trace.run)
app.command("replay")(trace.replay)
app.command("report")(trace.report)
app.add_typer(models.app, name="models", help="List, download and verify pretrained files.")
app.add_typer(cache.app, name="cache", help="Show or clear the cache of tool results.")
app.add_typer(score.app, name="score", help="Score files of predictions with standard metrics.")
app.add_typer(world.app, name="world", help="Look at items of the procedural world.")
app.add_typer(data.app, name="data", help="Build, count, deduplicate and audit corpora; import and export datasets.")
app.add_typer(train.app, name="train", help="Train a policy: phase 1 (sft) and phase 2 (rft).")
app.add_typer(
    adapt.app,
    name="adapt",
    help="Phase 3: adapt to a stream of unlabelled questions (`adapt STREAM` is `adapt run STREAM`).",
)
app.command("eval")(evaluate.evaluate)
app.add_typer(index.app, name="index", help="The retrieval memory: build, add, search, audit, delete.")
app.add_typer(reproduce.app, name="reproduce", help="Repeat the paper's experiments on nano (needs a clone).")
app.command("doctor")(doctor.doctor)
app.add_typer(bench.app, name="bench", help="Benchmarks against the paper and other libraries (needs a clone).")
app.command("demo")(demo.demo)


def _print_version(requested: bool) -> None:
    if requested:
        from pixelis import __version__

        typer.echo(f"pixelis {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Visual question answering with executable tools on images and videos, and evidence that can be replayed."""


def display_path(path: str) -> str:
    """The path that the user gave: files are written through a temporary file beside them, and folders have a lock."""
    return re.sub(r"(^|/)\.([^/]+)\.\d+-\d+\.part$", r"\1\2", path).removesuffix("/.lock")


def main() -> None:
    """The console script. An error that the user can fix is one line, not a traceback."""
    from pixelis.cli.terminal import printable
    from pixelis.core.errors import PixelisError
    from pixelis.core.extras import missing_for_verb

    try:
        app()
    except PixelisError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        sentence = missing_for_verb(error, sys.argv)
        if sentence is None:
            raise
        print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()  # the reader closed the pipe, as `| head` does
        sys.exit(1)
    except OSError as error:
        file_prefix = f"{display_path(str(error.filename))[:80]!r}: " if error.filename else ""
        print(f"error: {printable(file_prefix)}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(INTERRUPTED_MESSAGE, file=sys.stderr)
        sys.exit(130)
    except SystemExit as system_exit:
        if system_exit.code == 130:  # Typer has handled the interrupt
            print(INTERRUPTED_MESSAGE, file=sys.stderr)
        raise
