"""The record of a run of phase 2: resuming, metrics, summaries and checkpoints, one call for each update."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pixelis.data.corpus.corpus import Corpus
from pixelis.equations.pid import Pid
from pixelis.policy.model_names import hash_weights
from pixelis.rewards.compute import RewardBatch, TrajectoryBatch
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.loggers import drop_rows_after
from pixelis.training.common.run_folder import MetricsLog
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.grpo.rft_metrics import SUMMARIES, append_summaries
from pixelis.training.grpo.rft_state import RftState, Trained, is_save_due, load_rft, save_rft

Show = Callable[[dict[str, float], int, int], None]
"""Called with the metrics of an update, its number, and the number of updates of the run."""


class RunLog:
    """Restores the newest state of the run folder, and records what follows it."""

    def __init__(
        self, config: RftConfig, out: Path, trained: Trained, corpus: Corpus, dist: DistributedContext, show: Show
    ) -> None:
        from pixelis.training.dataset.prepared_examples import run_sources

        self._config, self._out, self._trained, self._dist, self._show = config, out, trained, dist, show
        self._sources = run_sources(corpus, trained.policy.tokenizer)._replace(policy=hash_weights(config.policy))
        saved = load_rft(out, self._sources, trained, dist)
        self.resumed = saved is not None
        self.state = saved or RftState(pid=Pid(beta=config.kl.beta))
        self.already_finished = self.state.step >= config.steps or bool(self.state.stop_reason)
        self._metrics = MetricsLog(out, self.state.step, dist, config)
        if dist.is_main:
            drop_rows_after(out / SUMMARIES, self.state.step)
        self._last_save = time.monotonic()
        self._started_at = self._last_save - self.state.seconds
        self._step_start = self._rollout_end = self._last_save

    def start_step(self) -> None:
        self._step_start = time.monotonic()

    def end_rollouts(self) -> None:
        self._rollout_end = time.monotonic()

    def end_step(
        self, values: dict[str, float], items: list[str], rewards: RewardBatch, batch: TrajectoryBatch, hit_rate: float
    ) -> None:
        """Count the update, write its row and its summaries, and save the state if that is due."""
        config, state, dist = self._config, self.state, self._dist
        now = time.monotonic()
        values |= {
            "seconds_rollout": self._rollout_end - self._step_start, "seconds_update": now - self._rollout_end,
            "cache_hits": hit_rate,
        }  # fmt: skip
        state.step += 1
        state.seconds = now - self._started_at
        if dist.is_main:
            append_summaries(self._out, state.step, items, config.group_size, rewards, batch)
        if state.step % config.log_every == 0:
            self._metrics.write(state.step, **values)
        self._show(values, state.step, config.steps)
        is_last = state.step == config.steps or bool(state.stop_reason)
        if is_last or is_save_due(self._last_save, config.save_minutes, dist):
            save_rft(self._out, state, self._sources, self._trained, dist)
            self._last_save = time.monotonic()

    def close(self) -> None:
        self._metrics.close()
