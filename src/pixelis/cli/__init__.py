"""The command line: one verb = parse, one call, print the result and the path it wrote.

Nothing heavy is imported here: `pixelis --help` must answer at once.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

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

app = typer.Typer(
    name="pixelis",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A pixel-space agent: executable tools on images and clips, and evidence that can be replayed.",
)
app.command("ask", help="Ask a policy about pictures and clips; the answer comes with its evidence.")(ask.ask)
app.add_typer(tools.app, name="tools", help="List the tools, print their schemas, run one.")
app.command("run", help="Execute a given list of calls into a trace.")(trace.run)
app.command("replay", help="Run a trace's calls again and prove that they give the same.")(trace.replay)
app.command("report", help="Write the evidence page of a trace: one HTML file.")(trace.report)
app.add_typer(models.app, name="models", help="Pretrained files: list, pull, verify.")
app.add_typer(cache.app, name="cache", help="The cache of tool results: info, clear.")
app.add_typer(score.app, name="score", help="Score files with the evaluators of the field.")
app.add_typer(world.app, name="world", help="The procedural gym: scenes with exact references.")
app.add_typer(data.app, name="data", help="Corpora: build, count, de-duplicate, audit; datasets in, Parquet out.")
app.add_typer(train.app, name="train", help="Train a policy: sft, rft.")
app.add_typer(adapt.app, name="adapt", help="Phase 3: answer a stream, learn without labels, look at rows, go back.")
app.command("eval", help="Score a policy on held-out items of the world, or on your own.")(evaluate.evaluate)
app.add_typer(index.app, name="index", help="The retrieval memory: build, add, search, audit, delete.")
app.add_typer(reproduce.app, name="reproduce", help="Run the paper's claims again on nano: rft, ttrl.")
app.command("doctor", help="What is installed, which backends are live, a self-test of each tool.")(doctor.doctor)
app.add_typer(bench.app, name="bench", help="Measure: CPU seconds beside the paper's latencies and beside peers.")
app.command("demo", help="Ask the shipped policy seven questions and write the evidence pages.")(demo.demo)


INTERRUPTED_MESSAGE = "stopped; what was finished is kept, and the same command goes on where that is possible"


def _print_version(requested: bool) -> None:
    if requested:
        from pixelis import __version__

        typer.echo(f"pixelis {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options before the verb."""


def display_path(path: str) -> str:
    """A path as whoever gave it knows it: what is written goes through a file beside it, and folders have a lock."""
    return re.sub(r"(^|/)\.([^/]+)\.\d+-\d+\.part$", r"\1\2", path).removesuffix("/.lock")


def main() -> None:
    """The console script: a person sees one line for whatever they can put right, never a traceback."""
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
        sys.stderr.close()  # the reader has gone, e.g. `| head`
        sys.exit(1)
    except OSError as error:
        file_prefix = f"{display_path(str(error.filename))[:80]!r}: " if error.filename else ""
        print(f"error: {printable(file_prefix)}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(INTERRUPTED_MESSAGE, file=sys.stderr)
        sys.exit(130)
    except SystemExit as system_exit:
        if system_exit.code == 130:  # Typer heard the interrupt first
            print(INTERRUPTED_MESSAGE, file=sys.stderr)
        raise
