"""A short adaptation with its before and after: greedy accuracy on held-out questions under the stream's own shift."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.eval.running import evaluate_model
from pixelis.eval.streams import StreamTask, stream_of
from pixelis.retrieval.keys import KeyMaker
from pixelis.train.ttrl import TtrlReport, adapt
from pixelis.train.ttrl_config import TtrlConfig

FAMILIES = ("search", "choice")
"""Still pictures: their tools are quick."""


class BeforeAfter(NamedTuple):
    """What a policy answered right before it had seen the stream, and after."""

    before: float
    after: float
    """Percent of `held` questions."""
    held: int
    report: TtrlReport


def before_and_after(
    settings: TtrlConfig,
    out: Path,
    *,
    shift: str,
    queries: int,
    held: int,
    keys: KeyMaker | None = None,
    show: Callable[[dict[str, Any], int], None] = lambda row, total: None,
) -> BeforeAfter:
    """Adapt to `queries` of each family under a shift; `held` others of each are asked before and after."""
    held_out = stream_of(FAMILIES, split="test", limit=held, shifts=(shift,))

    def accuracy(policy: str) -> float:
        return evaluate_model(policy, [StreamTask(held_out)], limit=len(held_out)).overall.score

    before = accuracy(settings.policy)
    stream = stream_of(FAMILIES, split="dev", limit=queries, shifts=(shift,))
    report = adapt(settings, stream.items(), out, keys=keys, show=show)
    return BeforeAfter(before, accuracy(report.policy), len(held_out), report)
