"""The folder of an adaptation: a row for every query, updates that can be replayed, states at intervals.

    ledger.jsonl            one row per query, appended and synced
    undone.jsonl            reverted rows, kept for audits
    updates/00000012.…      the batch of update 12
    states/00000050.…       weights, EMA, moments, controller after update 50
    memory/                 the memory

The rows of a batch share an update. They are acknowledged together, when the last line is on disk: `until` of each row
is the number of that line. What a killed process left beyond the last complete batch is dropped at open: no
acknowledged update is lost, and none is half applied. To revert to row N, the newest state before it is loaded and the
updates up to N are replayed; the hash of the weights must be the row's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from pixelis.core.atomic import atomic_write, fsync_path, make_directory
from pixelis.core.errors import TraceError
from pixelis.equations.pid import Pid
from pixelis.training.ttrl import ttrl_update
from pixelis.training.ttrl.ttrl_config import TtrlConfig

LEDGER, UNDONE, UPDATES, STATES, MEMORY = "ledger.jsonl", "undone.jsonl", "updates", "states", "memory"
REVERTING = "reverting.json"
"""Exists while rows move from the ledger to `undone.jsonl`: the old length of that file, and how many rows stay."""


class AdaptationJournal:
    """An adaptation on disk and in memory. Without `restore` the policy state is not loaded: for a caller that goes to
    another row at once and needs no later files."""

    def __init__(
        self, folder: Path, config: TtrlConfig, policy_state: ttrl_update.PolicyState, *, restore: bool = True
    ) -> None:
        self.folder, self.config, self.policy_state = folder, config, policy_state
        for name in (UPDATES, STATES):
            make_directory(folder / name)
        lines = (folder / LEDGER).read_bytes().splitlines() if (folder / LEDGER).exists() else []
        self.rows = repair_rows(folder / LEDGER)
        self.dropped_rows = len(lines) - len(self.rows)
        """Rows that a killed process did not acknowledge."""
        self.last_good_row: int | None = None
        """The last row without a canary regression: it stays reachable, whatever `keep_bytes` says."""
        self._finish_revert()
        self.update_count = self.rows[-1]["updates"] if self.rows else 0
        """Updates that were applied."""
        if not self._states():
            self._save_state(0)
        self._drop_unacknowledged()
        if restore:
            self._restore(self.update_count, self.rows[-1]["weights"] if self.rows else None)

    # --- one row

    def apply(self, batch: ttrl_update.UpdateBatch) -> ttrl_update.UpdateResult:
        """Write an update to disk, then apply it. It counts once its rows are acknowledged."""
        ttrl_update.write_update(self._update_path(self.update_count + 1), batch)
        result = ttrl_update.apply_update(self.config, self.policy_state, batch)
        self.update_count += 1
        return result

    def acknowledge(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the ledger, synced."""
        digest = self.policy_state.digest()
        lines = []
        for row in rows:
            row |= {"updates": self.update_count, "weights": digest, "until": len(self.rows) + len(rows)}
            row["seal"] = compute_seal(row)
            lines.append(json.dumps(row, ensure_ascii=False))
        append_lines(self.folder / LEDGER, lines)
        self.rows += rows
        is_due = self.update_count and self.update_count % self.config.snapshot_every == 0
        if is_due and not self._state_path(self.update_count).exists():
            self._save_state(self.update_count)
            self._drop_old_states()

    # --- going back

    def revert(self, query: int) -> dict[str, Any]:
        """Revert to the state after row `query` (from 1; 0 is the start). Later rows go to `undone.jsonl`.

        Updates are replayed in memory first: if a file is damaged, TraceError is raised and nothing on disk has
        changed. The caller rolls the memory back to the row's watermark.
        """
        row = self.row(query)
        self._require_batch_boundary(query)
        self._restore(row["updates"], row["weights"])
        undone, to_json = self.folder / UNDONE, partial(json.dumps, ensure_ascii=False)
        with atomic_write(self.folder / REVERTING) as file:
            length = undone.stat().st_size if undone.exists() else 0
            file.write(json.dumps({"undone": length, "rows": query}).encode())
        append_lines(undone, [to_json(entry) for entry in self.rows[query:]])
        # the ledger first: a process killed after this line opens at this row
        with atomic_write(self.folder / LEDGER) as file:
            file.writelines(f"{to_json(entry)}\n".encode() for entry in self.rows[:query])
        remove_durably(self.folder / REVERTING)
        self.rows, self.update_count = self.rows[:query], row["updates"]
        self._drop_unacknowledged()
        return row

    def _finish_revert(self) -> None:
        """Finish a revert whose process was killed: rows that the ledger still has are not undone."""
        marker = self.folder / REVERTING
        if marker.exists():
            facts = json.loads(marker.read_text())
            if len(self.rows) > facts["rows"] and (self.folder / UNDONE).exists():
                with (self.folder / UNDONE).open("r+b") as file:
                    file.truncate(facts["undone"])
                    os.fsync(file.fileno())
            remove_durably(marker)

    def rewind_in_memory(self, query: int) -> None:
        """Restore the policy state after row `query` in memory only."""
        row = self.row(query)
        self._restore(row["updates"], row["weights"])
        self.rows, self.update_count = self.rows[:query], row["updates"]

    def row(self, query: int) -> dict[str, Any]:
        """The row of a query, from 1; 0 is the start. Raises TraceError if there is none."""
        if not 0 <= query <= len(self.rows):
            raise TraceError(f"{self.folder} has {len(self.rows)} rows: it cannot go back to {query}")
        start: dict[str, Any] = {"updates": 0, "weights": None, "memory": 0}
        return self.rows[query - 1] if query else start

    def _restore(self, update_number: int, digest: str | None) -> None:
        """Load the newest state at or before an update and replay the updates after it."""
        self._require_reachable(update_number)
        state = max(number for number in self._states() if number <= update_number)
        self._load_state(state)
        for number in range(state + 1, update_number + 1):
            batch = self._read_update(number)
            try:
                ttrl_update.apply_update(self.config, self.policy_state, batch)
            except TraceError as error:
                raise TraceError(f"{self._update_path(number)} is damaged or of another build: {error}") from error
        if digest is not None and self.policy_state.digest() != digest:
            raise TraceError(
                f"{self.folder}: the weights after update {update_number} are not those of its row. "
                f"{self._state_path(state)} or an update after it is damaged (put a copy back), or they were made by "
                "another build of torch or of pixelis, or with more than one thread"
            )

    def _require_batch_boundary(self, query: int) -> None:
        """Raise TraceError for a row within a batch: it shares its update with later rows."""
        ends = [0, *(batch_end(row, number) for number, row in enumerate(self.rows, start=1))]
        if (last := ends[query]) != query:
            first = ends.index(last)
            raise TraceError(f"{self.folder}: rows {first} to {last} are one batch: go back to {first - 1} or {last}")

    def _require_reachable(self, update_number: int) -> None:
        if not any(number <= update_number for number in self._states()):
            oldest = min(self._states(), default=0)
            kept = f"{self.folder} keeps states from update {oldest} on (keep_bytes)"
            raise TraceError(f"{kept}: {update_number} is gone")

    # --- files

    def _update_path(self, number: int) -> Path:
        return self.folder / UPDATES / f"{number:08d}.safetensors"

    def _state_path(self, number: int) -> Path:
        return self.folder / STATES / f"{number:08d}.safetensors"

    def _states(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / STATES).glob("[0-9]*.safetensors"))

    def _read_update(self, number: int) -> ttrl_update.UpdateBatch:
        try:
            return ttrl_update.read_update(self._update_path(number))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise TraceError(f"{self._update_path(number)} cannot be read ({error}): its update is lost") from error

    def _save_state(self, number: int) -> None:
        tensors = {name: value.contiguous() for name, value in ttrl_update.collect_tensors(self.policy_state).items()}
        content = save(tensors, metadata={"pid": json.dumps(asdict(self.policy_state.pid))})
        with atomic_write(self._state_path(number)) as file:
            file.write(content)

    def _load_state(self, number: int) -> None:
        from safetensors import safe_open

        path = self._state_path(number)
        try:
            with safe_open(path, framework="pt") as file:
                facts = file.metadata() or {}
            ttrl_update.load_tensors(self.policy_state, load_file(path))
            self.policy_state.pid = Pid(**json.loads(facts["pid"]))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            reason = " ".join(str(error).split())[:200]
            raise TraceError(f"{path} is not a state of this adaptation ({reason})") from error

    def _drop_unacknowledged(self) -> None:
        """Delete the files of updates that were never acknowledged."""
        for path in (*(self.folder / UPDATES).glob("*"), *(self.folder / STATES).glob("*")):
            if not path.stem.isdigit() or int(path.stem) > self.update_count:
                path.unlink()

    def _drop_old_states(self) -> None:
        """Delete the oldest states, and the updates before the oldest one left, until the rest fits in `keep_bytes`.

        The newest state at or before the last good row stays, and what follows it.
        """
        needed = self.row(self.last_good_row)["updates"] if self.last_good_row is not None else self.update_count
        while self.total_bytes() > self.config.keep_bytes and len(self._states()) > 1:
            oldest, next_oldest = self._states()[:2]
            if next_oldest > needed:
                return
            self._state_path(oldest).unlink()
            for number in range(oldest, next_oldest + 1):
                self._update_path(number).unlink(missing_ok=True)

    def total_bytes(self) -> int:
        """Bytes of states, updates, rows and the memory."""
        paths = [self.folder / LEDGER, self.folder / UNDONE]
        paths += [path for name in (UPDATES, STATES, MEMORY) for path in (self.folder / name).rglob("*")]
        return sum(path.stat().st_size for path in paths if path.is_file())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The acknowledged rows of a ledger. An incomplete last batch is skipped. An interrupted append leaves a partial
    line, or zeros after a power cut; any other line that is not a row or does not match its seal raises TraceError, and
    so do zeros before complete rows.

    A run may be writing the file, so this never changes it.
    """
    if not path.exists():
        return []
    lines, rows = path.read_bytes().rpartition(b"\n")[0].splitlines(), list[dict[str, Any]]()
    for number, line in enumerate(lines, start=1):
        if not is_row(line):
            if 0 not in line or any(map(is_row, lines[number:])):
                raise TraceError(f"{path}:{number} is not a row of a ledger: it is damaged; put a copy of it back")
            break
        rows.append(json.loads(line))
    if rows and (until := rows[-1].get("until", 0)) > rows[-1].get("query", until):
        rows = [row for row in rows if row.get("until") != until]
    return rows


def is_row(line: bytes) -> bool:
    try:
        row = json.loads(line)
    except ValueError:
        return False
    return isinstance(row, dict) and row.get("seal") in (None, compute_seal(row))


def compute_seal(row: dict[str, Any]) -> str:
    """A checksum of a row; rows of early releases have none."""
    content = json.dumps({key: value for key, value in row.items() if key != "seal"}, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def repair_rows(path: Path) -> list[dict[str, Any]]:
    """`read_rows` for the holder of the run's lock: incomplete rows are removed from the file."""
    rows = read_rows(path)
    content = path.read_bytes() if path.exists() else b""
    lines = content.rpartition(b"\n")[0].splitlines()
    if len(rows) < len(lines) or (content and not content.endswith(b"\n")):
        with atomic_write(path) as file:
            file.writelines(line + b"\n" for line in lines[: len(rows)])
    return rows


def batch_end(row: dict[str, Any], number: int) -> int:
    """The last row of a row's batch; rows of early releases are a batch each."""
    return int(row.get("until", number))


def append_lines(path: Path, lines: list[str]) -> None:
    """Append lines to a file and sync it."""
    new = not path.exists()
    with path.open("ab") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
    if new:
        fsync_path(path.parent)


def remove_durably(path: Path) -> None:
    """Delete a file and sync its folder."""
    path.unlink()
    fsync_path(path.parent)


def without_votes(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows without their vote records, for a list."""
    for row in rows:
        yield {key: value for key, value in row.items() if key != "vote"}
