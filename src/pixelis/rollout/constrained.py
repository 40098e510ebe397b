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

from pixelis.core.errors import ConfigError
from pixelis.policy.chat_format import UNWRITTEN_ARGUMENTS
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rollout.json_acceptor import (
    BlankFrame,
    LiteralFrame,
    Stack,
    State,
    StringFrame,
    ValueFrame,
    advance_acceptor,
    initial_acceptor_state,
    shortest_completion,
)
from pixelis.rollout.schema_nodes import compile_schema
from pixelis.trace.tool_call_parser import CALL_CLOSE, CALL_OPEN

MASK_CACHE_SIZE = 4096
CLOSING_MARGIN = 24
"""Tokens that one token may oblige the call to: a key with a box after it."""
MAX_CLOSING_TOKENS = 96
"""With more tokens left than this, every call can be ended: nobody needs to look how."""


class TokenConstraint(Protocol):
    """What the engine asks of a grammar; a state is whatever the grammar makes it."""

    def initial_state(self) -> Any:
        """The state in which a turn begins."""

    def advance(self, state: Any, token: int) -> Any:
        """The state after a token was sampled."""

    def allowed_tokens(self, state: Any, remaining: int) -> Tensor | None:
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

    def __init__(
        self,
        tokenizer: PolicyTokenizer,
        schemas: Sequence[dict[str, Any]],
        *,
        omit: Sequence[str] = UNWRITTEN_ARGUMENTS,
    ):
        """`omit` names arguments that are never written."""
        if CALL_OPEN not in tokenizer.control_ids or CALL_CLOSE not in tokenizer.control_ids:
            raise ConfigError("a grammar needs a tokenizer in which <tool_call> and </tool_call> are tokens")
        self.tokenizer = tokenizer
        self._open, self._close = tokenizer.control_ids[CALL_OPEN], tokenizer.control_ids[CALL_CLOSE]
        self._start = initial_acceptor_state(*(call_frames(schema, omit) for schema in schemas))
        self._bytes = token_bytes(tokenizer)
        self._trie, self._special_trie = Trie(), Trie()
        plain_lengths = torch.full((len(tokenizer),), -1)
        for token, content in self._bytes.items():
            self._trie.add(content, token)
            length = count_plain_characters(content)
            if length is None:
                self._special_trie.add(content, token)
            else:
                plain_lengths[token] = length
        self._plain_lengths = plain_lengths
        """(V,) characters of a token that may stand anywhere in a string; -1 for all others."""
        self._max_plain_length = int(plain_lengths.max())
        self._masks: OrderedDict[State, Tensor] = OrderedDict()
        self._end_mask = self._single_token_mask(tokenizer.end_id)

    def initial_state(self) -> Any:
        return OUTSIDE

    def advance(self, state: Any, token: int) -> Any:
        if state is OUTSIDE:
            return self._start if token == self._open else OUTSIDE
        if state is CLOSED or token == self._close:
            return CLOSED
        for byte in self._bytes.get(token, b""):
            state = advance_acceptor(state, byte)
        return state

    def allowed_tokens(self, state: Any, remaining: int) -> Tensor | None:
        if state is OUTSIDE:
            return None
        if state is CLOSED:
            return self._end_mask
        forced = self._forced_token(state, remaining)
        return self.mask(state) if forced is None else self._single_token_mask(forced)

    def _forced_token(self, state: State, remaining: int) -> int | None:
        """The next token of the shortest way out, once the turn has no room for more."""
        if remaining > MAX_CLOSING_TOKENS:
            return None
        text = shortest_completion(state)
        try:
            closing_ids = self.tokenizer.encode(text.decode())
        except UnicodeDecodeError:  # in the middle of a character: it ends first
            return None
        if remaining > len(closing_ids) + 2 + CLOSING_MARGIN:
            return None
        return closing_ids[0] if closing_ids else self._close

    def mask(self, state: State) -> Tensor:
        """(V,) the tokens that keep the call valid."""
        key = frozenset(self._clip_stack(stack) for stack in state)
        cached = self._masks.get(key)
        if cached is not None:
            self._masks.move_to_end(key)
            return cached
        string_frame = self._inside_string(state)
        mask = torch.zeros(len(self.tokenizer), dtype=torch.bool)
        if string_frame is not None:
            limit = self._max_plain_length if string_frame.max_length is None else string_frame.max_length
            mask = (self._plain_lengths >= 0) & (self._plain_lengths <= limit)
        allowed_ids: list[int] = []
        collect_tokens(self._trie if string_frame is None else self._special_trie, state, allowed_ids)
        mask[allowed_ids] = True
        if () in state:
            mask[self._close] = True
        self._masks[key] = mask
        if len(self._masks) > MASK_CACHE_SIZE:
            self._masks.popitem(last=False)
        return mask

    def _inside_string(self, state: State) -> StringFrame | None:
        """The string that everything is about, between two of its characters, where a shortcut serves."""
        (stack, *others) = state
        top = stack[-1] if stack else None
        return top if not others and isinstance(top, StringFrame) and top.is_between_characters else None

    def _clip_stack(self, stack: Any) -> Any:
        """Room in a string beyond the longest token makes no difference to the next one."""
        top = stack[-1] if stack else None
        if isinstance(top, StringFrame) and top.max_length is not None and top.max_length > self._max_plain_length:
            return (*stack[:-1], replace(top, max_length=self._max_plain_length))
        return stack

    def _single_token_mask(self, token: int) -> Tensor:
        mask = torch.zeros(len(self.tokenizer), dtype=torch.bool)
        mask[token] = True
        return mask


