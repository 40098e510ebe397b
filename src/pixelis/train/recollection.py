"""The memory beside a stream: the neighbours of a query, what enters, and what is evaluation media and may not."""

from __future__ import annotations

import math
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path

from pixelis.equations.ttrl import Summaries, neighbourhood_value, summary_statistics, trace_value
from pixelis.errors import ConfigError, LeakageError, MemoryFileError
from pixelis.media import MediaSet
from pixelis.retrieval.keys import KeyMaker
from pixelis.retrieval.mask import EvaluationMask
from pixelis.retrieval.memory import Memory, Neighbour
from pixelis.retrieval.memory_head import HEAD, MASK
from pixelis.retrieval.remembering import Worth, remember, screened
from pixelis.rundir import replacing, sync
from pixelis.trace.schema import Trace
from pixelis.train.adaptation import MEMORY
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.world import Rendered, apply

BEFORE = "memory_before.txt"
ENOUGH = 32
"""Remembered traces from which their own statistics are taken, not phase 2's."""
JPEG_20, RESIZE_2 = ("jpeg", 3), ("resize", 5)
"""The two shifts of a search key in (3) of supp:failures_risk_coverage, by the world's severities."""


class Recollection:
    """A run's own memory with the two encoders that make its keys; without them it stays empty."""

    def __init__(
        self,
        config: TtrlConfig,
        out: Path,
        keys: KeyMaker | None,
        mask: EvaluationMask | None,
        before: Summaries | None = None,
    ) -> None:
        """`before` is what phase 2 measured, for as long as the memory holds little."""
        if config.neighbours and keys is None:
            raise ConfigError("neighbours are wanted, and there are no encoders to find them with: say neighbours=0")
        self.config, self.keys, self.mask, self._prior = config, keys, mask, before
        self._before = out / BEFORE
        self.memory = open_memory(config, out, keys, mask, floor=self.start if self._before.exists() else None)
        self._curiosity: list[float] = []
        self._coherence: list[float] = []
        if not self._before.exists():  # a first query that was killed may have left rows: they are beyond this
            with replacing(self._before) as file:
                file.write(f"{self.memory.watermark}\n".encode())

    @property
    def start(self) -> int:
        """Where the memory stood before the first query."""
        return watermark_at_start(self._before)

    def rollback(self, watermark: int) -> None:
        """Back to what a row says, also what is known of the summaries."""
        self.memory.rollback(watermark)
        known = [item for _, item in self.memory.items() if item.curiosity is not None and item.coherence is not None]
        self._curiosity = [item.curiosity or 0.0 for item in known]
        self._coherence = [item.coherence or 0.0 for item in known]

    @property
    def summaries(self) -> Summaries:
        """What curiosity and coherence are z-scored with: those of everything remembered so far, once it is enough."""
        if self._prior is not None and len(self._curiosity) < ENOUGH:
            return self._prior
        return summary_statistics(self._curiosity, self._coherence)

    def leak(self, made: Rendered) -> str:
        """Why nothing may be learnt from an item; empty where it is no evaluation media."""
        if self.mask is None:
            return ""
        try:
            if self.keys is None:  # without encoders a changed copy passes, but the very same file does not
                self.mask.refuse([medium.sha256 for medium in made.media], what=made.item.id)
            else:
                screened(MediaSet(made.media), self.keys.visual, self.mask, what=made.item.id)
        except LeakageError as error:
            return str(error)
        return ""

    def near(self, traces: Sequence[Trace], made: Rendered, majority: str | None) -> list[Neighbour]:
        """The neighbourhood of a query, by its rollouts; none in an empty memory."""
        config = self.config
        if self.keys is None or not config.neighbours or not len(self.memory):
            return []
        media = made.media
        if config.stress.retrieval_shift:
            for shift, severity in (JPEG_20, RESIZE_2):
                media = apply(shift, severity, made.item.seed, media)
        key = self.keys.of_rollouts(traces, MediaSet(media))
        # what shows the very same media says nothing new (subsec:eval_setup)
        own = self.memory.rows_showing([medium.sha256 for medium in made.media])
        mismatched = config.stress.mismatched
        found = self.memory.search(key, len(self.memory) if mismatched else config.neighbours, without=own)
        if mismatched:
            found = [n for n in found if n.item.answer.casefold() != majority]
        return found[: config.neighbours]

    def value(self, near: Sequence[Neighbour]) -> float:
        """v̄ over a neighbourhood (eq:value_pen); a half where values do not weigh.

        v(h) is taken from what is remembered now: when the first traces entered there was nothing to z-score them with.
        An item without curiosity has the value that it came with.
        """
        if not self.config.value_weighting:
            return neighbourhood_value([])  # the middle of its range: with 1 β would weigh half as much
        now, values = self.summaries, list[float]()
        for item in (n.item for n in near):
            if item.curiosity is not None:  # a chain of one call has no coherence, which then says nothing
                coherence = math.nan if item.coherence is None else item.coherence
                values.append(float(trace_value(item.curiosity, coherence, now)))
            elif item.value is not None:
                values.append(item.value)
        return neighbourhood_value(values)

    def keep(self, trace: Trace, made: Rendered, curiosity: float, coherence: float) -> bool:
        """An exemplar enters, after its answer was given and accepted; False where it repeats what is there, or where
        the memory stays as it is."""
        if self.keys is None or not (self.config.neighbours and self.config.remember):
            return False
        cur, coh = (x if math.isfinite(x) else None for x in (curiosity, coherence))
        value = float(trace_value(curiosity, coherence, self.summaries))
        worth = Worth(value, cur, coh)
        draft = remember(trace, MediaSet(made.media), self.keys, mask=self.mask, id=made.item.id, worth=worth)
        (added,) = self.memory.add([draft])
        if added.row is not None and cur is not None and coh is not None:
            self._curiosity.append(cur)
            self._coherence.append(coh)
        return added.row is not None

    def close(self) -> None:
        self.memory.close()


