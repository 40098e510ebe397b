"""`pixelis tools`: list, schema, run; and the toolbox of every verb that runs tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from pixelis.cli import options as opt
from pixelis.cli.progress import spinner
from pixelis.cli.terminal import plain_table, print_json, print_report, printable, stdout
from pixelis.core.errors import ConfigError

if TYPE_CHECKING:
    from pixelis.tools.results import ToolResult
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig

app = typer.Typer(no_args_is_help=True)
MAX_LISTED_FOOTPRINTS = 20


def make_toolbox_config(plugin: opt.Texts = None, disable: opt.Texts = None, **settings: Any) -> ToolboxConfig:
    """Tool settings from the command line; ConfigError for an invalid one.

    Plugins are also found in the current folder.
    """
    from pydantic import ValidationError

    from pixelis.tools.execute import format_validation_error
    from pixelis.tools.toolbox import ToolboxConfig

    if plugin:
        add_plugin_folder()
    try:
        return ToolboxConfig.model_validate({**settings, "plugins": plugin or (), "disabled": disable or ()})
    except ValidationError as error:
        raise ConfigError(format_validation_error(error)) from error


def add_plugin_folder() -> None:
    """Let plugins lie in the current folder: last, so that no file there hides an installed module."""
    sys.path.append(str(Path.cwd()))


def make_toolbox(plugin: opt.Texts = None, disable: opt.Texts = None, **settings: Any) -> Toolbox:
    from pixelis.tools.toolbox import Toolbox

    return Toolbox(make_toolbox_config(plugin, disable, **settings))


def tool_overrides(
    prefix: str, plugin: opt.Texts, disable: opt.Texts, seg: str | None, deadline: float | None
) -> list[str]:
    """The same options as KEY=VALUE, for a verb whose tool settings are part of its configuration."""
    values = {"plugins": plugin, "disabled": disable, "seg": seg, "deadline_s": deadline}
    return [f"{prefix}{key}={json.dumps(value)}" for key, value in values.items() if value is not None]


@app.command("list")
def list_tools(plugin: opt.Plugin = None, as_json: opt.AsJson = False) -> None:
    """List the tools, their purpose and the backend in use."""
    with make_toolbox(plugin) as toolbox:
        rows = [(tool.name, tool.summary, tool.identity()) for tool in toolbox.tools.values()]
    if as_json:
        print_json([{"tool": n, "summary": s, "identity": i.model_dump()} for n, s, i in rows])
        return
    table = plain_table("tool", "what it does", "backend", left=("tool", "what it does", "backend"))
    for name, summary, identity in rows:
        table.add_row(f"[bold]{name}[/]", summary, identity.backend)
    stdout().print(table, soft_wrap=False)


@app.command()
def schema(
    tool: Annotated[str | None, Argument(help="One tool; all tools by default.")] = None, plugin: opt.Plugin = None
) -> None:
    """Print the JSON Schema of the arguments, in the OpenAI function format."""
    from pixelis.tools.base import canonical_name

    with make_toolbox(plugin) as toolbox:
        if tool is None:
            typer.echo(json.dumps(toolbox.schemas(), indent=2))
        elif (selected_tool := toolbox.tools.get(canonical_name(tool))) is not None:
            typer.echo(json.dumps(selected_tool.schema(), indent=2))
        else:
            raise ConfigError(f"there is no tool {tool!r}: the tools are {', '.join(toolbox.tools)}")


@app.command("run")
def run_tool(
    tool: Annotated[str, Argument(help="SEG, ZOOM, TRK, OCR, TEMP, PROP, an alias, or a plugin's name.")],
    media: Annotated[list[Path], Option("--media", help="An image, a video or a folder of frames; repeatable.")],
    args: Annotated[str, Option("--args", help="Arguments of the call as a JSON object.")] = "{}",
    html: Annotated[Path | None, Option("--html", help="Also write an evidence page of this call.")] = None,
    cache: Annotated[bool, Option("--cache/--no-cache", help="Use the result cache.")] = True,
    seg: opt.Seg = "auto",
    plugin: opt.Plugin = None,
    disable: opt.Disable = None,
    deadline: opt.Deadline = None,
    fps: opt.Fps = 25.0,
    as_json: opt.AsJson = False,
    quiet: opt.Quiet = False,
) -> None:
    """Run one tool call.

    Exit status: 0 it succeeded, 1 it failed and the result says why, 2 it could not be tried.
    """
    from pixelis.media import MediaSet, open_media
    from pixelis.tools.results import ToolCall

    call = ToolCall(tool=tool, args=parse_object(args))
    media_set = MediaSet(tuple(open_media(path, fps=fps) for path in media))
    with make_toolbox(plugin, disable, seg=seg, cache=cache, deadline_s=deadline) as toolbox, spinner(tool):
        toolbox.pull_weights(tool)
        execution = toolbox.run(call, media_set)
        if html is not None:
            from pixelis.cli.trace import write_call_page

            write_call_page(call, media_set, execution, html)
    result = execution.result
    texts = {"text": readable_text(result), "seen": result.text}
    content = {"ok": result.ok, **result.model_dump(mode="json"), **texts}
    print_report(content, lambda: print_result(result, cached=execution.cached, page=html), as_json=as_json)
    raise typer.Exit(0 if result.ok else 1)


def parse_object(text: str) -> dict[str, Any]:
    """A JSON object from the command line."""

    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        example = '{"box": [0, 0, 1, 0.5]}'
        raise ConfigError(f"--args is not JSON ({error}); give an object such as '{example}'") from error
    if not isinstance(value, dict):
        raise ConfigError(f"--args is {type(value).__name__}; give a JSON object such as '{{}}'")
    return value


def readable_text(result: ToolResult) -> str:
    """The text that a tool has read, or the sentence that a policy receives."""
    text = result.output.get("text")
    return text if isinstance(text, str) else result.text


def print_result(result: ToolResult, *, cached: bool, page: Path | None) -> None:
    from rich.text import Text

    console = stdout()
    head = Text.assemble(
        (result.tool, "bold"),
        ("  ok" if result.ok else f"  {result.status}", "green" if result.ok else "red"),
        (f"  confidence {result.confidence:.2f}" if result.confidence is not None else "", ""),
        (f"  {result.seconds:.2f} s" + (" (from the cache)" if cached else ""), "dim"),
    )
    console.print(head)
    console.print(Text(printable(result.error or readable_text(result) or result.text)), soft_wrap=True)
    if result.footprints:
        table = plain_table("", "where", "score", left=("", "where"))
        for footprint in result.footprints[:MAX_LISTED_FOOTPRINTS]:
            name = Text(printable(footprint.label or footprint.kind))
            table.add_row(name, Text(describe_location(footprint)), f"{footprint.score:.2f}")
        console.print(table)
        if (unlisted := len(result.footprints) - MAX_LISTED_FOOTPRINTS) > 0:
            console.print(f"… and {unlisted} more", style="dim")
    if page is not None:
        console.print(Text(f"wrote {printable(str(page))}", style="dim"))


def describe_location(footprint: Any) -> str:
    if footprint.kind == "span":
        return f"{footprint.start_s:.2f}–{footprint.end_s:.2f} s"
    if footprint.kind == "track":
        return f"id {footprint.track_id}, frames {footprint.frames[0]}–{footprint.frames[-1]}"
    box = footprint.box_unit
    location = f"{footprint.media} [{', '.join(f'{v:.2f}' for v in box)}]" if box else footprint.media
    return location if footprint.frame == 0 else f"{location} frame {footprint.frame}"
