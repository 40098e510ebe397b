"""Variants of a phase, run alike and compared in pairs: shared by `reproduce rft` and `reproduce ttrl`.

Every part (a variant with a seed) has its own folder, and finished parts are skipped, so that a comparison can be
resumed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from pixelis.core.config import Config, with_current_names
from pixelis.core.errors import ConfigError
from pixelis.evaluation.harness import ScoredItem, from_row
from pixelis.metrics.bootstrap import Interval, bca_interval
from pixelis.metrics.statistics import benjamini_hochberg, mean_of_runs, paired_permutation_test

Floats = NDArray[np.float64]
LogFn = Callable[[str], None]
PERMUTATIONS = 9999
COUNT_MEASURES = ("calls", "decisive")
"""Numbers of steps; for these the relative reduction is also reported."""
PERCENT_MEASURES = tuple(
    f"{key}{when}" for key in ("accuracy", "greedy", "voted", "majority") for when in ("", "_later", "_last_third")
)
"""Percentages of correct answers; if all are correct or all wrong, the interval is exact."""


class RunScores(NamedTuple):
    """Scores of one seed of a variant, item by item."""

    seed: int | None
    """None if nothing was sampled: the run then stands for every seed."""
    items: tuple[str, ...]
    measures: Mapping[str, Floats]
    """(n,) of each measure."""


RunsByVariant = Mapping[str, Sequence[RunScores]]
"""The runs of each variant."""


class SeededVariant(Config):
    """A variant of a phase, with its seeds."""

    name: str = Field(pattern="^[a-z0-9-]+$")
    seeds: int = Field(default=1, ge=1)
    change: dict[str, Any] = Field(default_factory=dict)
    """Overrides of the phase's configuration."""


V = TypeVar("V", bound=SeededVariant)
C = TypeVar("C", bound=Config)


class ExperimentPart(NamedTuple, Generic[V]):
    """One variant with one seed."""

    variant: V
    seed: int

    @property
    def name(self) -> str:
        return f"{self.variant.name}-{self.seed}"


def select_parts(variants: Sequence[V], only: Sequence[str]) -> list[ExperimentPart[V]]:
    """All parts in the order of the file, or those in `only`, which has variants (`ours`) and parts (`ours-1`).

    ConfigError for an unknown name.
    """
    all_parts = [ExperimentPart(variant, seed) for variant in variants for seed in range(variant.seeds)]
    names = {variant.name for variant in variants}
    if unknown := set(only) - names - {part.name for part in all_parts}:
        raise ConfigError(f"no variant {sorted(unknown)[0]!r}: known are {', '.join(sorted(names))}")
    return [part for part in all_parts if not only or part.variant.name in only or part.name in only]


def override_config(config: C, *changes: Mapping[str, Any]) -> C:
    """A configuration with some keys changed, level by level; later changes win. Old names of keys are accepted."""
    tree = config.model_dump(mode="json")
    for change in changes:
        tree = merge_config(tree, with_current_names(type(config), change))
    return type(config).model_validate(tree)


