"""The folder of an adaptation: a row for every query, updates that can be taken again, states now and then.

    ledger.jsonl            one row a query, appended and synced; the last one says what was acknowledged
    undone.jsonl            rows that were reverted, kept for whoever audits
    updates/00000012.…      what update 12 learnt from
    states/00000050.…       weights, averages, moments, controller after update 50
    memory/                 the memory as it stands

The rows of a batch share an update. They are acknowledged together, when the line of the last one is on disk: each says
in `until` which row that is. Whatever a killed process left beyond the last whole batch is dropped at open: no update
is lost that was acknowledged, and none is half applied. To go back to row N, the newest state before it is
loaded and the updates up to N are taken again; the row's hash must come out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from pixelis.equations.pid import Pid
from pixelis.errors import TraceError
from pixelis.rundir import make_folder, replacing, sync
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_update import Learner, Lesson, Updated, lay, read_lesson, tensors_of, update, write_lesson

LEDGER, UNDONE, UPDATES, STATES, MEMORY = "ledger.jsonl", "undone.jsonl", "updates", "states", "memory"
REVERTING = "reverting.json"
"""There while rows are moved from the ledger to `undone.jsonl`: how long that was, and which rows stay."""


class Adaptation:
    """Where an adaptation stands, on disk and in memory. With `stand` off the learner is left as it comes: for whoever
    goes to another row at once, and needs none of the files after that."""

    def __init__(self, folder: Path, config: TtrlConfig, learner: Learner, *, stand: bool = True) -> None:
        self.folder, self.config, self.learner = folder, config, learner
        for name in (UPDATES, STATES):
            make_folder(folder / name)
        begun = lines_of(folder / LEDGER)
        self.rows = mended_rows(folder / LEDGER)
        self.dropped = begun - len(self.rows)
        """Rows of a batch that a killed process had begun to write, and never acknowledged."""
        self.good: int | None = None
        """A row that must stay within reach, whatever `keep_bytes` says: the last at which canary questions stood."""
        self._end_revert()
        self.taken = self.rows[-1]["updates"] if self.rows else 0
        """Updates that the learner has behind it."""
        if not self._states():
            self._save_state(0)
        self._drop_unacknowledged()
        if stand:
            self._go_to(self.taken, self.rows[-1]["weights"] if self.rows else None)

    # --- one row

    def learn(self, lesson: Lesson) -> Updated:
        """Write an update down, then take it. It counts when its row is acknowledged."""
        write_lesson(self._update_path(self.taken + 1), lesson)
        done = update(self.config, self.learner, lesson)
        self.taken += 1
        return done

    def acknowledge(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the ledger: from here on they are kept."""
        digest = self.learner.digest()
        lines = []
        for row in rows:
            row |= {"updates": self.taken, "weights": digest, "until": len(self.rows) + len(rows)}
            row["seal"] = seal_of(row)
            lines.append(json.dumps(row, ensure_ascii=False))
        append(self.folder / LEDGER, lines)
        self.rows += rows
        if self.taken and self.taken % self.config.snapshot_every == 0 and not self._state_path(self.taken).exists():
            self._save_state(self.taken)
            self._forget()

    # --- going back

    def revert(self, query: int) -> dict[str, Any]:
        """Back to what held after row `query` (from 1; 0 is the start). Rows after it go to `undone.jsonl`.

        The way back is gone in memory first: where a file of it is damaged, TraceError, and nothing on the disk has
        changed. The caller takes the memory back to the row's watermark.
        """
        row = self.row(query)
        self._require_whole(query)
        self._go_to(row["updates"], row["weights"])
        undone = self.folder / UNDONE
        with replacing(self.folder / REVERTING) as file:
            length = undone.stat().st_size if undone.exists() else 0
            file.write(json.dumps({"undone": length, "rows": query}).encode())
        append(undone, [json.dumps(each, ensure_ascii=False) for each in self.rows[query:]])
        # the ledger first: a process killed after this line opens at this row
        kept = b"".join((json.dumps(each, ensure_ascii=False) + "\n").encode() for each in self.rows[:query])
        with replacing(self.folder / LEDGER) as file:
            file.write(kept)
        remove(self.folder / REVERTING)
        self.rows, self.taken = self.rows[:query], row["updates"]
        self._drop_unacknowledged()
        return row

    def _end_revert(self) -> None:
        """A process was killed while it reverted: rows that the ledger still has are not undone."""
        begun = self.folder / REVERTING
        if begun.exists():
            facts = json.loads(begun.read_text())
            if len(self.rows) > facts["rows"] and (self.folder / UNDONE).exists():
                with (self.folder / UNDONE).open("r+b") as file:
                    file.truncate(facts["undone"])
                    os.fsync(file.fileno())
            remove(begun)

    def look_back(self, query: int) -> None:
        """The learner as it was after row `query`, in memory alone: nothing on the disk changes."""
        row = self.row(query)
        self._go_to(row["updates"], row["weights"])
        self.rows, self.taken = self.rows[:query], row["updates"]

    def row(self, query: int) -> dict[str, Any]:
        """What held after a query, from 1; 0 is the start. TraceError where there is no such row."""
        if not 0 <= query <= len(self.rows):
            raise TraceError(f"{self.folder} has {len(self.rows)} rows: it cannot go back to {query}")
        start: dict[str, Any] = {"updates": 0, "weights": None, "memory": 0}
        return self.rows[query - 1] if query else start

    def _go_to(self, taken: int, digest: str | None) -> None:
        """Load the newest state at or before an update and take the ones after it again."""
        self._require_reachable(taken)
        state = max(number for number in self._states() if number <= taken)
        self._load_state(state)
        for number in range(state + 1, taken + 1):
            lesson = self._lesson(number)
            try:
                update(self.config, self.learner, lesson)
            except TraceError as error:
                raise TraceError(f"{self._update_path(number)} is damaged, or of another build: {error}") from error
        if digest is not None and self.learner.digest() != digest:
            raise TraceError(
                f"{self.folder}: the weights after update {taken} are not those of its row. {self._state_path(state)} "
                "or an update after it is damaged (put a copy back), or they were made by another build of torch or of "
                "pixelis, or with more than one thread"
            )

    def _require_whole(self, query: int) -> None:
        """A row within a batch shares its update with rows after it: whoever learnt from them would answer anew."""
        ends = [0, *(until_of(row, number) for number, row in enumerate(self.rows, start=1))]
        if (last := ends[query]) != query:
            first = ends.index(last)
            raise TraceError(f"{self.folder}: rows {first} to {last} are one batch: go back to {first - 1} or {last}")

    def _require_reachable(self, taken: int) -> None:
        if not any(number <= taken for number in self._states()):
            oldest = min(self._states(), default=0)
            raise TraceError(f"{self.folder} keeps states from update {oldest} on (keep_bytes): {taken} is gone")

    # --- files

    def _update_path(self, number: int) -> Path:
        return self.folder / UPDATES / f"{number:08d}.safetensors"

    def _state_path(self, number: int) -> Path:
        return self.folder / STATES / f"{number:08d}.safetensors"

    def _states(self) -> list[int]:
        return sorted(int(path.stem) for path in (self.folder / STATES).glob("[0-9]*.safetensors"))

    def _lesson(self, number: int) -> Lesson:
        try:
            return read_lesson(self._update_path(number))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise TraceError(f"{self._update_path(number)} cannot be read ({error}): its update is lost") from error

    def _save_state(self, number: int) -> None:
        content = save(
            {name: value.contiguous() for name, value in tensors_of(self.learner).items()},
            metadata={"pid": json.dumps(asdict(self.learner.pid))},
        )
        with replacing(self._state_path(number)) as file:
            file.write(content)

    def _load_state(self, number: int) -> None:
        from safetensors import safe_open

        path = self._state_path(number)
        try:
            with safe_open(path, framework="pt") as opened:
                facts = opened.metadata() or {}
            lay(self.learner, load_file(path))
            self.learner.pid = Pid(**json.loads(facts["pid"]))
        except (OSError, KeyError, ValueError, SafetensorError) as error:
            raise TraceError(f"{path} is no state of this adaptation ({' '.join(str(error).split())[:200]})") from error

    def _drop_unacknowledged(self) -> None:
        """Files beyond the last row: an update that was written down and never acknowledged."""
        for kind, last in ((UPDATES, self.taken), (STATES, self.taken)):
            for path in (self.folder / kind).glob("*"):
                if not path.stem.isdigit() or int(path.stem) > last:
                    path.unlink()

    def _forget(self) -> None:
        """Drop the oldest states and the updates before the one that is then the oldest, until the rest fits.

        The newest state at or before the good row stays, and what comes after it.
        """
        needed = self.row(self.good)["updates"] if self.good is not None else self.taken
        while self.size() > self.config.keep_bytes and len(self._states()) > 1:
            oldest, next_one = self._states()[:2]
            if next_one > needed:
                return
            self._state_path(oldest).unlink()
            for number in range(oldest, next_one + 1):
                self._update_path(number).unlink(missing_ok=True)

    def size(self) -> int:
        """Bytes of states, updates, rows and the memory."""
        found = [self.folder / LEDGER, self.folder / UNDONE]
        found += [path for name in (UPDATES, STATES, MEMORY) for path in (self.folder / name).rglob("*")]
        return sum(path.stat().st_size for path in found if path.is_file())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a ledger. A last batch that is not whole is passed over: it was never acknowledged. An append
    that was cut off leaves a part of a line, or zeros after a power cut; TraceError for any other line that is no row,
    or is not what its seal says, and for zeros that whole rows come after.

    It may be about to be written: whoever only reads leaves the file alone.
    """
    if not path.exists():
        return []
    lines, rows = path.read_bytes().rpartition(b"\n")[0].splitlines(), list[dict[str, Any]]()
    for number, line in enumerate(lines, start=1):
        if not is_row(line):
            if 0 not in line or any(map(is_row, lines[number:])):
                raise TraceError(f"{path}:{number} is no row of a ledger: it is damaged; put a copy of it back")
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
    return isinstance(row, dict) and row.get("seal") in (None, seal_of(row))


def seal_of(row: dict[str, Any]) -> str:
    """By which a row is known to be as it was written; rows of before there were seals have none."""
    content = json.dumps({key: value for key, value in row.items() if key != "seal"}, ensure_ascii=False)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def mended_rows(path: Path) -> list[dict[str, Any]]:
    """The same for whoever goes on writing, and holds the run's lock: what is not whole is taken off the file."""
    rows = read_rows(path)
    content = path.read_bytes() if path.exists() else b""
    lines = content.rpartition(b"\n")[0].splitlines()
    if len(rows) < len(lines) or (content and not content.endswith(b"\n")):
        with replacing(path) as file:
            file.writelines(line + b"\n" for line in lines[: len(rows)])
    return rows


def lines_of(path: Path) -> int:
    """How many lines a file has, a torn one too."""
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def until_of(row: dict[str, Any], number: int) -> int:
    """The last row of a row's batch; itself where it does not say."""
    return int(row.get("until", number))


def append(path: Path, lines: list[str]) -> None:
    """Lines at the end of a file, on the disk when this returns."""
    new = not path.exists()
    with path.open("ab") as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync(path.parent)


def remove(path: Path) -> None:
    """For good, also after a power cut."""
    path.unlink()
    sync(path.parent)


def shown(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Rows without their ballots, for a list."""
    for row in rows:
        yield {key: value for key, value in row.items() if key != "vote"}
