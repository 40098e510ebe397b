"""Token ids and log-probabilities of a server's replies, where it gives them (vLLM: `logprobs`, `return_token_ids`).

Nothing is ever tokenised again: a conversation has a ledger only if every reply brings the ids of its prompt and of
what was sampled, and every prompt begins with all the tokens before it.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

from pixelis.policy.ledger import Ledger
from pixelis.policy.script import Kind

WITH_TOKENS: tuple[dict[str, Any], ...] = ({"logprobs": True, "return_token_ids": True}, {"logprobs": True}, {})
"""What a request may ask for beside the reply, the most first: a server may refuse a field that it does not know."""
MOST = 200_000
"""A list of more tokens is not read."""


class Sampled(NamedTuple):
    """The tokens of one reply. Lists that a server leaves out are empty."""

    prompt: list[int]
    ids: list[int]
    texts: list[str]
    logprobs: list[float]
    """Nats, one for each text."""

    @property
    def whole(self) -> bool:
        return bool(self.prompt and self.ids) and len(self.ids) == len(self.logprobs)

    def token_at(self, letter: int) -> int:
        """The token that holds this letter of the text; the number of tokens where none does."""
        ends = itertools.accumulate(len(text) for text in self.texts)
        return next((k for k, end in enumerate(ends) if 0 <= letter < end), len(self.texts))

    def opens_at(self) -> int:
        """The token with which a call or an answer begins; 0 where no tag says so."""
        tags = [self.token_at("".join(self.texts).find(tag)) for tag in ("<tool_call>", "<answer>")]
        return min(tags) if min(tags) < len(self.texts) else 0

    def probability(self, answer: str) -> float | None:
        """How likely the tokens were that spell the answer; None where it is not to be found among them."""
        text = "".join(self.texts)
        named = max(text.rfind(name) for name in ('"answer"', "<answer>"))
        at = text.find(answer, named + len("<answer>")) if named >= 0 else text.rfind(answer)
        if at < 0 or not answer:
            return None
        return math.exp(sum(self.logprobs[self.token_at(at) : self.token_at(at + len(answer) - 1) + 1]))


def read_sampled(body: dict[str, Any]) -> Sampled:
    """The tokens of a reply of which nothing is taken for granted. Nothing raises."""
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    given = choice.get("logprobs")
    content = given.get("content") if isinstance(given, dict) else None
    entries = content[:MOST] if isinstance(content, list) else []
    read = [(entry.get("token"), entry.get("logprob")) for entry in entries if isinstance(entry, dict)]
    texts = [token for token, _ in read if isinstance(token, str)]
    logprobs = [min(p, 0.0) for _, p in read if isinstance(p, float) or p == 0]
    if not len(texts) == len(logprobs) == len(entries):
        texts, logprobs = [], []
    return Sampled(whole_numbers(body.get("prompt_token_ids")), whole_numbers(choice.get("token_ids")), texts, logprobs)


def whole_numbers(value: Any) -> list[int]:
    """A list of token ids; empty for anything else."""
    listed = value if isinstance(value, list) and len(value) <= MOST else []
    return listed if all(type(token) is int and token >= 0 for token in listed) else []


def heard(ledger: Ledger | None, sampled: Sampled, kind: Kind, step: int) -> Ledger | None:
    """The ledger with one more reply, its tokens from the call on of this kind; None as soon as something is missing.

    What the prompt has beyond the tokens before it was given. Pictures are among them as the server's own image tokens:
    where they lie with which grid is for the one who trains, who has the model's eyes.
    """
    if ledger is None or not sampled.whole or sampled.prompt[: len(ledger)] != ledger.ids:
        return None
    given = sampled.prompt[len(ledger) :]
    if given:
        ledger.kinds += ["observation" if ledger.kinds else "prompt"] * len(given)
        ledger.steps += [ledger.steps[-1] if ledger.steps else 0] * len(given)
        ledger.ids += given
        ledger.logprobs += [None] * len(given)
    opens = sampled.opens_at()
    for k, (token, logprob) in enumerate(zip(sampled.ids, sampled.logprobs, strict=True)):
        ledger.say(token, logprob, "thought" if k < opens else kind, step)
    return ledger
