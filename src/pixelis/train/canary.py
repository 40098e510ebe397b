"""Canary questions: their answers are known, they are never learnt from, and a policy that falls on them is taken back.

They are asked greedily before the first query and every so many queries. The scores of one time are held against
those before the first query by the paired permutation test (`metrics.statistics`), question by question. A fall with a
p-value under the level stops the run; the last time without such a fall is the good state that it goes back to.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pixelis.errors import ConfigError
from pixelis.metrics.statistics import paired_permutation_test
from pixelis.rundir import replacing
from pixelis.train.adaptation import append, mended_rows, seal_of
from pixelis.train.ttrl_config import CanarySettings

FILE = "canary.jsonl"


class Canary:
    """The times that the questions were asked, on disk and in memory."""

    def __init__(self, folder: Path, settings: CanarySettings) -> None:
        self.settings, self.path = settings, folder / FILE
        self.times = mended_rows(self.path)

    @property
    def fell(self) -> dict[str, Any] | None:
        """The time at which a run was stopped, if it was."""
        return self.times[-1] if self.times and self.times[-1]["fell"] else None

    @property
    def good(self) -> int | None:
        """The row of the last time without a fall, which a run may have to go back to; None before the first time."""
        return max((time["query"] for time in self.times if not time["fell"]), default=None)

    def due(self, query: int) -> bool:
        """Whether it is time, `query` queries having been answered."""
        if not self.settings.items:
            return False
        return not self.times or query // self.settings.every > self.times[-1]["query"] // self.settings.every

    def check(self, query: int, now: list[float]) -> dict[str, Any]:
        """Hold the scores of a time against those of the first, and write it down."""
        if not now:
            raise ConfigError("canary questions are wanted, and there are none: say canary.items=0")
        first = self.times[0]["scores"] if self.times else now
        if len(first) != len(now):
            raise ConfigError(f"{self.path} has {len(first)} canary questions, {len(now)} were asked: give the same")
        test = paired_permutation_test(now, first, rng=np.random.default_rng(0))
        row = {
            "query": query, "scores": now, "mean": float(np.mean(now)), "change": test.difference, "p": test.p_value,
            "fell": bool(test.difference < 0.0 and test.p_value < self.settings.level),
            "good": self.good or 0,
        }  # fmt: skip
        row["seal"] = seal_of(row)
        append(self.path, [json.dumps(row)])
        self.times.append(row)
        return row

    def forget_after(self, query: int) -> None:
        """Times after a row that the run was taken back to, a fall at it included: they are asked again."""
        kept = [time for time in self.times if time["query"] <= query and not time["fell"]]
        if len(kept) < len(self.times):
            self.times = kept
            with replacing(self.path) as file:
                file.writelines(json.dumps(time).encode() + b"\n" for time in self.times)


def told(fall: dict[str, Any]) -> str:
    """Why a run was stopped, in a sentence."""
    return (
        f"the canary questions fell by {-100 * fall['change']:.1f} points after query {fall['query']} "
        f"(paired permutation test, p = {fall['p']:.3g}); taken back to query {fall['good']}"
    )
