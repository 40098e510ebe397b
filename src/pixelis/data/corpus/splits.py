"""The planned items of a corpus, before anything is rendered.

Splits own disjoint ranges of seeds, whatever the corpus, so that a seed determines its split. Families and difficulties
are distributed evenly instead of sampled: every prefix of a split has the shares of the whole, and a longer corpus
starts with the same items as a shorter one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import count, islice
from typing import NamedTuple, TypeVar

import numpy as np

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.record import SPLITS, Split
from pixelis.items import FAMILIES, Family
from pixelis.world import SHIFTS

SEEDS_PER_SPLIT = 10**9
SEEDS_PER_CORPUS = 10**7
"""Seeds of one split that one corpus may use; the corpus seed selects the range."""

K = TypeVar("K", bound=Hashable)


class Unit(NamedTuple):
    """One planned item: everything that its record depends on besides the configuration."""

    split: Split
    ordinal: int
    family: Family
    difficulty: int
    seed: int
    shift: str | None = None
    severity: int = 0
    items: str = ""
    """Name of the file of items that it comes from; empty for a generated item."""
    line: int = 0
    """Its line there, from 1."""

    @property
    def name(self) -> str:
        suffix = f"-{self.items}-{self.line}" if self.items else ""
        return f"{self.split}-{self.ordinal:07d}{suffix}"

    @property
    def source(self) -> str:
        """`items.jsonl:17`; empty for a generated item."""
        return f"{self.items}:{self.line}" if self.items else ""


def first_seed(split: Split, corpus_seed: int) -> int:
    """The first seed of a corpus in a split."""
    return SPLITS.index(split) * SEEDS_PER_SPLIT + corpus_seed * SEEDS_PER_CORPUS


def split_for_seed(seed: int) -> Split:
    """The split that owns a seed; ConfigError beyond the last."""
    if not 0 <= seed < len(SPLITS) * SEEDS_PER_SPLIT:
        raise ConfigError(f"seed {seed} does not belong to a split: want 0 to {len(SPLITS) * SEEDS_PER_SPLIT - 1}")
    return SPLITS[seed // SEEDS_PER_SPLIT]


def split_sizes(n: int, shares: Mapping[Split, float]) -> dict[Split, int]:
    """The number of items in each split by the largest-remainder method; they add up to n."""
    total = sum(shares.get(split, 0.0) for split in SPLITS)
    quotas = {split: n * shares.get(split, 0.0) / total for split in SPLITS}
    counts = {split: int(quotas[split]) for split in SPLITS}
    by_remainder = sorted(SPLITS, key=lambda split: quotas[split] - counts[split], reverse=True)
    for split in by_remainder[: n - sum(counts.values())]:
        counts[split] += 1
    return counts


def weighted_round_robin(weights: Mapping[K, float]) -> Iterator[K]:
    """An endless sequence of keys in proportion to their weights: the key furthest behind comes next."""
    keys = [key for key, weight in weights.items() if weight > 0.0]
    total = sum(weights[key] for key in keys)
    counts = dict.fromkeys(keys, 0)
    for n in count(1):
        key = max(keys, key=lambda k: n * weights[k] / total - counts[k])
        counts[key] += 1
        yield key


def pair_weights(
    families: Mapping[Family, float], difficulties: Mapping[int, float]
) -> dict[tuple[Family, int], float]:
    """Weights of every pair, ordered so that neighbours differ in both: a split of ten items has all families.

    The order of the keys in the configuration does not matter.
    """
    levels, names = sorted(difficulties), [family for family in FAMILIES if family in families]
    pairs = [(f, levels[(i + j) % len(levels)]) for j in range(len(levels)) for i, f in enumerate(names)]
    return {(f, d): families[f] * difficulties[d] for f, d in pairs}


def plan_units(
    n: int,
    *,
    seed: int,
    splits: Mapping[Split, float],
    families: Mapping[Family, float],
    difficulties: Mapping[int, float],
    shift_share: float = 0.0,
) -> Iterator[Unit]:
    """The units of a corpus, split after split. An item's own seed decides whether and how it is shifted."""
    cells = pair_weights(families, difficulties)
    for split, size in split_sizes(n, splits).items():
        start = first_seed(split, seed)
        for ordinal, (family, difficulty) in enumerate(islice(weighted_round_robin(cells), size)):
            unit_seed = start + ordinal
            shift, severity = None, 0
            rng = np.random.default_rng(np.random.SeedSequence([unit_seed, 77])) if shift_share else None
            if rng is not None and rng.random() < shift_share:
                shift, severity = sorted(SHIFTS)[int(rng.integers(len(SHIFTS)))], int(rng.integers(1, 6))
            yield Unit(split, ordinal, family, difficulty, unit_seed, shift, severity)
