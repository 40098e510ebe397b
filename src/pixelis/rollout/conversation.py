"""One question to a model behind a server: it sees the pictures, calls tools, reads what they return, and answers.

Whatever it does instead has a name and stays in the record: a call to a tool that does not exist is an invalid step,
prose is a slip, a conversation without an answer says why it ended. Only what lies with the server raises UndoneError.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pixelis import __version__
from pixelis.errors import UndoneError
from pixelis.media import MediaSet
from pixelis.policy.chat_server import ChatServer, Reply
from pixelis.policy.chat_tokens import Sampled, heard, read_sampled
from pixelis.policy.chat_words import (
    ANSWER,
    ANSWER_CHARACTERS,
    ANSWER_TOOL,
    MODES,
    REMINDER,
    Mode,
    Said,
    constraint,
    harmless,
    opening,
    read_reply,
    shown,
    text,
)
from pixelis.policy.ledger import Ledger
from pixelis.policy.script import Kind
from pixelis.rollout.episode import Ended, wasted_in_a_row
from pixelis.tools.results import ToolCall
from pixelis.trace.grammar import ParsedCall
from pixelis.trace.reopening import record_media
from pixelis.trace.running import OffersTools
from pixelis.trace.schema import Draft, Trace, seal_trace


class Bounds(NamedTuple):
    """Where a conversation ends if the model does not end it, and how it is shown pictures."""

    turns: int
    """Replies."""
    slips: int
    """Replies that are no call, which are answered with a reminder."""
    image_side: int = 1024
    clip_frames: int = 16
    reply_tokens: int = 1024
    """Of one reply."""
    steps: int = 10_000
    tokens: int = 10**8
    """Of all replies."""
    refusals: int = 10_000
    """Invalid calls one after another."""
    seconds: float = float("inf")

    @property
    def size(self) -> dict[str, int]:
        return {"side": self.image_side, "frames": self.clip_frames}


class Way(NamedTuple):
    """How a server is asked."""

    mode: Mode
    extra: dict[str, Any]
    """Fields of a request beside the usual ones."""


class ChatModel:
    """A model of a server, and the way to ask it, which is found out with the first question. For several threads."""

    def __init__(
        self,
        server: ChatServer,
        *,
        mode: Mode | None = None,
        extras: Sequence[dict[str, Any]] = ({},),
        on_mode: Callable[[Mode], None] = lambda mode: None,
    ) -> None:
        self.server, self.on_mode = server, on_mode
        modes = MODES if mode is None else (mode,)
        self._ways = [Way(each, dict(extra)) for each in modes for extra in extras]
        self._finding = threading.Lock()

    def found(self, request: Callable[[Way], dict[str, Any]]) -> tuple[Way, Reply | None]:
        """The way that this server does not refuse, and the reply that told so, if this was the first question."""
        with self._finding:
            if len(self._ways) == 1:
                return self._ways[0], None
            said = ""
            for way in self._ways:
                reply = self.server.complete(request(way), keep_refusal=False)
                if not reply.refused:
                    self._ways = [way]
                    self.on_mode(way.mode)
                    return way, reply
                said = str(reply.body.get("error", ""))[:200]
        # It may be this question alone, too long for the model's context: the next one tries again.
        raise UndoneError("server", f"the server refuses every kind of request: {said}")


class Conversation:
    """The messages so far, and the trace that grows out of them."""

    def __init__(
        self,
        model: ChatModel,
        question: str,
        media: MediaSet,
        toolbox: OffersTools,
        bounds: Bounds,
        *,
        seed: int,
        temperature: float,
    ) -> None:
        self.model, self.question, self.toolbox, self.bounds = model, question, toolbox, bounds
        self.given = self.media = media
        self.sampling = {"temperature": temperature, "max_tokens": bounds.reply_tokens, "seed": seed}
        self.tools = [*toolbox.schemas(), ANSWER_TOOL]
        self.drafts: list[Draft] = []
        self.blobs: dict[str, bytes] = {}
        self.slips: list[dict[str, Any]] = []
        self.answer: str | None = None
        self.answer_thought = ""
        self.confidence: float | None = None
        self.ended: Ended = "steps"
        self.detail = ""
        self.requests = self.tokens = self.said_tokens = 0
        self.ledger: Ledger | None = Ledger()
        self.way, self._first = model.found(lambda way: self._request(self._opening(way), way))
        self.messages = self._opening(self.way)

    def _opening(self, way: Way) -> list[Any]:
        return opening(self.question, self.given, way.mode, self.tools, **self.bounds.size)

    def _request(self, messages: list[Any], way: Way) -> dict[str, Any]:
        return {
            "model": self.model.server.config.model,
            "messages": messages,
            **self.sampling,
            **way.extra,
            **constraint(way.mode, self.tools),
        }

    def run(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Ask until it is answered or given up."""
        deadline = clock() + self.bounds.seconds
        for _ in range(self.bounds.turns):
            if self.turn():
                return
            late, spent = clock() >= deadline, self.said_tokens >= self.bounds.tokens
            if late or spent:
                self.ended = "seconds" if late else "tokens"
                return

    def turn(self) -> bool:
        """Ask once and do what was said; whether that was the end."""
        reply = self._first or self.model.server.complete(self._request(self.messages, self.way))
        self._first = None
        self.requests += 1
        self.tokens += reply.tokens or 0
        if reply.refused:
            self.ended, self.detail = "refused", str(reply.body.get("error", ""))[:300]
            return True
        said, sampled = read_reply(reply.body), read_sampled(reply.body)
        self.said_tokens += reply.said_tokens or len(sampled.ids) or len(sampled.texts)
        self.ledger = heard(self.ledger, sampled, kind_of(said), len(self.drafts) + 1)
        if said.answer is not None and not said.calls:
            return self.answered(said.answer, said.thought, None, sampled)
        if not said.calls:
            return self.slipped("prose", said.thought or unreadable(reply))
        return self.acted(said, sampled)

    def acted(self, said: Said, sampled: Sampled) -> bool:
        """Carry out every call of a reply, in order."""
        made: list[dict[str, Any]] = []
        results: list[str] = []
        views: list[str] = []
        for number, outcome in enumerate(said.calls):
            if not isinstance(outcome, ParsedCall):
                self.slips.append({"turn": self.requests, "kind": "malformed", "text": outcome.source})
                results.append(f"This call cannot be read: {outcome.reason}")
                made.append(echo("unreadable", {}, self.requests, number))
                continue
            if outcome.call.tool == ANSWER:
                given, sure = outcome.call.args.get("answer"), outcome.call.args.get("confidence")
                words = given if isinstance(given, str) else json.dumps(given)
                return self.answered(words, said.thought if number == 0 else "", sure, sampled)
            if wasted_in_a_row(self.drafts) >= self.bounds.refusals:
                self.ended = "stuck"
                return True
            if len(self.drafts) >= self.bounds.steps:
                return True
            made.append(echo(outcome.call.tool, outcome.call.args, self.requests, number))
            results.append(self.ran(outcome.call, said.thought if number == 0 else "", views))
        if all(not isinstance(outcome, ParsedCall) for outcome in said.calls) and self.too_many_slips():
            self.ended, self.detail = "no_call", "its calls cannot be read"
            return True
        self.tell(said, made, results)
        if views:
            parts = [p for name in views for p in shown(name, self.media.medium(name), **self.bounds.size)]
            self.messages.append({"role": "user", "content": parts})
        return False

    def tell(self, said: Said, made: list[dict[str, Any]], results: list[str]) -> None:
        """The calls and what came of them, as the next request repeats them."""
        if self.way.mode in ("tool_choice", "none"):
            self.messages.append({"role": "assistant", "content": said.thought, "tool_calls": made})
            for call, result in zip(made, results, strict=True):
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": harmless(result)})
            return
        function = made[0]["function"]
        spoken = {"thought": said.thought, "name": function["name"], "arguments": json.loads(function["arguments"])}
        self.messages.append({"role": "assistant", "content": json.dumps(spoken)})
        self.messages.append({"role": "user", "content": [text("\n".join(results))]})

    def ran(self, call: ToolCall, thought: str, views: list[str]) -> str:
        """One call through the toolbox, into the trace; the words that the model reads about it."""
        execution = self.toolbox.run(call, self.media)
        result = execution.result
        self.drafts.append(Draft(thought=thought, call=call.model_copy(update={"tool": result.tool}), result=result))
        self.blobs.update(execution.blobs)
        if result.view is not None:
            self.media = self.media.with_view(result.view)
            views.append(self.media.names[-1])
        sure = "" if result.confidence is None else f" (confidence {result.confidence:.2f})"
        named = f" It is {views[-1]}." if result.view is not None else ""
        return f"{result.text}{sure}{named}"

    def answered(self, answer: str, thought: str, stated: Any, sampled: Sampled) -> bool:
        """The end. How sure it is: the probability of the answer's tokens where the server gives it, as with a policy
        of our own; else what the model states."""
        self.answer, self.answer_thought = answer[:ANSWER_CHARACTERS].strip(), thought
        number = isinstance(stated, int | float) and not isinstance(stated, bool)
        self.confidence = sampled.probability(self.answer)
        if self.confidence is None and number and 0.0 <= stated <= 1.0:
            self.confidence = float(stated)
        self.ended = "answered"
        return True

    def slipped(self, kind: str, words: str) -> bool:
        """A reply that is no call: the model is reminded, a few times."""
        self.slips.append({"turn": self.requests, "kind": kind, "text": words[:500]})
        if self.too_many_slips():
            self.ended, self.detail = "no_call", words[:300]
            return True
        self.messages.append({"role": "assistant", "content": words[:2000]})
        self.messages.append({"role": "user", "content": [text(REMINDER)]})
        return False

    def too_many_slips(self) -> bool:
        return len(self.slips) > self.bounds.slips

    def trace(self, id: str, origin: str, created_at: datetime) -> Trace:
        """The record, sealed, with the tokens of each step where the server gave them all."""
        ledger, steps = self.ledger, self.drafts
        if ledger is not None:
            steps = [d.model_copy(update={"tokens": ledger.of_step(k)}) for k, d in enumerate(steps, start=1)]
        return seal_trace(
            id=id,
            query=self.question,
            media=record_media(self.given),
            origin=origin,
            created_at=created_at,
            steps=steps,
            answer=self.answer,
            answer_thought=self.answer_thought,
            answer_confidence=self.confidence,
            answer_tokens=ledger.of_step(len(steps) + 1) if ledger is not None and self.answer is not None else None,
            pixelis=__version__,
        )


def kind_of(said: Said) -> Kind:
    """What the tokens of a reply are, from its call or answer on."""
    if not said.calls:
        return "thought" if said.answer is None else "answer"
    first = said.calls[0]
    return "answer" if isinstance(first, ParsedCall) and first.call.tool == ANSWER else "action"


def echo(tool: str, args: dict[str, Any], turn: int, number: int) -> dict[str, Any]:
    """A call as the conversation repeats it, under our own id: the server's may be anything."""
    function = {"name": tool, "arguments": json.dumps(args)}
    return {"id": f"call_{turn}_{number}", "type": "function", "function": function}


def unreadable(reply: Reply) -> str:
    return f"(nothing that can be read: {json.dumps(reply.body)[:200]})"
