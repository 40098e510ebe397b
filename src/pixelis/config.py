"""From a YAML file and a few words of the command line to a checked model.

A configuration is a small model beside the loop that reads it: a subclass of `Config` whose defaults are the paper's
values and whose attribute docstrings are its help. A file lists only what differs. Whatever is wrong is said at once,
each with its key and its line, so that nobody mends a file one error a run.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pixelis.errors import ConfigError

MAX_BYTES = 2**20
"""A longer file is no configuration."""
MAX_DEPTH = 32
MAX_KEYS = 20_000
"""Aliases let a short file stand for a long one."""
LISTED = "; the keys here are "


class Config(BaseModel):
    """Base of every configuration: frozen, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


C = TypeVar("C", bound=BaseModel)
Loc = tuple[str | int, ...]


def load_config(model: type[C], path: Path | None, overrides: Sequence[str] = ()) -> C:
    """The configuration of a file, with `key.sub=value` laid over it; ConfigError names everything that is wrong."""
    tree, lines = read_yaml(path) if path is not None else ({}, {})
    given, problems = with_overrides(model, tree, overrides)
    try:
        config = model.model_validate(given)
    except ValidationError as error:
        problems += [describe(model, problem, path, lines, overrides) for problem in error.errors(include_url=False)]
    if problems:
        problems = [without_list(text, problems[:k]) for k, text in enumerate(problems)]
        shown = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
        count = "1 key is" if len(problems) == 1 else f"{len(problems)} keys are"
        raise ConfigError(f"{path or 'command line'}: {count} wrong\n  " + "\n  ".join(shown))
    return config


def at_hand(path: Path) -> Path:
    """The file of this name; one of `configs/` that is not in the working directory is the one that came along."""
    own = Path(__file__).resolve().parent
    if not path.exists() and not path.is_absolute() and path.parts[:1] == ("configs",) and ".." not in path.parts:
        for home in (own, own.parents[1]):  # of a wheel, of a clone
            if (home / path).is_file():
                return home / path
    return path


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Loc, int]]:
    """The mapping that a file holds, and the line on which each of its keys stands."""
    try:
        with at_hand(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path} has over {MAX_BYTES} bytes: no configuration is that long")
    try:
        node = yaml.compose(content.decode("utf-8"), Loader=yaml.SafeLoader)
        if node is None:
            return {}, {}
        lines: dict[Loc, int] = {}
        doubles = list(walk(node, (), lines))
        tree = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{where}: not YAML ({what})") from error
    if doubles:
        raise ConfigError(f"{path}: " + "; ".join(doubles))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}; want keys with values")
    return tree, lines


def walk(node: yaml.Node, at: Loc, lines: dict[Loc, int]) -> Iterator[str]:
    """Note the line of every key; complain about a key that stands twice, which YAML itself lets pass."""
    if len(at) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if len(lines) > MAX_KEYS:
        raise ValueError(f"over {MAX_KEYS} keys")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*at, str(key.value))
            if here in lines:
                yield f"line {key.start_mark.line + 1}: {dotted(here)} stands twice"
            lines[here] = key.start_mark.line + 1
            yield from walk(value, here, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*at, index)] = value.start_mark.line + 1
            yield from walk(value, (*at, index), lines)


def with_overrides(
    model: type[BaseModel], tree: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """The tree with `key.sub=value` set in it, and a sentence for every override that cannot be set."""
    merged = _copied(tree)
    problems = []
    for text in overrides:
        key, sign, value = text.partition("=")
        keys = key.strip().split(".")
        if not sign or not all(keys):
            problems.append(f"{text!r} on the command line: want key=value or key.sub=value")
            continue
        try:
            parsed = yaml.safe_load(value) if value.strip() else None
        except yaml.YAMLError:
            problems.append(f"{key} on the command line: {value!r} is not a value that YAML knows")
            continue
        branch = merged
        for part in keys[:-1]:
            if not isinstance(branch.get(part), dict):
                branch[part] = {}
            branch = branch[part]
        branch[keys[-1]] = parsed
    return merged, problems


def _copied(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in tree.items()}


def describe(
    model: type[BaseModel], problem: Any, path: Path | None, lines: Mapping[Loc, int], overrides: Sequence[str]
) -> str:
    """One complaint: where the key stands, its path, and what was wanted."""
    loc: Loc = tuple(problem["loc"])
    named = dotted(loc)
    from_command = any(named == o.split("=")[0].strip() for o in overrides)
    line = next((lines[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in lines), None)
    where = " (command line)" if from_command else f" (line {line})" if line and path else ""
    if problem["type"] == "extra_forbidden":
        known = fields_at(model, loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"{LISTED}{', '.join(known)}" if known else ""
        return f"{named}{where}: there is no such key{hint}"
    what = problem["msg"].removeprefix("Value error, ")
    came = "" if problem["type"] in ("missing", "value_error") else f", not {str(problem['input'])[:60]!r}"
    return f"{named or 'the whole'}{where}: {what[0].lower()}{what[1:]}{came}"


def without_list(text: str, before: Sequence[str]) -> str:
    """A complaint without the list of keys, where one before it ended with the same."""
    own, listed, keys = text.partition(LISTED)
    return own if listed and any(other.endswith(listed + keys) for other in before) else text


def fields_at(model: type[BaseModel], loc: Loc) -> list[str]:
    """The keys that a model knows at a place inside it; none where the place is no model."""
    for part in loc:
        field = model.model_fields.get(str(part))
        inner = next((m for m in models_in(field.annotation if field else None)), None)
        if inner is None:
            return []
        model = inner
    return list(model.model_fields)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as `Inner | None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from models_in(part)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def dotted(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)
