"""Rollouts of a model behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a service.

They are the same records as those of a policy of our own. A rollout has a ledger of tokens, and may be trained on, only
where the server gives token ids and log-probabilities.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import numpy as np

from pixelis.errors import ConfigError
from pixelis.policy.chat_server import PREFIX, ChatServer, ServerConfig
from pixelis.policy.chat_tokens import WITH_TOKENS
from pixelis.rollout.conversation import Bounds, ChatModel, Conversation
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.trace.running import OffersTools

KEY_VARIABLE = "PIXELIS_API_KEY"
"""Environment variable with the server's key; none is sent where it is not set."""
EXAMPLE = "openai:http://127.0.0.1:8000/v1#Qwen/Qwen3-VL-8B-Instruct"
TRIES, PAUSE_S = 3, 0.5
"""Somebody waits: fewer than a corpus has time for."""
LIMITS = Limits(turn_tokens=1024, total_tokens=16_384)
"""A large model says more in a turn than nano does."""


class RemoteModel:
    """A model of a server that can be rolled out."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.server = ChatServer(config)
        self.model = ChatModel(self.server, extras=WITH_TOKENS)

    def close(self) -> None:
        self.server.close()

    def rollout(
        self,
        toolbox: OffersTools,
        queries: Sequence[Query],
        *,
        n: int,
        seed: int,
        temperature: float = 1.0,
        limits: Limits | None = None,
    ) -> list[list[Rollout]]:
        """n trajectories for each query, in order, several at once; UndoneError where the server gives out."""
        bounds = bounds_of(limits or LIMITS)
        failed = threading.Event()

        def clock() -> float:
            return math.inf if failed.is_set() else time.monotonic()  # what one met, the others need not wait for

        def one(query: Query, sample: int) -> Rollout:
            own = int(np.random.default_rng([seed, query.seed, sample]).integers(2**31))
            talk = Conversation(
                self.model, query.question, query.media, toolbox, bounds, seed=own, temperature=temperature
            )
            talk.run(clock)
            return rolled(talk, query.id, sample, self.config.model)

        with ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="talk") as pool:
            coming = [[pool.submit(one, query, sample) for sample in range(n)] for query in queries]
            try:
                return [[talk.result() for talk in group] for group in coming]
            except BaseException:
                failed.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def open_remote(name: str) -> RemoteModel:
    """A model by `openai:URL#name`; its key from the environment, where there is one."""
    url, _, model = name.removeprefix(PREFIX).partition("#")
    if not url.strip() or not model.strip():
        raise ConfigError(f"{name!r} names no model of a server: want openai:URL#name, such as {EXAMPLE}")
    key = KEY_VARIABLE if os.environ.get(KEY_VARIABLE) else ""
    return RemoteModel(
        ServerConfig(url=url.strip(), model=model.strip(), api_key_variable=key, tries=TRIES, pause_s=PAUSE_S)
    )


def bounds_of(limits: Limits) -> Bounds:
    """The limits of a rollout as those of a conversation: a reply for every call and every slip, and one to answer."""
    return Bounds(
        limits.steps + limits.reminders + 1,
        limits.reminders,
        reply_tokens=limits.turn_tokens,
        steps=limits.steps,
        tokens=limits.total_tokens,
        refusals=limits.refusals,
        seconds=limits.seconds,
    )


def rolled(talk: Conversation, query: str, sample: int, model: str) -> Rollout:
    """What came of a conversation, as the record that every rollout gives."""
    return Rollout(
        query,
        sample,
        talk.ledger,
        talk.trace(f"{query}-{sample}", f"policy:{model}", datetime.now(UTC)),
        talk.ended,
        len(talk.slips),
        talk.blobs,
        counted=talk.said_tokens,
        detail=talk.detail,
    )
