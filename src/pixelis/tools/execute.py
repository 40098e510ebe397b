"""Run one call, from checked arguments to a result. Whatever a tool raises becomes data here."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from pydantic import ValidationError

from pixelis.core.errors import MediaError, ToolError, WeightsError
from pixelis.media import MediaSet
from pixelis.tools.base import Observation, Perceive, Scene, Tool, ToolArgs, WorkLimits
from pixelis.tools.results import Execution, ToolResult

UNION_BRANCH_NAME = re.compile(r"constrained|function-|tuple\[")
"""Pydantic's names for the branches of a union, which mean nothing to the caller."""
MAX_ARGUMENT_BYTES = 2**20
"""A mask of a large picture fits; a megabyte of anything else does not."""


def parse_args(tool: Tool[Any], args: dict[str, Any]) -> ToolArgs:
    """The arguments as the tool's model; ToolError, in one line, if they do not fit it."""
    try:
        text = json.dumps(args)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"the arguments are not JSON ({type(error).__name__})") from error
    if len(text) > MAX_ARGUMENT_BYTES:
        raise ToolError(f"the arguments have {len(text)} characters; at most {MAX_ARGUMENT_BYTES}")
    try:
        return tool.Args.model_validate_json(text, strict=True)
    except ValidationError as error:
        raise ToolError(format_validation_error(error)) from error
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments cannot be read ({type(error).__name__})") from error


def format_validation_error(error: ValidationError) -> str:
    """Pydantic's report in one line: the place, and what is expected there."""
    lines = []
    for problem in error.errors(include_url=False, include_context=False):
        names = [str(part) for part in problem["loc"] if not UNION_BRANCH_NAME.search(str(part))]
        where = " ".join(".".join(names).split())  # names come from the caller: one line, whatever they hold
        what = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            what = "there is no such argument"
        elif problem["type"] == "less_than_equal" and problem["msg"].endswith("equal to 1"):
            what = "coordinates go from 0 to 1 over the width and height, not in pixels"
        lines.append(f"{where}: {what}" if where else what)
    lines = list(dict.fromkeys(lines))
    return "; ".join(lines[:4]) + (f"; and {len(lines) - 4} more" if len(lines) > 4 else "")


def execute(tool: Tool[Any], args: ToolArgs, media: MediaSet, limits: WorkLimits, perceive: Perceive) -> Execution:
    """Run one call in this process. No error of a call or a medium raises."""
    start = time.perf_counter()
    identity = tool.identity()

    def failure(sentence: str, *, repeatable: bool = False) -> Execution:
        seconds = round(time.perf_counter() - start, 6)
        result = ToolResult.failed(tool.name, sentence, identity=identity, seconds=seconds)
        return Execution(result, {}, repeatable=repeatable)

    try:
        name = media.canonical_name(args.media)
        recipe = media.recipe(name)
        source = media.source(recipe.media) if recipe else None
        scene = Scene(media.medium(name), source_name(media, name), recipe, source, limits, perceive)
        observation = tool.look(args, scene)
        result = to_result(tool, observation, scene)
    except ToolError as error:
        return failure(str(error), repeatable=True)
    except (MediaError, WeightsError) as error:
        return failure(str(error))
    except MemoryError:
        return failure("it ran out of the memory that one call may use")
    except Exception as error:  # noqa: BLE001 - an exception of a backend is a failed call
        return failure(f"its backend raised {type(error).__name__}: {next(iter(str(error).splitlines()), '')}")
    seconds = round(time.perf_counter() - start, 6)
    blobs = {blob.artifact().sha256: blob.content for blob in observation.blobs}
    return Execution(result.model_copy(update={"identity": identity, "seconds": seconds}), blobs)


def source_name(media: MediaSet, name: str) -> str:
    recipe = media.recipe(name)
    return recipe.media if recipe else name


def to_result(tool: Tool[Any], observation: Observation, scene: Scene) -> ToolResult:
    return ToolResult(
        tool=tool.name,
        status="ok",
        text=observation.text,
        output=observation.output.model_dump(mode="json"),
        footprints=observation.footprints
        if observation.in_source_coordinates
        else tuple(scene.to_source_footprint(f) for f in observation.footprints),
        confidence=None if observation.confidence is None else round(min(max(observation.confidence, 0.0), 1.0), 6),
        artifacts=tuple(blob.artifact() for blob in observation.blobs),
        view=observation.view,
    )


def rename_media(result: ToolResult, name: str) -> ToolResult:
    """A cached result under this query's name of the same medium."""
    footprints = tuple(f.model_copy(update={"media": name}) for f in result.footprints)
    view = result.view.model_copy(update={"media": name}) if result.view else None
    return result.model_copy(update={"footprints": footprints, "view": view})
