"""`pixelis data build`: make a corpus from a configuration; a killed build resumes and gives the same bytes.

Unfinished work is in `.building/`: the plan, and one small file per finished item, renamed into place. When all items
of a shard are there, the shard is written from them in order and they are deleted. The manifest comes last. A second
run resumes from these files; whatever is damaged is made again.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.core.errors import ConfigError, TraceError
from pixelis.core.provenance import provenance, write_json
from pixelis.data.build.build_plan import build_lock, prepare_plan, require_known_templates
from pixelis.data.build.solver import SolverReply, unit_path
from pixelis.data.build.solver_pool import SolverPool
from pixelis.data.corpus.corpus import MANIFEST, Corpus, write_manifest
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.item_files import ItemFiles, corpus_units, item_seed
from pixelis.data.corpus.record import Record, decode, unpack
from pixelis.data.corpus.shard import Shard, ShardFacts, write_shard
from pixelis.data.corpus.splits import Unit

MAX_CONSECUTIVE_FAILURES = 25
"""Consecutive items without a reply from the server after which the build stops."""


@dataclass
class BuildProgress:
    """The state of a build."""

    total: int
    resumed: int = 0
    """Records of earlier runs."""
    new_records: int = 0
    accepted: int = 0
    """Accepted records among the new ones."""
    cache_hits: int = 0
    cache_misses: int = 0
    timeouts: int = 0
    elapsed_s: float = 0.0

    @property
    def completed(self) -> int:
        """Items whose record is on disk."""
        return self.resumed + self.new_records

    @property
    def items_per_s(self) -> float:
        return self.new_records / self.elapsed_s if self.elapsed_s > 0.0 else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted / self.new_records if self.new_records else 0.0

    @property
    def cache_hit_rate(self) -> float:
        return self.cache_hits / (self.cache_hits + self.cache_misses) if self.cache_hits + self.cache_misses else 0.0

    @property
    def remaining_s(self) -> float | None:
        return (self.total - self.completed) / self.items_per_s if self.new_records else None


class BuildReport(NamedTuple):
    """The result of one run of a build."""

    folder: str
    corpus: str
    """The corpus hash; empty if the corpus is incomplete."""
    records: int
    accepted: int
    made: int = 0
    """Records that this run added."""
    seconds: float = 0.0
    items_per_s: float = 0.0
    cache_hit_rate: float = 0.0
    timeouts: int = 0
    """Calls recorded as timed out or crashed: the only part of a corpus that may differ on another machine."""
    undone: dict[str, int] = {}  # noqa: RUF012 - never changed
    """Items that a later run has to try again, by reason."""
    detail: str = ""
    """The last of these reasons in words."""

    @property
    def is_complete(self) -> bool:
        return bool(self.corpus)


class ShardJob(NamedTuple):
    """One shard to write."""

    name: str
    units: tuple[Unit, ...]


def shard_jobs(config: CorpusConfig, items: ItemFiles) -> Iterator[ShardJob]:
    """The shards of a corpus in order, generated one at a time."""
    units = corpus_units(config, items)
    for (split, number), group in groupby(units, key=lambda u: (u.split, u.ordinal // config.shard_size)):
        yield ShardJob(f"{split}-{number:05d}.zip", tuple(group))


def build(
    config: CorpusConfig,
    folder: Path,
    *,
    workers: int = 2,
    on_progress: Callable[[BuildProgress], None] = lambda progress: None,
) -> BuildReport:
    """Make the corpus or resume it; ConfigError if the folder is in use or holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with build_lock(folder):
            items = ItemFiles.read(config.items)
            if config.teacher.kind == "oracle":
                require_known_templates(items)
            plan = prepare_plan(config, folder, items)
            if (folder / MANIFEST).exists():
                manifest = Corpus(folder).manifest
                if not (damaged_paths := find_damaged_shards(Corpus(folder))):
                    shutil.rmtree(folder / ".building", ignore_errors=True)  # a run was killed before it did this
                    return BuildReport(str(folder), manifest.corpus, manifest.records, manifest.accepted)
                reopen_corpus(folder, plan, damaged_paths)
            return CorpusBuild(config, folder, plan, items, on_progress).run(workers)
    except OSError as error:
        raise to_trace_error(error, folder) from error


