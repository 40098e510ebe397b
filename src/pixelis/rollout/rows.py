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

from pixelis.nano.fast_attention import SharedPrefix, find_shared_prefix
from pixelis.policy.kv_cache import RowCache
from pixelis.policy.sequence import compute_positions
from pixelis.rollout.episode import Episode, Limits


class RowMember(NamedTuple):
    """One of the trajectories that a row stands for."""

    sample: int
    uniforms: NDArray[np.float64]
    """One for each token that it may ever sample; NaN takes the likeliest."""


@dataclass(eq=False)
class RolloutRow:
    """Trajectories that are the same so far, and the row of the cache in which they lie."""

    episode: Episode
    query: int
    index: int
    members: list[RowMember]
    sampled_count: int = 0
    """Tokens that were sampled in earlier turns."""
    state: Any = None
    """Of the grammar."""


class RolloutRows:
    """Trajectories under way, each with its row of the cache."""

    def __init__(self, cache: RowCache, size: int, limits: Limits) -> None:
        self.cache, self.size, self.limits = cache, size, limits
        self.all_rows: list[RolloutRow] = []
        self.active = 0
        self._shared: SharedPrefix | None = None
        self._shared_groups: list[int] = []
        self.next_token = np.zeros(size, dtype=np.int64)
        """(rows,) the token that a row has yet to feed to the model."""
        self.position = np.zeros(size, dtype=np.int64)
        """(rows,) its position."""
        self.turn_length = np.zeros(size, dtype=np.int64)
        self.remaining = np.zeros(size, dtype=np.int64)
        """(rows,) tokens sampled in this turn, and those that may still come."""
        self.deadline = np.full(size, np.inf)
        self.ids = np.zeros((size, limits.turn_tokens), dtype=np.int64)
        self.logprobs = np.zeros((size, limits.turn_tokens))
        """(rows, turn) what was said in this turn."""
        self._arrays = (
            self.next_token,
            self.position,
            self.turn_length,
            self.remaining,
            self.deadline,
            self.ids,
            self.logprobs,
        )

    @property
    def free_slots(self) -> int:
        """Trajectories that may still come: every one may need a row of its own one day."""
        return self.size - sum(len(row.members) for row in self.all_rows)

    def begin_turn(self, row: RolloutRow) -> None:
        index, sequence = row.index, row.episode.sequence
        self.next_token[index] = sequence.ids[-1]
        self.position[index] = compute_positions(sequence.ids, sequence.image_spans)[0, -1]
        self.turn_length[index] = 0
        self.remaining[index] = min(self.limits.turn_tokens, row.episode.tokens_left(self.limits))
        self.deadline[index] = row.episode.deadline

    def shared_prefix(self) -> SharedPrefix | None:
        """What the rows that decode have in common, found anew when others decode."""
        groups = [row.query for row in self.all_rows[: self.active]]
        if groups != self._shared_groups:
            shortest = min(row.episode.prompt_tokens for row in self.all_rows[: self.active]) - 1
            self._shared, self._shared_groups = find_shared_prefix(groups, shortest, self.cache), groups
        return self._shared

    def next_uniforms(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(m,) the row of each trajectory that decodes, and the number that belongs to its next token."""
        decoding = self.all_rows[: self.active]
        owner = np.repeat(np.arange(self.active), [len(row.members) for row in decoding])
        offsets = [
            row.sampled_count + length
            for row, length in zip(decoding, self.turn_length[: self.active].tolist(), strict=True)
        ]
        uniforms = [member.uniforms[k] for row, k in zip(decoding, offsets, strict=True) for member in row.members]
        return owner, np.array(uniforms)

    def fork(self, row: RolloutRow, members: list[RowMember]) -> RolloutRow:
        """Some trajectories of a row that decodes leave it with a copy of all that it holds; the copy decodes too."""
        copy = RolloutRow(row.episode.copy(), row.query, len(self.all_rows), members, row.sampled_count, row.state)
        row.members = [member for member in row.members if all(member is not other for other in members)]
        self.all_rows.append(copy)
        self.cache.copy_row(self.cache, row.index, copy.index)
        for array in self._arrays:
            array[copy.index] = array[row.index]
        self.activate(copy)
        return copy

    def append_tokens(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """One more token for each row that decodes."""
        rows = slice(0, self.active)
        cells = np.arange(self.active), self.turn_length[rows]
        self.ids[cells] = ids
        self.logprobs[cells] = logprobs
        self.next_token[rows] = ids
        self.position[rows] += 1
        self.turn_length[rows] += 1
        self.remaining[rows] -= 1

    def turn_tokens(self, row: RolloutRow) -> tuple[list[int], list[float]]:
        """All that a row said in its turn, which is over."""
        length = int(self.turn_length[row.index])
        row.sampled_count += length
        return self.ids[row.index, :length].tolist(), self.logprobs[row.index, :length].tolist()

    def swap(self, a: int, b: int) -> None:
        if a == b:
            return
        self.cache.swap(a, b)
        self.all_rows[a], self.all_rows[b] = self.all_rows[b], self.all_rows[a]
        self.all_rows[a].index, self.all_rows[b].index = a, b
        for array in self._arrays:
            array[[a, b]] = array[[b, a]]

    def activate(self, row: RolloutRow) -> None:
        """To those that decode."""
        self.swap(row.index, self.active)
        self.active += 1

    def deactivate(self, row: RolloutRow) -> None:
        """To those that wait."""
        self.active -= 1
        self.swap(row.index, self.active)

    def remove(self, row: RolloutRow) -> None:
        """A row that waits, for good."""
        self.swap(row.index, len(self.all_rows) - 1)
        self.all_rows.pop()
