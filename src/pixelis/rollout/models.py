"""What can be rolled out, by name: weights that run here, or a model behind a server, which needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pixelis.policy.chat_server import PREFIX
from pixelis.rollout.episode import Limits, Query, Rollout
from pixelis.rollout.remote import open_remote
from pixelis.trace.running import OffersTools

if TYPE_CHECKING:
    from pixelis.policy.model import Policy


class Model(Protocol):
    """Something that answers queries with tool calls."""

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
        """n trajectories for each query, in order. Temperature 0 is greedy."""

    def close(self) -> None:
        """Let go of connections."""


class LocalModel:
    """Weights in this process."""

    def __init__(self, policy: Policy, name: str = "unnamed") -> None:
        self.policy, self.name = policy, name

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
        from pixelis.rollout.batch import rollout

        return rollout(
            self.policy, toolbox, queries, n=n, seed=seed, temperature=temperature, limits=limits, name=self.name
        )

    def close(self) -> None:
        """Nothing to let go of."""


def open_model(name: str) -> Model:
    """A model by folder, shipped name, hub id, or `openai:URL#name`."""
    if name.startswith(PREFIX):
        return open_remote(name)
    from pixelis.policy.checkpoint import load_checkpoint

    loaded = load_checkpoint(name)
    return LocalModel(loaded.policy, loaded.card.name.strip() or "unnamed")
