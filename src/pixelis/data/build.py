"""`pixelis data build`: from a configuration to a corpus, killable at any moment, with the same bytes in the end.

Everything unfinished lies in `.building/`: the plan, and one small file for each finished item, renamed into place
whole. When the items of a shard are all there, the shard is written from them in order and they are taken away. The
manifest comes last. A second run reads what is there and goes on; whatever is damaged is made again.
"""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pixelis.data.corpus_config import CorpusConfig
from pixelis.data.item_files import ItemFiles, item_seed, mixed
from pixelis.data.planning import begin, locked, require_known
from pixelis.data.pool import Pool
from pixelis.data.record import Record, Split, decode, unpack
from pixelis.data.shard import Shard, ShardFacts, write_shard
from pixelis.data.solver import Reply, unit_path
from pixelis.data.splits import Unit
from pixelis.data.store import MANIFEST, Corpus, write_manifest
from pixelis.errors import ConfigError, TraceError
from pixelis.rundir import provenance, write_json

PATIENCE = 25
"""Items in a row that a server leaves undone before the build stops asking it."""


class Progress(NamedTuple):
    """How far a build is."""

    total: int
    done: int
    """Items whose record is on disk, those of earlier runs among them."""
    found: int
    """Items that were there when this run began."""
    accepted: int
    """Of the items made in this run."""
    hits: int
    misses: int
    seconds: float

    @property
    def made(self) -> int:
        return self.done - self.found

    @property
    def items_per_s(self) -> float:
        return self.made / self.seconds if self.seconds > 0.0 else 0.0

    @property
    def accepted_share(self) -> float:
        return self.accepted / self.made if self.made else 0.0

    @property
    def hit_rate(self) -> float:
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    @property
    def seconds_left(self) -> float | None:
        return (self.total - self.done) / self.items_per_s if self.made else None


class BuildReport(NamedTuple):
    """What one run of the build came to."""

    folder: str
    corpus: str
    """The corpus hash; empty where the corpus is not whole."""
    records: int
    accepted: int
    made: int
    """Records that this run added."""
    seconds: float
    items_per_s: float
    cache_hit_rate: float
    timeouts: int
    """Calls recorded as timed out or crashed: the only thing that may differ on another machine."""
    undone: dict[str, int]
    """Items that a later run has to try again, by reason."""
    detail: str = ""
    """The last reason in words."""

    @property
    def whole(self) -> bool:
        return bool(self.corpus)


class Job(NamedTuple):
    """One shard to write."""

    name: str
    split: Split
    units: tuple[Unit, ...]


