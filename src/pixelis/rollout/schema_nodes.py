"""What a tool's JSON schema asks for, as nodes that the acceptor walks.

The subset of JSON Schema is what our tools use: $ref, anyOf, const, enum, string with lengths, number and integer with
bounds, boolean, null, array with prefixItems, items and lengths, and objects without unknown keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pixelis.errors import ConfigError

DIGITS_BEFORE, DIGITS_AFTER = 9, 6
"""Of a number, at most: a frame, a second or a share of the width needs no more."""
DEEPEST = 16


@dataclass(frozen=True, eq=False)  # each is made once: identity is equality, and quick to hash
class AnyOf:
    options: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Constants:
    texts: tuple[bytes, ...]


@dataclass(frozen=True, eq=False)
class String:
    shortest: int
    longest: int | None


@dataclass(frozen=True, eq=False)
class Number:
    """Bounds in units of the last digit that may be written, both included."""

    whole: bool
    low: int | None
    high: int | None


@dataclass(frozen=True, eq=False)
class Array:
    first: tuple[Node, ...]
    rest: Node | None
    least: int
    most: int | None


@dataclass(frozen=True, eq=False)
class Object:
    properties: Mapping[str, Node]
    required: frozenset[str]


Node = AnyOf | Constants | String | Number | Array | Object


def compiled(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None, depth: int = 0) -> Node:
    """A JSON schema as nodes; ConfigError for what this subset does not know."""
    defs = schema.get("$defs", defs or {})
    if depth > DEEPEST:
        raise ConfigError(f"a tool's schema is nested over {DEEPEST} levels deep, or refers to itself")
    if "$ref" in schema:
        return compiled(defs[schema["$ref"].rpartition("/")[2]], defs, depth + 1)
    if "anyOf" in schema:
        return AnyOf(tuple(compiled(option, defs, depth + 1) for option in schema["anyOf"]))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        return Constants(tuple(json.dumps(value, ensure_ascii=False).encode() for value in values))
    kind = schema.get("type")
    if kind in ("array", "object"):
        return array(schema, defs, depth) if kind == "array" else record(schema, defs, depth)
    return plain(schema)


def plain(schema: Mapping[str, Any]) -> Node:
    match schema.get("type"):
        case "string":
            return String(schema.get("minLength", 0), schema.get("maxLength"))
        case "number" | "integer" as kind:
            return bounded(schema, whole=kind == "integer")
        case "boolean":
            return Constants((b"true", b"false"))
        case "null":
            return Constants((b"null",))
    raise ConfigError(f"a tool's schema asks for {json.dumps(schema)[:120]}, which no grammar here can hold to")


def array(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Array:
    first = tuple(compiled(item, defs, depth + 1) for item in schema.get("prefixItems", ()))
    rest = compiled(schema["items"], defs, depth + 1) if isinstance(schema.get("items"), dict) else None
    most = schema.get("maxItems") if rest else min(schema.get("maxItems", len(first)), len(first))
    return Array(first, rest, schema.get("minItems", 0), most)


def record(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Object:
    inner = {key: compiled(value, defs, depth + 1) for key, value in schema.get("properties", {}).items()}
    return Object(inner, frozenset(schema.get("required", ())))


def bounded(schema: Mapping[str, Any], *, whole: bool) -> Number:
    unit = 1 if whole else 10**DIGITS_AFTER
    lows = [math.ceil(Fraction(schema["minimum"]) * unit)] if "minimum" in schema else []
    highs = [math.floor(Fraction(schema["maximum"]) * unit)] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        lows.append(math.floor(Fraction(schema["exclusiveMinimum"]) * unit) + 1)
    if "exclusiveMaximum" in schema:
        highs.append(math.ceil(Fraction(schema["exclusiveMaximum"]) * unit) - 1)
    return Number(whole, max(lows, default=None), min(highs, default=None))
