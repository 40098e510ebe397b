"""Token ids and log-probabilities of a server's replies, if it returns them (vLLM: `logprobs`, `return_token_ids`).

Nothing is tokenised again: a conversation has a sequence only if every reply has the ids of its prompt and of the
sampled tokens, and every prompt begins with all earlier tokens.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from pixelis.policy.chat_format import Kind
from pixelis.policy.sequence import TokenSequence

TOKEN_REQUEST_FIELDS: tuple[dict[str, Any], ...] = (
    {"logprobs": True, "return_token_ids": True},
    {"logprobs": True},
    {},
)
"""Optional fields of a request, the most first: a server may refuse a field that it does not know."""
MAX_LIST_TOKENS = 200_000
"""Longer lists are ignored."""


class SampledReply(NamedTuple):
    """The tokens of one reply. Missing lists are empty."""

    prompt_ids: list[int]
    ids: list[int]
    texts: list[str]
    logprobs: list[float]
    """Nats, one per text."""

    @property
    def is_complete(self) -> bool:
        return bool(self.prompt_ids and self.ids) and len(self.ids) == len(self.logprobs)

    def token_at(self, char_index: int) -> int:
        """The index of the token that holds this character of the text; the number of tokens if none does."""
        ends = itertools.accumulate(len(text) for text in self.texts)
        return next((k for k, end in enumerate(ends) if 0 <= char_index < end), len(self.texts))

    def opening_token(self) -> int:
        """The index of the token that opens a call or an answer; 0 without a tag."""
        tags = [self.token_at("".join(self.texts).find(tag)) for tag in ("<tool_call>", "<answer>")]
        return min(tags) if min(tags) < len(self.texts) else 0

    def answer_probability(self, answer: str) -> float | None:
        """The probability of the answer's tokens; None if they do not contain it."""
        text = "".join(self.texts)
        tag_index = max(text.rfind(name) for name in ('"answer"', "<answer>"))
        start = text.find(answer, tag_index + len("<answer>")) if tag_index >= 0 else text.rfind(answer)
        if start < 0 or not answer:
            return None
        return math.exp(sum(self.logprobs[self.token_at(start) : self.token_at(start + len(answer) - 1) + 1]))


def parse_sampled(body: dict[str, Any]) -> SampledReply:
    """The tokens of an untrusted reply. Never raises."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    logprobs_field = choice.get("logprobs")
    content = logprobs_field.get("content") if isinstance(logprobs_field, dict) else None
    entries = content[:MAX_LIST_TOKENS] if isinstance(content, list) else []
    pairs = [(entry.get("token"), entry.get("logprob")) for entry in entries if isinstance(entry, dict)]
    texts = [token for token, _ in pairs if isinstance(token, str)]
    logprobs = [min(p, 0.0) for _, p in pairs if isinstance(p, float) or p == 0]
    if not len(texts) == len(logprobs) == len(entries):
        texts, logprobs = [], []
    return SampledReply(
        parse_token_ids(body.get("prompt_token_ids")), parse_token_ids(choice.get("token_ids")), texts, logprobs
    )


def parse_token_ids(value: Any) -> list[int]:
    """A list of token ids; empty for anything else."""
    ids = value if isinstance(value, list) and len(value) <= MAX_LIST_TOKENS else []
    return ids if all(type(token) is int and token >= 0 for token in ids) else []


def append_reply(sequence: TokenSequence | None, reply: SampledReply, kind: Kind, step: int) -> TokenSequence | None:
    """The sequence with one more reply, whose tokens from the call on have this kind; None if anything is missing.

    New tokens of the prompt are context. Images are the server's own image tokens, without spans: training, which has
    the image processor, must add them.
    """
    if sequence is None or not reply.is_complete or reply.prompt_ids[: len(sequence)] != sequence.ids:
        return None
    context_ids = reply.prompt_ids[len(sequence) :]
    if context_ids:
        sequence.kinds += ["observation" if sequence.kinds else "prompt"] * len(context_ids)
        sequence.steps += [sequence.steps[-1] if sequence.steps else 0] * len(context_ids)
        sequence.ids += context_ids
        sequence.logprobs += [None] * len(context_ids)
    opening_token = reply.opening_token()
    for k, (token, logprob) in enumerate(zip(reply.ids, reply.logprobs, strict=True)):
        sequence.append_sampled(token, logprob, "thought" if k < opening_token else kind, step)
    return sequence
