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

from pixelis.core.errors import ConfigError

INTEGER_DIGITS, FRACTION_DIGITS = 9, 6
"""Of a number, at most: a frame, a second or a share of the width needs no more."""
MAX_DEPTH = 16


@dataclass(frozen=True, eq=False)  # each is made once: identity is equality, and quick to hash
class AnyOf:
    options: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Constants:
    texts: tuple[bytes, ...]


@dataclass(frozen=True, eq=False)
class String:
    min_length: int
    max_length: int | None


@dataclass(frozen=True, eq=False)
class Number:
    """Bounds in units of the last digit that may be written, both included."""

    is_integer: bool
    low: int | None
    high: int | None


@dataclass(frozen=True, eq=False)
class Array:
    prefix_items: tuple[Node, ...]
    items: Node | None
    min_items: int
    max_items: int | None


@dataclass(frozen=True, eq=False)
class Object:
    properties: Mapping[str, Node]
    required: frozenset[str]


Node = AnyOf | Constants | String | Number | Array | Object


def compile_schema(schema: Mapping[str, Any], defs: Mapping[str, Any] | None = None, depth: int = 0) -> Node:
    """A JSON schema as nodes; ConfigError for what this subset does not know."""
    defs = schema.get("$defs", defs or {})
    if depth > MAX_DEPTH:
        raise ConfigError(f"a tool's schema is nested over {MAX_DEPTH} levels deep, or refers to itself")
    if "$ref" in schema:
        return compile_schema(defs[schema["$ref"].rpartition("/")[2]], defs, depth + 1)
    if "anyOf" in schema:
        return AnyOf(tuple(compile_schema(option, defs, depth + 1) for option in schema["anyOf"]))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is not None:
        return Constants(tuple(json.dumps(value, ensure_ascii=False).encode() for value in values))
    kind = schema.get("type")
    if kind in ("array", "object"):
        return compile_array(schema, defs, depth) if kind == "array" else compile_object(schema, defs, depth)
    return compile_scalar(schema)


def compile_scalar(schema: Mapping[str, Any]) -> Node:
    match schema.get("type"):
        case "string":
            return String(schema.get("minLength", 0), schema.get("maxLength"))
        case "number" | "integer" as kind:
            return compile_number(schema, is_integer=kind == "integer")
        case "boolean":
            return Constants((b"true", b"false"))
        case "null":
            return Constants((b"null",))
    raise ConfigError(f"a tool's schema asks for {json.dumps(schema)[:120]}, which no grammar here can hold to")


def compile_array(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Array:
    prefix_items = tuple(compile_schema(item, defs, depth + 1) for item in schema.get("prefixItems", ()))
    items = compile_schema(schema["items"], defs, depth + 1) if isinstance(schema.get("items"), dict) else None
    max_items = schema.get("maxItems") if items else min(schema.get("maxItems", len(prefix_items)), len(prefix_items))
    return Array(prefix_items, items, schema.get("minItems", 0), max_items)


def compile_object(schema: Mapping[str, Any], defs: Mapping[str, Any], depth: int) -> Object:
    inner = {key: compile_schema(value, defs, depth + 1) for key, value in schema.get("properties", {}).items()}
    return Object(inner, frozenset(schema.get("required", ())))


def compile_number(schema: Mapping[str, Any], *, is_integer: bool) -> Number:
    unit = 1 if is_integer else 10**FRACTION_DIGITS
    lows = [math.ceil(Fraction(schema["minimum"]) * unit)] if "minimum" in schema else []
    highs = [math.floor(Fraction(schema["maximum"]) * unit)] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        lows.append(math.floor(Fraction(schema["exclusiveMinimum"]) * unit) + 1)
    if "exclusiveMaximum" in schema:
        highs.append(math.ceil(Fraction(schema["exclusiveMaximum"]) * unit) - 1)
    return Number(is_integer, max(lows, default=None), min(highs, default=None))
