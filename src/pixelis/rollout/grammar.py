"""Constrained decoding: inside `<tool_call>` only such tokens may be sampled as keep the call valid for its schema.

The acceptor says which bytes may come; a trie of the vocabulary turns that into a mask of tokens, which is kept for the
next time that a call is in the same state. Outside a call nothing is constrained. What is recorded is the probability
under the policy itself, so that an update sees the policy that it updates.

Rules between two arguments ("frame or time_s, not both") are not in the schemas: the tool itself refuses such a call.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from pixelis.errors import ConfigError
from pixelis.policy.script import UNWRITTEN_ARGUMENTS
from pixelis.policy.tokens import Tokens
from pixelis.rollout.acceptor import Blank, Literal, Stack, State, Text, Value, closing, start, step
from pixelis.rollout.schema_nodes import compiled
from pixelis.trace.grammar import CLOSE, OPEN

MASKS_KEPT = 4096
ROOM_TO_CLOSE = 24
"""Tokens that one token may oblige the call to: a key with a box after it."""
LONGEST_CLOSING = 96
"""With more tokens left than this, every call can be ended: nobody needs to look how."""


class Constrains(Protocol):
    """What the engine asks of a grammar; a state is whatever the grammar makes it."""

    def begin(self) -> Any:
        """The state in which a turn begins."""

    def after(self, state: Any, token: int) -> Any:
        """The state after a token was sampled."""

    def allowed(self, state: Any, left: int) -> Tensor | None:
        """(V,) which tokens may come, with `left` of them until the turn is cut off; None where all may."""


OUTSIDE, CLOSED = "outside", "closed"


@dataclass
class Trie:
    """Tokens by their bytes."""

    ids: list[int] = field(default_factory=list)
    children: dict[int, Trie] = field(default_factory=dict)

    def add(self, content: bytes, token: int) -> None:
        node = self
        for byte in content:
            node = node.children.setdefault(byte, Trie())
        node.ids.append(token)


class CallGrammar:
    """Holds every call to the schema of its tool."""

    def __init__(self, tokens: Tokens, schemas: Sequence[dict[str, Any]], *, omit: Sequence[str] = UNWRITTEN_ARGUMENTS):
        """`omit` names arguments that are never written."""
        if OPEN not in tokens.control or CLOSE not in tokens.control:
            raise ConfigError("a grammar needs a tokenizer in which <tool_call> and </tool_call> are tokens")
        self.tokens = tokens
        self._open, self._close = tokens.control[OPEN], tokens.control[CLOSE]
        self._start = start(*(call_frames(schema, omit) for schema in schemas))
        self._bytes = token_bytes(tokens)
        self._all, self._special = Trie(), Trie()
        letters = torch.full((len(tokens),), -1)
        for token, content in self._bytes.items():
            self._all.add(content, token)
            plain = plain_letters(content)
            if plain is None:
                self._special.add(content, token)
            else:
                letters[token] = plain
        self._letters = letters
        """(V,) characters of a token that may stand anywhere in a string; -1 for all others."""
        self._longest = int(letters.max())
        self._masks: OrderedDict[State, Tensor] = OrderedDict()
        self._only_end = self._only(tokens.end)

    def begin(self) -> Any:
        return OUTSIDE

    def after(self, state: Any, token: int) -> Any:
        if state is OUTSIDE:
            return self._start if token == self._open else OUTSIDE
        if state is CLOSED or token == self._close:
            return CLOSED
        for byte in self._bytes.get(token, b""):
            state = step(state, byte)
        return state

    def allowed(self, state: Any, left: int) -> Tensor | None:
        if state is OUTSIDE:
            return None
        if state is CLOSED:
            return self._only_end
        hurried = self._hurried(state, left)
        return self.mask(state) if hurried is None else self._only(hurried)

    def _hurried(self, state: State, left: int) -> int | None:
        """The next token of the shortest way out, once the turn has no room for more."""
        if left > LONGEST_CLOSING:
            return None
        text = closing(state)
        try:
            out = self.tokens.encode(text.decode())
        except UnicodeDecodeError:  # in the middle of a character: it ends first
            return None
        if left > len(out) + 2 + ROOM_TO_CLOSE:
            return None
        return out[0] if out else self._close

    def mask(self, state: State) -> Tensor:
        """(V,) the tokens that keep the call valid."""
        key = frozenset(self._clipped(stack) for stack in state)
        known = self._masks.get(key)
        if known is not None:
            self._masks.move_to_end(key)
            return known
        inside = self._inside_string(state)
        mask = torch.zeros(len(self.tokens), dtype=torch.bool)
        if inside is not None:
            most = self._longest if inside.most is None else inside.most
            mask = (self._letters >= 0) & (self._letters <= most)
        found: list[int] = []
        walk(self._all if inside is None else self._special, state, found)
        mask[found] = True
        if () in state:
            mask[self._close] = True
        self._masks[key] = mask
        if len(self._masks) > MASKS_KEPT:
            self._masks.popitem(last=False)
        return mask

    def _inside_string(self, state: State) -> Text | None:
        """The string that everything is about, between two of its characters, where a shortcut serves."""
        (stack, *others) = state
        top = stack[-1] if stack else None
        return top if not others and isinstance(top, Text) and top.neutral else None

    def _clipped(self, stack: Any) -> Any:
        """Room in a string beyond the longest token makes no difference to the next one."""
        top = stack[-1] if stack else None
        if isinstance(top, Text) and top.most is not None and top.most > self._longest:
            return (*stack[:-1], replace(top, most=self._longest))
        return stack

    def _only(self, token: int) -> Tensor:
        mask = torch.zeros(len(self.tokens), dtype=torch.bool)
        mask[token] = True
        return mask


def walk(trie: Trie, state: State, found: list[int]) -> None:
    """Every token whose bytes the acceptor takes from here."""
    for byte, child in trie.children.items():
        after = step(state, byte)
        if after:
            found += child.ids
            walk(child, after, found)


def call_frames(tool: Mapping[str, Any], omit: Sequence[str]) -> Stack:
    """A whole call of a tool in the OpenAI function format, its name first; the last frame comes first in the text."""
    function = tool["function"]
    parameters = dict(function["parameters"])
    parameters["properties"] = {k: v for k, v in parameters.get("properties", {}).items() if k not in omit}
    name = json.dumps(function["name"], ensure_ascii=False).encode()
    words = (Blank(), Literal(b'{"name":'), Blank(), Literal(name + b","), Blank(), Literal(b'"arguments":'), Blank())
    return (Blank(), Literal(b"}"), Value(compiled(parameters)), *reversed(words))


def token_bytes(tokens: Tokens) -> dict[int, bytes]:
    """What each token writes, for byte-level BPE; control tokens write nothing."""
    letters = byte_letters()
    added = {int(k): str(token) for k, token in tokens.tokenizer.added_tokens_decoder.items()}
    control = set(tokens.control.values())
    out: dict[int, bytes] = {}
    for token in range(len(tokens)):
        if token in control:
            continue
        if token in added:
            out[token] = added[token].encode()
            continue
        name = tokens.tokenizer.convert_ids_to_tokens(token)
        if name and all(letter in letters for letter in name):
            out[token] = bytes(letters[letter] for letter in name)
    return out


def byte_letters() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable letter: itself where it is one, else the next from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    out = {chr(byte): byte for byte in plain}
    rest = [byte for byte in range(256) if byte not in set(plain)]
    return out | {chr(256 + k): byte for k, byte in enumerate(rest)}


def plain_letters(content: bytes) -> int | None:
    """How many characters a token has, if they may stand anywhere in a JSON string; None for all others."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if any(c in '"\\' or c < " " for c in text) else len(text)
