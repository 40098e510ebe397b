"""The paper's teacher: a vision-language model behind a server, kept to the tools' syntax (sec:data).

It sees the pictures, calls tools by function calling, reads what they return and answers. Whatever it does instead has
a name and stays in the record: a call to a tool that does not exist is an invalid step, prose is a slip, a trace
without an answer says why it ended. Only what lies with the server (it fails, hangs, or the cap is reached) leaves the
item undone, for another run.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Literal

from numpy.random import Generator

from pixelis import __version__
from pixelis.data.corpus_config import TeacherConfig
from pixelis.data.openai_server import Answer, ChatServer
from pixelis.data.oracle import EPOCH
from pixelis.data.teaching import Lesson, OffersTools, UndoneError
from pixelis.data.vlm_words import (
    ANSWER,
    ANSWER_CHARACTERS,
    ANSWER_TOOL,
    MODES,
    REMINDER,
    Mode,
    Said,
    constraint,
    opening,
    read_reply,
    shown,
    text,
)
from pixelis.media import MediaSet
from pixelis.rundir import write_json
from pixelis.tools.results import ToolCall
from pixelis.trace.grammar import ParsedCall
from pixelis.trace.reopening import record_media
from pixelis.trace.schema import Draft, seal_trace
from pixelis.world import Rendered

Outcome = Literal["answered", "turns", "prose", "refused"]
"""`turns`: it came to no answer; `prose`: it would not make calls; `refused`: the server would not have the item."""


class VlmTeacher:
    """Teaches through a server; safe to use from several threads, one item each."""

    def __init__(self, config: TeacherConfig, *, replies: Path) -> None:
        self.config = config
        self.server = ChatServer(config.server, replies)
        self._mode_file = replies / "constraint.json"
        self._mode = self._kept_mode()
        self._finding_mode = threading.Lock()

    def close(self) -> None:
        self.server.close()

    def teach(self, rendered: Rendered, toolbox: OffersTools, *, rng: Generator) -> Lesson:
        """One item, asked until it is answered or given up; UndoneError where the server could not be used."""
        tools = [*toolbox.schemas(), ANSWER_TOOL]
        seed = int(rng.integers(2**31))
        media = MediaSet(rendered.media)
        mode = self.mode(rendered.item.question, media, tools, seed)
        talk = Conversation(self, rendered, toolbox, tools, mode, seed)
        for _ in range(self.config.max_turns):
            if talk.turn():
                break
        return talk.lesson()

    def request(self, messages: list[Any], mode: Mode, tools: list[dict[str, Any]], seed: int) -> dict[str, Any]:
        server = self.config.server
        return {
            "model": server.model,
            "messages": messages,
            "temperature": server.temperature,
            "max_tokens": server.max_tokens,
            "seed": seed,
            **constraint(mode, tools),
        }

    def mode(self, question: str, media: MediaSet, tools: list[dict[str, Any]], seed: int) -> Mode:
        """How this server is kept to the syntax: found out once, with the first item, and written down."""
        with self._finding_mode:
            if self._mode is None:
                self._mode = self._found_mode(question, media, tools, seed)
                write_json(self._mode_file, {"constrain": self._mode})
            return self._mode

    def _kept_mode(self) -> Mode | None:
        if self.config.server.constrain != "auto":
            return self.config.server.constrain
        try:
            kept = json.loads(self._mode_file.read_bytes()).get("constrain")
        except (OSError, ValueError, AttributeError):
            return None
        return next((mode for mode in MODES if mode == kept), None)

    def _found_mode(self, question: str, media: MediaSet, tools: list[dict[str, Any]], seed: int) -> Mode:
        said = ""
        for mode in MODES:
            messages = opening(question, media, mode, tools, **self.size)
            answer = self.server.complete(self.request(messages, mode, tools, seed), keep_refusal=False)
            if not answer.refused:
                return mode
            said = str(answer.body.get("error", ""))[:200]
        # It may be this item alone, too long for the model's context: the next one tries again.
        raise UndoneError("server", f"the server refuses every kind of request: {said}")

    @property
    def size(self) -> dict[str, int]:
        return {"side": self.config.image_side, "frames": self.config.clip_frames}


class Conversation:
    """One item with one model: the messages so far, and the trace that grows out of them."""

    def __init__(
        self,
        teacher: VlmTeacher,
        rendered: Rendered,
        toolbox: OffersTools,
        tools: list[dict[str, Any]],
        mode: Mode,
        seed: int,
    ) -> None:
        self.teacher, self.item, self.toolbox, self.tools = teacher, rendered.item, toolbox, tools
        self.mode, self.seed = mode, seed
        self.given = self.media = MediaSet(rendered.media)
        self.messages = opening(self.item.question, self.given, mode, tools, **teacher.size)
        self.drafts: list[Draft] = []
        self.blobs: dict[str, bytes] = {}
        self.slips: list[dict[str, Any]] = []
        self.answer: str | None = None
        self.confidence: float | None = None
        self.outcome: Outcome = "turns"
        self.detail = ""
        self.requests = self.tokens = 0

    def turn(self) -> bool:
        """Ask once and do what was said; whether that was the end."""
        request = self.teacher.request(self.messages, self.mode, self.tools, self.seed)
        reply = self.teacher.server.complete(request)
        self.requests += 1
        self.tokens += reply.tokens or 0
        if reply.refused:
            self.outcome, self.detail = "refused", str(reply.body.get("error", ""))[:300]
            return True
        said = read_reply(reply.body)
        if said.answer is not None and not said.calls:
            return self.answered(said.answer, None)
        if not said.calls:
            return self.slipped("prose", said.thought or empty_reply(reply))
        return self.acted(said)

    def acted(self, said: Said) -> bool:
        """Carry out every call of a reply, in order."""
        native = self.mode in ("tool_choice", "none")
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
                return self.answered(given if isinstance(given, str) else json.dumps(given), sure)
            made.append(echo(outcome.call.tool, outcome.call.args, self.requests, number))
            results.append(self.ran(outcome.call, said.thought if number == 0 else "", views))
        if all(not isinstance(outcome, ParsedCall) for outcome in said.calls) and self.too_many_slips():
            self.outcome, self.detail = "prose", "its calls cannot be read"
            return True
        if native:
            self.messages.append({"role": "assistant", "content": said.thought, "tool_calls": made})
            for call, result in zip(made, results, strict=True):
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        else:
            function = made[0]["function"]
            spoken = {"thought": said.thought, "name": function["name"], "arguments": json.loads(function["arguments"])}
            self.messages.append({"role": "assistant", "content": json.dumps(spoken)})
            self.messages.append({"role": "user", "content": [text("\n".join(results))]})
        if views:
            parts = [p for name in views for p in shown(name, self.media.medium(name), **self.teacher.size)]
            self.messages.append({"role": "user", "content": parts})
        return False

    def ran(self, call: ToolCall, thought: str, views: list[str]) -> str:
        """One call through the toolbox, into the trace; the words that the model reads about it."""
        execution = self.toolbox.run(call, self.media)
        result = execution.result.model_copy(update={"seconds": 0.0})  # a corpus must not depend on the machine
        self.drafts.append(Draft(thought=thought, call=call.model_copy(update={"tool": result.tool}), result=result))
        self.blobs.update(execution.blobs)
        if result.view is not None:
            self.media = self.media.with_view(result.view)
            views.append(self.media.names[-1])
        sure = "" if result.confidence is None else f" (confidence {result.confidence:.2f})"
        named = f" It is {views[-1]}." if result.view is not None else ""
        return f"{result.text}{sure}{named}"

    def answered(self, answer: str, confidence: Any) -> bool:
        self.answer = answer[:ANSWER_CHARACTERS].strip()
        number = isinstance(confidence, int | float) and not isinstance(confidence, bool)
        self.confidence = float(confidence) if number and 0.0 <= confidence <= 1.0 else None
        self.outcome = "answered"
        return True

    def slipped(self, kind: str, words: str) -> bool:
        """A reply that is no call: the model is reminded, a few times."""
        self.slips.append({"turn": self.requests, "kind": kind, "text": words[:500]})
        if self.too_many_slips():
            self.outcome, self.detail = "prose", words[:300]
            return True
        self.messages.append({"role": "assistant", "content": words[:2000]})
        self.messages.append({"role": "user", "content": [text(REMINDER)]})
        return False

    def too_many_slips(self) -> bool:
        return len(self.slips) > self.teacher.config.max_slips

    def lesson(self) -> Lesson:
        trace = seal_trace(
            id=self.item.id,
            query=self.item.question,
            media=record_media(self.given),
            origin=f"teacher:{self.teacher.config.server.model}",
            created_at=EPOCH,
            steps=self.drafts,
            answer=self.answer,
            answer_confidence=self.confidence,
            pixelis=__version__,
        )
        teaching = {
            "outcome": self.outcome,
            "detail": self.detail,
            "slips": self.slips,
            "requests": self.requests,
            "tokens": self.tokens,
            "constrain": self.mode,
        }
        return Lesson(trace, self.blobs, None, teaching)


def echo(tool: str, args: dict[str, Any], turn: int, number: int) -> dict[str, Any]:
    """A call as the conversation repeats it, under our own id: the server's may be anything."""
    function = {"name": tool, "arguments": json.dumps(args)}
    return {"id": f"call_{turn}_{number}", "type": "function", "function": function}


def empty_reply(reply: Answer) -> str:
    return f"(nothing that can be read: {json.dumps(reply.body)[:200]})"
