"""The rows of a batch: which trajectories lie where in the cache, and what each row has said in its turn.

Trajectories of a query that have said and heard the same so far are one row; where they draw different tokens, the row
forks. Rows [0, active) decode, those after them wait for a tool or to be read. Everything that belongs to a row moves
with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.policy.cache import RowCache
from pixelis.policy.ledger import positions
from pixelis.rollout.attention import Shared, shared
from pixelis.rollout.episode import Episode, Limits


class Member(NamedTuple):
    """One of the trajectories that a row stands for."""

    sample: int
    uniforms: NDArray[np.float64]
    """One for each token that it may ever sample; NaN takes the likeliest."""


@dataclass(eq=False)
class Row:
    """Trajectories that are the same so far, and the row of the cache in which they lie."""

    episode: Episode
    query: int
    at: int
    members: list[Member]
    drawn: int = 0
    """Tokens that were sampled in earlier turns."""
    state: Any = None
    """Of the grammar."""


class Rows:
    """Trajectories under way, each with its row of the cache."""

    def __init__(self, cache: RowCache, size: int, limits: Limits) -> None:
        self.cache, self.size, self.limits = cache, size, limits
        self.held: list[Row] = []
        self.active = 0
        self._common: Shared | None = None
        self._common_of: list[int] = []
        self.token = np.zeros(size, dtype=np.int64)
        """(rows,) the token that a row has yet to feed to the model."""
        self.place = np.zeros(size, dtype=np.int64)
        """(rows,) its position."""
        self.spoken = np.zeros(size, dtype=np.int64)
        self.left = np.zeros(size, dtype=np.int64)
        """(rows,) tokens sampled in this turn, and those that may still come."""
        self.deadline = np.full(size, np.inf)
        self.ids = np.zeros((size, limits.turn_tokens), dtype=np.int64)
        self.logprobs = np.zeros((size, limits.turn_tokens))
        """(rows, turn) what was said in this turn."""
        self._parts = (self.token, self.place, self.spoken, self.left, self.deadline, self.ids, self.logprobs)

    @property
    def free(self) -> int:
        """Trajectories that may still come: every one may need a row of its own one day."""
        return self.size - sum(len(row.members) for row in self.held)

    def begin_turn(self, row: Row) -> None:
        at, ledger = row.at, row.episode.ledger
        self.token[at] = ledger.ids[-1]
        self.place[at] = positions(ledger.ids, ledger.places)[0, -1]
        self.spoken[at] = 0
        self.left[at] = min(self.limits.turn_tokens, row.episode.tokens_left(self.limits))
        self.deadline[at] = row.episode.deadline

    def common(self) -> Shared | None:
        """What the rows that decode have in common, found anew when others decode."""
        decoding = [row.query for row in self.held[: self.active]]
        if decoding != self._common_of:
            shortest = min(row.episode.prompt_tokens for row in self.held[: self.active]) - 1
            self._common, self._common_of = shared(decoding, shortest, self.cache), decoding
        return self._common

    def next_uniforms(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(m,) the row of each trajectory that decodes, and the number that belongs to its next token."""
        decoding = self.held[: self.active]
        owner = np.repeat(np.arange(self.active), [len(row.members) for row in decoding])
        at = [row.drawn + spoken for row, spoken in zip(decoding, self.spoken[: self.active].tolist(), strict=True)]
        own = [member.uniforms[k] for row, k in zip(decoding, at, strict=True) for member in row.members]
        return owner, np.array(own)

    def fork(self, row: Row, going: list[Member]) -> Row:
        """Some trajectories of a row that decodes leave it with a copy of all that it holds; the copy decodes too."""
        copy = Row(row.episode.copy(), row.query, len(self.held), going, row.drawn, row.state)
        row.members = [member for member in row.members if all(member is not other for other in going)]
        self.held.append(copy)
        self.cache.take(self.cache, row.at, copy.at)
        for part in self._parts:
            part[copy.at] = part[row.at]
        self.lift(copy)
        return copy

    def say(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """One more token for each row that decodes."""
        rows = slice(0, self.active)
        at = np.arange(self.active), self.spoken[rows]
        self.ids[at] = ids
        self.logprobs[at] = logprobs
        self.token[rows] = ids
        self.place[rows] += 1
        self.spoken[rows] += 1
        self.left[rows] -= 1

    def turn(self, row: Row) -> tuple[list[int], list[float]]:
        """All that a row said in its turn, which is over."""
        spoken = int(self.spoken[row.at])
        row.drawn += spoken
        return self.ids[row.at, :spoken].tolist(), self.logprobs[row.at, :spoken].tolist()

    def swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self.cache.swap(a, b)
        self.held[a], self.held[b] = self.held[b], self.held[a]
        self.held[a].at, self.held[b].at = a, b
        for part in self._parts:
            part[[a, b]] = part[[b, a]]

    def lift(self, row: Row) -> None:
        """To those that decode."""
        self.swap(row.at, self.active)
        self.active += 1

    def lower(self, row: Row) -> None:
        """To those that wait."""
        self.active -= 1
        self.swap(row.at, self.active)

    def remove(self, row: Row) -> None:
        """A row that waits, for good."""
        self.swap(row.at, len(self.held) - 1)
        self.held.pop()
