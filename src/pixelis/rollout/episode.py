"""One trajectory while it grows: what the policy said, what the tools gave back, and the record that comes out.

Whatever happens has a name and stays in the record. A call that fails is a step, a turn that is neither call nor answer
is a slip and gets a reminder, and a rollout without an answer says why it ended.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

from pydantic import Field

from pixelis import __version__
from pixelis.config import Config
from pixelis.errors import ConfigError, MediaError, TraceError
from pixelis.media import MediaSet
from pixelis.policy.ledger import Ledger
from pixelis.policy.quoting import QUOTE, in_words, lines_read
from pixelis.policy.script import Kind, Piece, Style, Words, observed, reminded
from pixelis.policy.tokens import Tokens
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.trace.grammar import ANSWER, CLOSE, OPEN, ParseFailure, parse_turn, read_call
from pixelis.trace.reopening import record_media
from pixelis.trace.running import RunsCalls
from pixelis.trace.schema import Draft, Trace, canonical_json, require_shallow, seal_trace

Ended = Literal["answered", "steps", "tokens", "seconds", "no_call", "stuck", "refused"]
"""`stuck`: one invalid or repeated call after another. `refused`: a server would not go on with the conversation."""
UNREAD = "Nothing has been read that could be quoted. Call a tool, or answer in words."
REMINDER = "That was neither a call nor an answer. Call one tool, or answer."


class Limits(Config):
    """Where a rollout ends if the policy does not end it."""

    steps: int = Field(default=14, ge=0)
    """Tool calls; a policy that wants one more has come to no answer."""
    turn_tokens: int = Field(default=256, ge=1)
    """Tokens that one turn may have."""
    total_tokens: int = Field(default=4096, ge=1)
    """Tokens after the prompt, those of observations included."""
    seconds: float = Field(default=600.0, gt=0.0)
    """By the clock, from the first token to the last, tools included."""
    reminders: int = Field(default=2, ge=0)
    """How often a turn without a readable call or answer is forgiven."""
    refusals: int = Field(default=3, ge=1)
    """Invalid or repeated calls one after another, after which only an answer is waited for."""


class Query(NamedTuple):
    """A question about media."""

    id: str
    question: str
    media: MediaSet
    seed: int = 0
    """Of its own, so that its trajectories do not depend on the queries beside it."""


class Rollout(NamedTuple):
    """A trajectory that has ended."""

    query: str
    sample: int
    ledger: Ledger | None
    """Every token with its log-probability; None for a model behind a server that does not give them."""
    trace: Trace
    ended: Ended
    slips: int
    """Turns that held neither a readable call nor an answer."""
    blobs: Mapping[str, bytes]
    """Bytes of the artifacts, by their SHA-256."""
    counted: int = 0
    """Tokens that the model wrote as its server counts them, where there is no ledger."""
    detail: str = ""
    """What the server said where it refused."""

    @property
    def answer(self) -> str | None:
        return self.trace.answer

    @property
    def tokens(self) -> int:
        """Tokens that the model wrote."""
        return self.counted if self.ledger is None else int(self.ledger.sampled.sum())


def require_trainable(rolled: Rollout) -> Ledger:
    """The ledger that an update learns from; ConfigError where there is none."""
    if rolled.ledger is None:
        raise ConfigError(
            f"{rolled.trace.origin.partition(':')[2]}: this server gives no token ids and log-probabilities, so that "
            "its words would have to be tokenised again: nothing can be trained on its rollouts"
        )
    return rolled.ledger


class Said(NamedTuple):
    """One turn, read."""

    thought: str
    opens_at: int
    """The token with which the call or the answer begins; the number of tokens where neither does."""
    kind: Kind
    """Of the tokens from there on."""
    call: ToolCall | None = None
    answer: str | None = None
    slip: str = ""
    """What to tell the policy where there is neither."""


def read_turn(ids: Sequence[int], tokens: Tokens) -> Said:
    """What a turn says. Where tags are tokens, only the tokens count: letters that look like a tag are letters."""
    said = list(ids[:-1]) if ids and ids[-1] == tokens.end else list(ids)
    return read_tokens(said, tokens) if tokens.tags_are_tokens else read_letters(said, tokens)


def read_tokens(ids: list[int], tokens: Tokens) -> Said:
    opens, answers = tokens.control["<tool_call>"], tokens.control["<answer>"]
    at = next((k for k, token in enumerate(ids) if token in (opens, answers)), len(ids))
    thought = tokens.decode(ids[:at]).strip()
    if at == len(ids):
        return Said(thought, at, "thought", slip=REMINDER)
    called = ids[at] == opens
    closes = tokens.control["</tool_call>" if called else "</answer>"]
    inside = ids[at + 1 :]
    closed = closes in inside
    text = tokens.decode(inside[: inside.index(closes)] if closed else inside)
    if not called:
        return Said(thought, at, "answer", answer=text.strip())
    return with_call(Said(thought, at, "action"), read_call(text + CLOSE if closed else text, 0)[0])


def spelt(said: Said, lines: Sequence[str]) -> Said:
    """A turn with its quotes in words; an answer that quotes what was never read is none."""
    if said.answer is not None and not lines and QUOTE.search(said.answer):
        return said._replace(answer=None, kind="thought", slip=UNREAD)
    answer = None if said.answer is None else in_words(said.answer, lines)
    return said._replace(thought=in_words(said.thought, lines), answer=answer)


def read_letters(ids: list[int], tokens: Tokens) -> Said:
    """The same for a tokenizer that spells its tags: whichever opens first decides."""
    text = tokens.decode(ids)
    turn = parse_turn(text)
    call_at, answer_at = text.find(OPEN), -1 if turn.answer is None else text.find("<answer>")
    if call_at < 0 and answer_at < 0:
        return Said(turn.thought, len(ids), "thought", slip=REMINDER)
    if call_at < 0 or 0 <= answer_at < call_at:
        first = ANSWER.search(text)
        answer = turn.answer if call_at < 0 or first is None else first[1].strip()
        return Said(text[:answer_at].strip(), token_at(ids, answer_at, tokens), "answer", answer=answer)
    return with_call(Said(turn.thought, token_at(ids, call_at, tokens), "action"), turn.calls[0])


def token_at(ids: Sequence[int], letter: int, tokens: Tokens) -> int:
    """The token that holds this letter of their text."""
    low, high = 0, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        if len(tokens.decode(ids[: middle + 1])) > letter:
            high = middle
        else:
            low = middle + 1
    return low


def with_call(said: Said, outcome: Any) -> Said:
    """A turn with its call, or with the reason why there is none."""
    if isinstance(outcome, ParseFailure):
        return said._replace(slip=f"This call cannot be read: {outcome.reason}")
    try:
        require_shallow(outcome.call.args)
        canonical_json(outcome.call.args)
        json.dumps([outcome.call.tool, outcome.call.args], ensure_ascii=False).encode()
    except (TraceError, UnicodeEncodeError) as error:  # a lone half of a character cannot be kept
        return said._replace(slip=f"This call cannot be read: {str(error)[:120]}")
    return said._replace(call=outcome.call)


def wasted_in_a_row(drafts: Sequence[Draft]) -> int:
    """How many of the last calls were invalid, or the call before them once more."""
    count = 0
    for before, draft in zip([None, *drafts][::-1][1:], drafts[::-1], strict=True):
        if draft.result.status != "invalid" and (before is None or draft.call != before.call):
            break
        count += 1
    return count


@dataclass
class Episode:
    """A trajectory under way."""

    query: Query
    sample: int
    ledger: Ledger
    media: MediaSet
    deadline: float = math.inf
    prompt_tokens: int = 0
    drafts: list[Draft] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    slips: int = 0
    said: Said | None = None
    cut: bool = False
    """Whether the last turn ended without the policy ending it."""

    def copy(self) -> Episode:
        """One that goes on by itself."""
        return replace(self, ledger=self.ledger.copy(), drafts=list(self.drafts), blobs=dict(self.blobs))

    @property
    def step(self) -> int:
        """The step that is being taken, from 1."""
        return len(self.drafts) + 1

    def tokens_left(self, limits: Limits) -> int:
        return limits.total_tokens - (len(self.ledger) - self.prompt_tokens)

    def speak(self, ids: Sequence[int], logprobs: Sequence[float], tokens: Tokens) -> Said:
        """A whole turn of the policy, into the ledger: thought up to the tag, action or answer from there on."""
        said = read_turn(ids, tokens)
        self.said = said = spelt(said, lines_read(d.result for d in self.drafts)) if tokens.quotes else said
        self.cut = not ids or ids[-1] != tokens.end
        before: list[Kind] = ["thought"] * said.opens_at
        kinds = before + [said.kind] * (len(ids) - said.opens_at)
        self.ledger.say_all(ids, [min(logprob, 0.0) for logprob in logprobs], kinds, self.step)
        return said

    def verdict(self, limits: Limits) -> Ended | None:
        """Whether the turn just spoken was the last one, and why."""
        said = self.said
        if said is not None and said.answer is not None:
            return "answered"
        if self.tokens_left(limits) <= 0:
            return "tokens"
        if said is not None and said.call is not None:
            if wasted_in_a_row(self.drafts) >= limits.refusals:
                return "stuck"
            return "steps" if len(self.drafts) >= limits.steps else None
        self.slips += 1
        return "no_call" if self.slips > limits.reminders else None

    def remind(self) -> list[Piece]:
        slip = self.said.slip if self.said else REMINDER
        return [*self._closed(), *reminded(slip, step=self.step)]

    def keep(self, execution: Execution, pieces: Sequence[Piece]) -> list[Piece]:
        """A call's result into the record; what the policy reads of it comes back."""
        closed = self._closed()
        if self.said is None or self.said.call is None:
            raise TraceError("a result came for a turn that made no call")
        self.drafts.append(Draft(thought=self.said.thought, call=self.said.call, result=execution.result))
        self.blobs.update(execution.blobs)
        if execution.result.view is not None:
            self.media = self.media.with_view(execution.result.view)
        return [*closed, *pieces]

    def act(self, toolbox: RunsCalls, call: ToolCall, style: Style) -> tuple[Execution, list[Piece]]:
        """One call, and what the policy will read of it. A runner that raises has failed; the rollout goes on.

        Changes nothing: it may run in another thread.
        """
        try:
            execution = toolbox.run(call, self.media)
            return execution, self.observation(execution.result, style)
        except Exception as error:  # noqa: BLE001 - somebody's tool may raise anything, and a failed call is data
            reason = str(error) if isinstance(error, MediaError) else f"{type(error).__name__}: {error}"
            failed = ToolResult.failed(call.tool, reason[:300], "crashed")
            return Execution(failed, {}, repeatable=False), self.observation(failed, style)

    def observation(self, result: ToolResult, style: Style) -> list[Piece]:
        if result.view is None:
            return observed(result, None, self.media, style, step=self.step)
        media = self.media.with_view(result.view)
        return observed(result, media.names[-1], media, style, step=self.step)

    def _closed(self) -> list[Piece]:
        """A turn that was cut off is closed for it, as something that nobody sampled."""
        return [Words("<|im_end|>", "observation", control=True, step=self.step)] if self.cut else []

    def end(self, ended: Ended, *, name: str, created_at: datetime) -> Rollout:
        """The record, sealed."""
        answered = ended == "answered" and self.said is not None
        steps = [
            draft.model_copy(update={"tokens": self.ledger.of_step(number)})
            for number, draft in enumerate(self.drafts, start=1)
        ]
        trace = seal_trace(
            id=f"{self.query.id}-{self.sample}",
            query=self.query.question,
            media=record_media(self.query.media),
            origin=f"policy:{name}",
            created_at=created_at,
            steps=steps,
            answer=self.said.answer if answered and self.said else None,
            answer_thought=self.said.thought if answered and self.said else "",
            answer_confidence=self.answer_probability() if answered else None,
            answer_tokens=self.ledger.of_step(self.step) if answered else None,
            pixelis=__version__,
        )
        return Rollout(self.query.id, self.sample, self.ledger, trace, ended, self.slips, self.blobs)

    def answer_probability(self) -> float:
        """Probability of the answer's tokens, its tags among them. What the tools were worth comes on top later."""
        kept = zip(self.ledger.kinds, self.ledger.logprobs, strict=True)
        return math.exp(sum(p for kind, p in kept if kind == "answer" and p is not None))
