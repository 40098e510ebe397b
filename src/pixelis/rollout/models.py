"""Models by name: weights in this process, or a model behind a server, which needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

from pixelis.core.errors import ConfigError
from pixelis.policy.model_names import SERVER_PREFIX
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.remote.remote_model import open_remote
from pixelis.trace.plan import ToolProvider

if TYPE_CHECKING:
    from pixelis.policy.model import Policy


SINGLE_THREAD_SEQUENCES = 8
"""Up to this many sequences, a small policy decodes on one thread."""


class Model(Protocol):
    """Something that answers queries with tool calls."""

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
        """n trajectories for each query, in order. Temperature 0 is greedy."""

    def close(self) -> None:
        """Close connections."""


class LocalModel:
    """Weights in this process."""

    def __init__(self, policy: Policy, name: str = "unnamed", *, strict_calls: bool = False) -> None:
        """`strict_calls` holds every call to its tool's schema while it is written."""
        self.policy, self.name, self.strict_calls = policy, name, strict_calls

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
        from pixelis.nano.fast_decode import single_thread, supports_fast_decode
        from pixelis.rollout.constrained import CallGrammar
        from pixelis.rollout.engine import rollout

        grammar = CallGrammar(self.policy.tokenizer, toolbox.schemas()) if self.strict_calls else None
        is_small = n * len(queries) <= SINGLE_THREAD_SEQUENCES and supports_fast_decode(self.policy)
        with single_thread() if is_small else nullcontext():
            return rollout(
                self.policy, toolbox, queries, n=n, seed=seed, temperature=temperature, limits=limits, grammar=grammar,
                name=self.name,
            )  # fmt: skip

    def close(self) -> None:
        """There are no connections."""


def open_model(name: str, *, strict_calls: bool = False) -> Model:
    """A model by folder, embedded name, hub id, or `openai:URL#name`.

    Weights go to a GPU if there is one, in the precision in which they were saved; on the CPU in float32.
    """
    if name.startswith(SERVER_PREFIX):
        if strict_calls:
            raise ConfigError(f"{name}: a server decides how calls are decoded; strict calls need weights here")
        return open_remote(name)
    import torch

    from pixelis.policy.checkpoint import load_checkpoint

    on_gpu = torch.cuda.is_available()
    loaded = load_checkpoint(name, device="cuda" if on_gpu else "cpu", dtype="auto" if on_gpu else torch.float32)
    return LocalModel(loaded.policy, loaded.card.name.strip() or "unnamed", strict_calls=strict_calls)
