"""What is kept of the parts of phase 3's comparison: which files, how short, and what their signatures hold."""

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
"""Of a stream, beside the table: its rows and thresholds, not its weights and memory."""
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
    """Of the rows of a stream what the table and the figures are made from: a ninth of their bytes, packed.

    Left out: each ballot's terms, and what was retrieved. Running the part again brings them back.
    """
    rows = [json.loads(line) for line in ledger.splitlines()]
    for row in rows:
        vote = row["vote"]
        mass = vote_mass(row)
        row["vote"] = {key: vote[key] for key in ("margin", "majority", "agreement", "entropy")} | {"mass": mass}
        row["vote"]["ballots"] = [{"answer": ballot["answer"]} for ballot in vote["ballots"]]
        for key in ("neighbours", "labels", "question", "seal"):
            row.pop(key, None)  # rows of another machine's archive are short already
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)
