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

from pixelis.errors import ConfigError
from pixelis.rollout.schema_nodes import (
    DIGITS_AFTER,
    DIGITS_BEFORE,
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
class Literal:
    rest: bytes


@dataclass(frozen=True, slots=True)
class Text:
    """Inside a string, its closing quote included."""

    least: int
    most: int | None
    """Characters that must and may still come."""
    wanted: int = 0
    """Bytes that the character still wants, the next of them between `low` and `high`."""
    low: int = 0x80
    high: int = 0xBF
    escape: str = ""

    @property
    def neutral(self) -> bool:
        return not self.wanted and not self.escape


@dataclass(frozen=True, slots=True)
class Digits:
    number: Number
    text: str = ""
    free: bool = False
    """Whether whatever comes stays within the bounds: then only the shape of `text` matters, and it says no more."""


@dataclass(frozen=True, slots=True)
class Blank:
    pass


@dataclass(frozen=True, slots=True)
class Value:
    node: Node


@dataclass(frozen=True, slots=True)
class Members:
    object: Object
    seen: frozenset[str]


@dataclass(frozen=True, slots=True)
class Items:
    array: Array
    count: int


Frame = Literal | Text | Digits | Blank | Value | Members | Items
Stack = tuple[Frame, ...]
State = frozenset[Stack]
"""Stacks whose top eats a byte; the empty stack says that the JSON may end here."""


def start(*stacks: Stack) -> State:
    """Before the first byte of any of these."""
    return frozenset(state for stack in stacks for state in opened(stack))


@lru_cache(maxsize=100_000)
def step(state: State, byte: int) -> State:
    """After one more byte; the empty set where it may not come."""
    after: set[Stack] = set()
    for stack in state:
        eaten = eat(stack[-1], byte) if stack else None
        if eaten is not None:
            after.update(opened(stack[:-1] + eaten))
    return frozenset(after)


def opened(stack: Stack) -> Iterator[Stack]:
    """A stack until its top eats bytes, in every way."""
    if not stack or isinstance(stack[-1], Literal | Text):
        yield stack
        return
    top, below = stack[-1], stack[:-1]
    if isinstance(top, Digits):
        yield stack
        if complete(top):
            yield from opened(below)
        return
    for frames in unfolded(top):
        yield from opened(below + frames)


def unfolded(top: Frame) -> Iterator[Stack]:
    """What a frame that eats nothing stands for; the last of the frames comes first in the text."""
    if isinstance(top, Blank):
        yield from ((), (Literal(b" "),), (Literal(b"\n"),))
    elif isinstance(top, Members):
        if top.object.required <= top.seen:
            yield (Literal(b"}"),)
        comma: Stack = (Blank(), Literal(b",")) if top.seen else ()
        for key, node in top.object.properties.items():
            if key not in top.seen:
                name = Literal(json.dumps(key, ensure_ascii=False).encode() + b":")
                yield (Members(top.object, top.seen | {key}), Value(node), Blank(), name, *comma)
    elif isinstance(top, Items):
        array, count = top.array, top.count
        if count >= array.least:
            yield (Literal(b"]"),)
        if array.most is None or count < array.most:
            item = array.first[count] if count < len(array.first) else array.rest
            comma = (Blank(), Literal(b",")) if count else ()
            far = (
                max(len(array.first), array.least, 1) if array.most is None else array.most
            )  # counting on says no more
            if item is not None:
                yield (Items(array, min(count + 1, far)), Value(item), *comma)
    elif isinstance(top, Value):
        yield from values(top.node)


def values(node: Node) -> Iterator[Stack]:
    if isinstance(node, AnyOf):
        yield from ((Value(option),) for option in node.options)
    elif isinstance(node, Constants):
        yield from ((Literal(text),) for text in node.texts)
    elif isinstance(node, String):
        yield (Text(node.shortest, node.longest), Literal(b'"'))
    elif isinstance(node, Number):
        yield (Digits(node),)
    elif isinstance(node, Array):
        yield (Items(node, 0), Literal(b"["))
    else:
        yield (Members(node, frozenset()), Literal(b"{"))


def eat(top: Frame, byte: int) -> Stack | None:
    """What is left of a frame after a byte; None where it cannot come."""
    if isinstance(top, Literal):
        if top.rest[0] != byte:
            return None
        return (Literal(top.rest[1:]),) if len(top.rest) > 1 else ()
    if isinstance(top, Digits):
        after = with_digit(top, chr(byte)) if byte < 0x80 else None
        return (after,) if after else None
    return eat_text(top, byte) if isinstance(top, Text) else None


# --- strings

LEADS = (
    (0xC2, 0xDF, 1, 0x80, 0xBF), (0xE0, 0xE0, 2, 0xA0, 0xBF), (0xE1, 0xEC, 2, 0x80, 0xBF), (0xED, 0xED, 2, 0x80, 0x9F),
    (0xEE, 0xEF, 2, 0x80, 0xBF), (0xF0, 0xF0, 3, 0x90, 0xBF), (0xF1, 0xF3, 3, 0x80, 0xBF), (0xF4, 0xF4, 3, 0x80, 0x8F),
)  # fmt: skip
"""First bytes of characters in UTF-8, how many follow, and between which the next one lies (RFC 3629)."""


def eat_text(top: Text, byte: int) -> Stack | None:
    if top.wanted:
        rest = replace(top, wanted=top.wanted - 1, low=0x80, high=0xBF)
        return (rest,) if top.low <= byte <= top.high else None
    if top.escape:
        return eat_escape(top, chr(byte))
    if byte == ord('"'):
        return () if top.least <= 0 else None
    return eat_character(top, byte)


def eat_character(top: Text, byte: int) -> Stack | None:
    if byte < 0x20 or top.most == 0:
        return None
    one_less = replace(top, least=max(top.least - 1, 0), most=None if top.most is None else top.most - 1)
    if byte < 0x80:
        return (replace(one_less, escape="\\" if byte == ord("\\") else ""),)
    for first, last, wanted, low, high in LEADS:
        if first <= byte <= last:
            return (replace(one_less, wanted=wanted, low=low, high=high),)
    return None


def eat_escape(top: Text, letter: str) -> Stack | None:
    if top.escape == "\\":
        if letter == "u":
            return (replace(top, escape="u"),)
        return (replace(top, escape=""),) if letter in '"\\/bfnrt' else None
    if letter not in "0123456789abcdefABCDEF":
        return None
    if top.escape.lower() == "ud" and letter not in "01234567":
        return None  # half of a pair: no character of its own
    kept = f"{top.escape}{letter}" if top.escape == "u" else f"{top.escape}0"  # later digits only count
    return (replace(top, escape="" if len(kept) == 5 else kept),)


# --- numbers


@lru_cache(maxsize=10_000)
def with_digit(top: Digits, letter: str) -> Digits | None:
    """A number with one more letter, if some number within the bounds begins like this."""
    text = top.text + letter
    if not well_formed(text, whole=top.number.whole):
        return None
    if top.free:
        return replace(top, text=shape(text))
    low, high = top.number.low, top.number.high
    ranges = list(reachable(text, whole=top.number.whole))
    if not any((high is None or a <= high) and (low is None or b >= low) for a, b in ranges):
        return None
    if text != "-" and all((high is None or b <= high) and (low is None or a >= low) for a, b in ranges):
        return Digits(top.number, shape(text), free=True)
    return Digits(top.number, text)


def well_formed(text: str, *, whole: bool) -> bool:
    before, dot, after = text.removeprefix("-").partition(".")
    if not all(c in "0123456789" for c in before + after) or (dot and (whole or not before)):
        return False
    leading_zero = len(before) > 1 and before[0] == "0"
    return not leading_zero and len(before) <= DIGITS_BEFORE and len(after) <= DIGITS_AFTER


def shape(text: str) -> str:
    """The same for all numbers that may go on alike."""
    before, dot, after = text.partition(".")
    alike = before if before.removeprefix("-") == "0" else "".join("-" if c == "-" else "1" for c in before)
    return alike + dot + "1" * len(after)


def reachable(text: str, *, whole: bool) -> Iterator[tuple[int, int]]:
    """Ranges, in units of the last digit, of all numbers that begin like this."""
    unit = 1 if whole else 10**DIGITS_AFTER
    sign = -1 if text.startswith("-") else 1
    before, dot, after = text.removeprefix("-").partition(".")
    if not before:
        ranges = [(0, 10**DIGITS_BEFORE * unit)]
    elif dot:
        size = 10 ** (DIGITS_AFTER - len(after))
        base = int(before) * unit + int(after or "0") * size
        ranges = [(base, base + size - 1)]
    else:
        more = 0 if before == "0" else DIGITS_BEFORE - len(before)
        ranges = [(int(before) * 10**k * unit, (int(before) + 1) * 10**k * unit - 1) for k in range(more + 1)]
    yield from ((a, b) if sign > 0 else (-b, -a) for a, b in ranges)


def complete(top: Digits) -> bool:
    """Whether the number may end here."""
    if not top.text or not top.text[-1].isdigit():
        return False
    if top.free:
        return True
    value = Fraction(top.text) * (1 if top.number.whole else 10**DIGITS_AFTER)
    low, high = top.number.low, top.number.high
    return (low is None or value >= low) and (high is None or value <= high)


# --- how to come to an end


def closing(state: State) -> bytes:
    """The shortest text that ends the JSON from here."""
    return min((b"".join(ending(frame) for frame in reversed(stack)) for stack in state), key=len)


def ending(frame: Frame) -> bytes:
    """The shortest text for what is left of a frame."""
    match frame:
        case Literal():
            out = frame.rest
        case Blank():
            out = b""
        case Text():
            out = string_ending(frame)
        case Digits():
            out = shortest_number(frame)
        case Members():
            missing = [key for key in frame.object.properties if key in frame.object.required - frame.seen]
            pairs = [json.dumps(k).encode() + b":" + shortest(frame.object.properties[k]) for k in missing]
            out = (b"," if frame.seen and pairs else b"") + b",".join(pairs) + b"}"
        case Items():
            items = [shortest(item_of(frame.array, k)) for k in range(frame.count, frame.array.least)]
            out = (b"," if frame.count and items else b"") + b",".join(items) + b"]"
        case Value():
            out = shortest(frame.node)
    return out


def string_ending(frame: Text) -> bytes:
    escape = b"n" if frame.escape == "\\" else b"0" * (5 - len(frame.escape)) if frame.escape else b""
    rest = bytes([frame.low] + [0x80] * (frame.wanted - 1)) if frame.wanted else b""
    return escape + rest + b"a" * frame.least + b'"'


@lru_cache(maxsize=10_000)
def shortest(node: Node) -> bytes:
    return min((b"".join(ending(frame) for frame in reversed(frames)) for frames in values(node)), key=len)


def item_of(array: Array, place: int) -> Node:
    node = array.first[place] if place < len(array.first) else array.rest
    if node is None:
        raise ConfigError(f"a tool's schema asks for {array.least} items and describes {len(array.first)}")
    return node


@lru_cache(maxsize=10_000)
def shortest_number(top: Digits) -> bytes:
    level: Sequence[tuple[str, Digits]] = [("", top)]
    for _ in range(DIGITS_BEFORE + DIGITS_AFTER + 2):
        for written, at in level:
            if complete(at):
                return written.encode()
        grown: dict[Digits, str] = {}
        for written, at in level:
            for letter in "0123456789.-":
                after = with_digit(at, letter)
                if after is not None:
                    grown.setdefault(after, written + letter)
        level = [(written, at) for at, written in grown.items()]
    raise ConfigError("a tool's schema asks for a number that cannot be written")
