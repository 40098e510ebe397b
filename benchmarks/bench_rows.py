"""Rows of `pixelis bench`: our CPU seconds, those of a peer in the same run, and the target."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def clone_environment() -> dict[str, str]:
    """The environment of a child process that imports the benchmarks."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}


@dataclass(frozen=True)
class BenchRow:
    """One row of the table; `peer_cpu_s` is None if the peer is not installed, and printed as `not run`."""

    name: str
    ours_cpu_s: float
    peer: str = ""
    peer_cpu_s: float | None = None
    target: str = ""
    note: str = ""


def cpu_seconds(work: Callable[[], object], *, repeats: int = 20) -> float:
    """Median CPU time of one call, after a warm-up call. The caller sets the number of threads."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return sorted(times)[len(times) // 2]


def cpu_seconds_interleaved(
    ours: Callable[[], object], peer: Callable[[], object], *, repeats: int = 3
) -> tuple[float, float]:
    """Median CPU time of one call of each, interleaved, so that other load affects both alike."""
    ours()
    peer()
    times: list[tuple[float, float]] = []
    for _ in range(repeats):
        start = time.process_time()
        ours()
        ours_end = time.process_time()
        peer()
        times.append((ours_end - start, time.process_time() - ours_end))
    middle = len(times) // 2
    return sorted(t for t, _ in times)[middle], sorted(t for _, t in times)[middle]
