"""One trajectory in progress: the policy's turns, the results of its calls, and the record at the end.

Everything stays in the record. A call that fails is a step, a turn that is neither a call nor an answer is a parse
error and gets a reminder, and a rollout without an answer says why it ended.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import Field

from pixelis.core.config import Config
from pixelis.core.errors import ConfigError, MediaError, TraceError
from pixelis.media import MediaSet
from pixelis.nano.quoting import QUOTE, expand_quotes, last_ocr_lines
from pixelis.policy.chat_format import Kind, Piece, PromptStyle, TextPiece, render_observation, render_reminder
from pixelis.policy.sequence import TokenSequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.trace.recorder import TraceRecorder
from pixelis.trace.schema import StepDraft, Trace, canonical_json, require_shallow
from pixelis.trace.tool_call_parser import ANSWER_PATTERN, CALL_CLOSE, CALL_OPEN, ParseFailure, parse_turn, read_call

if TYPE_CHECKING:
    from pixelis.trace.plan import ToolRunner

EndReason = Literal["answered", "steps", "tokens", "seconds", "no_call", "stuck", "refused"]
"""`stuck`: too many invalid or repeated calls in a row. `refused`: a server refused to continue the conversation."""
NOTHING_TO_QUOTE = "Nothing has been read that could be quoted. Call a tool, or answer in words."
REMINDER = "That was neither a call nor an answer. Call one tool, or answer."


class Limits(Config):
    """Where a rollout ends if the policy does not end it."""

    steps: int = Field(default=14, ge=0)
    """Tool calls; a rollout that makes one more ends without an answer."""
    turn_tokens: int = Field(default=256, ge=1)
    """Tokens of one turn."""
    total_tokens: int = Field(default=4096, ge=1)
    """Tokens after the prompt, including observations."""
    seconds: float = Field(default=600.0, gt=0.0)
    """Wall-clock time from the first token to the last, including tools."""
    reminders: int = Field(default=2, ge=0)
    """Turns without a readable call or answer that get a reminder; one more ends the rollout."""
    refusals: int = Field(default=3, ge=1)
    """Invalid or repeated calls in a row, after which another call ends the rollout."""


class Query(NamedTuple):
    """A question about media."""

    id: str
    question: str
    media: MediaSet
    seed: int = 0
    """Its own, so that its trajectories do not depend on the queries beside it."""


class Rollout(NamedTuple):
    """A trajectory that has ended."""

    query: str
    sample: int
    sequence: TokenSequence | None
    """None for a model behind a server that does not return token ids and log-probabilities."""
    trace: Trace
    end_reason: EndReason
    parse_error_count: int
    """Turns without a readable call or answer."""
    blobs: Mapping[str, bytes]
    """Contents of the artifacts by SHA-256."""
    server_token_count: int = 0
    """Sampled tokens by the server's count, if there is no sequence."""
    detail: str = ""
    """The message of a server that refused."""

    @property
    def answer(self) -> str | None:
        return self.trace.answer

    @property
    def completion_tokens(self) -> int:
        """Tokens that the model sampled."""
        return self.server_token_count if self.sequence is None else int(self.sequence.sampled_mask.sum())


def require_sequence(rollout: Rollout) -> TokenSequence:
    """The tokens that an update trains on; ConfigError if there are none."""
    if rollout.sequence is None:
        raise ConfigError(
            f"{rollout.trace.origin.partition(':')[2]}: this server returns no token ids and log-probabilities, so its "
            "text would have to be tokenised again: nothing can be trained on its rollouts"
        )
    return rollout.sequence


class ParsedTurn(NamedTuple):
    """One turn of the policy."""

    thought: str
    opening_index: int
    """Index of the token that opens the call or the answer; the number of tokens if there is neither."""
    kind: Kind
    """Of the tokens from there on."""
    call: ToolCall | None = None
    answer: str | None = None
    parse_error: str = ""
    """The reminder for a turn without either."""


def parse_turn_tokens(ids: Sequence[int], tokenizer: PolicyTokenizer) -> ParsedTurn:
    """Parse a turn. If tags are tokens, only the tokens count: letters that look like a tag are plain text."""
    turn_ids = list(ids[:-1]) if ids and ids[-1] == tokenizer.end_id else list(ids)
    parse = parse_tagged_tokens if tokenizer.tags_are_tokens else parse_spelled_tags
    return parse(turn_ids, tokenizer)


