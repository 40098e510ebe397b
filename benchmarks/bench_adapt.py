"""Bench rows of a query of phase 3: 8, 16 and 24 rollouts alone, which is all that a majority vote needs, and 8 with
vote, memory and update.

All variants answer the same queries, interleaved by batch in one process, so that other load affects them alike. Tool
time is not counted, because the first variant fills the cache. The cost of an update in rollouts defines equal cost in
the comparison with majority voting (supp:budget_fairness).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.bench_rows import BenchRow
from experiments.common.paired_tests import override_config
from pixelis.core.config import load_config
from pixelis.dedup.media_collection import ProgressCallback, no_progress
from pixelis.evaluation.streams import make_stream
from pixelis.memory.keys import KeyMaker
from pixelis.training.ttrl.journal import LEDGER, read_rows
from pixelis.training.ttrl.train import adapt
from pixelis.training.ttrl.ttrl_config import TtrlConfig

SETTINGS = Path("configs/nano/winding_ttrl.yaml")
SHIFTS = ("lighting:3", "motion_blur:3")
NO_MONITORING = {"canary": {"items_per_family": 0}, "calibration": {"items_per_family": 0}, "snapshot_every": 1000}
FIXED_ROLLOUTS = (8, 16, 24)
"""Rollouts per query of the variants without updates."""
LEARNING = "vote, memory and learning"


def rows(keys: KeyMaker, *, turns: int = 6, progress: ProgressCallback = no_progress) -> list[BenchRow]:
    """CPU seconds of a query without tool time, over `turns` batches after a warm-up batch."""
    base = load_config(TtrlConfig, SETTINGS, [])
    changes: dict[str, dict[str, Any]] = {f"{n} rollouts": {"learn": False, "group_size": n} for n in FIXED_ROLLOUTS}
    changes[f"{FIXED_ROLLOUTS[0]} rollouts, {LEARNING}"] = {"group_size": FIXED_ROLLOUTS[0]}
    configs = {name: override_config(base, NO_MONITORING, change) for name, change in changes.items()}
    size = next(iter(configs.values())).batch
    items = list(make_stream((), split="dev", limit=-(-size * (turns + 1) // 6), shifts=SHIFTS).items())
    costs = dict[str, float]()
    with TemporaryDirectory(prefix="pixelis-bench-adapt-") as temporary:
        for turn in range(turns + 1):
            for number, (name, settings) in enumerate(configs.items()):
                progress("batches", turn * len(configs) + number, (turns + 1) * len(configs))
                adapt(settings, items[: size * (turn + 1)], Path(temporary) / name.replace(" ", "-"), keys=keys)
        for name, settings in configs.items():
            ledger_rows = read_rows(Path(temporary) / name.replace(" ", "-") / LEDGER)[size:]
            costs[name] = float(np.mean([row["cpu_s" if settings.learn else "rollout_cpu_s"] for row in ledger_rows]))
    min_cost, max_cost = (costs[f"{n} rollouts"] for n in (FIXED_ROLLOUTS[0], FIXED_ROLLOUTS[-1]))
    learning_cost = costs[f"{FIXED_ROLLOUTS[0]} rollouts, {LEARNING}"]
    equivalent_rollouts = FIXED_ROLLOUTS[0] + (learning_cost - min_cost) * (FIXED_ROLLOUTS[-1] - FIXED_ROLLOUTS[0]) / (
        max_cost - min_cost
    )
    note = f"as much as {equivalent_rollouts:.1f} rollouts alone; mean of {size * turns} queries, tools not counted"
    return [
        BenchRow(name=f"a query: {name}", ours_cpu_s=cost, note=note if configs[name].learn else "")
        for name, cost in costs.items()
    ]
