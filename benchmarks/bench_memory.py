"""Memory of rollouts as a function of trajectory length (fig:memory_chain): 64 sequences, each length in a new process.

nano with random weights repeats one call and gets a view at once, so that every step adds the same amount. A process
knows its own peak; its memory before the first token is reported separately.

    python -m benchmarks.bench_memory 6    # one length, as JSON; `pixelis bench memory` runs this for each length
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.bench_rollout import QUERIES, QUESTION, SAMPLES, ZOOM_RESULT, ForcedGrammar, random_nano, random_picture
from benchmarks.bench_rows import clone_environment
from pixelis.core.errors import PixelisError
from pixelis.media import MediaSet
from pixelis.nano.nano_model import NanoConfig
from pixelis.rollout.engine import CACHE_BYTES, ROWS_AT_ONCE, Engine
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.results import Execution, ToolCall

CHAINS = (2, 4, 6, 8, 12)
TARGET_MB = 2000.0
MB = 1e6


class MemoryMeasurement(NamedTuple):
    """One trajectory length."""

    chain: int
    """Tool calls per trajectory."""
    sequences: int
    tokens: int
    """Of the longest trajectory, prompt and images included."""
    before_mb: float
    """Resident before the first token: libraries and weights."""
    peak_mb: float
    """Peak resident memory."""
    cache_mb: float
    """Keys and values of all rows, as allocated at the end."""


class LinearFit(NamedTuple):
    """Least-squares line of peak memory over trajectory length."""

    slope_mb: float
    """Per additional call, of all sequences together."""
    start_mb: float
    r2: float


class ViewToolbox:
    """A toolbox that returns the same view at once for every call."""

    def schemas(self) -> list[dict[str, Any]]:
        return []

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        return Execution(ZOOM_RESULT, {})


def measure(
    chain: int, nano: NanoConfig = NanoConfig(), *, queries: int = QUERIES, samples: int = SAMPLES
) -> MemoryMeasurement:
    """Measure rollouts of this length; the process should have done nothing else."""
    torch.set_num_threads(1)
    policy, _ = random_nano(nano)
    tokenizer = policy.eval().tokenizer
    rng = np.random.default_rng(0)
    query_list = [Query(f"q{k}", QUESTION, MediaSet((random_picture(rng),)), k) for k in range(queries)]
    engine = Engine(
        policy, ViewToolbox(), query_list, n=samples, sampled_count=samples, seed=0, limits=Limits(steps=chain),
        temperature=1.0, grammar=ForcedGrammar(tokenizer), on_progress=None, name="bench", rows_at_once=ROWS_AT_ONCE,
        cache_bytes=CACHE_BYTES, clock=time.monotonic, created_at=datetime.now(UTC),
    )  # fmt: skip
    before_mb = resident_mb("VmRSS")
    with torch.inference_mode():
        groups = engine.run()
    longest = max(
        len(trajectory.sequence) for group in groups for trajectory in group if trajectory.sequence is not None
    )
    cache_mb = engine.rows.cache.bytes / MB
    return MemoryMeasurement(chain, queries * samples, longest, before_mb, resident_mb("VmHWM"), cache_mb)


def resident_mb(field: str) -> float:
    """VmRSS (current) or VmHWM (peak); the peak for both if the kernel does not report them."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MB
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / MB


def measure_in_subprocesses(chains: Sequence[int] = CHAINS) -> list[MemoryMeasurement]:
    """Each length in a new process, because the peak of a process never falls."""
    measurements = []
    for chain in chains:
        command = [sys.executable, "-m", "benchmarks.bench_memory", str(chain)]
        process = subprocess.run(command, capture_output=True, text=True, check=False, env=clone_environment())
        if process.returncode:
            raise PixelisError(f"{chain} calls per trajectory: {process.stderr.strip().splitlines()[-1:]}")
        measurements.append(MemoryMeasurement(**json.loads(process.stdout)))
    return measurements


def fit_line(measurements: Sequence[MemoryMeasurement]) -> LinearFit:
    """The least-squares line of the peaks, and its R²."""
    x, y = np.array([(m.chain, m.peak_mb) for m in measurements]).T
    slope, start = np.polyfit(x, y, 1)
    residuals = y - (slope * x + start)
    return LinearFit(float(slope), float(start), float(1.0 - (residuals**2).sum() / ((y - y.mean()) ** 2).sum()))


def draw(measurements: Sequence[MemoryMeasurement], path: Path) -> None:
    """Plot peak and cache over trajectory length, with the fitted line."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    mpl.rcParams.update({"svg.hashsalt": "memory", "svg.fonttype": "none", "font.size": 8})
    figure = Figure(figsize=(4.6, 3.0), layout="constrained")
    axes = figure.add_subplot()
    chains, fit = [m.chain for m in measurements], fit_line(measurements)
    ends = np.array([0, max(chains)])
    axes.plot(ends, fit.start_mb + fit.slope_mb * ends, color="0.6", linewidth=0.9, linestyle=":")
    for values, colour, label in (
        ([m.peak_mb for m in measurements], "#1f5f8b", "peak of the process"),
        ([m.cache_mb for m in measurements], "#c0603a", "keys and values"),
    ):
        axes.plot(chains, values, "o-", color=colour, linewidth=0.9, label=label)
    axes.axhline(TARGET_MB, color="0.6", linewidth=0.7)
    axes.set(xlabel="calls in a chain", ylabel=f"MB, {measurements[0].sequences} sequences", ylim=(0, TARGET_MB * 1.05))
    axes.set_title(f"{fit.slope_mb:.0f} MB a call, R² {fit.r2:.3f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(0.0, 0.92))
    metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else None
    figure.savefig(path, metadata=metadata)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))._asdict()))
