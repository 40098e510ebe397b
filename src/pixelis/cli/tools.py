"""`pixelis tools`: list, schema, run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pixelis.cli.terminal import AsJson, print_json, printable, spinner, stdout

if TYPE_CHECKING:
    from pixelis.tools.results import ToolResult
    from pixelis.tools.toolbox import Toolbox

app = typer.Typer(no_args_is_help=True)

Plugins = Annotated[list[str], typer.Option("--plugin", help="A further tool as module:Class; may be repeated.")]
Disable = Annotated[list[str], typer.Option("--disable", help="A tool to take away; may be repeated.")]
Fps = Annotated[float, typer.Option("--fps", help="Frames a second of a folder of frames.")]


def make_toolbox(**settings: Any) -> Toolbox:
    """A toolbox from command-line settings; ConfigError for a bad one. Plugins may lie in the current folder."""
    import sys

    from pydantic import ValidationError

    from pixelis.core.errors import ConfigError
    from pixelis.tools.execute import format_validation_error
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig

    if settings.get("plugins"):
        sys.path.append(str(Path.cwd()))  # last: what lies there must not take the place of an installed module
    try:
        config = ToolboxConfig.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(format_validation_error(error)) from error
    return Toolbox(config)


@app.command("list")
def list_tools(plugin: Plugins = [], as_json: AsJson = False) -> None:  # noqa: B006 - Typer copies it
    """The tools, what they are for, and which backend is live."""
    with make_toolbox(plugins=plugin) as toolbox:
        rows = [(tool.name, tool.summary, tool.identity()) for tool in toolbox.tools.values()]
    if as_json:
        print_json([{"tool": n, "summary": s, "identity": i.model_dump()} for n, s, i in rows])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("tool", "what it does", "backend", box=None, header_style="bold", pad_edge=False)
    for name, summary, identity in rows:
        table.add_row(f"[bold]{name}[/]", summary, identity.backend)
    Console().print(table)


@app.command()
def schema(
    tool: Annotated[str | None, typer.Argument(help="One tool; all of them if left out.")] = None,
    plugin: Plugins = [],  # noqa: B006 - Typer copies it
) -> None:
    """JSON Schema of the arguments, in the OpenAI function format."""
    from pixelis.core.errors import ConfigError
    from pixelis.tools.base import canonical_name

    with make_toolbox(plugins=plugin) as toolbox:
        if tool is None:
            typer.echo(json.dumps(toolbox.schemas(), indent=2))
        elif (selected_tool := toolbox.tools.get(canonical_name(tool))) is not None:
            typer.echo(json.dumps(selected_tool.schema(), indent=2))
        else:
            raise ConfigError(f"there is no tool {tool!r}: the tools are {', '.join(toolbox.tools)}")


@app.command("run")
def run_tool(
    tool: Annotated[str, typer.Argument(help="SEG, ZOOM, TRK, OCR, TEMP, PROP, an alias, or a plugin's name.")],
    media: Annotated[list[Path], typer.Option("--media", help="A picture, a clip, or a folder of frames; repeatable.")],
    args: Annotated[str, typer.Option("--args", help="The arguments as a JSON object.")] = "{}",
    as_json: AsJson = False,
    html: Annotated[Path | None, typer.Option("--html", help="Also write an evidence page of this one call.")] = None,
    seg: Annotated[str, typer.Option(help="SEG's backend: auto, classical, sam2 or sam2-transformers.")] = "auto",
    disable: Disable = [],  # noqa: B006
    plugin: Plugins = [],  # noqa: B006
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Use the result cache.")] = True,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which the call is stopped.")] = None,
    fps: Fps = 25.0,
) -> None:
    """Run one call. Exit status 0: it succeeded; 1: it failed, and the result says why; 2: it could not be tried."""
    from pixelis.media import MediaSet, open_media
    from pixelis.tools.results import ToolCall

    call = ToolCall(tool=tool, args=parse_object(args))
    media_set = MediaSet(tuple(open_media(path, fps=fps) for path in media))
    settings = {"seg": seg, "disabled": disable, "plugins": plugin, "cache": cache, "deadline_s": deadline}
    with make_toolbox(**settings) as toolbox, spinner(tool, quiet=as_json):
        execution = toolbox.run(call, media_set)
        if html is not None:
            from pixelis.cli.trace import write_call_page

            write_call_page(call, media_set, execution, html)
    result = execution.result
    if as_json:
        print_json(
            {"ok": result.ok, **result.model_dump(mode="json"), "text": readable_text(result), "seen": result.text}
        )
    else:
        print_result(result, cached=execution.cached, page=html)
    raise typer.Exit(0 if result.ok else 1)


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object from the command line."""
    from pixelis.core.errors import ConfigError

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--args is not JSON ({error}); want an object such as '{{\"box\": [0, 0, 1, 0.5]}}'"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"--args is {type(value).__name__}; want a JSON object such as '{{}}'")
    return value


def readable_text(result: ToolResult) -> str:
    """What was read, where a tool reads; else what a policy is told."""
    text = result.output.get("text")
    return text if isinstance(text, str) else result.text


def print_result(result: ToolResult, *, cached: bool, page: Path | None) -> None:
    """A result as a person likes to read it."""
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    head = Text.assemble(
        (result.tool, "bold"),
        ("  ok" if result.ok else f"  {result.status}", "green" if result.ok else "red"),
        (f"  confidence {result.confidence:.2f}" if result.confidence is not None else "", ""),
        (f"  {result.seconds:.2f} s" + (" (kept from before)" if cached else ""), "dim"),
    )
    console.print(head)
    console.print(Text(printable(result.error or readable_text(result) or result.text)), soft_wrap=True)
    if result.footprints:
        table = Table("", "where", "score", box=None, header_style="dim", pad_edge=False)
        for footprint in result.footprints[:20]:
            name = Text(printable(footprint.label or footprint.kind))
            table.add_row(name, Text(describe_location(footprint)), f"{footprint.score:.2f}")
        console.print(table)
        if len(result.footprints) > 20:
            console.print(f"… and {len(result.footprints) - 20} more", style="dim")
    if page is not None:
        console.print(Text(f"wrote {printable(str(page))}", style="dim"))


def describe_location(footprint: Any) -> str:
    """A footprint's place in a few words."""
    if footprint.kind == "span":
        return f"{footprint.start_s:.2f}–{footprint.end_s:.2f} s"
    if footprint.kind == "track":
        return f"id {footprint.track_id}, frames {footprint.frames[0]}–{footprint.frames[-1]}"
    box = footprint.box_unit
    location = f"{footprint.media} [{', '.join(f'{v:.2f}' for v in box)}]" if box else footprint.media
    return location if footprint.frame == 0 else f"{location} frame {footprint.frame}"
