"""Bench rows of phase 2: our update with two tool turns, and a step of TRL's `GRPOTrainer` with none.

Ours is one iteration of `train_rft`: rollouts, the reference forward of π_SFT, the four terms of R(τ), a GRPO step with
exact KL, a pass of h_ψ, the controller, the log. Tools take no time, and every call returns another view. Turns are
forced except for their first words, so that every rollout has two calls and none shares its tokens with another.

TRL loads the same checkpoint in an environment of its own and generates as many tokens in one turn: once for the
question alone, its cheapest case (it encodes no image, and reads neither image nor observations), and once for the
question with its image, as ours. Both times with all completions in one batch, without gradient checkpointing, without
a second pass for the old log-probabilities, with a free reward, and without logging. β > 0, so that it also has a
reference forward. The steps are interleaved, so that other load affects both alike.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.bench_rollout import (
    OCR_RESULT,
    QUERIES,
    QUESTION,
    SAMPLES,
    TOOL_TURNS,
    VIEW,
    ZOOM_RESULT,
    ForcedGrammar,
    random_nano,
    random_picture,
)
from benchmarks.bench_rows import BenchRow
from benchmarks.bench_trl import run_interleaved
from pixelis.core.config import load_config
from pixelis.equations.embedding import CosineStatistics
from pixelis.equations.pid import Pid
from pixelis.equations.zscore import MeanStd
from pixelis.items import Item, MediumFacts
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.nano.nano_model import NanoConfig
from pixelis.policy.checkpoint import ModelCard, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.rewards.compute import Rewarder, compute_rewards, gather_trajectories, train_dynamics
from pixelis.rewards.dynamics import DynamicsHeads
from pixelis.rewards.features import reference_outputs
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.results import Execution, ToolCall
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_folder import MetricsLog
from pixelis.training.dataset.scored_rollouts import score_rollout
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_metrics import append_summaries, measure_update
from pixelis.training.grpo.rft_state import RftState
from pixelis.training.grpo.train import build_optimizers, group_advantages, grpo_step, update_controller

STEPS = 3
"""Measured steps, after a warm-up step."""
BETA = 0.2
PEER = "TRL GRPOTrainer, one turn"


class UpdateTiming(NamedTuple):
    """CPU seconds of one update by phase, and its tokens."""

    seconds: dict[str, float]
    sampled_tokens: int
    """Sampled tokens of all rollouts."""
    read_tokens: int
    """Tokens of all sequences, prompts, images and observations included."""
    values: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def without_reference(self) -> float:
        """Seconds without the reference forward."""
        return self.total - self.seconds["anchor"]


class ViewThenTextToolbox:
    """A toolbox with immediate results: first a view, each time another, then a line of text."""

    def __init__(self) -> None:
        self._number = count()

    def schemas(self) -> list[dict[str, Any]]:
        return []

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        if media.views:
            return Execution(OCR_RESULT, {})
        left = next(self._number) % 50 / 100.0
        view = VIEW.model_copy(update={"box": (left, 0.3, left + 0.32, 0.58)})
        return Execution(ZOOM_RESULT.model_copy(update={"view": view}), {})


def rows(
    nano: NanoConfig = NanoConfig(),
    *,
    queries: int = QUERIES,
    samples: int = SAMPLES,
    steps: int = STEPS,
    peers: Path = Path(".peers"),
) -> list[BenchRow]:
    """One thread, CPU seconds of the same run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _rows(nano, queries, samples, steps, peers / "trl" / "bin" / "python", Path(folder))
    finally:
        torch.set_num_threads(threads)


