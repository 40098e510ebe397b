"""Constrained decoding: inside `<tool_call>` only tokens that keep the call valid for its tool's schema may be sampled.

llguidance turns the grammar of all calls into a mask of tokens. Outside a call nothing is constrained. The recorded
probability is that under the policy itself, so that an update sees the policy that it updates.

Rules between two arguments ("frame or time_s, not both") are not in the schemas: the tool itself refuses such a call.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray
from torch import Tensor

from pixelis.core.errors import ConfigError
from pixelis.policy.chat_format import UNWRITTEN_ARGUMENTS
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rollout.schema_grammar import call_grammar
from pixelis.trace.tool_call_parser import CALL_CLOSE, CALL_OPEN

MASK_CACHE_SIZE = 1024
CLOSING_MARGIN = 24
"""Tokens that one token may oblige the call to: a key with a box after it."""
MAX_CLOSING_TOKENS = 96
"""With more tokens left than this, every call can still be ended."""
MAX_STRUCTURE_BYTES = 40
"""Where more bytes than this may come, they are the text of a string."""
ENDS = ([], *([byte] for byte in b"]},"))
"""The useful bytes after a complete number."""


class TokenConstraint(Protocol):
    """What the engine asks of a grammar; a state is any value and never changes."""

    def initial_state(self) -> Any:
        """The state in which a turn begins."""

    def advance(self, state: Any, token: int) -> Any:
        """The state after a token was sampled."""

    def allowed_tokens(self, state: Any, remaining: int) -> Tensor | None:
        """(V,) which tokens may come, with `remaining` of them until the turn is cut off; None where all may."""


OUTSIDE, CLOSED = "outside", "closed"


class CallGrammar:
    """Holds every call to the schema of its tool. A state inside a call is a matcher, copied before each step."""

    def __init__(
        self, tokenizer: PolicyTokenizer, schemas: list[dict[str, Any]], *, omit: Sequence[str] = UNWRITTEN_ARGUMENTS
    ):
        """`omit` names arguments that are never written."""
        if CALL_OPEN not in tokenizer.control_ids or CALL_CLOSE not in tokenizer.control_ids:
            raise ConfigError("a grammar needs a tokenizer in which <tool_call> and </tool_call> are tokens")
        self.tokenizer = tokenizer
        self._open, self._close = tokenizer.control_ids[CALL_OPEN], tokenizer.control_ids[CALL_CLOSE]
        matching_tokenizer = to_llguidance(tokenizer)
        self._byte_tokens = find_byte_tokens(matching_tokenizer)
        self._start = open_matcher(matching_tokenizer, call_grammar(schemas, omit))
        self._control_ids = list(tokenizer.control_ids.values())
        self._masks = lru_cache(MASK_CACHE_SIZE)(self._unpack_mask)

    def initial_state(self) -> Any:
        return OUTSIDE

    def advance(self, state: Any, token: int) -> Any:
        if state is OUTSIDE:
            return self._start if token == self._open else OUTSIDE
        if state is CLOSED or token == self._close:
            return CLOSED
        state = state.deep_copy()
        state.consume_token(token)
        return state

    def allowed_tokens(self, state: Any, remaining: int) -> Tensor | None:
        if state is OUTSIDE:
            return None
        forced = self.tokenizer.end_id if state is CLOSED else self._forced_token(state, remaining)
        if forced is None:
            return self._masks(state.compute_bitmask(), state.is_accepting())
        mask = torch.zeros(len(self.tokenizer), dtype=torch.bool)
        mask[forced] = True
        return mask

    def _unpack_mask(self, bits: bytes, complete: bool) -> Tensor:
        """(V,) of one bit a token; a complete call may be closed."""
        mask = torch.from_numpy(unpack_bits(bits)[: len(self.tokenizer)])
        mask[self._control_ids] = False
        mask[self._close] = complete
        return mask

    def _forced_token(self, state: LLMatcher, remaining: int) -> int | None:
        """The next token of the shortest way out, once the turn has no room for more."""
        if remaining > MAX_CLOSING_TOKENS:
            return None
        try:
            closing_ids = self.tokenizer.encode(shortest_completion(state, self._byte_tokens).decode())
        except UnicodeDecodeError:  # in the middle of a character, which ends first
            return None
        if remaining > len(closing_ids) + 2 + CLOSING_MARGIN:
            return None
        return closing_ids[0] if closing_ids else self._close


@lru_cache(maxsize=4)
def to_llguidance(tokenizer: PolicyTokenizer) -> LLTokenizer:
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer.hf_tokenizer, n_vocab=len(tokenizer), eos_token=tokenizer.end_id)


def open_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher before the first byte; ConfigError for a grammar that llguidance refuses."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar), log_level=0)
    if matcher.is_error():
        raise ConfigError(f"the tools' schemas make no grammar: {matcher.get_error().splitlines()[0]}")
    return matcher


def find_byte_tokens(tokenizer: LLTokenizer) -> list[int]:
    """The token of each byte that UTF-8 has."""
    return [tokenizer.tokenize_bytes(bytes([byte]))[0] for byte in range(0xF8)]


def unpack_bits(bits: bytes) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little").astype(bool)


def shortest_completion(matcher: LLMatcher, byte_tokens: Sequence[int]) -> bytes:
    """The shortest text that completes what the matcher has read: a search by length over single bytes."""
    queue, order = [(0, 0, b"", matcher)], 0
    while True:
        length, _, text, matcher = heapq.heappop(queue)
        if matcher.is_accepting():
            return text
        for byte in useful_bytes(matcher, byte_tokens):
            longer = matcher.deep_copy()
            longer.consume_token(byte_tokens[byte])
            order -= 1  # of equally long texts the newest first, which has written most of its value
            heapq.heappush(queue, (length + 1, order, text + bytes([byte]), longer))
            if byte in b"0123456789" and useful_bytes(longer, byte_tokens)[:1] in ENDS:
                break  # the number is complete: no other is shorter


def useful_bytes(matcher: LLMatcher, byte_tokens: Sequence[int]) -> list[int]:
    """Next bytes of which one begins a shortest completion: whatever can end ends."""
    allowed = np.flatnonzero(unpack_bits(matcher.compute_bitmask())[byte_tokens]).tolist()
    in_string = len(allowed) > MAX_STRUCTURE_BYTES or allowed[:1] >= [0x80]
    for byte in (*b'"a', *allowed[:1]) if in_string else b"]},":
        if byte in allowed:
            return [byte]
    return [byte for byte in allowed if byte not in b" \n"]
