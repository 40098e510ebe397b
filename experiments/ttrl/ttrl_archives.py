"""Archives of the parts of phase 3's comparison: their files, shortened ledgers and fingerprints."""

from __future__ import annotations

import json

from experiments.common.result_archive import ConfigFact
from experiments.ttrl.ttrl_risk import vote_mass
from experiments.ttrl.ttrl_table import VOTED
from pixelis.memory.memory_files import DELETED, ITEMS, KEYS, ROWS
from pixelis.memory.memory_head import MEMORY_HEAD_FILE
from pixelis.training.ttrl.journal import LEDGER, MEMORY
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.voting.fit_calibration import CALIBRATION_FILE as CALIBRATION

STREAM_FILES = (LEDGER, CALIBRATION)
"""Archived files of a stream: rows and thresholds, without weights and memory."""
MEMORY_FILES = (LEDGER, CALIBRATION, *(f"{MEMORY}/{name}" for name in (MEMORY_HEAD_FILE, ROWS, ITEMS, KEYS, DELETED)))
GREEDY_HELD_OUT_FILES = ("greedy/items.jsonl", "greedy/report.json", "old/items.jsonl", "old/report.json")
HELD_OUT_FILES = (*GREEDY_HELD_OUT_FILES, f"{VOTED}/{LEDGER}", f"{VOTED}/done.json")
STATISTICS_FILES = ("items.jsonl", "report.json")
RUNTIME_KEYS = frozenset({
    "policy", "memory", "snapshot_every", "keep_bytes", "device", "threads", "workers", "cache_path", "batch_tokens",
    "loggers",
})  # fmt: skip
"""Keys that do not affect the rows."""


def settings_fingerprint(settings: TtrlConfig) -> ConfigFact:
    return ConfigFact(settings, RUNTIME_KEYS)


def shorten_ledger(ledger: bytes) -> bytes:
    """The parts of a stream's rows that the table and the figures need: a ninth of the bytes.

    The terms of each ballot and the retrieved neighbours are left out; running the part again restores them.
    """
    rows = [json.loads(line) for line in ledger.splitlines()]
    for row in rows:
        vote = row["vote"]
        mass = vote_mass(row)
        row["vote"] = {key: vote[key] for key in ("margin", "majority", "agreement", "entropy")} | {"mass": mass}
        row["vote"]["ballots"] = [{"answer": ballot["answer"]} for ballot in vote["ballots"]]
        for key in ("neighbours", "labels", "question", "seal"):
            row.pop(key, None)  # rows from an archive are already short
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
