"""Canary questions: their answers are known, they are never trained on, and a policy that fails them is reverted.

They are asked greedily before the first query and at intervals. The scores of each check are compared with those before
the first query by the paired permutation test (`metrics.statistics`), question by question. A significant fall stops
the run and reverts it to the last check without one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import ConfigError
from pixelis.metrics.statistics import paired_permutation_test
from pixelis.training.ttrl.journal import append_lines, compute_seal, repair_rows
from pixelis.training.ttrl.ttrl_config import CanarySettings

FILE = "canary.jsonl"


class Canary:
    """The checks of a run, on disk and in memory."""

    def __init__(self, folder: Path, settings: CanarySettings) -> None:
        self.settings, self.path = settings, folder / FILE
        self.checks = repair_rows(self.path)

    @property
    def regression(self) -> dict[str, Any] | None:
        """The check that stopped the run, if one did."""
        return self.checks[-1] if self.checks and self.checks[-1]["fell"] else None

    @property
    def last_good_row(self) -> int | None:
        """The row of the last check without a fall, which the run may revert to; None before the first check."""
        return max((check["query"] for check in self.checks if not check["fell"]), default=None)

    def is_due(self, query: int) -> bool:
        """Whether a check is due after `query` queries."""
        if not self.settings.items_per_family:
            return False
        return not self.checks or query // self.settings.interval > self.checks[-1]["query"] // self.settings.interval

    def record_check(self, query: int, scores: list[float]) -> dict[str, Any]:
        """Compare the scores of a check with those of the first, and record it."""
        if not scores:
            raise ConfigError("canary questions are configured, but there are none: set canary.items_per_family=0")
        first_scores = self.checks[0]["scores"] if self.checks else scores
        if len(first_scores) != len(scores):
            raise ConfigError(
                f"{self.path} has {len(first_scores)} canary questions, {len(scores)} were asked: give the same"
            )
        test = paired_permutation_test(scores, first_scores, rng=np.random.default_rng(0))
        row = {
            "query": query, "scores": scores, "mean": float(np.mean(scores)), "change": test.difference,
            "p": test.p_value,
            "fell": bool(test.difference < 0.0 and test.p_value < self.settings.p_value),
            "good": self.last_good_row or 0,
        }  # fmt: skip
        row["seal"] = compute_seal(row)
        append_lines(self.path, [json.dumps(row)])
        self.checks.append(row)
        return row

    def drop_checks_after(self, query: int) -> None:
        """Drop the checks after a row that the run was reverted to, and a fall at it: they are repeated."""
        remaining = [check for check in self.checks if check["query"] <= query and not check["fell"]]
        if len(remaining) < len(self.checks):
            self.checks = remaining
            with atomic_write(self.path) as file:
                file.writelines(json.dumps(check).encode() + b"\n" for check in self.checks)


def describe_regression(regression: dict[str, Any]) -> str:
    """Why the run stopped, in a sentence."""
    return (
        f"the canary questions fell by {-100 * regression['change']:.1f} points after query {regression['query']} "
        f"(paired permutation test, p = {regression['p']:.3g}); reverted to query {regression['good']}"
    )
