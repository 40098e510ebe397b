"""Process metrics: which steps are valid, which are decisive, and how similar consecutive steps are.

RaPR uses external verifiers of each step; RaCPR compares the regions of consecutive steps with a frozen encoder
(subsec:eval_setup). The paper's encoder is DINOv2; here it is EfficientNet-Lite0, which a package registry provides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Footprint, Size, Span, Track, UnitBox, to_pixels
from pixelis.data.corpus.acceptance_checks import judge_trace
from pixelis.equations.embedding import CosineStatistics, cosine_statistics
from pixelis.equations.process import ProcessSummary, chain_cosines, process_summary, racpr, rapr
from pixelis.media import MediaSet
from pixelis.rollout.episode import Rollout
from pixelis.world import RenderedItem

MIN_SIDE_PX = 8
"""Pixels: smaller crops are enlarged to this side, since an encoder would see nothing."""


class ImageEmbedder(Protocol):
    """A frozen encoder of pictures."""

    def embed(self, images: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        """(n, d) unit vectors."""


class ProcessMeasures(NamedTuple):
    """Measures of the steps of one chain."""

    valid: tuple[bool, ...]
    """u_t: the call succeeded and did not fail its verifier."""
    decisive: int
    cosines: tuple[float | None, ...]
    """c_t by E_ext; None at the first step, or without an encoder."""


def measure_process(rendered: RenderedItem, rollout: Rollout, encoder: ImageEmbedder | None = None) -> ProcessMeasures:
    """Compare a chain with the references of its item."""
    judgement = judge_trace(rendered.item, rollout.trace)
    steps = rollout.trace.steps
    valid = tuple(s.result.ok and c.passed is not False for s, c in zip(steps, judgement.steps, strict=True))
    cosines: tuple[float | None, ...] = (None,) * len(steps)
    if encoder is not None and len(steps) > 1:
        media = MediaSet(rendered.media)
        E = encoder.embed([crop_footprints(step.result.footprints, media) for step in steps])
        cosine_array = chain_cosines(E, [len(steps)])
        cosines = tuple(None if np.isnan(c) else round(float(c), 6) for c in cosine_array)
    return ProcessMeasures(valid, len(judgement.decisive), cosines)


def crop_footprints(footprints: Sequence[Footprint], media: MediaSet) -> NDArray[np.uint8]:
    """The crop around a step's footprints on the medium and frame of the first; the whole frame without footprints."""
    name = media.canonical_name(footprints[0].media) if footprints else media.names[0]
    medium = media.source(name)
    frame, boxes = 0, list[UnitBox]()
    for footprint in (f for f in footprints if media.canonical_name(f.media) == name):
        if isinstance(footprint, Span):
            frame = medium.index_at(min((footprint.start_s + footprint.end_s) / 2, medium.duration_s))
        elif isinstance(footprint, Track):
            frame = footprint.frames[len(footprint.frames) // 2]
            boxes.append(footprint.boxes[len(footprint.boxes) // 2])
        elif footprint.box_unit is not None:
            frame = footprint.frame
            boxes.append(footprint.box_unit)
    pixels = medium.frame(min(frame, medium.frame_count - 1))
    if not boxes:
        return pixels
    corners = np.array(boxes)
    union_box = (*corners[:, :2].min(0).tolist(), *corners[:, 2:].max(0).tolist())
    size = Size(pixels.shape[1], pixels.shape[0])
    x0, y0, x1, y1 = to_pixels(union_box, size).pixel_bounds(size)
    x0, y0 = min(x0, size.width - MIN_SIDE_PX), min(y0, size.height - MIN_SIDE_PX)
    return pixels[max(y0, 0) : max(y1, y0 + MIN_SIDE_PX), max(x0, 0) : max(x1, x0 + MIN_SIDE_PX)]


class HasProcess(Protocol):
    """A row with process measures."""

    @property
    def task(self) -> str: ...
    @property
    def process(self) -> ProcessMeasures: ...


Rows = Sequence[HasProcess]


def task_statistics(rows: Rows) -> dict[str, CosineStatistics]:
    """Mean and standard deviation of E_ext's cosines for each task: fitted once on dev chains of π_SFT, then fixed."""
    cosines_by_task: dict[str, list[float]] = {}
    for row in rows:
        cosines_by_task.setdefault(row.task, []).extend(c for c in row.process.cosines if c is not None)
    return {task: cosine_statistics(values) for task, values in cosines_by_task.items()}


class ProcessScores(NamedTuple):
    """(n,) RaPR and RaCPR of each chain, and whether its RaCPR is qualified."""

    rapr: NDArray[np.float64]
    racpr: NDArray[np.float64]
    qualified: NDArray[np.bool_]
    summary: ProcessSummary


def process_scores(rows: Rows, statistics: Mapping[str, CosineStatistics], **options: Any) -> ProcessScores:
    """RaPR and RaCPR with fixed statistics; a task without statistics passes no gate."""
    lengths = np.array([len(row.process.valid) for row in rows], dtype=np.int64)
    valid = np.array([u for row in rows for u in row.process.valid], dtype=float)
    cosines = np.array([np.nan if c is None else c for row in rows for c in row.process.cosines], dtype=float)
    no_fit = CosineStatistics(0.0, 0.0, 0)
    fits = [statistics.get(row.task, no_fit) for row in rows]
    composed = racpr(valid, cosines, lengths, mean=[s.mean for s in fits], std=[s.std for s in fits], **options)
    rates = rapr(valid, lengths)
    return ProcessScores(rates, composed.values, composed.qualified, process_summary(rates, composed))
