"""Bench rows of the vote and of the process metrics, compared with a library in the same run if there is one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_rows import BenchRow, cpu_seconds
from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track
from pixelis.equations.behaviour import duplicate_groups, similarities
from pixelis.equations.calibration import Temperature, vote_calibration
from pixelis.equations.dawid_skene import dawid_skene
from pixelis.equations.embedding import cosine_statistics
from pixelis.equations.exemplar import choose_exemplar
from pixelis.equations.process import chain_cosines, process_summary, racpr, rapr
from pixelis.equations.softdtw import soft_dtw
from pixelis.equations.visfid import DecisiveStep, group_fidelity, step_scores
from pixelis.equations.voting import Consensus, consensus, merge_duplicate_votes, single_flips, vote_weights

CROWDKIT = """
import json, sys, time
import pandas as pd
from crowdkit.aggregation import DawidSkene
labels = json.load(sys.stdin)
rows = [(i, j, x) for i, row in enumerate(labels) for j, x in enumerate(row)]
data = pd.DataFrame(rows, columns=["task", "worker", "label"])
times = []
for _ in range(4):
    start = time.process_time()
    DawidSkene(n_iter=50, tol=1e-6).fit(data)
    times.append(time.process_time() - start)
print(sorted(times[1:])[1])
"""


def rows(*, peers: Path = Path(".peers")) -> list[BenchRow]:
    """Dawid-Skene, a full vote, soft-DTW and RaPR/RaCPR, in CPU seconds of one thread."""
    rng = np.random.default_rng(0)
    return [_dawid_skene(rng, peers), _full_vote(rng), _soft_dtw(rng), _process(rng)]


def example_group(rng: np.random.Generator, *, rollouts: int = 8) -> tuple[list[list[DecisiveStep]], list[str]]:
    """Rollouts about one clip with five tools and slightly different footprints, and their answers."""
    chains = []
    for _ in range(rollouts):
        x, y = 0.3 + rng.uniform(-0.03, 0.03, 2)
        picture = np.zeros((240, 320), dtype=bool)
        top, left = int(y * 240), int(x * 320)
        picture[top : top + 60, left : left + 80] = rng.random((60, 80)) < 0.98  # ragged, like real masks
        frames = tuple(range(24))
        boxes = tuple((x + f / 100, y, x + f / 100 + 0.2, y + 0.25) for f in frames)
        corners = ((x, y), (x + 0.2, y), (x + 0.2, y + 0.1), (x, y + 0.1))
        text = str(rng.choice(["Gate 12", "Gate 12", "Gate 12B", "Cate 12"]))
        chains.append(
            [
                DecisiveStep("TEMP", (Span(start_s=2.0 + x, end_s=6.0 + y),)),
                DecisiveStep("SEG", (Mask.from_array(picture),)),
                DecisiveStep("TRK", (Track(track_id=0, frames=frames, boxes=boxes),)),
                DecisiveStep("ZOOM", (Box(x0=x, y0=y, x1=x + 0.2, y1=y + 0.25),)),
                DecisiveStep("OCR", (TextSpan(text=text, quad=corners),)),
            ]
        )
    return chains, [str(rng.choice(["12", "12", "12", "13"])) for _ in range(rollouts)]


def run_vote(
    chains: Sequence[Sequence[DecisiveStep]],
    answers: Sequence[str],
    history: NDArray[np.int64],
    rng: np.random.Generator,
) -> Consensus:
    """The vote over eight finished rollouts: fidelity, reliability, weights, exemplar, similarity."""
    n = len(chains)
    scores = step_scores([step for chain in chains for step in chain])
    fidelity = np.array([f.visfid for f in group_fidelity(chains, scores=scores)])
    confidence = vote_calibration(Temperature(1.21, 0.0).confidence(rng.uniform(0.5, 1.0, n)))
    weights = vote_weights(rng.random(n), confidence, fidelity, dawid_skene(history).reliability)
    product = merge_duplicate_votes(weights.product, duplicate_groups(chains, answers, scores=scores))
    result = consensus(answers, product, conformal_threshold=0.6)
    single_flips(answers, product)
    agrees = [answer == result.answer for answer in answers]
    exemplar = choose_exemplar([len(c) for c in chains], rng.random(n), rng.random(n), fidelity, successful=agrees)
    similarities(chains, exemplar.rollout or 0, scores=scores)
    return result


def _labels(rng: np.random.Generator, items: int) -> NDArray[np.int64]:
    truth = rng.integers(0, 4, items)
    correct = rng.random((items, 8)) < np.linspace(0.45, 0.9, 8)
    return np.where(correct, truth[:, None], rng.integers(0, 4, (items, 8)))


def _dawid_skene(rng: np.random.Generator, peers: Path) -> BenchRow:
    labels = _labels(rng, 64)
    ours = cpu_seconds(lambda: dawid_skene(labels, n_classes=4))
    python = peers / "crowdkit" / "bin" / "python"
    peer, note = None, f"{dawid_skene(labels, n_classes=4).iterations} iterations of ours"
    if python.exists():
        command = [str(python), "-c", CROWDKIT]
        process = subprocess.run(
            command, input=json.dumps(labels.tolist()), capture_output=True, text=True, check=False
        )
        peer = float(process.stdout) if process.returncode == 0 else None
        note += "" if process.returncode == 0 else f"; crowd-kit failed: {process.stderr.strip().splitlines()[-1]}"
    else:
        note += f"; python -m venv {peers}/crowdkit && {peers}/crowdkit/bin/pip install crowd-kit"
    return BenchRow("Dawid-Skene, 64 queries x 8 rollouts", ours, "crowd-kit", peer, "100 times crowd-kit", note)


def _full_vote(rng: np.random.Generator) -> BenchRow:
    chains, answers = example_group(rng)
    history = _labels(rng, 16)
    ours = cpu_seconds(lambda: run_vote(chains, answers, history, np.random.default_rng(1)))
    note = "paper: 0.34 s for retrieval and voting (runlatency)"
    return BenchRow("a vote of 8 rollouts with VisFid and Sim_behav", ours, target="5 ms", note=note)


def _soft_dtw(rng: np.random.Generator) -> BenchRow:
    costs = rng.random((8, 8))
    ours = cpu_seconds(lambda: soft_dtw(costs), repeats=200)
    return BenchRow("soft-DTW 8x8, value and alignment", ours, target="no warm-up", note="plain floats, no JIT")


def _process(rng: np.random.Generator) -> BenchRow:
    lengths = rng.integers(0, 13, 10_000)
    steps = int(lengths.sum())
    embeddings = rng.standard_normal((steps, 1024), dtype=np.float32).astype(np.float16)
    valid = rng.random(steps) < 0.9

    def score() -> object:
        cosines = chain_cosines(embeddings, lengths)
        stats = cosine_statistics(cosines)
        chains = racpr(valid, cosines, lengths, mean=stats.mean, std=stats.std)
        return process_summary(rapr(valid, lengths), chains)

    ours = cpu_seconds(score, repeats=3)
    note = f"{steps} steps, 1024-d half-precision embeddings"
    return BenchRow("RaPR and RaCPR of 10,000 traces", ours, target="2 s", note=note)
