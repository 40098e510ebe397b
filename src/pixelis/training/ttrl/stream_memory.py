"""The memory of a run: neighbours of a query, new exemplars, and the exclusion of evaluation media."""

from __future__ import annotations

import math
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from pixelis.core.atomic import atomic_write, fsync_path
from pixelis.core.errors import ConfigError, LeakageError, MemoryFileError
from pixelis.dedup.evaluation_mask import EvaluationMask
from pixelis.equations.ttrl import SummaryStatistics, neighbourhood_value, summary_statistics, trace_value
from pixelis.media import MediaSet
from pixelis.memory.builder import PolicyScores, build_draft, screen_media
from pixelis.memory.keys import KeyMaker
from pixelis.memory.memory_head import MASK_FILE, MEMORY_HEAD_FILE
from pixelis.memory.memory_store import MemoryStore, Neighbour
from pixelis.trace.schema import Trace
from pixelis.training.ttrl.journal import MEMORY
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.world import RenderedItem, apply_shift

START_WATERMARK_FILE = "memory_before.txt"
MIN_TRACES_FOR_STATISTICS = 32
"""From this many remembered traces on, their own statistics replace phase 2's."""
JPEG_20, RESIZE_2 = ("jpeg", 3), ("resize", 5)
"""The two shifts of search keys in (3) of supp:failures_risk_coverage, by the world's severities."""


class StreamMemory:
    """A run's memory with the two encoders of its keys; without encoders it stays empty."""

    def __init__(
        self,
        config: TtrlConfig,
        out: Path,
        keys: KeyMaker | None,
        mask: EvaluationMask | None,
        prior: SummaryStatistics | None = None,
    ) -> None:
        """`prior` holds phase 2's statistics, used while the memory is small."""
        if config.neighbours and keys is None:
            raise ConfigError("neighbours are configured, but there are no encoders to find them: set neighbours=0")
        self.config, self.keys, self.mask, self._prior = config, keys, mask, prior
        self._start_file = out / START_WATERMARK_FILE
        floor = self.start_watermark if self._start_file.exists() else None
        self.memory = open_memory(config, out, keys, mask, floor=floor)
        self._curiosity: list[float] = []
        self._coherence: list[float] = []
        if not self._start_file.exists():  # a first query that was killed may have left rows: they are beyond this
            with atomic_write(self._start_file) as file:
                file.write(f"{self.memory.watermark}\n".encode())

    @property
    def start_watermark(self) -> int:
        """The memory's watermark before the first query."""
        return read_start_watermark(self._start_file)

    def rollback(self, watermark: int) -> None:
        """Roll memory and summaries back to a watermark."""
        self.memory.rollback(watermark)
        scored = [item for _, item in self.memory.items() if item.curiosity is not None and item.coherence is not None]
        self._curiosity = [item.curiosity or 0.0 for item in scored]
        self._coherence = [item.coherence or 0.0 for item in scored]

    @property
    def summaries(self) -> SummaryStatistics:
        """The statistics that z-score curiosity and coherence: phase 2's until enough traces are remembered."""
        if self._prior is not None and len(self._curiosity) < MIN_TRACES_FOR_STATISTICS:
            return self._prior
        return summary_statistics(self._curiosity, self._coherence)

    def leak_reason(self, rendered: RenderedItem) -> str:
        """Why an item must not be trained on; empty unless it shows evaluation media."""
        if self.mask is None:
            return ""
        try:
            if self.keys is None:  # without encoders a changed copy passes, but the very same file does not
                self.mask.check_hashes([medium.sha256 for medium in rendered.media], label=rendered.item.id)
            else:
                screen_media(MediaSet(rendered.media), self.keys.visual, self.mask, label=rendered.item.id)
        except LeakageError as error:
            return str(error)
        return ""

    def nearest(self, traces: Sequence[Trace], rendered: RenderedItem, majority: str | None) -> list[Neighbour]:
        """The neighbourhood of a query, by a key of its rollouts; none in an empty memory."""
        config = self.config
        if self.keys is None or not config.neighbours or not len(self.memory):
            return []
        media = rendered.media
        if config.stress.retrieval_shift:
            for shift, severity in (JPEG_20, RESIZE_2):
                media = apply_shift(shift, severity, rendered.item.seed, media)
        key = self.keys.key_for_rollouts(traces, MediaSet(media))
        # items with the same media add no information (subsec:eval_setup)
        same_media_rows = self.memory.rows_with_media([medium.sha256 for medium in rendered.media])
        mismatched = config.stress.mismatched_neighbours
        count = len(self.memory) if mismatched else config.neighbours
        neighbours = self.memory.search(key, count, exclude=same_media_rows)
        if mismatched:
            neighbours = [n for n in neighbours if n.item.answer.casefold() != majority]
        return neighbours[: config.neighbours]

    def neighbourhood_value(self, neighbours: Sequence[Neighbour]) -> float:
        """v̄ over a neighbourhood (eq:value_pen); 0.5 without `value_weighting`.

        v(h) uses the present statistics, since the first traces entered before there were any. An item without
        curiosity keeps the value that it was stored with.
        """
        if not self.config.value_weighting:
            return neighbourhood_value([])  # the middle of its range: with 1 β would weigh half as much
        summaries, values = self.summaries, list[float]()
        for item in (n.item for n in neighbours):
            if item.curiosity is not None:  # a chain of one call has no coherence
                coherence = math.nan if item.coherence is None else item.coherence
                values.append(float(trace_value(item.curiosity, coherence, summaries)))
            elif item.value is not None:
                values.append(item.value)
        return neighbourhood_value(values)

    def add_exemplar(self, trace: Trace, rendered: RenderedItem, curiosity: float, coherence: float) -> bool:
        """Add an exemplar after its answer was given and accepted; False if it is a duplicate, or without
        `grow_memory`."""
        if self.keys is None or not (self.config.neighbours and self.config.grow_memory):
            return False
        cur, coh = (x if math.isfinite(x) else None for x in (curiosity, coherence))
        scores = PolicyScores(float(trace_value(curiosity, coherence, self.summaries)), cur, coh)
        media, item_id = MediaSet(rendered.media), rendered.item.id
        draft = build_draft(trace, media, self.keys, mask=self.mask, item_id=item_id, scores=scores)
        (entry,) = self.memory.add([draft])
        if entry.row is not None and cur is not None and coh is not None:
            self._curiosity.append(cur)
            self._coherence.append(coh)
        return entry.row is not None

    def close(self) -> None:
        self.memory.close()


