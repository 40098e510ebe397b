"""One question to a model behind a server: it sees the images, calls tools, reads their results, and answers.

Everything stays in the record: a call to an unknown tool is an invalid step, prose is a parse error, a conversation
without an answer says why it ended. Only failures of the server raise RetryLaterError.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pixelis.core.errors import RetryLaterError
from pixelis.media import MediaSet
from pixelis.policy.chat_format import Kind
from pixelis.policy.sequence import TokenSequence
from pixelis.rollout.episode import EndReason, count_wasted_calls
from pixelis.rollout.remote import chat_messages
from pixelis.rollout.remote.chat_client import ChatClient, ChatReply
from pixelis.rollout.remote.chat_tokens import SampledReply, append_reply, parse_sampled
from pixelis.tools.results import ToolCall
from pixelis.trace.plan import ToolProvider
from pixelis.trace.recorder import TraceRecorder
from pixelis.trace.schema import Trace
from pixelis.trace.tool_call_parser import ParsedCall


class ConversationLimits(NamedTuple):
    """Where a conversation ends if the model does not end it, and how images are shown."""

    max_turns: int
    """Replies."""
    max_parse_errors: int
    """Replies without a call that get a reminder."""
    image_side: int = 1024
    clip_frames: int = 16
    reply_tokens: int = 1024
    """Of one reply."""
    max_steps: int = 10_000
    max_tokens: int = 10**8
    """Of all replies."""
    max_wasted_calls: int = 10_000
    """Invalid or repeated calls in a row."""
    max_seconds: float = float("inf")

    @property
    def media_size(self) -> dict[str, int]:
        return {"side": self.image_side, "frames": self.clip_frames}


class RequestFormat(NamedTuple):
    """The form of a request."""

    mode: chat_messages.Mode
    extra: dict[str, Any]
    """Additional fields."""


class ChatModel:
    """A model of a server, and the request format that it accepts, found with the first question. Thread-safe."""

    def __init__(
        self,
        server: ChatClient,
        *,
        mode: chat_messages.Mode | None = None,
        extras: Sequence[dict[str, Any]] = ({},),
        on_mode: Callable[[chat_messages.Mode], None] = lambda mode: None,
    ) -> None:
        self.server, self.on_mode = server, on_mode
        modes = chat_messages.MODES if mode is None else (mode,)
        self._formats = [RequestFormat(one_mode, dict(extra)) for one_mode in modes for extra in extras]
        self._lock = threading.Lock()

    def resolve_format(self, make: Callable[[RequestFormat], dict[str, Any]]) -> tuple[RequestFormat, ChatReply | None]:
        """The format that the server accepts; for the first question also the reply to it."""
        with self._lock:
            if len(self._formats) == 1:
                return self._formats[0], None
            error_text = ""
            for request_format in self._formats:
                reply = self.server.complete(make(request_format), keep_refusal=False)
                if not reply.refused:
                    self._formats = [request_format]
                    self.on_mode(request_format.mode)
                    return request_format, reply
                error_text = str(reply.body.get("error", ""))[:200]
        # Perhaps only this question is too long for the model's context: the next one tries again.
        raise RetryLaterError("server", f"the server refuses every kind of request: {error_text}")


class ChatConversation:
    """The messages so far, and their trace."""

    def __init__(
        self,
        model: ChatModel,
        question: str,
        media: MediaSet,
        toolbox: ToolProvider,
        limits: ConversationLimits,
        *,
        seed: int,
        temperature: float,
    ) -> None:
        self.model, self.question, self.toolbox, self.limits = model, question, toolbox, limits
        self.query_media = media
        self.recorder = TraceRecorder(media)
        self.sampling = {"temperature": temperature, "max_tokens": limits.reply_tokens, "seed": seed}
        self.tools = [*toolbox.schemas(), chat_messages.ANSWER_TOOL]
        self.parse_errors: list[dict[str, Any]] = []
        self.answer: str | None = None
        self.answer_thought = ""
        self.confidence: float | None = None
        self.end_reason: EndReason = "steps"
        self.detail = ""
        self.requests = self.total_tokens = self.completion_tokens = 0
        self.sequence: TokenSequence | None = TokenSequence()
        self.request_format, self._first_reply = model.resolve_format(
            lambda request_format: self._request(self._initial_messages(request_format), request_format)
        )
        self.messages = self._initial_messages(self.request_format)

    def _initial_messages(self, request_format: RequestFormat) -> list[Any]:
        mode, size = request_format.mode, self.limits.media_size
        return chat_messages.initial_messages(self.question, self.query_media, mode, self.tools, **size)

    def _request(self, messages: list[Any], request_format: RequestFormat) -> dict[str, Any]:
        body = {"model": self.model.server.config.model, "messages": messages, **self.sampling, **request_format.extra}
        return {**body, **chat_messages.constraint_fields(request_format.mode, self.tools)}

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Take turns until the end."""
        deadline = clock() + self.limits.max_seconds
        for _ in range(self.limits.max_turns):
            if self.take_turn():
                return
            timed_out, spent = clock() >= deadline, self.completion_tokens >= self.limits.max_tokens
            if timed_out or spent:
                self.end_reason = "seconds" if timed_out else "tokens"
                return

    def take_turn(self) -> bool:
        """Request one reply and run its calls; returns whether the conversation has ended."""
        reply = self._first_reply or self.model.server.complete(self._request(self.messages, self.request_format))
        self._first_reply = None
        self.requests += 1
        self.total_tokens += reply.total_tokens or 0
        if reply.refused:
            self.end_reason, self.detail = "refused", str(reply.body.get("error", ""))[:300]
            return True
        parsed, sampled = chat_messages.parse_reply(reply.body), parse_sampled(reply.body)
        self.completion_tokens += reply.completion_tokens or len(sampled.ids) or len(sampled.texts)
        self.sequence = append_reply(self.sequence, sampled, reply_kind(parsed), len(self.recorder.steps) + 1)
        if parsed.answer is not None and not parsed.calls:
            return self.record_answer(parsed.answer, parsed.thought, None, sampled)
        if not parsed.calls:
            unreadable = f"(nothing that can be read: {json.dumps(reply.body)[:200]})"
            return self.record_parse_error("prose", parsed.thought or unreadable)
        return self.run_calls(parsed, sampled)

    def run_calls(self, parsed: chat_messages.ParsedReply, sampled: SampledReply) -> bool:
        """Run the calls of a reply in order; returns whether the conversation has ended."""
        echoed_calls, results, views = list[dict[str, Any]](), list[str](), list[str]()
        for number, outcome in enumerate(parsed.calls):
            if not isinstance(outcome, ParsedCall):
                self.parse_errors.append({"turn": self.requests, "kind": "malformed", "text": outcome.source})
                results.append(f"This call cannot be read: {outcome.reason}")
                echoed_calls.append(echo_call("unreadable", {}, self.requests, number))
                continue
            if outcome.call.tool == chat_messages.ANSWER_TOOL_NAME:
                answer_argument, confidence = outcome.call.args.get("answer"), outcome.call.args.get("confidence")
                answer_text = answer_argument if isinstance(answer_argument, str) else json.dumps(answer_argument)
                return self.record_answer(answer_text, parsed.thought if number == 0 else "", confidence, sampled)
            if count_wasted_calls(self.recorder.steps) >= self.limits.max_wasted_calls:
                self.end_reason = "stuck"
                return True
            if len(self.recorder.steps) >= self.limits.max_steps:
                return True
            echoed_calls.append(echo_call(outcome.call.tool, outcome.call.args, self.requests, number))
            results.append(self.run_call(outcome.call, parsed.thought if number == 0 else "", views))
        if all(not isinstance(outcome, ParsedCall) for outcome in parsed.calls) and self.too_many_parse_errors():
            self.end_reason, self.detail = "no_call", "its calls cannot be read"
            return True
        self.append_exchange(parsed, echoed_calls, results)
        if views:
            media, size = self.recorder.media, self.limits.media_size
            parts = [part for name in views for part in chat_messages.media_parts(name, media.medium(name), **size)]
            self.messages.append({"role": "user", "content": parts})
        return False

    def append_exchange(
        self, parsed: chat_messages.ParsedReply, echoed_calls: list[dict[str, Any]], results: list[str]
    ) -> None:
        """Append the calls and their results to the messages."""
        if self.request_format.mode in ("tool_choice", "none"):
            self.messages.append({"role": "assistant", "content": parsed.thought, "tool_calls": echoed_calls})
            for call, result in zip(echoed_calls, results, strict=True):
                content = chat_messages.escape_control_tokens(result)
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            return
        function = echoed_calls[0]["function"]
        arguments = json.loads(function["arguments"])
        turn_json = {"thought": parsed.thought, "name": function["name"], "arguments": arguments}
        self.messages.append({"role": "assistant", "content": json.dumps(turn_json)})
        self.messages.append({"role": "user", "content": [chat_messages.text_part("\n".join(results))]})

    def run_call(self, call: ToolCall, thought: str, views: list[str]) -> str:
        """Run and record one call; returns the text that the model reads."""
        execution = self.toolbox.run(call, self.recorder.media)
        result = execution.result
        view = self.recorder.add_step(call.model_copy(update={"tool": result.tool}), execution, thought)
        views += [view] if view else []
        confidence_note = "" if result.confidence is None else f" (confidence {result.confidence:.2f})"
        view_note = f" It is {view}." if view else ""
        return f"{result.text}{confidence_note}{view_note}"

    def record_answer(self, answer: str, thought: str, stated_confidence: Any, sampled: SampledReply) -> bool:
        """End with an answer. Its confidence is the probability of its tokens if the server returns it, as for a local
        policy, else what the model states."""
        self.answer, self.answer_thought = answer[: chat_messages.MAX_ANSWER_CHARACTERS].strip(), thought
        is_number = isinstance(stated_confidence, int | float) and not isinstance(stated_confidence, bool)
        self.confidence = sampled.answer_probability(self.answer)
        if self.confidence is None and is_number and 0.0 <= stated_confidence <= 1.0:
            self.confidence = float(stated_confidence)
        self.end_reason = "answered"
        return True

    def record_parse_error(self, kind: str, reply_text: str) -> bool:
        """A reply without a call: the model gets a reminder, a few times."""
        self.parse_errors.append({"turn": self.requests, "kind": kind, "text": reply_text[:500]})
        if self.too_many_parse_errors():
            self.end_reason, self.detail = "no_call", reply_text[:300]
            return True
        self.messages.append({"role": "assistant", "content": reply_text[:2000]})
        self.messages.append({"role": "user", "content": [chat_messages.text_part(chat_messages.REMINDER)]})
        return False

    def too_many_parse_errors(self) -> bool:
        return len(self.parse_errors) > self.limits.max_parse_errors

    def build_trace(self, id: str, origin: str, created_at: datetime) -> Trace:
        """The sealed trace, with the tokens of each step if the server returned them all."""
        return self.recorder.seal(
            id=id,
            query=self.question,
            origin=origin,
            created_at=created_at,
            answer=self.answer,
            answer_thought=self.answer_thought,
            answer_confidence=self.confidence,
            token_record=self.sequence.token_record if self.sequence is not None else None,
        )


def reply_kind(parsed: chat_messages.ParsedReply) -> Kind:
    """The kind of a reply's tokens from its call or answer on."""
    if not parsed.calls:
        return "thought" if parsed.answer is None else "answer"
    first = parsed.calls[0]
    return "answer" if isinstance(first, ParsedCall) and first.call.tool == chat_messages.ANSWER_TOOL_NAME else "action"


def echo_call(tool: str, args: dict[str, Any], turn: int, number: int) -> dict[str, Any]:
    """A call as the conversation repeats it, under our own id: the server's is untrusted."""
    function = {"name": tool, "arguments": json.dumps(args)}
    return {"id": f"call_{turn}_{number}", "type": "function", "function": function}
