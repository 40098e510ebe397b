"""Which bytes may come next in JSON for a schema: an acceptor that is fed one byte at a time.

A state is a set of stacks, one for each way to read what was written so far (`[0.1, 0.2` may become a point or a box).
The top of a stack eats bytes; what lies below is still to come. States are values: they can be compared and kept.

Numbers have no exponent, and blanks stand only where a policy would write them: narrower than JSON, never wider.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from pixelis.core.errors import ConfigError
from pixelis.rollout.schema_nodes import (
    FRACTION_DIGITS,
    INTEGER_DIGITS,
    AnyOf,
    Array,
    Constants,
    Node,
    Number,
    Object,
    String,
)

# --- frames of a stack: the first three eat bytes, the others open into them


@dataclass(frozen=True, slots=True)
class LiteralFrame:
    rest: bytes


@dataclass(frozen=True, slots=True)
class StringFrame:
    """Inside a string, its closing quote included."""

    min_length: int
    max_length: int | None
    """Characters that must and may still come."""
    pending_bytes: int = 0
    """Bytes that the character still wants, the next of them between `low` and `high`."""
    low: int = 0x80
    high: int = 0xBF
    escape: str = ""

    @property
    def is_between_characters(self) -> bool:
        return not self.pending_bytes and not self.escape


@dataclass(frozen=True, slots=True)
class NumberFrame:
    number: Number
    text: str = ""
    is_unbounded: bool = False
    """Whether whatever comes stays within the bounds: then only the shape of `text` matters, and it says no more."""


@dataclass(frozen=True, slots=True)
class BlankFrame:
    pass


@dataclass(frozen=True, slots=True)
class ValueFrame:
    node: Node


@dataclass(frozen=True, slots=True)
class ObjectFrame:
    object: Object
    written_keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class ArrayFrame:
    array: Array
    count: int


Frame = LiteralFrame | StringFrame | NumberFrame | BlankFrame | ValueFrame | ObjectFrame | ArrayFrame
Stack = tuple[Frame, ...]
State = frozenset[Stack]
"""Stacks whose top eats a byte; the empty stack says that the JSON may end here."""


def initial_acceptor_state(*stacks: Stack) -> State:
    """Before the first byte of any of these."""
    return frozenset(state for stack in stacks for state in expand_stack(stack))


@lru_cache(maxsize=100_000)
def advance_acceptor(state: State, byte: int) -> State:
    """After one more byte; the empty set where it may not come."""
    next_stacks: set[Stack] = set()
    for stack in state:
        remainder = consume_byte(stack[-1], byte) if stack else None
        if remainder is not None:
            next_stacks.update(expand_stack(stack[:-1] + remainder))
    return frozenset(next_stacks)


def expand_stack(stack: Stack) -> Iterator[Stack]:
    """A stack until its top eats bytes, in every way."""
    if not stack or isinstance(stack[-1], LiteralFrame | StringFrame):
        yield stack
        return
    top, below = stack[-1], stack[:-1]
    if isinstance(top, NumberFrame):
        yield stack
        if is_complete_number(top):
            yield from expand_stack(below)
        return
    for frames in expand_frame(top):
        yield from expand_stack(below + frames)


def expand_frame(top: Frame) -> Iterator[Stack]:
    """What a frame that eats nothing stands for; the last of the frames comes first in the text."""
    if isinstance(top, BlankFrame):
        yield from ((), (LiteralFrame(b" "),), (LiteralFrame(b"\n"),))
    elif isinstance(top, ObjectFrame):
        if top.object.required <= top.written_keys:
            yield (LiteralFrame(b"}"),)
        comma: Stack = (BlankFrame(), LiteralFrame(b",")) if top.written_keys else ()
        for key, node in top.object.properties.items():
            if key not in top.written_keys:
                name = LiteralFrame(json.dumps(key, ensure_ascii=False).encode() + b":")
                yield (ObjectFrame(top.object, top.written_keys | {key}), ValueFrame(node), BlankFrame(), name, *comma)
    elif isinstance(top, ArrayFrame):
        array, count = top.array, top.count
        if count >= array.min_items:
            yield (LiteralFrame(b"]"),)
        if array.max_items is None or count < array.max_items:
            item = array.prefix_items[count] if count < len(array.prefix_items) else array.items
            comma = (BlankFrame(), LiteralFrame(b",")) if count else ()
            count_limit = (
                max(len(array.prefix_items), array.min_items, 1) if array.max_items is None else array.max_items
            )  # counting on says no more
            if item is not None:
                yield (ArrayFrame(array, min(count + 1, count_limit)), ValueFrame(item), *comma)
    elif isinstance(top, ValueFrame):
        yield from node_frames(top.node)


def node_frames(node: Node) -> Iterator[Stack]:
    if isinstance(node, AnyOf):
        yield from ((ValueFrame(option),) for option in node.options)
    elif isinstance(node, Constants):
        yield from ((LiteralFrame(text),) for text in node.texts)
    elif isinstance(node, String):
        yield (StringFrame(node.min_length, node.max_length), LiteralFrame(b'"'))
    elif isinstance(node, Number):
        yield (NumberFrame(node),)
    elif isinstance(node, Array):
        yield (ArrayFrame(node, 0), LiteralFrame(b"["))
    else:
        yield (ObjectFrame(node, frozenset()), LiteralFrame(b"{"))


def consume_byte(top: Frame, byte: int) -> Stack | None:
    """What is left of a frame after a byte; None where it cannot come."""
    if isinstance(top, LiteralFrame):
        if top.rest[0] != byte:
            return None
        return (LiteralFrame(top.rest[1:]),) if len(top.rest) > 1 else ()
    if isinstance(top, NumberFrame):
        next_digits = append_digit(top, chr(byte)) if byte < 0x80 else None
        return (next_digits,) if next_digits else None
    return consume_string_byte(top, byte) if isinstance(top, StringFrame) else None


# --- strings

UTF8_LEADS = (
    (0xC2, 0xDF, 1, 0x80, 0xBF), (0xE0, 0xE0, 2, 0xA0, 0xBF), (0xE1, 0xEC, 2, 0x80, 0xBF), (0xED, 0xED, 2, 0x80, 0x9F),
    (0xEE, 0xEF, 2, 0x80, 0xBF), (0xF0, 0xF0, 3, 0x90, 0xBF), (0xF1, 0xF3, 3, 0x80, 0xBF), (0xF4, 0xF4, 3, 0x80, 0x8F),
)  # fmt: skip
"""First bytes of characters in UTF-8, how many follow, and between which the next one lies (RFC 3629)."""


def consume_string_byte(top: StringFrame, byte: int) -> Stack | None:
    if top.pending_bytes:
        next_frame = replace(top, pending_bytes=top.pending_bytes - 1, low=0x80, high=0xBF)
        return (next_frame,) if top.low <= byte <= top.high else None
    if top.escape:
        return consume_escape(top, chr(byte))
    if byte == ord('"'):
        return () if top.min_length <= 0 else None
    return consume_character(top, byte)


def consume_character(top: StringFrame, byte: int) -> Stack | None:
    if byte < 0x20 or top.max_length == 0:
        return None
    shorter = replace(
        top, min_length=max(top.min_length - 1, 0), max_length=None if top.max_length is None else top.max_length - 1
    )
    if byte < 0x80:
        return (replace(shorter, escape="\\" if byte == ord("\\") else ""),)
    for first, last, pending_bytes, low, high in UTF8_LEADS:
        if first <= byte <= last:
            return (replace(shorter, pending_bytes=pending_bytes, low=low, high=high),)
    return None


def consume_escape(top: StringFrame, letter: str) -> Stack | None:
    if top.escape == "\\":
        if letter == "u":
            return (replace(top, escape="u"),)
        return (replace(top, escape=""),) if letter in '"\\/bfnrt' else None
    if letter not in "0123456789abcdefABCDEF":
        return None
    if top.escape.lower() == "ud" and letter not in "01234567":
        return None  # half of a pair: no character of its own
    escape = f"{top.escape}{letter}" if top.escape == "u" else f"{top.escape}0"  # later digits only count
    return (replace(top, escape="" if len(escape) == 5 else escape),)


# --- numbers


@lru_cache(maxsize=10_000)
def append_digit(top: NumberFrame, letter: str) -> NumberFrame | None:
    """A number with one more letter, if some number within the bounds begins like this."""
    text = top.text + letter
    if not is_well_formed(text, is_integer=top.number.is_integer):
        return None
    if top.is_unbounded:
        return replace(top, text=digit_shape(text))
    low, high = top.number.low, top.number.high
    ranges = list(reachable_ranges(text, is_integer=top.number.is_integer))
    if not any((high is None or a <= high) and (low is None or b >= low) for a, b in ranges):
        return None
    if text != "-" and all((high is None or b <= high) and (low is None or a >= low) for a, b in ranges):
        return NumberFrame(top.number, digit_shape(text), is_unbounded=True)
    return NumberFrame(top.number, text)


def is_well_formed(text: str, *, is_integer: bool) -> bool:
    before, dot, after = text.removeprefix("-").partition(".")
    if not all(c in "0123456789" for c in before + after) or (dot and (is_integer or not before)):
        return False
    leading_zero = len(before) > 1 and before[0] == "0"
    return not leading_zero and len(before) <= INTEGER_DIGITS and len(after) <= FRACTION_DIGITS


def digit_shape(text: str) -> str:
    """The same for all numbers that may go on alike."""
    before, dot, after = text.partition(".")
    integer_shape = before if before.removeprefix("-") == "0" else "".join("-" if c == "-" else "1" for c in before)
    return integer_shape + dot + "1" * len(after)


def reachable_ranges(text: str, *, is_integer: bool) -> Iterator[tuple[int, int]]:
    """Ranges, in units of the last digit, of all numbers that begin like this."""
    unit = 1 if is_integer else 10**FRACTION_DIGITS
    sign = -1 if text.startswith("-") else 1
    before, dot, after = text.removeprefix("-").partition(".")
    if not before:
        ranges = [(0, 10**INTEGER_DIGITS * unit)]
    elif dot:
        size = 10 ** (FRACTION_DIGITS - len(after))
        base = int(before) * unit + int(after or "0") * size
        ranges = [(base, base + size - 1)]
    else:
        more = 0 if before == "0" else INTEGER_DIGITS - len(before)
        ranges = [(int(before) * 10**k * unit, (int(before) + 1) * 10**k * unit - 1) for k in range(more + 1)]
    yield from ((a, b) if sign > 0 else (-b, -a) for a, b in ranges)


def is_complete_number(top: NumberFrame) -> bool:
    """Whether the number may end here."""
    if not top.text or not top.text[-1].isdigit():
        return False
    if top.is_unbounded:
        return True
    value = Fraction(top.text) * (1 if top.number.is_integer else 10**FRACTION_DIGITS)
    low, high = top.number.low, top.number.high
    return (low is None or value >= low) and (high is None or value <= high)


# --- how to come to an end


def shortest_completion(state: State) -> bytes:
    """The shortest text that ends the JSON from here."""
    return min((b"".join(frame_completion(frame) for frame in reversed(stack)) for stack in state), key=len)


def frame_completion(frame: Frame) -> bytes:
    """The shortest text for what is left of a frame."""
    match frame:
        case LiteralFrame():
            out = frame.rest
        case BlankFrame():
            out = b""
        case StringFrame():
            out = string_completion(frame)
        case NumberFrame():
            out = number_completion(frame)
        case ObjectFrame():
            missing = [key for key in frame.object.properties if key in frame.object.required - frame.written_keys]
            pairs = [json.dumps(k).encode() + b":" + shortest_value(frame.object.properties[k]) for k in missing]
            out = (b"," if frame.written_keys and pairs else b"") + b",".join(pairs) + b"}"
        case ArrayFrame():
            items = [shortest_value(get_item_node(frame.array, k)) for k in range(frame.count, frame.array.min_items)]
            out = (b"," if frame.count and items else b"") + b",".join(items) + b"]"
        case ValueFrame():
            out = shortest_value(frame.node)
    return out


def string_completion(frame: StringFrame) -> bytes:
    escape = b"n" if frame.escape == "\\" else b"0" * (5 - len(frame.escape)) if frame.escape else b""
    rest = bytes([frame.low] + [0x80] * (frame.pending_bytes - 1)) if frame.pending_bytes else b""
    return escape + rest + b"a" * frame.min_length + b'"'


@lru_cache(maxsize=10_000)
def shortest_value(node: Node) -> bytes:
    return min(
        (b"".join(frame_completion(frame) for frame in reversed(frames)) for frames in node_frames(node)), key=len
    )


def get_item_node(array: Array, index: int) -> Node:
    node = array.prefix_items[index] if index < len(array.prefix_items) else array.items
    if node is None:
        raise ConfigError(f"a tool's schema asks for {array.min_items} items and describes {len(array.prefix_items)}")
    return node


@lru_cache(maxsize=10_000)
def number_completion(top: NumberFrame) -> bytes:
    level: Sequence[tuple[str, NumberFrame]] = [("", top)]
    for _ in range(INTEGER_DIGITS + FRACTION_DIGITS + 2):
        for written, digits in level:
            if is_complete_number(digits):
                return written.encode()
        next_level: dict[NumberFrame, str] = {}
        for written, digits in level:
            for letter in "0123456789.-":
                next_digits = append_digit(digits, letter)
                if next_digits is not None:
                    next_level.setdefault(next_digits, written + letter)
        level = [(written, digits) for digits, written in next_level.items()]
    raise ConfigError("a tool's schema asks for a number that cannot be written")