def to_trace_error(error: OSError, folder: Path) -> TraceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return TraceError(
            f"{folder}: the disk is full; finished items are kept: free some space and run the same command"
        )
    return TraceError(f"{folder}: the corpus cannot be written ({error.strerror or error}); finished items are kept")


def find_damaged_shards(corpus: Corpus) -> list[Path]:
    """Shards that are missing or differ from the manifest."""
    damaged_paths = []
    for facts in corpus.manifest.shards:
        try:
            corpus.require_shard(facts)
        except TraceError:
            damaged_paths.append(corpus.folder / "shards" / facts.name)
    return damaged_paths


def reopen_corpus(folder: Path, plan: dict[str, Any], damaged_paths: list[Path]) -> None:
    """Turn a finished corpus into one being built: delete its damaged shards, and the manifest last."""
    write_json(folder / ".building" / "plan.json", plan)
    for path in damaged_paths:
        path.unlink(missing_ok=True)
    (folder / MANIFEST).unlink()


class CorpusBuild:
    """One run of a build."""

    def __init__(
        self,
        config: CorpusConfig,
        folder: Path,
        plan: dict[str, Any],
        items: ItemFiles,
        on_progress: Callable[[BuildProgress], None],
    ) -> None:
        self.config, self.folder, self.plan, self.on_progress = config, folder, plan, on_progress
        self.items = items
        self.counts = BuildProgress(items.total(config))
        self.accepted_resumed = 0
        self.work_dir = folder / ".building"
        self.shard_facts: dict[str, ShardFacts] = {}
        self.open_shards: dict[str, tuple[ShardJob, set[str]]] = {}
        """Shards begun, with their missing units; a deferred unit keeps its shard here."""
        self.shard_of_unit: dict[str, str] = {}
        self.deferred: dict[str, int] = {}
        self.detail = ""
        self.consecutive_failures = 0
        self.stopped = False
        self.started_at = time.monotonic()

    def run(self, workers: int) -> BuildReport:
        (self.work_dir / "units").mkdir(parents=True, exist_ok=True)
        scratch = self.work_dir / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        for partial_file in (*self.folder.glob("shards/.*.part"), *self.folder.glob(".*.part")):
            partial_file.unlink()
        vlm = self.config.teacher.kind == "vlm"  # waits for a server: one process with many threads
        toolbox_config = self.config.toolbox.model_copy(update={"workers": workers if vlm else 1})
        hello = {
            "config": self.config.model_copy(update={"toolbox": toolbox_config}).model_dump(mode="json"),
            "folder": str(self.work_dir.absolute()),
            "replies": str(replies_folder(self.folder).absolute()),
            "items": self.items.hashes,
        }
        threads = self.config.teacher.server.concurrency if vlm else 1
        pending = self.pending_units()
        first_unit = next(pending, None)
        if first_unit is not None:
            with SolverPool(hello, scratch, workers=1 if vlm else workers, threads=threads) as pool:
                pool.submit(first_unit)
                self.process_units(pool, pending)
        deque(pending, maxlen=0)  # after a stop: count the records of later shards
        return self.finish()

    def pending_units(self) -> Iterator[Unit]:
        """Units without a record, shard after shard; finished shards, and all shards after a stop, are only counted."""
        for job in shard_jobs(self.config, self.items):
            facts = self.load_shard_facts(self.folder / "shards" / job.name, job.units)
            if facts is not None:
                self.shard_facts[job.name] = facts
                self.counts.resumed += facts.records
                self.accepted_resumed += facts.accepted
                continue
            missing = []
            for unit in job.units:
                record = self.load_record(unit)
                if record is None:
                    missing.append(unit)
                else:
                    self.counts.resumed += 1
                    self.accepted_resumed += record.accepted
            if not missing:
                self.finish_shard(job)
            elif not self.stopped:
                self.open_shards[job.name] = job, {unit.name for unit in missing}
                self.shard_of_unit.update((unit.name, job.name) for unit in missing)
                yield from missing

    def load_shard_facts(self, path: Path, units: tuple[Unit, ...]) -> ShardFacts | None:
        """The facts of a shard if it is intact and of these units; any other is deleted, to be made again."""
        if not path.exists():
            return None
        expected = [(unit.split, unit.ordinal, unit.family, unit.difficulty) for unit in units]
        try:
            shard = Shard(path)
            if [(row.split, row.ordinal, row.family, row.difficulty) for row in shard.rows] == expected:
                return shard.facts()
        except TraceError:
            pass  # damaged
        path.unlink()
        return None

    def load_record(self, unit: Unit) -> Record | None:
        """The record of a unit if it is on disk, intact, and of this unit; any other is deleted."""
        path = unit_path(self.work_dir, unit)
        try:
            record = decode(unpack(path.read_bytes())[0])
        except FileNotFoundError:
            return None
        except (ValueError, TraceError):
            record = None
        if record is None or unit_from_record(record) != unit:
            path.unlink()
            return None
        return record

    def process_units(self, pool: SolverPool, pending: Iterator[Unit]) -> None:
        while True:
            while not self.stopped and pool.has_capacity and (unit := next(pending, None)) is not None:
                pool.submit(unit)
            if not pool.is_busy:
                return
            self.handle_reply(pool.wait_for_reply())
            self.on_progress(self.progress())

    def handle_reply(self, reply: SolverReply) -> None:
        if not reply.unit:
            raise ConfigError(reply.error)
        if reply.full:
            raise OSError(errno.ENOSPC, reply.error)
        if reply.undone:
            self.deferred[reply.undone] = self.deferred.get(reply.undone, 0) + 1
            self.detail = reply.error
            self.consecutive_failures += 1
            self.stopped |= reply.stop or self.consecutive_failures >= MAX_CONSECUTIVE_FAILURES
            return
        if reply.error:
            raise TraceError(f"item {reply.unit}: {reply.error}; finished items are kept")
        self.consecutive_failures = 0
        self.counts.new_records += 1
        self.counts.accepted += reply.accepted
        self.counts.cache_hits += reply.hits
        self.counts.cache_misses += reply.misses
        self.counts.timeouts += reply.timeouts
        job, missing = self.open_shards[self.shard_of_unit.pop(reply.unit)]
        missing.discard(reply.unit)
        if not missing:
            self.finish_shard(job)

    def finish_shard(self, job: ShardJob) -> None:
        """Write the shard from its units, which are read one at a time, and delete them."""
        path = self.folder / "shards" / job.name
        write_shard(path, (unpack(unit_path(self.work_dir, unit).read_bytes()) for unit in job.units))
        self.shard_facts[job.name] = Shard(path).facts()
        for unit in job.units:
            unit_path(self.work_dir, unit).unlink(missing_ok=True)
        self.open_shards.pop(job.name, None)

    def progress(self) -> BuildProgress:
        return replace(self.counts, elapsed_s=time.monotonic() - self.started_at)

    def finish(self) -> BuildReport:
        """Write the manifest if nothing is missing, and the report."""
        progress = self.progress()
        corpus = ""
        if progress.completed == progress.total:
            ordered_facts = [self.shard_facts[job.name] for job in shard_jobs(self.config, self.items)]
            corpus = write_manifest(self.folder, self.plan, ordered_facts).corpus
            shutil.rmtree(self.work_dir)
        report = BuildReport(
            folder=str(self.folder),
            corpus=corpus,
            records=progress.completed,
            accepted=self.accepted_resumed + progress.accepted,
            made=progress.new_records,
            seconds=round(progress.elapsed_s, 3),
            items_per_s=round(progress.items_per_s, 3),
            cache_hit_rate=round(progress.cache_hit_rate, 4),
            timeouts=progress.timeouts,
            undone=self.deferred,
            detail=self.detail,
        )
        write_json(self.folder / "build.json", provenance(report=report._asdict()))
        return report


def unit_from_record(record: Record) -> Unit:
    """The unit of a record."""
    item, shift = record.item, record.item.shift
    name, severity = (shift.name, shift.severity) if shift else (None, 0)
    file, _, line = record.source.rpartition(":")
    item_location = (file, int(line)) if file else ("", 0)
    seed = item_seed(file, item.id) if file else item.seed
    return Unit(record.split, record.ordinal, item.family, item.difficulty, seed, name, severity, *item_location)


def replies_folder(folder: Path) -> Path:
    """The folder of a VLM's replies: beside the corpus, which can be built from them again."""
    return folder.with_name(f"{folder.name}.replies")