def collect_tokens(trie: Trie, state: State, token_ids: list[int]) -> None:
    """Every token whose bytes the acceptor takes from here."""
    for byte, child in trie.children.items():
        next_state = advance_acceptor(state, byte)
        if next_state:
            token_ids += child.ids
            collect_tokens(child, next_state, token_ids)


def call_frames(tool: Mapping[str, Any], omit: Sequence[str]) -> Stack:
    """A whole call of a tool in the OpenAI function format, its name first; the last frame comes first in the text."""
    function = tool["function"]
    parameters = dict(function["parameters"])
    parameters["properties"] = {k: v for k, v in parameters.get("properties", {}).items() if k not in omit}
    name = json.dumps(function["name"], ensure_ascii=False).encode()
    head = (
        BlankFrame(),
        LiteralFrame(b'{"name":'),
        BlankFrame(),
        LiteralFrame(name + b","),
        BlankFrame(),
        LiteralFrame(b'"arguments":'),
        BlankFrame(),
    )
    return (BlankFrame(), LiteralFrame(b"}"), ValueFrame(compile_schema(parameters)), *reversed(head))


def token_bytes(tokenizer: PolicyTokenizer) -> dict[int, bytes]:
    """What each token writes, for byte-level BPE; control tokens write nothing."""
    letter_to_byte = letter_to_byte_map()
    added = {int(k): str(token) for k, token in tokenizer.hf_tokenizer.added_tokens_decoder.items()}
    control = set(tokenizer.control_ids.values())
    out: dict[int, bytes] = {}
    for token in range(len(tokenizer)):
        if token in control:
            continue
        if token in added:
            out[token] = added[token].encode()
            continue
        name = tokenizer.hf_tokenizer.convert_ids_to_tokens(token)
        if name and all(letter in letter_to_byte for letter in name):
            out[token] = bytes(letter_to_byte[letter] for letter in name)
    return out


def letter_to_byte_map() -> dict[str, int]:
    """Byte-level BPE writes each byte as one printable letter: itself where it is one, else the next from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    out = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in set(printable)]
    return out | {chr(256 + k): byte for k, byte in enumerate(rest)}


def count_plain_characters(content: bytes) -> int | None:
    """How many characters a token has, if they may stand anywhere in a JSON string; None for all others."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if any(c in '"\\' or c < " " for c in text) else len(text)