def parse_tagged_tokens(ids: list[int], tokenizer: PolicyTokenizer) -> ParsedTurn:
    opens, answers = tokenizer.control_ids["<tool_call>"], tokenizer.control_ids["<answer>"]
    at = next((k for k, token in enumerate(ids) if token in (opens, answers)), len(ids))
    thought = tokenizer.decode(ids[:at]).strip()
    if at == len(ids):
        return ParsedTurn(thought, at, "thought", parse_error=REMINDER)
    is_call = ids[at] == opens
    closes = tokenizer.control_ids["</tool_call>" if is_call else "</answer>"]
    inside = ids[at + 1 :]
    closed = closes in inside
    text = tokenizer.decode(inside[: inside.index(closes)] if closed else inside)
    if not is_call:
        return ParsedTurn(thought, at, "answer", answer=text.strip())
    return attach_call(ParsedTurn(thought, at, "action"), read_call(text + CALL_CLOSE if closed else text, 0)[0])


def resolve_quotes(turn: ParsedTurn, lines: Sequence[str]) -> ParsedTurn:
    """Replace quotes by the lines that they mean; an answer that quotes without any line read is a parse error."""
    if turn.answer is not None and not lines and QUOTE.search(turn.answer):
        return turn._replace(answer=None, kind="thought", parse_error=NOTHING_TO_QUOTE)
    answer = None if turn.answer is None else expand_quotes(turn.answer, lines)
    return turn._replace(thought=expand_quotes(turn.thought, lines), answer=answer)


def parse_spelled_tags(ids: list[int], tokenizer: PolicyTokenizer) -> ParsedTurn:
    """Parse a turn of a tokenizer without tag tokens: the first tag decides."""
    text = tokenizer.decode(ids)
    turn = parse_turn(text)
    call_at, answer_at = text.find(CALL_OPEN), -1 if turn.answer is None else text.find("<answer>")
    if call_at < 0 and answer_at < 0:
        return ParsedTurn(turn.thought, len(ids), "thought", parse_error=REMINDER)
    if call_at < 0 or 0 <= answer_at < call_at:
        first = ANSWER_PATTERN.search(text)
        answer = turn.answer if call_at < 0 or first is None else first[1].strip()
        return ParsedTurn(text[:answer_at].strip(), find_token(ids, answer_at, tokenizer), "answer", answer=answer)
    return attach_call(ParsedTurn(turn.thought, find_token(ids, call_at, tokenizer), "action"), turn.calls[0])


def find_token(ids: Sequence[int], char_index: int, tokenizer: PolicyTokenizer) -> int:
    """The index of the token that holds this character of the decoded text."""
    return bisect_right(range(len(ids) - 1), char_index, key=lambda k: len(tokenizer.decode(ids[: k + 1])))


def attach_call(turn: ParsedTurn, outcome: Any) -> ParsedTurn:
    """The turn with its call, or with the reason why it has none."""
    if isinstance(outcome, ParseFailure):
        return turn._replace(parse_error=f"This call cannot be read: {outcome.reason}")
    try:
        require_shallow(outcome.call.args)
        canonical_json(outcome.call.args)
        json.dumps([outcome.call.tool, outcome.call.args], ensure_ascii=False).encode()
    except (TraceError, UnicodeEncodeError) as error:  # a lone surrogate cannot be stored
        return turn._replace(parse_error=f"This call cannot be read: {str(error)[:120]}")
    return turn._replace(call=outcome.call)


def count_wasted_calls(drafts: Sequence[StepDraft]) -> int:
    """The number of latest calls in a row that were invalid or repeated the call before them."""
    count = 0
    for before, draft in zip([None, *drafts][::-1][1:], drafts[::-1], strict=True):
        if draft.result.status != "invalid" and (before is None or draft.call != before.call):
            break
        count += 1
    return count