def jobs(config: CorpusConfig, items: ItemFiles) -> Iterator[Job]:
    """The shards of a corpus in order; only one of them is held at a time."""
    units = mixed(config, items)
    for (split, number), own in groupby(units, key=lambda u: (u.split, u.ordinal // config.shard_size)):
        yield Job(f"{split}-{number:05d}.zip", split, tuple(own))


def build(
    config: CorpusConfig,
    folder: Path,
    *,
    workers: int = 2,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> BuildReport:
    """Make the corpus, or go on with it. Raises ConfigError where the folder is in use or holds something else."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            items = ItemFiles.read(config.items)
            if config.teacher.kind == "oracle":
                require_known(items)
            planned = begin(config, folder, items)
            if (folder / MANIFEST).exists():
                corpus = Corpus(folder)
                if not (bad := damaged(corpus)):
                    shutil.rmtree(folder / ".building", ignore_errors=True)  # killed between the manifest and this
                    return finished_before(corpus)
                take_back(folder, planned, bad)
            return Building(config, folder, planned, items, on_progress).run(workers)
    except OSError as error:
        raise explained(error, folder) from error


def explained(error: OSError, folder: Path) -> TraceError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return TraceError(f"{folder}: the disk is full; what is done is kept whole: make room, run the same command")
    return TraceError(f"{folder}: the corpus cannot be written ({error.strerror or error}); what is done is kept")


def finished_before(corpus: Corpus) -> BuildReport:
    return BuildReport(
        folder=str(corpus.folder),
        corpus=corpus.manifest.corpus,
        records=corpus.manifest.records,
        accepted=corpus.manifest.accepted,
        made=0,
        seconds=0.0,
        items_per_s=0.0,
        cache_hit_rate=0.0,
        timeouts=0,
        undone={},
        detail="it was whole before",
    )


def damaged(corpus: Corpus) -> list[Path]:
    """Shards that are not what the manifest says, or are not there."""
    found = []
    for facts in corpus.manifest.shards:
        try:
            corpus.require_shard(facts)
        except TraceError:
            found.append(corpus.folder / "shards" / facts.name)
    return found


def take_back(folder: Path, planned: dict[str, Any], bad: list[Path]) -> None:
    """A corpus that was whole becomes one that is being built: its damaged shards go, and the manifest last."""
    write_json(folder / ".building" / "plan.json", planned)
    for path in bad:
        path.unlink(missing_ok=True)
    (folder / MANIFEST).unlink()


class Building:
    """One run of a build: what is left to do, and what came of it."""

    def __init__(
        self,
        config: CorpusConfig,
        folder: Path,
        planned: dict[str, Any],
        items: ItemFiles,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self.config, self.folder, self.planned, self.on_progress = config, folder, planned, on_progress
        self.items = items
        self.total = items.total(config)
        self.work = folder / ".building"
        self.facts: dict[str, ShardFacts] = {}
        self.open: dict[str, tuple[Job, set[str]]] = {}
        """Shards begun, with the units that are missing; a unit that cannot be made keeps its shard here."""
        self.job_of: dict[str, str] = {}
        self.found = self.made = self.hits = self.misses = self.timeouts = 0
        self.accepted_before = self.accepted = 0
        """Among the items that were found, and among those made."""
        self.undone: dict[str, int] = {}
        self.detail = ""
        self.failed_in_a_row = 0
        self.stopped = False
        self.start = time.monotonic()

    def run(self, workers: int) -> BuildReport:
        (self.work / "units").mkdir(parents=True, exist_ok=True)
        scratch = self.work / "tmp"
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed run left
        scratch.mkdir()
        for half in (*self.folder.glob("shards/.*.part"), *self.folder.glob(".*.part")):
            half.unlink()  # of a run that was killed while it wrote a shard
        vlm = self.config.teacher.kind == "vlm"  # it waits for a server: one process with many threads
        tools = self.config.toolbox.model_copy(update={"workers": workers if vlm else 1})
        hello = {
            "config": self.config.model_copy(update={"toolbox": tools}).model_dump(mode="json"),
            "folder": str(self.work.absolute()),
            "replies": str(replies_folder(self.folder).absolute()),
            "items": self.items.hashes,
        }
        threads = self.config.teacher.server.concurrency if vlm else 1
        left = self.left_to_do()
        first = next(left, None)
        if first is not None:
            with Pool(hello, scratch, workers=1 if vlm else workers, threads=threads) as pool:
                pool.submit(first)
                self.work_off(pool, left)
        for _ in left:  # where the run was stopped: what lies in later shards is counted all the same
            pass
        return self.end()

    def left_to_do(self) -> Iterator[Unit]:
        """Units without a record, shard after shard; shards that are whole, and all after a stop, are only counted."""
        for job in jobs(self.config, self.items):
            facts = self.sound(self.folder / "shards" / job.name, job.units)
            if facts is not None:
                self.facts[job.name] = facts
                self.found += facts.records
                self.accepted_before += facts.accepted
                continue
            missing = []
            for unit in job.units:
                record = self.kept(unit)
                if record is None:
                    missing.append(unit)
                else:
                    self.found += 1
                    self.accepted_before += record.accepted
            if not missing:
                self.write(job)
            elif not self.stopped:
                self.open[job.name] = job, {unit.name for unit in missing}
                self.job_of.update((unit.name, job.name) for unit in missing)
                yield from missing

    def sound(self, path: Path, units: tuple[Unit, ...]) -> ShardFacts | None:
        """The facts of a shard that is there, whole, and of these units; any other is taken away, to be made again."""
        if not path.exists():
            return None
        planned = [(unit.split, unit.ordinal, unit.family, unit.difficulty) for unit in units]
        try:
            shard = Shard(path)
            if [(row.split, row.ordinal, row.family, row.difficulty) for row in shard.rows] == planned:
                return shard.facts()
        except TraceError:
            pass  # as good as none
        path.unlink()
        return None

    def kept(self, unit: Unit) -> Record | None:
        """A unit's record, where it is on disk, is what was written, and is of this unit."""
        path = unit_path(self.work, unit)
        try:
            record = decode(unpack(path.read_bytes())[0])
        except FileNotFoundError:
            return None
        except (ValueError, TraceError):
            record = None
        if record is None or unit_of(record) != unit:
            path.unlink()
            return None
        return record

    def work_off(self, pool: Pool, left: Iterator[Unit]) -> None:
        while True:
            while not self.stopped and pool.room and (unit := next(left, None)) is not None:
                pool.submit(unit)
            if not pool.busy:
                return
            self.hear(pool.wait())
            self.on_progress(self.progress())

    def hear(self, reply: Reply) -> None:
        if not reply.unit:
            raise ConfigError(reply.error)
        if reply.full:
            raise OSError(errno.ENOSPC, reply.error)
        if reply.undone:
            self.undone[reply.undone] = self.undone.get(reply.undone, 0) + 1
            self.detail = reply.error
            self.failed_in_a_row += 1
            self.stopped |= reply.stop or self.failed_in_a_row >= PATIENCE
            return
        if reply.error:
            raise TraceError(f"item {reply.unit}: {reply.error}; what is done is kept")
        self.failed_in_a_row = 0
        self.made += 1
        self.accepted += reply.accepted
        self.hits += reply.hits
        self.misses += reply.misses
        self.timeouts += reply.timeouts
        job, missing = self.open[self.job_of.pop(reply.unit)]
        missing.discard(reply.unit)
        if not missing:
            self.write(job)

    def write(self, job: Job) -> None:
        """The shard from its units, which are read one after another and then taken away."""
        path = self.folder / "shards" / job.name
        write_shard(path, (unpack(unit_path(self.work, unit).read_bytes()) for unit in job.units))
        self.facts[job.name] = Shard(path).facts()
        for unit in job.units:
            unit_path(self.work, unit).unlink(missing_ok=True)
        self.open.pop(job.name, None)

    def progress(self) -> Progress:
        seconds = time.monotonic() - self.start
        done = self.found + self.made
        return Progress(self.total, done, self.found, self.accepted, self.hits, self.misses, seconds)

    def end(self) -> BuildReport:
        """The manifest, where nothing is missing; the report either way."""
        now = self.progress()
        corpus = ""
        if now.done == now.total:
            in_order = [self.facts[job.name] for job in jobs(self.config, self.items)]
            corpus = write_manifest(self.folder, self.planned, in_order).corpus
            shutil.rmtree(self.work)
        report = BuildReport(
            folder=str(self.folder),
            corpus=corpus,
            records=now.done,
            accepted=self.accepted_before + self.accepted,
            made=now.made,
            seconds=round(now.seconds, 3),
            items_per_s=round(now.items_per_s, 3),
            cache_hit_rate=round(now.hit_rate, 4),
            timeouts=self.timeouts,
            undone=self.undone,
            detail=self.detail,
        )
        write_json(self.folder / "build.json", provenance(report=report._asdict()))
        return report


def unit_of(record: Record) -> Unit:
    """The unit that a record was made from."""
    item, shift = record.item, record.item.shift
    name, severity = (shift.name, shift.severity) if shift else (None, 0)
    file, _, line = record.source.rpartition(":")
    place = (file, int(line)) if file else ("", 0)
    seed = item_seed(file, item.id) if file else item.seed
    return Unit(record.split, record.ordinal, item.family, item.difficulty, seed, name, severity, *place)


def replies_folder(folder: Path) -> Path:
    """Where a VLM's replies are kept: beside the corpus, since a corpus can be built from them again."""
    return folder.with_name(f"{folder.name}.replies")