def read_start_watermark(path: Path) -> int:
    """The memory's watermark before the first query of a run."""
    content = path.read_text("utf-8", "replace").strip()
    if not content.isdecimal():
        raise MemoryFileError(f"{path} is damaged: want the number of rows that the memory began with, in digits")
    return int(content)


def open_memory(
    config: TtrlConfig, out: Path, keys: KeyMaker | None, mask: EvaluationMask | None, *, floor: int | None
) -> MemoryStore:
    """The run's memory: a copy of `config.memory`, or empty at first. Rows up to `floor` cannot be rolled back."""
    folder = out / MEMORY
    if not (folder / MEMORY_HEAD_FILE).exists():
        if floor is not None:
            raise MemoryFileError(f"{folder} has lost its {MEMORY_HEAD_FILE}: put it back, or use another folder")
        # not there yet, or its process was killed while creating it
        shutil.rmtree(folder, ignore_errors=True)
        if config.memory is not None:
            copy_memory(config.memory, folder)
        else:
            text, visual = (keys.text.dimensions, keys.visual.embed([]).shape[1]) if keys else (1, 1)
            fingerprint = keys.fingerprint if keys else "none"
            MemoryStore.create(
                folder, text_dimensions=text, visual_dimensions=visual, encoders=fingerprint, mask=mask
            ).close()
    memory = MemoryStore(folder, mask=mask, append_only=True, floor=floor)
    if keys is not None and memory.head.encoders != keys.fingerprint:
        memory.close()
        raise MemoryFileError(f"{config.memory or folder} was made with other encoders; build it again with these")
    if memory.head.mask != (mask.digest if mask is not None else None):
        memory.close()
        if floor is None and config.memory is not None:
            raise ConfigError(
                f"{config.memory} was built {'without' if memory.head.mask is None else 'under'} an evaluation mask, "
                f"and here {'none' if mask is None else 'another'} is given: build it under the mask of this run, or "
                "give the media that it was built under"
            )
        raise ConfigError(
            f"{out} was begun {'without' if memory.head.mask is None else 'with'} an evaluation mask, and this one is "
            "another: give the same media of evaluation as then, or another folder"
        )
    if mask is not None and not (folder / MASK_FILE).exists():  # also if a process was killed before writing it
        mask.save(folder / MASK_FILE)  # for `index audit` and later runs
    return memory


def copy_memory(source: Path, folder: Path) -> None:
    """Copy a memory atomically: the copy appears by a rename."""
    MemoryStore.open_read_only(source).close()  # a one-line error if it is damaged, before anything is copied
    temporary = folder.with_name(f".{folder.name}.part")
    for stale in (temporary, *temporary.rglob("*")) if temporary.exists() else ():
        stale.chmod(stale.stat().st_mode | stat.S_IRWXU)  # an interrupted copy of read-only folders
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(".lock"))
    for path in (temporary, *temporary.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)  # a shared memory may be read-only, the run writes its own
        fsync_path(path)
    temporary.rename(folder)
    fsync_path(folder.parent)
