"""Rollouts of a model behind an OpenAI-compatible server: vLLM, SGLang, llama.cpp, or a service.

The records are those of a local policy. A rollout has a token sequence, and can be trained on, only if the server
returns token ids and log-probabilities.
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

from pixelis.core.errors import ConfigError
from pixelis.policy.model_names import SERVER_PREFIX
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.remote.chat_client import ChatClient, ServerConfig
from pixelis.rollout.remote.chat_tokens import TOKEN_REQUEST_FIELDS
from pixelis.rollout.remote.conversation import ChatConversation, ChatModel, ConversationLimits
from pixelis.trace.plan import ToolProvider

API_KEY_VARIABLE = "PIXELIS_API_KEY"
"""Environment variable with the server's key; if it is not set, no key is sent."""
EXAMPLE = "openai:http://127.0.0.1:8000/v1#Qwen/Qwen3-VL-8B-Instruct"
TRIES, PAUSE_S = 3, 0.5
"""Fewer than for building a corpus: a person waits."""
REMOTE_LIMITS = Limits(turn_tokens=1024, total_tokens=16_384)
"""A large model writes longer turns than nano."""


class RemoteModel:
    """A model of a server that can be rolled out."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.server = ChatClient(config)
        self.model = ChatModel(self.server, extras=TOKEN_REQUEST_FIELDS)

    def close(self) -> None:
        self.server.close()

    def rollout(
        self,
        toolbox: ToolProvider,
        queries: Sequence[Query],
        *,
        n: int,
        seed: int,
        temperature: float = 1.0,
        limits: Limits | None = None,
    ) -> list[list[Rollout]]:
        """n trajectories for each query, in order, several at once; RetryLaterError if the server fails."""
        bounds = to_conversation_limits(limits or REMOTE_LIMITS)
        failed = threading.Event()

        def clock() -> float:
            return math.inf if failed.is_set() else time.monotonic()  # after one failure the others stop early

        def run_sample(query: Query, sample: int) -> Rollout:
            sample_seed = int(np.random.default_rng([seed, query.seed, sample]).integers(2**31))
            conversation = ChatConversation(
                self.model, query.question, query.media, toolbox, bounds, seed=sample_seed, temperature=temperature
            )
            conversation.run(clock)
            return to_rollout(conversation, query.id, sample, self.config.model)

        with ThreadPoolExecutor(self.config.concurrency, thread_name_prefix="talk") as pool:
            futures = [[pool.submit(run_sample, query, sample) for sample in range(n)] for query in queries]
            try:
                return [[future.result() for future in group] for group in futures]
            except BaseException:
                failed.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def open_remote(name: str) -> RemoteModel:
    """A model by `openai:URL#name`, with the key from the environment."""
    url, _, model = name.removeprefix(SERVER_PREFIX).partition("#")
    if not url.strip() or not model.strip():
        raise ConfigError(f"{name!r} does not name a model of a server: want openai:URL#name, such as {EXAMPLE}")
    key = API_KEY_VARIABLE if os.environ.get(API_KEY_VARIABLE) else ""
    url, model = url.strip(), model.strip()
    return RemoteModel(ServerConfig(url=url, model=model, api_key_variable=key, tries=TRIES, pause_s=PAUSE_S))


def to_conversation_limits(limits: Limits) -> ConversationLimits:
    """A rollout's limits for a conversation: a reply for every call and every parse error, and one to answer."""
    return ConversationLimits(
        limits.steps + limits.reminders + 1,
        limits.reminders,
        reply_tokens=limits.turn_tokens,
        max_steps=limits.steps,
        max_tokens=limits.total_tokens,
        max_wasted_calls=limits.refusals,
        max_seconds=limits.seconds,
    )


def to_rollout(chat: ChatConversation, query: str, sample: int, model: str) -> Rollout:
    """The rollout of a finished conversation."""
    trace = chat.build_trace(f"{query}-{sample}", f"policy:{model}", datetime.now(UTC))
    errors, blobs, tokens = len(chat.parse_errors), chat.recorder.blobs, chat.completion_tokens
    return Rollout(query, sample, chat.sequence, trace, chat.end_reason, errors, blobs, tokens, chat.detail)
