"""Bench rows of a query of phase 3: eight, sixteen and twenty-four rollouts, which is all that a plain majority needs,
and eight with vote, memory and learning.

All answer the same queries in turns of a batch, in one process, so that a busy machine disturbs them alike. Tools are
not counted: whoever asks first pays for all. What learning costs in rollouts is what equal cost means in plain voting
(supp:budget_fairness).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pixelis.config import load_config
from pixelis.eval.bench import BenchRow
from pixelis.eval.comparing import merged
from pixelis.eval.streams import stream_of
from pixelis.retrieval.collection import Progress, silent
from pixelis.retrieval.keys import KeyMaker
from pixelis.train.adaptation import LEDGER, read_rows
from pixelis.train.ttrl import adapt
from pixelis.train.ttrl_config import TtrlConfig

SETTINGS = Path("configs/nano/winding_ttrl.yaml")
SHIFTS = ("lighting:3", "motion_blur:3")
QUIET = {"canary": {"items": 0}, "calibration": {"items": 0}, "snapshot_every": 1000}
STILL = (8, 16, 24)
"""Rollouts of those that do not learn."""
LEARNING = "vote, memory and learning"


def rows(keys: KeyMaker, *, turns: int = 6, progress: Progress = silent) -> list[BenchRow]:
    """CPU seconds of a query, tools apart, over `turns` batches; the first warms up and is left out."""
    base = load_config(TtrlConfig, SETTINGS, []).model_dump(mode="json")
    changes: dict[str, dict[str, Any]] = {f"{n} rollouts": {"learn": False, "samples": n} for n in STILL}
    changes[f"{STILL[0]} rollouts, {LEARNING}"] = {"samples": STILL[0]}
    made = {name: TtrlConfig.model_validate(merged(base, QUIET | change)) for name, change in changes.items()}
    size = next(iter(made.values())).batch
    items = list(stream_of((), split="dev", limit=-(-size * (turns + 1) // 6), shifts=SHIFTS).items())
    costs = dict[str, float]()
    with TemporaryDirectory(prefix="pixelis-bench-adapt-") as temporary:
        for turn in range(turns + 1):
            for number, (name, settings) in enumerate(made.items()):
                progress("batches", turn * len(made) + number, (turns + 1) * len(made))
                adapt(settings, items[: size * (turn + 1)], Path(temporary) / name.replace(" ", "-"), keys=keys)
        for name, settings in made.items():
            found = read_rows(Path(temporary) / name.replace(" ", "-") / LEDGER)[size:]
            costs[name] = float(np.mean([row["cpu_s" if settings.learn else "rollout_cpu_s"] for row in found]))
    few, most = (costs[f"{n} rollouts"] for n in (STILL[0], STILL[-1]))
    own = costs[f"{STILL[0]} rollouts, {LEARNING}"]
    equal = STILL[0] + (own - few) * (STILL[-1] - STILL[0]) / (most - few)
    note = f"as much as {equal:.1f} rollouts alone; mean of {size * turns} queries, tools not counted"
    return [
        BenchRow(name=f"a query: {name}", ours_cpu_s=cost, note=note if made[name].learn else "")
        for name, cost in costs.items()
    ]