@dataclass
class Episode:
    """A trajectory in progress."""

    query: Query
    sample: int
    sequence: TokenSequence
    recorder: TraceRecorder
    deadline: float = math.inf
    prompt_tokens: int = 0
    parse_error_count: int = 0
    turn: ParsedTurn | None = None
    truncated: bool = False
    """Whether the last turn was cut off."""

    def copy(self) -> Episode:
        """A copy that grows separately."""
        return replace(self, sequence=self.sequence.copy(), recorder=self.recorder.copy())

    @property
    def step(self) -> int:
        """The current step, from 1."""
        return len(self.recorder.steps) + 1

    def tokens_left(self, limits: Limits) -> int:
        return limits.total_tokens - (len(self.sequence) - self.prompt_tokens)

    def add_turn(self, ids: Sequence[int], logprobs: Sequence[float], tokenizer: PolicyTokenizer) -> ParsedTurn:
        """Append a finished turn: thought up to the tag, then action or answer."""
        turn = parse_turn_tokens(ids, tokenizer)
        if tokenizer.has_quote_tokens:
            turn = resolve_quotes(turn, last_ocr_lines(self.recorder.results))
        self.turn = turn
        self.truncated = not ids or ids[-1] != tokenizer.end_id
        thought_kinds: list[Kind] = ["thought"] * turn.opening_index
        kinds = thought_kinds + [turn.kind] * (len(ids) - turn.opening_index)
        self.sequence.extend_sampled(ids, [min(logprob, 0.0) for logprob in logprobs], kinds, self.step)
        return turn

    def end_reason(self, limits: Limits) -> EndReason | None:
        """Why the last turn ends the rollout; None if it does not."""
        turn = self.turn
        if turn is not None and turn.answer is not None:
            return "answered"
        if self.tokens_left(limits) <= 0:
            return "tokens"
        if turn is not None and turn.call is not None:
            if count_wasted_calls(self.recorder.steps) >= limits.refusals:
                return "stuck"
            return "steps" if len(self.recorder.steps) >= limits.steps else None
        self.parse_error_count += 1
        return "no_call" if self.parse_error_count > limits.reminders else None

    def retry_prompt(self) -> list[Piece]:
        reason = self.turn.parse_error if self.turn else REMINDER
        return [*self._closing_pieces(), *render_reminder(reason, step=self.step)]

    def add_result(self, execution: Execution, pieces: Sequence[Piece]) -> list[Piece]:
        """Record the result of the turn's call; returns what the policy reads."""
        closing = self._closing_pieces()
        if self.turn is None or self.turn.call is None:
            raise TraceError("a result arrived for a turn without a call")
        self.recorder.add_step(self.turn.call, execution, self.turn.thought)
        return [*closing, *pieces]

    def run_tool(self, toolbox: ToolRunner, call: ToolCall, style: PromptStyle) -> tuple[Execution, list[Piece]]:
        """Run a call and render what the policy reads. If the runner raises, the call has failed; the rollout
        continues. Changes no state: it may run in another thread."""
        try:
            execution = toolbox.run(call, self.recorder.media)
            return execution, self.render_observation_pieces(execution.result, style)
        except Exception as error:  # noqa: BLE001 - a plug-in tool may raise anything, and a failed call is data
            reason = str(error) if isinstance(error, MediaError) else f"{type(error).__name__}: {error}"
            failed = ToolResult.failed(call.tool, reason[:300], "crashed")
            return Execution(failed, {}, repeatable=False), self.render_observation_pieces(failed, style)

    def render_observation_pieces(self, result: ToolResult, style: PromptStyle) -> list[Piece]:
        media = self.recorder.media
        if result.view is None:
            return render_observation(result, None, media, style, step=self.step)
        media = media.with_view(result.view)
        return render_observation(result, media.names[-1], media, style, step=self.step)

    def _closing_pieces(self) -> list[Piece]:
        """The end of a turn that was cut off, as context that was not sampled."""
        return [TextPiece("<|im_end|>", "observation", control=True, step=self.step)] if self.truncated else []

    def to_rollout(self, end_reason: EndReason, *, name: str, created_at: datetime) -> Rollout:
        final_turn = self.turn if end_reason == "answered" else None
        trace = self.recorder.seal(
            id=f"{self.query.id}-{self.sample}",
            query=self.query.question,
            origin=f"policy:{name}",
            created_at=created_at,
            answer=final_turn.answer if final_turn else None,
            answer_thought=final_turn.thought if final_turn else "",
            answer_confidence=self.answer_probability() if final_turn else None,
            token_record=self.sequence.token_record,
        )
        blobs = self.recorder.blobs
        return Rollout(self.query.id, self.sample, self.sequence, trace, end_reason, self.parse_error_count, blobs)

    def answer_probability(self) -> float:
        """Probability of the answer's tokens, including its tags; `answer_confidence` adds that of the tools."""
        entries = zip(self.sequence.kinds, self.sequence.logprobs, strict=True)
        return math.exp(sum(p for kind, p in entries if kind == "answer" and p is not None))
