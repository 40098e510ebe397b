"""The paper's teacher: a vision-language model behind a server, constrained to the tools' syntax (sec:data).

The record keeps turns that were not calls, and how the item ended. Only if the server fails or hangs, or a spending cap
is reached, the item is left for another run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from numpy.random import Generator

from pixelis.core.provenance import write_json
from pixelis.data.corpus.corpus_config import TeacherConfig
from pixelis.data.teachers.oracle.oracle import EPOCH
from pixelis.data.teachers.reply_cache import CachingChatClient
from pixelis.data.teachers.teacher import Demonstration
from pixelis.media import MediaSet
from pixelis.rollout.episode import EndReason
from pixelis.rollout.remote.chat_messages import MODES, Mode
from pixelis.rollout.remote.conversation import ChatConversation, ChatModel, ConversationLimits
from pixelis.trace.plan import ToolProvider
from pixelis.trace.recorder import without_time
from pixelis.world import RenderedItem

Outcome = Literal["answered", "turns", "prose", "refused"]
"""`turns`: no answer within the limits; `prose`: no calls; `refused`: the server rejected the item."""
OUTCOMES: dict[EndReason, Outcome] = {
    "answered": "answered",
    "steps": "turns",
    "tokens": "turns",
    "seconds": "turns",
    "no_call": "prose",
    "stuck": "turns",
    "refused": "refused",
}


class VlmTeacher:
    """Demonstrates through a server. Safe to use from several threads, one item each."""

    def __init__(self, config: TeacherConfig, *, replies: Path) -> None:
        self.config = config
        self.bounds = ConversationLimits(
            config.max_turns,
            config.max_parse_errors,
            image_side=config.image_side,
            clip_frames=config.clip_frames,
            reply_tokens=config.server.max_tokens,
        )
        self.server = CachingChatClient(config.server, replies)
        self._mode_file = replies / "constraint.json"
        self.model = ChatModel(self.server, mode=self._load_mode(), on_mode=self._save_mode)

    def close(self) -> None:
        self.server.close()

    def demonstrate(self, rendered: RenderedItem, toolbox: ToolProvider, *, rng: Generator) -> Demonstration:
        """Ask until the item is answered or given up. Raises RetryLaterError if the server cannot be used."""
        item, server = rendered.item, self.config.server
        conversation = ChatConversation(
            self.model, item.question, MediaSet(rendered.media), toolbox, self.bounds,
            seed=int(rng.integers(2**31)), temperature=server.temperature,
        )  # fmt: skip
        conversation.run()
        return to_demonstration(conversation, item.id, server.model)

    def _save_mode(self, mode: Mode) -> None:
        write_json(self._mode_file, {"constrain": mode})

    def _load_mode(self) -> Mode | None:
        """How this server is constrained to the syntax, if an earlier run found out."""
        if self.config.server.constrain != "auto":
            return self.config.server.constrain
        try:
            saved_mode = json.loads(self._mode_file.read_bytes()).get("constrain")
        except (OSError, ValueError, AttributeError):
            return None
        return next((mode for mode in MODES if mode == saved_mode), None)


def to_demonstration(conversation: ChatConversation, item_id: str, model: str) -> Demonstration:
    """The demonstration without measured times: a corpus must not depend on the machine."""
    recorder = conversation.recorder
    recorder.steps = [without_time(step) for step in recorder.steps]
    details = {
        "outcome": OUTCOMES[conversation.end_reason],
        "detail": conversation.detail,
        "slips": conversation.parse_errors,
        "requests": conversation.requests,
        "tokens": conversation.total_tokens,
        "constrain": conversation.request_format.mode,
    }
    trace = conversation.build_trace(item_id, f"teacher:{model}", EPOCH)
    return Demonstration(trace, recorder.blobs, None, details)