def watermark_at_start(path: Path) -> int:
    """Where a memory stood before the first query of a run, as its file says."""
    content = path.read_text("utf-8", "replace").strip()
    if not content.isdecimal():
        raise MemoryFileError(f"{path} is damaged: want the number of rows that the memory began with, in digits")
    return int(content)


def open_memory(
    config: TtrlConfig, out: Path, keys: KeyMaker | None, mask: EvaluationMask | None, *, floor: int | None
) -> Memory:
    """The run's own memory: a copy of the one that is given, or an empty one. What it began with stays."""
    folder = out / MEMORY
    if not (folder / HEAD).exists():
        if floor is not None:
            raise MemoryFileError(f"{folder} has lost its {HEAD}: put it back, or begin in another folder")
        # not there yet, or a process was killed while it made it
        shutil.rmtree(folder, ignore_errors=True)
        if config.memory is not None:
            copy_memory(config.memory, folder)
        else:
            text, visual = (keys.text.dimensions, keys.visual.embed([]).shape[1]) if keys else (1, 1)
            fingerprint = keys.fingerprint if keys else "none"
            Memory.create(
                folder, text_dimensions=text, visual_dimensions=visual, encoders=fingerprint, mask=mask
            ).close()
    memory = Memory.open(folder, mask=mask, append_only=True, floor=floor)
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
    if mask is not None and not (folder / MASK).exists():  # also where a process was killed before it was written
        mask.save(folder / MASK)  # so that `index audit` and a later run know it
    return memory


def copy_memory(source: Path, folder: Path) -> None:
    """Whole or not at all: the copy appears by a rename."""
    Memory.reading(source).close()  # one line where it is damaged, before anything is copied
    fresh = folder.with_name(f".{folder.name}.part")
    for left in (fresh, *fresh.rglob("*")) if fresh.exists() else ():
        left.chmod(left.stat().st_mode | stat.S_IRWXU)  # a copy of read-only folders that was cut off
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(source, fresh, ignore=shutil.ignore_patterns(".lock"))
    for path in (fresh, *fresh.rglob("*")):
        path.chmod(path.stat().st_mode | stat.S_IWUSR)  # a shared memory may be read-only, the run's own is written
        sync(path)
    fresh.rename(folder)
    sync(folder.parent)
