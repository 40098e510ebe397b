"""What is evaluated: tasks that give items with their media, and score answers by their benchmark's own rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from pixelis.data.record import Split
from pixelis.data.splits import first_seed
from pixelis.errors import ConfigError
from pixelis.world import FAMILIES, Family, Rendered, generate, shifted

LEVELS = (1, 2, 3, 4, 5)


class Task(Protocol):
    """Items of one kind, in a fixed order: the same limit gives the same items everywhere."""

    @property
    def name(self) -> str:
        """As the command line and reports call it."""

    def items(self, limit: int) -> Iterator[Rendered]:
        """The first `limit` items."""


class WorldTask(NamedTuple):
    """One family of the world, on seeds that no corpus of another split shares; the five levels in turn."""

    family: Family
    split: Split = "test"
    corpus_seed: int = 0
    shift: str = ""
    """`KIND:SEVERITY`, or empty."""

    @property
    def name(self) -> str:
        return f"{self.family}+{self.shift}" if self.shift else self.family

    def items(self, limit: int) -> Iterator[Rendered]:
        kind, _, severity = self.shift.partition(":")
        start = first_seed(self.split, self.corpus_seed) + HELD_OUT
        for k in range(limit):
            made = generate(self.family, seed=start + k, difficulty=LEVELS[k % len(LEVELS)])
            yield shifted(made, kind, int(severity or 1), seed=start + k) if kind else made  # type: ignore[arg-type]


HELD_OUT = 500_000
"""Evaluation begins this far into a split, beyond what corpora take from it."""


def world_tasks(names: list[str], *, split: Split, shift: str = "") -> list[WorldTask]:
    """Tasks by name; all six families where none is named."""
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        raise ConfigError(f"no task {unknown[0]!r}: want some of {', '.join(FAMILIES)}")
    return [WorldTask(family, split, shift=shift) for family in (names or FAMILIES)]  # type: ignore[arg-type]