def _rows(nano: NanoConfig, queries: int, samples: int, steps: int, python: Path, folder: Path) -> list[BenchRow]:
    policy, _ = random_nano(nano)
    save_checkpoint(folder / "policy", policy, ModelCard(name="bench"))
    rng = np.random.default_rng(0)
    pictures = [random_picture(rng) for _ in range(queries)]
    update = make_update(policy, folder, pictures, samples)
    tokens_per_rollout = update().sampled_tokens // (queries * samples)  # warm-up
    files = [str(save_image(image, folder / f"{k}.png")) for k, image in enumerate(pictures)]
    job: dict[str, Any] = {
        "queries": queries,
        "samples": samples,
        "tokens": tokens_per_rollout,
        "steps": steps + 1,
        "beta": BETA,
    }
    job |= {"folder": str(folder / "policy"), "prompt": [{"role": "user", "content": QUESTION}]}
    comparisons = [
        run_interleaved(python, update, job | {"pictures": image_files}) for image_files in (list[str](), files)
    ]
    all_updates = [step for comparison in comparisons for step in comparison.our_steps] or [
        update() for _ in range(steps)
    ]
    out = []
    for comparison, condition in zip(comparisons, ("no picture", "with the picture"), strict=True):
        our_steps = comparison.our_steps or all_updates
        our_seconds = float(np.median([step.total for step in our_steps]))
        peer = float(np.median(comparison.peer_seconds)) if comparison.peer_seconds else None
        out.append(
            BenchRow(
                f"an update of RFT, {queries} queries x {samples}, {TOOL_TURNS} tool turns, "
                f"{tokens_per_rollout} tokens sampled and {our_steps[0].read_tokens // (queries * samples)} read each",
                our_seconds,
                f"{PEER}, {condition}",
                peer,
                "at least 3 times",
                f"{f'{peer / our_seconds:.1f} times' if peer else comparison.error}; {format_timings(our_steps)}",
            )
        )
    without_reference = float(np.median([step.without_reference for step in all_updates]))
    entropy = entropy_seconds(all_updates[0].sampled_tokens, len(policy.allowed_ids))
    log_seconds = float(np.median([step.seconds["log"] for step in all_updates])) + entropy
    log_row = BenchRow(
        "of it controller, measurements and log, entropy included",
        log_seconds,
        target="under 3 % of an update without the reference forward",
        note=f"{100.0 * log_seconds / without_reference:.2f} %, of which the entropy "
        f"{100.0 * entropy / without_reference:.2f}",
    )
    return [*out, log_row]


def format_timings(our_steps: Sequence[UpdateTiming]) -> str:
    """Median seconds of each phase of an update except the log."""
    median = {
        part: float(np.median([s.seconds[part] for s in our_steps])) for part in our_steps[0].seconds if part != "log"
    }
    return ", ".join(f"{part} {seconds:.2f}" for part, seconds in median.items()) + " s"


def save_image(image: Image, path: Path) -> Path:
    """Write an image for another process."""
    from PIL import Image as Pillow

    Pillow.fromarray(np.asarray(image.frame(0))).save(path)
    return path


# --- ours


