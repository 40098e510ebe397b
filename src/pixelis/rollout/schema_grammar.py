"""JSON schemas as grammars for llguidance, in its dialect of Lark.

The subset of JSON Schema is what tools use: $ref, anyOf, const, enum, string with lengths, number and integer with
bounds, boolean, null, array with prefixItems, items and lengths, and objects without unknown keys. llguidance reads
schemas itself, but fixes the order of an object's keys; here a policy may write them in any order.

Numbers have no exponent, at most nine digits before the point and six after it, and blanks stand only where a policy
would write them: narrower than JSON, never wider.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pixelis.core.errors import ConfigError

MAX_DEPTH = 16
MAX_NUMBER, NUMBER_UNIT = 999_999_999, 1e-6
"""No frame, second or share of the width needs more digits."""
CHARACTER = r'([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u([0-9a-cefA-CEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{2}))'
"""One character of a JSON string; half of a surrogate pair is none."""
COMMON_RULES = '%llguidance {"no_forcing": true}\nblank: /[ \\n]/?'
"""Without forcing, all tokens that may come are allowed where only one text may: the policy chooses among them."""
COMMA = '"," blank'


def value_grammar(schema: Mapping[str, Any]) -> str:
    """The grammar of one value."""
    rules = [COMMON_RULES]
    start = add_rules(schema, rules)
    return "\n".join([*rules, f"start: {start}"])


def call_grammar(tools: Sequence[Mapping[str, Any]], omit: Sequence[str]) -> str:
    """The grammar of a call to one of these tools (OpenAI function format), its name first; arguments in `omit` are
    never written."""
    rules, calls = [COMMON_RULES], []
    for tool in tools:
        function = tool["function"]
        properties = {k: v for k, v in function["parameters"].get("properties", {}).items() if k not in omit}
        arguments = add_rules({**function["parameters"], "properties": properties}, rules)
        calls.append(f'{literal(function["name"])} {COMMA} "\\"arguments\\":" blank {arguments}')
    return "\n".join([*rules, f'start: blank "{{\\"name\\":" blank ({" | ".join(calls)}) "}}" blank'])


def add_rules(schema: Mapping[str, Any], rules: list[str], defs: dict[str, Any] | None = None, depth: int = 0) -> str:
    """The expression of a schema; rules that it uses are appended. ConfigError for what is outside the subset."""
    defs = schema.get("$defs", defs or {})
    if depth > MAX_DEPTH:
        raise ConfigError(f"a tool's schema is nested over {MAX_DEPTH} levels deep, or refers to itself")

    def expression(part: Mapping[str, Any]) -> str:
        return add_rules(part, rules, defs, depth + 1)

    if "$ref" in schema:
        return expression(defs[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return f"({' | '.join(expression(option) for option in schema['anyOf'])})"
    match schema.get("type"):
        case _ if "const" in schema or "enum" in schema:
            out = one_of(schema.get("enum", [schema.get("const")]))
        case "boolean":
            out = one_of([True, False])
        case "null":
            out = literal(None)
        case "string":
            out = f'/"{CHARACTER}{{{schema.get("minLength", 0)},{schema.get("maxLength", "")}}}"/'
        case "number" | "integer":
            out = number_expression(schema)
        case "array":
            items = [expression(item) for item in schema.get("prefixItems", ())]
            rest = expression(schema["items"]) if isinstance(schema.get("items"), dict) else None
            out = array_expression(items, rest, schema.get("minItems", 0), schema.get("maxItems"))
        case "object":
            pairs = {key: expression(value) for key, value in schema.get("properties", {}).items()}
            out = object_expression(pairs, schema.get("required", ()), rules)
        case _:
            raise ConfigError(f"a tool's schema asks for {json.dumps(schema)[:120]}, which no grammar here can express")
    return out


def one_of(values: Iterable[Any]) -> str:
    return f"({' | '.join(map(literal, values))})"


def literal(value: Any) -> str:
    """A JSON value as it is written, quoted for Lark."""
    return json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False)


def number_expression(schema: Mapping[str, Any]) -> str:
    kind = schema["type"]
    unit = 1 if kind == "integer" else NUMBER_UNIT
    low = max(schema.get("minimum", -MAX_NUMBER), schema.get("exclusiveMinimum", -MAX_NUMBER) + unit)
    high = min(schema.get("maximum", MAX_NUMBER), schema.get("exclusiveMaximum", MAX_NUMBER) - unit)
    # llguidance's own exclusive bounds refuse trailing zeros (0.10)
    bounds = {"minimum": round(low, 6), "maximum": round(high, 6), "multipleOf": unit}
    return f"%json {json.dumps({'type': kind, **bounds, 'x-guidance': {'whitespace_flexible': False}})}"


def array_expression(items: list[str], rest: str | None, min_items: int, max_items: int | None) -> str:
    """An array of these items and then any number of `rest`, within the bounds."""
    items = (items or [rest] if rest else items)[:max_items]
    out = ""
    if rest is not None:
        most = "" if max_items is None else max_items - len(items)
        out = f"({COMMA} {rest}){{{max(min_items - len(items), 0)},{most}}}"
    for k, item in reversed(list(enumerate(items))):
        out = f"{f'{COMMA} ' if k else ''}{item} {out}"
        if k >= min_items:
            out = f"({out})?"
    return f'"[" {out} "]"'


def object_expression(pairs: Mapping[str, str], required: Sequence[str], rules: list[str]) -> str:
    """An object with each key at most once, in any order: bit k of a rule's parameter says that key k is written."""
    name = f"object{len(rules)}"
    keys = sorted(pairs, key=lambda key: key not in required)  # the required ones have the low bits
    end = f'"}}" %if is_ones([0:{len(required)}])' if required else '"}"'
    for k, key in enumerate(keys):
        rules.append(f'{name}_key{k}: {literal(key)[:-1]}:" blank {pairs[key]}')
    first = [f"{name}_key{k} {name}_more::set_bit({k})" for k in range(len(keys))]
    more = [f"{COMMA} {step} %if bit_clear({k})" for k, step in enumerate(first)]
    rules.append(f"{name}::_: {' | '.join([end, *first])}")
    rules.append(f"{name}_more::_: {' | '.join([end, *more])}")
    return f'"{{" {name}::0x0'
