"""Variants of a phase, run alike and compared in pairs: what `reproduce rft` and `reproduce ttrl` share.

Every part (a variant with a seed) has a folder of its own and is skipped where it has ended, so that the whole can be
stopped and gone on with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.config import Config
from pixelis.errors import ConfigError
from pixelis.eval.harness import Scored, from_row
from pixelis.metrics.bootstrap import Interval, bca_interval
from pixelis.metrics.statistics import paired_permutation_test

Floats = NDArray[np.float64]
Say = Callable[[str], None]
PERMUTATIONS = 9999
COUNTED = ("calls", "decisive", "variety")
"""Measures that are no percentages."""


class Seeded(Config):
    """One way to go on from a policy, with some seeds."""

    name: str = Field(pattern="^[a-z0-9-]+$")
    seeds: int = Field(default=1, ge=1)
    change: dict[str, Any] = Field(default_factory=dict)
    """Keys of the phase's configuration."""


V = TypeVar("V", bound=Seeded)


class Part(NamedTuple, Generic[V]):
    """One variant with one seed."""

    variant: V
    seed: int

    @property
    def name(self) -> str:
        return f"{self.variant.name}-{self.seed}"


def parts_of(variants: Sequence[V], only: Sequence[str]) -> list[Part[V]]:
    """All seeds of each variant, in the order of the file; ConfigError for a name that no variant has."""
    known = {variant.name for variant in variants}
    if unknown := set(only) - known:
        raise ConfigError(f"no variant {sorted(unknown)[0]!r}: want some of {', '.join(sorted(known))}")
    return [Part(v, seed) for v in variants if not only or v.name in only for seed in range(v.seeds)]


def merged(tree: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some keys changed, level by level."""
    out = dict(tree)
    for key, value in change.items():
        out[key] = merged(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), dict) else value
    return out


def rows_of(folder: Path) -> list[Scored]:
    """What an evaluation left."""
    return [from_row(json.loads(line)) for line in (folder / "items.jsonl").read_text().splitlines()]


def interval(values: Floats, *, full: float = 100.0) -> Interval:
    """BCa over items; where all are wrong, or all right, the exact interval. `full` is what a right one counts."""
    own = bca_interval(values / full, rng=np.random.default_rng(0))
    return own._replace(point=full * own.point, low=full * own.low, high=full * own.high)


def compared(found: Mapping[str, Sequence[Mapping[str, Floats]]], base: str | None, over: str) -> list[dict[str, Any]]:
    """One row a variant: seeds averaged item by item, BCa intervals over items, paired tests against `base`.

    `found` has for each variant and seed the (n,) values of every measure; `over` names the difference in the rows.
    """
    means = {
        name: {key: np.mean([run[key] for run in runs], axis=0) for key in runs[0]} for name, runs in found.items()
    }
    table = []
    for name, runs in found.items():
        row: dict[str, Any] = {"variant": name, "seeds": len(runs), "items": len(next(iter(runs[0].values())))}
        for key, values in means[name].items():
            own = interval(values, full=1.0 if key in COUNTED else 100.0)
            spread = float(np.std([run[key].mean() for run in runs]))
            row[key] = {"mean": own.point, "low": own.low, "high": own.high, "over_seeds": spread}
            if base is not None and base != name:
                rng = np.random.default_rng(0)
                test = paired_permutation_test(values, means[base][key], rng=rng, permutations=PERMUTATIONS)
                row[key] |= {over: test.difference, "p": test.p_value}
        table.append(row)
    return table
