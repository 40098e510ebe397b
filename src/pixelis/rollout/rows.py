"""The rows of a batch: the trajectories of each row of the cache, and the tokens of its current turn.

Trajectories of a query with the same tokens so far are one row; where they sample different tokens, the row forks. Rows
[0, active) decode, later rows wait for a tool or for prefill. All data of a row moves with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.policy.kv_cache import RowCache
from pixelis.policy.sequence import compute_positions
from pixelis.rollout.episode import Episode, Limits

if TYPE_CHECKING:
    from pixelis.nano.fast_attention import SharedPrefix


class RowMember(NamedTuple):
    """One of the trajectories that a row stands for."""

    sample: int
    uniforms: NDArray[np.float64]
    """One number for each token that it may sample; NaN takes the likeliest token."""


@dataclass(eq=False)
class RolloutRow:
    """Trajectories with the same tokens so far, and their row of the cache."""

    episode: Episode
    query: int
    index: int
    members: list[RowMember]
    sampled_count: int = 0
    """Tokens sampled in earlier turns."""
    state: Any = None
    """Of the grammar."""


class RolloutRows:
    """All unfinished trajectories, with their rows of the cache."""

    def __init__(self, cache: RowCache, size: int, limits: Limits) -> None:
        self.cache, self.size, self.limits = cache, size, limits
        self.all_rows: list[RolloutRow] = []
        self.active = 0
        self._shared: SharedPrefix | None = None
        self._shared_groups: list[int] = []
        self.next_token = np.zeros(size, dtype=np.int64)
        """(rows,) the next input token of each row."""
        self.position = np.zeros(size, dtype=np.int64)
        """(rows,) its position."""
        self.turn_length = np.zeros(size, dtype=np.int64)
        self.remaining = np.zeros(size, dtype=np.int64)
        """(rows,) tokens sampled in this turn, and tokens that may still be sampled."""
        self.deadline = np.full(size, np.inf)
        self.ids = np.zeros((size, limits.turn_tokens), dtype=np.int64)
        self.logprobs = np.zeros((size, limits.turn_tokens))
        """(rows, turn) the tokens of this turn."""
        self._arrays = (
            self.next_token, self.position, self.turn_length, self.remaining, self.deadline, self.ids, self.logprobs,
        )  # fmt: skip

    @property
    def free_slots(self) -> int:
        """Trajectories that can be added: each may need its own row later."""
        return self.size - sum(len(row.members) for row in self.all_rows)

    def begin_turn(self, row: RolloutRow) -> None:
        index, sequence = row.index, row.episode.sequence
        self.next_token[index] = sequence.ids[-1]
        self.position[index] = compute_positions(sequence.ids, sequence.image_spans)[0, -1]
        self.turn_length[index] = 0
        self.remaining[index] = min(self.limits.turn_tokens, row.episode.tokens_left(self.limits))
        self.deadline[index] = row.episode.deadline

    def shared_prefix(self) -> SharedPrefix | None:
        """The prompts that active rows share, recomputed when other rows are active."""
        groups = [row.query for row in self.all_rows[: self.active]]
        if groups != self._shared_groups:
            shortest = min(row.episode.prompt_tokens for row in self.all_rows[: self.active]) - 1
            from pixelis.nano.fast_attention import find_shared_prefix

            self._shared, self._shared_groups = find_shared_prefix(groups, shortest, self.cache), groups
        return self._shared

    def next_uniforms(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """(m,) the row of each active trajectory, and the random number of its next token."""
        decoding = self.all_rows[: self.active]
        owner = np.repeat(np.arange(self.active), [len(row.members) for row in decoding])
        offsets = self.turn_length[: self.active] + [row.sampled_count for row in decoding]
        uniforms = [member.uniforms[k] for row, k in zip(decoding, offsets, strict=True) for member in row.members]
        return owner, np.array(uniforms)

    def fork(self, row: RolloutRow, members: list[RowMember]) -> RolloutRow:
        """Move some members of an active row to an active copy of it."""
        copy = RolloutRow(row.episode.copy(), row.query, len(self.all_rows), members, row.sampled_count, row.state)
        row.members = [member for member in row.members if all(member is not other for other in members)]
        self.all_rows.append(copy)
        self.cache.copy_row(self.cache, row.index, copy.index)
        for array in self._arrays:
            array[copy.index] = array[row.index]
        self.activate(copy)
        return copy

    def append_tokens(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """Append one token to each active row."""
        rows = slice(0, self.active)
        cells = np.arange(self.active), self.turn_length[rows]
        self.ids[cells] = ids
        self.logprobs[cells] = logprobs
        self.next_token[rows] = ids
        self.position[rows] += 1
        self.turn_length[rows] += 1
        self.remaining[rows] -= 1

    def turn_tokens(self, row: RolloutRow) -> tuple[list[int], list[float]]:
        """The tokens and log-probabilities of a row's finished turn."""
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
        """Move a row to the active ones."""
        self.swap(row.index, self.active)
        self.active += 1

    def deactivate(self, row: RolloutRow) -> None:
        """Move a row to the waiting ones."""
        self.active -= 1
        self.swap(row.index, self.active)

    def remove(self, row: RolloutRow) -> None:
        """Remove a waiting row."""
        self.swap(row.index, len(self.all_rows) - 1)
        self.all_rows.pop()