def merge_config(tree: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(tree)
    for key, value in change.items():
        result[key] = (
            merge_config(result[key], value)
            if isinstance(value, Mapping) and isinstance(result.get(key), dict)
            else value
        )
    return result


def read_scored_items(folder: Path) -> list[ScoredItem]:
    return [from_row(json.loads(line)) for line in (folder / "items.jsonl").read_text().splitlines()]


def mean_interval(values: Floats, key: str) -> Interval:
    """BCa interval of a measure's mean over items; a single value for constant data."""
    if key in PERCENT_MEASURES:
        share_interval = bca_interval(values / 100.0, rng=np.random.default_rng(0))
        return share_interval._replace(
            point=100.0 * share_interval.point, low=100.0 * share_interval.low, high=100.0 * share_interval.high
        )
    if np.ptp(values) == 0.0:
        return Interval(float(values[0]), float(values[0]), float(values[0]), "constant")
    return bca_interval(values, rng=np.random.default_rng(0))


def pair_values(a: Sequence[RunScores], b: Sequence[RunScores], key: str) -> tuple[Floats, Floats]:
    """(n,) of a measure for two variants, averaged over shared seeds, or over all if they share none."""
    items = {run.items for run in (*a, *b)}
    if len(items) > 1:
        raise ConfigError("two variants have different questions; delete the runs of one, and run it again")
    left, right = select_shared_seeds(a, b)
    return np.mean([run.measures[key] for run in left], axis=0), np.mean([run.measures[key] for run in right], axis=0)


def select_shared_seeds(a: Sequence[RunScores], b: Sequence[RunScores]) -> tuple[list[RunScores], list[RunScores]]:
    """Runs of two variants with shared seeds, or all if they share none. A run without a seed is always kept."""
    seeds = [{run.seed for run in runs if run.seed is not None} for runs in (a, b)]
    shared = seeds[0] & seeds[1] or seeds[0] | seeds[1]
    left, right = ([run for run in runs if run.seed is None or run.seed in shared] for runs in (a, b))
    return left, right


def difference(a: Sequence[RunScores], b: Sequence[RunScores], key: str) -> dict[str, Any]:
    """The first minus the second, paired by item: BCa interval and paired permutation test.

    Intervals and p-values are over items and do not include the variation over seeds; `by_seed` has the difference of
    each shared seed, and `t_over_seeds` Student's t over these.
    """
    left, right = pair_values(a, b, key)
    test = paired_permutation_test(left, right, rng=np.random.default_rng(0), permutations=PERMUTATIONS)
    estimate = mean_interval(left - right, "difference")
    out: dict[str, Any] = {"difference": test.difference, "low": estimate.low, "high": estimate.high, "p": test.p_value}
    means, base_means = ({run.seed: float(run.measures[key].mean()) for run in runs} for runs in (a, b))
    mean_pairs = (
        (mean, base_means.get(seed, base_means.get(None))) for seed, mean in means.items()
    )  # None: one base for all seeds
    out["by_seed"] = [mean - other for mean, other in mean_pairs if other is not None]
    runs = mean_of_runs(out["by_seed"])
    out["t_over_seeds"] = {"low": runs.low, "high": runs.high, "p": runs.p_value} if runs else None
    if key in COUNT_MEASURES and right.mean() > 0:
        fewer = bca_interval(np.column_stack([left, right]), percent_less, rng=np.random.default_rng(0))
        out |= {"less": fewer.point, "less_low": fewer.low, "less_high": fewer.high}
    return out


def percent_less(pairs: Floats) -> float:
    """By how many percent the mean of the first column is below that of the second."""
    left, right = pairs.mean(axis=0)
    return float(100.0 * (1.0 - left / right)) if right else 0.0


def compare_to_bases(runs_by_variant: RunsByVariant, bases: Mapping[str, str], over: str) -> list[dict[str, Any]]:
    """One row per variant: means over seeds by item, BCa intervals over items, tests against its base.

    `bases` has the base of each tested variant; `over` is the key of the difference. The p-values of one measure are
    one family, adjusted by Benjamini and Hochberg.
    """
    table = []
    for name, runs in runs_by_variant.items():
        row: dict[str, Any] = {"variant": name, "seeds": len(runs), "items": len(runs[0].items)}
        for key in runs[0].measures:
            values = np.mean([run.measures[key] for run in runs], axis=0)
            estimate = mean_interval(values, key)
            spread = float(np.std([run.measures[key].mean() for run in runs], ddof=1)) if len(runs) > 1 else None
            interval = {"mean": estimate.point, "low": estimate.low, "high": estimate.high}
            row[key] = {"n": len(values), **interval, "over_seeds": spread}
            if bases.get(name) in runs_by_variant and bases[name] != name:
                row[key][over] = difference(runs, runs_by_variant[bases[name]], key) | {"base": bases[name]}
        table.append(row)
    return adjust_p_values(table, over)


def compare_pairwise(runs_by_variant: RunsByVariant, ours: str) -> list[dict[str, Any]]:
    """Ours against every other variant, for each measure."""
    rows: list[dict[str, Any]] = []
    for name, runs in runs_by_variant.items() if ours in runs_by_variant else ():
        if name != ours:
            keys = [key for key in runs_by_variant[ours][0].measures if key in runs[0].measures]
            rows.append(
                {
                    "variant": ours,
                    "over": name,
                    **{k: {"over": difference(runs_by_variant[ours], runs, k)} for k in keys},
                }
            )
    return adjust_p_values(rows, "over")


def adjust_p_values(table: list[dict[str, Any]], over: str) -> list[dict[str, Any]]:
    """The same rows with adjusted p-values; each measure is one family."""
    for key in {key for row in table for key, value in row.items() if isinstance(value, dict) and over in value}:
        tests = [row[key][over] for row in table if over in row.get(key, {})]
        for test, p in zip(tests, benjamini_hochberg([test["p"] for test in tests]).adjusted, strict=True):
            test["p_adjusted"] = float(p)
    return table
