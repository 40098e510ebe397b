"""The paper's teacher: a vision-language model behind a server, kept to the tools' syntax (sec:data).

What the model does in place of calls stays in the record, and the record says how it ended. Only what lies with the
server (it fails, hangs, or the cap is reached) leaves the item undone, for another run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from numpy.random import Generator

from pixelis.data.corpus_config import TeacherConfig
from pixelis.data.kept_replies import ThriftyServer
from pixelis.data.oracle import EPOCH
from pixelis.data.teaching import Lesson
from pixelis.media import MediaSet
from pixelis.policy.chat_words import MODES, Mode
from pixelis.rollout.conversation import Bounds, ChatModel, Conversation
from pixelis.rollout.episode import Ended
from pixelis.rundir import write_json
from pixelis.trace.running import OffersTools
from pixelis.world import Rendered

Outcome = Literal["answered", "turns", "prose", "refused"]
"""`turns`: it came to no answer; `prose`: it would not make calls; `refused`: the server would not have the item."""
OUTCOMES: dict[Ended, Outcome] = {
    "answered": "answered",
    "steps": "turns",
    "tokens": "turns",
    "seconds": "turns",
    "no_call": "prose",
    "stuck": "turns",
    "refused": "refused",
}


class VlmTeacher:
    """Teaches through a server; safe to use from several threads, one item each."""

    def __init__(self, config: TeacherConfig, *, replies: Path) -> None:
        self.config = config
        self.bounds = Bounds(
            config.max_turns,
            config.max_slips,
            image_side=config.image_side,
            clip_frames=config.clip_frames,
            reply_tokens=config.server.max_tokens,
        )
        self.server = ThriftyServer(config.server, replies)
        self._mode_file = replies / "constraint.json"
        self.model = ChatModel(self.server, mode=self._kept_mode(), on_mode=self._keep_mode)

    def close(self) -> None:
        self.server.close()

    def teach(self, rendered: Rendered, toolbox: OffersTools, *, rng: Generator) -> Lesson:
        """One item, asked until it is answered or given up; UndoneError where the server could not be used."""
        item, server = rendered.item, self.config.server
        talk = Conversation(
            self.model, item.question, MediaSet(rendered.media), toolbox, self.bounds,
            seed=int(rng.integers(2**31)), temperature=server.temperature,
        )  # fmt: skip
        talk.run()
        return lesson(talk, item.id, server.model)

    def _keep_mode(self, mode: Mode) -> None:
        write_json(self._mode_file, {"constrain": mode})

    def _kept_mode(self) -> Mode | None:
        """How this server is kept to the syntax, if that was found out before."""
        if self.config.server.constrain != "auto":
            return self.config.server.constrain
        try:
            kept = json.loads(self._mode_file.read_bytes()).get("constrain")
        except (OSError, ValueError, AttributeError):
            return None
        return next((mode for mode in MODES if mode == kept), None)


def lesson(talk: Conversation, item: str, model: str) -> Lesson:
    """What a conversation taught. Its tools took no time: a corpus must not depend on the machine."""
    talk.drafts = [
        draft.model_copy(update={"result": draft.result.model_copy(update={"seconds": 0.0})}) for draft in talk.drafts
    ]
    teaching = {
        "outcome": OUTCOMES[talk.ended],
        "detail": talk.detail,
        "slips": talk.slips,
        "requests": talk.requests,
        "tokens": talk.tokens,
        "constrain": talk.way.mode,
    }
    return Lesson(talk.trace(item, f"teacher:{model}", EPOCH), talk.blobs, None, teaching)
