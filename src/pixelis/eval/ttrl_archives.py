"""What is kept of the parts of phase 3's comparison: which files, how short, and what their signatures hold."""

from __future__ import annotations

import json
from typing import Any

from pixelis.eval.ttrl_risk import mass_of
from pixelis.eval.ttrl_table import VOTED
from pixelis.retrieval.memory_files import DELETED, ITEMS, KEYS, ROWS
from pixelis.retrieval.memory_head import HEAD
from pixelis.train.adaptation import LEDGER, MEMORY
from pixelis.train.calibrating import FILE as CALIBRATION
from pixelis.train.ttrl_config import TtrlConfig

OF_STREAM = (LEDGER, CALIBRATION)
"""Of a stream, beside the table: its rows and thresholds, not its weights and memory."""
OF_MEMORY = (LEDGER, CALIBRATION, *(f"{MEMORY}/{name}" for name in (HEAD, ROWS, ITEMS, KEYS, DELETED)))
OF_HELD_OUT_GREEDILY = ("greedy/items.jsonl", "greedy/report.json", "old/items.jsonl", "old/report.json")
OF_HELD_OUT = (*OF_HELD_OUT_GREEDILY, f"{VOTED}/{LEDGER}", f"{VOTED}/done.json")
OF_STATISTICS = ("items.jsonl", "report.json")
HOW_IT_RUNS = {
    "policy", "memory", "snapshot_every", "keep_bytes", "device", "threads", "workers", "cache_path", "batch_tokens"
}  # fmt: skip
"""Keys that say where and how quickly, not what."""
YOUNGER = {"one_lesson_each": False}
"""Settings that came after parts had been kept, with what those parts had: signed where they are something else."""


def signed(settings: TtrlConfig) -> dict[str, Any]:
    """What rows depend on, of the settings."""
    as_before = {name for name, value in YOUNGER.items() if getattr(settings, name) == value}
    return settings.model_dump(mode="json", exclude=HOW_IT_RUNS | as_before)


def told_of(ledger: bytes) -> bytes:
    """Of the rows of a stream what the table and the figures are made from: a ninth of their bytes, packed.

    Left out: each ballot's terms, and what was retrieved. Running the part again brings them back.
    """
    rows = [json.loads(line) for line in ledger.splitlines()]
    for row in rows:
        vote = row["vote"]
        mass = mass_of(row)
        row["vote"] = {key: vote[key] for key in ("margin", "majority", "agreement", "entropy")} | {"mass": mass}
        row["vote"]["ballots"] = [{"answer": ballot["answer"]} for ballot in vote["ballots"]]
        for key in ("neighbours", "labels", "question", "seal"):
            row.pop(key, None)  # rows of another machine's archive are short already
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
