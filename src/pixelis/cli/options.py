"""Options that several verbs have, each declared once: a letter means the same thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pixelis.cli.progress import set_quiet


def out(help_text: str, *aliases: str) -> Any:
    """`-o/--out`: what is written there differs from verb to verb."""
    return typer.Option("--out", "-o", *aliases, help=help_text)


def limit(help_text: str) -> Any:
    """`--limit`: what is counted differs from verb to verb."""
    return typer.Option("--limit", min=1, help=help_text)


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.", callback=set_quiet)]
Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="nano-rft, a folder written by `pixelis train`, a Hugging Face hub id, or a server: openai:URL#name.",
    ),
]
ConfigArgument = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A YAML file; see configs/ for examples.", show_default=False)
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Override keys of the configuration: seed=1.")
]
Split = Annotated[
    Literal["train", "dev", "dev-cal", "test"],
    typer.Option("--split", help="Which seeds of the world, or which split of a corpus."),
]
Config = Annotated[Path | None, typer.Option("--config", "-c", help="A YAML file; see configs/ for examples.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed: the same seed gives the same result.")]
Shift = Annotated[str, typer.Option("--shift", help="A distribution shift, such as noise:3; severity 3 by default.")]
StrictCalls = Annotated[
    bool,
    typer.Option("--strict-calls", help="Constrain tool calls to their schemas while decoding (not with a server)."),
]
ReportOut = Annotated[Path | None, out("Also write the report to this JSON file.")]

Media = Annotated[
    list[Path] | None, typer.Option("--media", help="An image, a video or a folder of frames; may be repeated.")
]
MediaFolder = Annotated[
    Path | None, typer.Option("--media", help="Folder of the images or videos, if it is not next to the input file.")
]
FeatureCacheFile = Annotated[
    Path | None,
    typer.Option(
        "--cache", help="File for computed media features, reused by later runs; in ~/.cache/pixelis by default."
    ),
]

Plugin = Annotated[
    list[str] | None, typer.Option("--plugin", help="An additional tool as module:Class; may be repeated.")
]
Disable = Annotated[list[str] | None, typer.Option("--disable", help="A tool to switch off; may be repeated.")]
Seg = Annotated[str, typer.Option("--seg", help="Backend of SEG: auto, classical, sam2 or sam2-transformers.")]
SegOfConfig = Annotated[
    str | None,
    typer.Option(
        "--seg", help="Backend of SEG (auto, classical, sam2 or sam2-transformers), in place of the configuration's."
    ),
]
Fps = Annotated[float, typer.Option("--fps", help="Frame rate of a folder of frames.")]
Deadline = Annotated[
    float | None, typer.Option("--deadline", help="Seconds after which a tool call is stopped; per tool by default.")
]
