"""Options that several verbs have, each declared once: a letter means the same thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

from pixelis.cli.progress import set_quiet


def out(help_text: str, *aliases: str) -> Any:
    """`-o/--out`: what is written there differs from verb to verb."""
    return Option("--out", "-o", *aliases, help=help_text)


def limit(help_text: str) -> Any:
    """`--limit`: what is counted differs from verb to verb."""
    return Option("--limit", min=1, help=help_text)


Texts = list[str] | None
Paths = list[Path] | None
AsJson = Annotated[bool, Option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Show no progress.", callback=set_quiet)]
Model = Annotated[
    str,
    Option(
        "--model",
        "-m",
        help="nano-rft, a folder written by `pixelis train`, a Hugging Face hub id, or a server: openai:URL#name.",
    ),
]
ConfigArgument = Annotated[Path, Argument(metavar="CONFIG", help="A YAML file; see configs/ for examples.")]
Overrides = Annotated[Texts, Argument(metavar="KEY=VALUE", help="Override keys of the configuration: seed=1.")]
Split = Annotated[
    Literal["train", "dev", "dev-cal", "test"],
    Option("--split", help="Which seeds of the world, or which split of a corpus."),
]
Config = Annotated[Path | None, Option("--config", "-c", help="A YAML file; see configs/ for examples.")]
Seed = Annotated[int, Option("--seed", min=0, help="Random seed: the same seed gives the same result.")]
Shift = Annotated[str, Option("--shift", help="A distribution shift, such as noise:3; severity 3 by default.")]
StrictCalls = Annotated[
    bool, Option("--strict-calls", help="Constrain tool calls to their schemas while decoding (not with a server).")
]
ReportOut = Annotated[Path | None, out("Also write the report to this JSON file.")]

Media = Annotated[Paths, Option("--media", help="An image, a video or a folder of frames; may be repeated.")]
MediaFolder = Annotated[
    Path | None, Option("--media", help="Folder of the images or videos, if it is not next to the input file.")
]
FeatureCacheFile = Annotated[
    Path | None,
    Option("--cache", help="File for computed media features, reused by later runs; in ~/.cache/pixelis by default."),
]

Plugin = Annotated[Texts, Option("--plugin", help="An additional tool as module:Class; may be repeated.")]
Disable = Annotated[Texts, Option("--disable", help="A tool to switch off; may be repeated.")]
Seg = Annotated[str, Option("--seg", help="Backend of SEG: auto, classical, sam2 or sam2-transformers.")]
SegOfConfig = Annotated[
    str | None,
    Option(
        "--seg", help="Backend of SEG (auto, classical, sam2 or sam2-transformers), in place of the configuration's."
    ),
]
Fps = Annotated[float, Option("--fps", help="Frame rate of a folder of frames.")]
Deadline = Annotated[
    float | None, Option("--deadline", help="Seconds after which a tool call is stopped; per tool by default.")
]
