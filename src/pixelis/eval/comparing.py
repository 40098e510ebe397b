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
from pixelis.metrics.statistics import benjamini_hochberg, mean_of_runs, paired_permutation_test

Floats = NDArray[np.float64]
Say = Callable[[str], None]
PERMUTATIONS = 9999
COUNTED = ("calls", "decisive")
"""Numbers of steps: of these it is told by what share they are fewer."""
ANSWERS = tuple(
    f"{key}{when}" for key in ("accuracy", "greedy", "voted", "majority") for when in ("", "_later", "_last_third")
)
"""Percentages of right answers: where all are right, or all wrong, their interval is exact."""


class Run(NamedTuple):
    """What one seed of a variant scored, item by item."""

    seed: int | None
    """None where nothing was drawn: it stands for every seed."""
    items: tuple[str, ...]
    measures: Mapping[str, Floats]
    """(n,) of each measure."""


Found = Mapping[str, Sequence[Run]]
"""The runs of each variant."""


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
    """All seeds of each variant, in the order of the file, or those of `only`: variants (`ours`) and parts (`ours-1`).

    ConfigError for a name that none has.
    """
    every = [Part(variant, seed) for variant in variants for seed in range(variant.seeds)]
    known = {variant.name for variant in variants}
    if unknown := set(only) - known - {part.name for part in every}:
        raise ConfigError(f"no variant {sorted(unknown)[0]!r}: want some of {', '.join(sorted(known))}")
    return [part for part in every if not only or part.variant.name in only or part.name in only]


def merged(tree: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with some keys changed, level by level."""
    out = dict(tree)
    for key, value in change.items():
        out[key] = merged(out[key], value) if isinstance(value, Mapping) and isinstance(out.get(key), dict) else value
    return out


def rows_of(folder: Path) -> list[Scored]:
    """What an evaluation left."""
    return [from_row(json.loads(line)) for line in (folder / "items.jsonl").read_text().splitlines()]


def interval(values: Floats, key: str) -> Interval:
    """BCa over items of a measure's mean; its only value where it has but one."""
    if key in ANSWERS:
        own = bca_interval(values / 100.0, rng=np.random.default_rng(0))
        return own._replace(point=100.0 * own.point, low=100.0 * own.low, high=100.0 * own.high)
    if np.ptp(values) == 0.0:
        return Interval(float(values[0]), float(values[0]), float(values[0]), "constant")
    return bca_interval(values, rng=np.random.default_rng(0))


def together(a: Sequence[Run], b: Sequence[Run], key: str) -> tuple[Floats, Floats]:
    """(n,) of a measure for two variants, over the seeds that both have; all of each where they share none."""
    items = {run.items for run in (*a, *b)}
    if len(items) > 1:
        raise ConfigError("two variants were asked different questions: delete the runs of one, and run it again")
    mine, theirs = of_shared_seeds(a, b)
    return np.mean([run.measures[key] for run in mine], axis=0), np.mean([run.measures[key] for run in theirs], axis=0)


def of_shared_seeds(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Of two variants the runs whose seed both have; all of each where they share none. A run without a seed stays."""
    seeds = [{run.seed for run in runs if run.seed is not None} for runs in (a, b)]
    shared = seeds[0] & seeds[1] or seeds[0] | seeds[1]
    mine, theirs = ([run for run in runs if run.seed is None or run.seed in shared] for runs in (a, b))
    return mine, theirs


def difference(a: Sequence[Run], b: Sequence[Run], key: str) -> dict[str, Any]:
    """How much more the first has than the second: paired by item, BCa interval, paired permutation test.

    Intervals and p are over items: that other seeds might have learnt otherwise is not in them. `by_seed` tells how far
    the seeds that both have agree, and `t_over_seeds` what these few say of others (Student's t).
    """
    mine, theirs = together(a, b, key)
    test = paired_permutation_test(mine, theirs, rng=np.random.default_rng(0), permutations=PERMUTATIONS)
    own = interval(mine - theirs, "difference")
    out: dict[str, Any] = {"difference": test.difference, "low": own.low, "high": own.high, "p": test.p_value}
    means, base = ({run.seed: float(run.measures[key].mean()) for run in runs} for runs in (a, b))
    known = ((mean, base.get(seed, base.get(None))) for seed, mean in means.items())  # None: one base for all seeds
    out["by_seed"] = [mean - other for mean, other in known if other is not None]
    runs = mean_of_runs(out["by_seed"])
    out["t_over_seeds"] = {"low": runs.low, "high": runs.high, "p": runs.p_value} if runs else None
    if key in COUNTED and theirs.mean() > 0:
        fewer = bca_interval(np.column_stack([mine, theirs]), share_less, rng=np.random.default_rng(0))
        out |= {"less": fewer.point, "less_low": fewer.low, "less_high": fewer.high}
    return out


def share_less(pairs: Floats) -> float:
    """By what share, in percent, the mean of the first column lies under that of the second."""
    mine, theirs = pairs.mean(axis=0)
    return float(100.0 * (1.0 - mine / theirs)) if theirs else 0.0


def compared(found: Found, bases: Mapping[str, str], over: str) -> list[dict[str, Any]]:
    """One row a variant: seeds averaged item by item, BCa intervals over items, tests against its base.

    `bases` has the base of each variant that is tested; `over` names the difference in the rows. p-values of one
    measure are one family, adjusted by Benjamini and Hochberg.
    """
    table = []
    for name, runs in found.items():
        row: dict[str, Any] = {"variant": name, "seeds": len(runs), "items": len(runs[0].items)}
        for key in runs[0].measures:
            values = np.mean([run.measures[key] for run in runs], axis=0)
            own = interval(values, key)
            spread = float(np.std([run.measures[key].mean() for run in runs], ddof=1)) if len(runs) > 1 else None
            row[key] = {"n": len(values), "mean": own.point, "low": own.low, "high": own.high, "over_seeds": spread}
            if bases.get(name) in found and bases[name] != name:
                row[key][over] = difference(runs, found[bases[name]], key) | {"base": bases[name]}
        table.append(row)
    return adjusted(table, over)


def paired(found: Found, ours: str) -> list[dict[str, Any]]:
    """Ours against every other variant, measure by measure."""
    rows: list[dict[str, Any]] = []
    for name, runs in found.items() if ours in found else ():
        if name != ours:
            keys = [key for key in found[ours][0].measures if key in runs[0].measures]
            rows.append(
                {"variant": ours, "over": name, **{k: {"over": difference(found[ours], runs, k)} for k in keys}}
            )
    return adjusted(rows, "over")


def adjusted(table: list[dict[str, Any]], over: str) -> list[dict[str, Any]]:
    """The same rows with adjusted p-values, each measure a family of its own."""
    for key in {key for row in table for key, value in row.items() if isinstance(value, dict) and over in value}:
        tests = [row[key][over] for row in table if over in row.get(key, {})]
        for test, p in zip(tests, benjamini_hochberg([test["p"] for test in tests]).adjusted, strict=True):
            test["p_adjusted"] = float(p)
    return table