def make_update(policy: Policy, out: Path, pictures: Sequence[Image], samples: int) -> Callable[[], UpdateTiming]:
    """A function that runs one update, as `train_rft` does, with one question per image."""
    config, dist, queries = load_config(RftConfig, Path("configs/nano/rft.yaml")), DistributedContext(), len(pictures)
    config = config.model_copy(update={"prompts_per_step": queries, "group_size": samples, "keep_best": samples})
    rewarder, state, log = random_rewarder(policy), RftState(pid=Pid(beta=BETA)), MetricsLog(out, 0, dist)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer, dynamics = build_optimizers(config, policy, rewarder.heads.h_psi)
    media = [MediaSet((image,)) for image in pictures]
    items = [make_item(k) for k in range(queries)]
    query_list = [Query(i.id, i.question, media_set, i.seed) for i, media_set in zip(items, media, strict=True)]
    grammar, toolbox = ForcedGrammar(policy.tokenizer), ViewThenTextToolbox()
    limits = Limits(steps=TOOL_TURNS, turn_tokens=len(grammar) + 8, total_tokens=1024)
    rollout_media = [media_set for media_set in media for _ in range(samples)]
    positions = np.arange(queries * samples)

    def update() -> UpdateTiming:
        seconds, seed = Counter[str](), state.step
        with add_cpu_seconds(seconds, "rollouts"):
            groups = rollout(policy, toolbox, query_list, n=samples, seed=seed, limits=limits, grammar=grammar)
        with add_cpu_seconds(seconds, "rewards"):
            samples_with_items = [
                (sample, i, media_set)
                for group, i, media_set in zip(groups, items, media, strict=True)
                for sample in group
            ]
            scored_rollouts = [
                score_rollout(sample, i, media_set, policy.tokenizer) for sample, i, media_set in samples_with_items
            ]
        with add_cpu_seconds(seconds, "anchor"):
            reference_batches = reference_outputs(config, policy, reference, scored_rollouts)
        with add_cpu_seconds(seconds, "rewards"):
            trajectories = gather_trajectories(
                rewarder, reference_batches, scored_rollouts, rollout_media, positions, config.reward, dist
            )
            reward_batch = compute_rewards(trajectories, rewarder, config.reward, group_size=samples, seed=seed)
            advantages = group_advantages(reward_batch.terms.total, config)
        with add_cpu_seconds(seconds, "step"):
            update_stats = grpo_step(
                config, policy, reference, optimizer, reference_batches, advantages, state.pid.beta, dist
            )
        with add_cpu_seconds(seconds, "h_psi"):
            dynamics_loss = train_dynamics(
                rewarder, trajectories.steps, dynamics, batch=config.dynamics_batch, seed=seed
            )
        with add_cpu_seconds(seconds, "log"):
            values = measure_update(
                config, state, trajectories, reward_batch, advantages, update_stats, scored_rollouts, dist
            )
            values["dynamics_loss"] = dynamics_loss
            update_controller(config, state, values, update_stats, 1.0)
            state.step += 1
            state.stop_reason = ""  # random weights never answer, which would stop the run
            append_summaries(out, state.step, [i.id for i in items], samples, reward_batch, trajectories)
            log.write(state.step, **values)
        sampled_tokens, read_tokens = (
            sum(int(n) for n in sizes) for sizes in zip(*map(count_tokens, scored_rollouts), strict=True)
        )
        return UpdateTiming(dict(seconds), sampled_tokens, read_tokens, values)

    return update


def entropy_seconds(tokens: int, vocabulary: int) -> float:
    """CPU seconds of the entropy of all sampled tokens, which a GRPO step computes only for the log."""
    log_probs, seconds = torch.randn(tokens, vocabulary).log_softmax(-1), Counter[str]()  # the loss needs these anyway
    with add_cpu_seconds(seconds, "entropy"):
        float(-(log_probs.exp() * log_probs).sum(-1).sum())
    return seconds["entropy"]


def count_tokens(scored_rollout: Any) -> tuple[int, int]:
    return int(scored_rollout.sequence.sampled_mask.sum()), len(scored_rollout.sequence)


def random_rewarder(policy: Policy) -> Rewarder:
    """Untrained g_φ and h_ψ."""
    torch.manual_seed(0)
    heads = DynamicsHeads(policy.width).eval().requires_grad_(False)
    heads.h_psi.requires_grad_(True)
    return Rewarder(
        heads,
        {"search": CosineStatistics(0.5, 0.2, 100)},
        {},
        {"entropy": MeanStd(1.0, 1.0, 100), "logprob": MeanStd(-1.0, 1.0, 100)},
    )


def make_item(number: int) -> Item:
    return Item(
        id=f"q{number}", family="search", template="search.plate_text", difficulty=1, seed=number, stem=QUESTION,
        answer="GATE 12", answers=("GATE 12",), scoring="exact",
        media=(MediumFacts(name="Image_0", sha256="0" * 64, width=96, height=96),),
    )  # fmt: skip


@contextmanager
def add_cpu_seconds(seconds: Counter[str], phase: str) -> Iterator[None]:
    """Add the CPU seconds of the block to a phase."""
    start = time.process_time()
    yield
    seconds[phase] += time.process_time() - start  # type: ignore[assignment]  # a Counter also sums floats
