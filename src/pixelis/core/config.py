"""Load a validated configuration from a YAML file and overrides on the command line.

A configuration is a small model beside the loop that reads it: a subclass of `Config` whose defaults are the paper's
values and whose attribute docstrings are its help. A file lists only what differs. All errors are reported at once,
each with its key and its line.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pixelis.core.errors import ConfigError

MAX_BYTES = 2**20
"""A longer file is not a configuration."""
MAX_DEPTH = 32
MAX_KEYS = 20_000
"""YAML aliases let a short file expand to a long one."""
KEY_LIST_PREFIX = "; the keys here are "


class Config(BaseModel):
    """Base of every configuration: frozen, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
    old_names: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier releases and their present names. They are accepted wherever a configuration is read (YAML,
    command line, run folders) and never written."""

    @model_validator(mode="before")
    @classmethod
    def _rename_old_keys(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for old, new in cls.old_names.items():
            if old in values and new in values:
                raise ValueError(f"{old} is the old name of {new}: give one of them")
        return {cls.old_names.get(key, key): value for key, value in values.items()}


C = TypeVar("C", bound=BaseModel)
Loc = tuple[str | int, ...]


def load_config(model: type[C], path: Path | None, overrides: Sequence[str] = ()) -> C:
    """Load a file and apply `key.sub=value` overrides; ConfigError names everything that is wrong."""
    tree, lines = read_yaml(path) if path is not None else ({}, {})
    values, problems = apply_overrides(model, with_current_names(model, tree), overrides)
    lines = {current_loc(model, loc): line for loc, line in lines.items()}
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        problems += [describe_problem(model, problem, path, lines, overrides) for problem in errors]
    if problems:
        problems = [drop_repeated_key_list(text, problems[:k]) for k, text in enumerate(problems)]
        messages = problems[:20] + ([f"and {len(problems) - 20} more"] if len(problems) > 20 else [])
        count = "1 key is" if len(problems) == 1 else f"{len(problems)} keys are"
        raise ConfigError(f"{path or 'command line'}: {count} wrong\n  " + "\n  ".join(messages))
    return config


def resolve_config_path(path: Path) -> Path:
    """The file of this name; a `configs/…` that is not in the working directory is the installed one."""
    package_dir = Path(__file__).resolve().parents[1]
    if not path.exists() and not path.is_absolute() and path.parts[:1] == ("configs",) and ".." not in path.parts:
        for root in (package_dir, package_dir.parents[1]):  # of a wheel, of a clone
            if (root / path).is_file():
                return root / path
    return path


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Loc, int]]:
    """The mapping in a file, and the line of each key."""
    try:
        with resolve_config_path(path).open("rb") as file:
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
        duplicates = list(index_key_lines(node, (), lines))
        tree = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{where}: not YAML ({what})") from error
    if duplicates:
        raise ConfigError(f"{path}: " + "; ".join(duplicates))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}; want keys with values")
    return tree, lines


def index_key_lines(node: yaml.Node, parent: Loc, lines: dict[Loc, int]) -> Iterator[str]:
    """Record the line of every key; yield a sentence for a duplicate key, which YAML itself accepts."""
    if len(parent) > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if len(lines) > MAX_KEYS:
        raise ValueError(f"over {MAX_KEYS} keys")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            key_path = (*parent, str(key.value))
            if key_path in lines:
                yield f"line {key.start_mark.line + 1}: {dotted_key(key_path)} stands twice"
            lines[key_path] = key.start_mark.line + 1
            yield from index_key_lines(value, key_path, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*parent, index)] = value.start_mark.line + 1
            yield from index_key_lines(value, (*parent, index), lines)


def apply_overrides(
    model: type[BaseModel], tree: Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """The tree with `key.sub=value` applied, and a sentence for every override that cannot be."""
    merged = _copy_tree(tree)
    problems = []
    for text in overrides:
        key, separator, value = text.partition("=")
        keys = [str(name) for name in current_loc(model, tuple(key.strip().split(".")))]
        if not separator or not all(keys):
            problems.append(f"{text!r} on the command line: want key=value or key.sub=value")
            continue
        try:
            parsed = yaml.safe_load(value) if value.strip() else None
        except yaml.YAMLError:
            problems.append(f"{key} on the command line: {value!r} is not a value that YAML knows")
            continue
        branch = merged
        for name in keys[:-1]:
            if not isinstance(branch.get(name), dict):
                branch[name] = {}
            branch = branch[name]
        branch[keys[-1]] = parsed
    return merged, problems


def _copy_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy_tree(value) if isinstance(value, dict) else value for key, value in tree.items()}


def describe_problem(
    model: type[BaseModel], problem: Any, path: Path | None, lines: Mapping[Loc, int], overrides: Sequence[str]
) -> str:
    """One error: key, place, and what is expected."""
    loc: Loc = tuple(problem["loc"])
    key_path = dotted_key(loc)
    is_override = any(loc == current_loc(model, tuple(o.split("=")[0].strip().split("."))) for o in overrides)
    line = next((lines[loc[:n]] for n in range(len(loc), 0, -1) if loc[:n] in lines), None)
    where = " (command line)" if is_override else f" (line {line})" if line and path else ""
    if problem["type"] == "extra_forbidden":
        known_keys = fields_at(model, loc[:-1])
        close_matches = difflib.get_close_matches(str(loc[-1]), known_keys, n=1)
        hint = f"{KEY_LIST_PREFIX}{', '.join(dict.fromkeys(known_keys.values()))}" if known_keys else ""
        if close_matches:
            hint = f"; did you mean {known_keys[close_matches[0]]}?"
        return f"{key_path}{where}: there is no such key{hint}"
    what = problem["msg"].removeprefix("Value error, ")
    received = "" if problem["type"] in ("missing", "value_error") else f", not {str(problem['input'])[:60]!r}"
    return f"{key_path or 'the whole'}{where}: {what[0].lower()}{what[1:]}{received}"


def drop_repeated_key_list(text: str, previous: Sequence[str]) -> str:
    """The error without its list of keys if an earlier one has the same list."""
    message, separator, keys = text.partition(KEY_LIST_PREFIX)
    return message if separator and any(other.endswith(separator + keys) for other in previous) else text


def with_current_names(model: type[BaseModel] | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a configuration with the keys of earlier releases renamed, in nested models too.

    A value under both names is left as it is: validation then says so.
    """
    old_names: Mapping[str, str] = getattr(model, "old_names", {})
    out = {}
    for key, value in values.items():
        name = key if old_names.get(key) in values else old_names.get(key, key)
        out[name] = with_current_names(inner_model(model, name), value) if isinstance(value, dict) else value
    return out


def current_loc(model: type[BaseModel] | None, loc: Loc) -> Loc:
    """The path of a key with the keys of earlier releases renamed."""
    out: Loc = ()
    for name in loc:
        out = (*out, getattr(model, "old_names", {}).get(name, name))
        model = inner_model(model, out[-1])
    return out


def fields_at(model: type[BaseModel] | None, loc: Loc) -> dict[str, str]:
    """The keys that a model accepts at a place inside it, each with its present name; none if it is not a model."""
    for name in loc:
        model = inner_model(model, name)
    return {} if model is None else {name: name for name in model.model_fields} | dict(getattr(model, "old_names", {}))


def inner_model(model: type[BaseModel] | None, name: str | int) -> type[BaseModel] | None:
    """The model of a field, if it has one."""
    field = model.model_fields.get(str(name)) if model is not None else None
    return next(models_in(field.annotation if field else None), None)


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as `Inner | None`."""
    if get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from models_in(member)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def dotted_key(loc: Loc) -> str:
    return ".".join(str(part) for part in loc)
