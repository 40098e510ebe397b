"""A short adaptation and its greedy accuracy on held-out questions under the same shift, before and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.evaluation.run_evaluation import evaluate_model
from pixelis.evaluation.streams import StreamTask, make_stream
from pixelis.memory.keys import KeyMaker
from pixelis.training.ttrl.train import TtrlReport, adapt
from pixelis.training.ttrl.ttrl_config import TtrlConfig

FAMILIES = ("search", "choice")
"""Families of still pictures, whose tools are quick."""


class BeforeAfter(NamedTuple):
    """Accuracy on held-out questions before and after an adaptation."""

    before: float
    after: float
    """Percent of the held-out questions."""
    held_out_items: int
    report: TtrlReport


def measure_before_after(
    settings: TtrlConfig,
    out: Path,
    *,
    shift: str,
    queries: int,
    held_out_items: int,
    keys: KeyMaker | None = None,
    show: Callable[[dict[str, Any], int], None] = lambda row, total: None,
) -> BeforeAfter:
    """Adapt to `queries` of each family under a shift, and ask `held_out_items` others of each before and after."""
    held_out = make_stream(FAMILIES, split="test", limit=held_out_items, shifts=(shift,))

    def accuracy(policy: str) -> float:
        return evaluate_model(policy, [StreamTask(held_out)], limit=len(held_out)).overall.score

    before = accuracy(settings.policy)
    stream = make_stream(FAMILIES, split="dev", limit=queries, shifts=(shift,))
    report = adapt(settings, stream.items(), out, keys=keys, show=show)
    return BeforeAfter(before, accuracy(report.policy), len(held_out), report)
