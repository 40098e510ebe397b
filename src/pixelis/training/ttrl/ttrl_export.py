"""Outputs of an adaptation: its policy as a checkpoint, at the end or after any row; and reverting to a row."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import provenance
from pixelis.memory.memory_store import MemoryStore
from pixelis.policy.checkpoint import LoadedCheckpoint, ModelCard, load_checkpoint, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.rewards.compute import Rewarder, checkpoint_heads, load_rewarder
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.loggers import METRICS, drop_rows_after
from pixelis.training.common.precision import cast_parameters, compute_dtype, weights_dtype
from pixelis.training.common.run_folder import RESOLVED, run_folder
from pixelis.training.ttrl.canary import Canary
from pixelis.training.ttrl.journal import LEDGER, MEMORY, AdaptationJournal
from pixelis.training.ttrl.stream_memory import START_WATERMARK_FILE, read_start_watermark
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_update import build_policy_state


def export_ttrl(
    config: TtrlConfig, checkpoint: LoadedCheckpoint, rewarder: Rewarder, journal: AdaptationJournal, folder: Path
) -> None:
    """Write the present policy of an adaptation as a checkpoint."""
    policy: Policy = copy.deepcopy(journal.policy_state.policy)
    if config.lora is not None:
        policy.model = policy.model.merge_and_unload()
    cast_parameters(policy.model, compute_dtype(config))
    facts = provenance(
        config=config.model_dump(mode="json"), seed=config.seed, queries=len(journal.rows),
        updates=journal.update_count, weights=journal.policy_state.digest(),
    )  # fmt: skip
    training = {**facts, "before": checkpoint.card.training}
    card = checkpoint.card.model_copy(update={"name": config.name, "training": training})
    save_checkpoint(folder, policy, card, checkpoint_heads(checkpoint, rewarder))


def start_kl(card: ModelCard) -> float | None:
    """KL of a policy to π_SFT by its card: 0 for a policy of phase 1. Unknown if the policy was adapted before, if
    phase 2 divided its logits, or if phase 2 started from a policy of phase 2."""
    if "before" not in card.training:
        return 0.0
    if card.training.get("config", {}).get("temperature", 1.0) != 1.0 or "before" in card.training["before"]:
        return None
    # phase 2 writes its β; phase 3 keeps the scores of its start policy
    return card.scores.get("rft", {}).get("kl") if "beta" in card.training else None


class ReopenedAdaptation(NamedTuple):
    """An adaptation that was opened again."""

    config: TtrlConfig
    checkpoint: LoadedCheckpoint
    rewarder: Rewarder
    journal: AdaptationJournal

    def export(self, folder: Path) -> None:
        export_ttrl(self.config, self.checkpoint, self.rewarder, self.journal, folder)


@contextmanager
def reopen_adaptation(out: Path) -> Iterator[ReopenedAdaptation]:
    """The adaptation in a folder, locked, before any row is restored."""
    config = read_run_config(out)
    torch.set_num_threads(config.threads)
    with run_folder(config, out, DistributedContext()):
        checkpoint = load_checkpoint(config.policy, device=config.device, dtype=weights_dtype(config))
        rewarder = load_rewarder(checkpoint, config.policy)
        journal = AdaptationJournal(out, config, build_policy_state(config, checkpoint), restore=False)
        yield ReopenedAdaptation(config, checkpoint, rewarder, journal)


def revert_adaptation(out: Path, query: int) -> dict[str, Any]:
    """Revert an adaptation to a row: weights, moments, EMA, controller, baseline, memory, canary, policy.

    Everything is read before anything changes: if a file is damaged, the folder stays as it is.
    """
    with reopen_adaptation(out) as adaptation:
        canary, journal = Canary(out, adaptation.config.canary), adaptation.journal
        watermark = journal.row(query)["memory"] if query else read_start_watermark(out / START_WATERMARK_FILE)
        # opening the memory for writing drops unacknowledged rows
        with closing(MemoryStore.open_read_only(out / MEMORY)) as memory:
            memory.require_reachable(watermark)
        row = journal.revert(query)
        drop_rows_after(out / METRICS, query)
        canary.drop_checks_after(query)
        with closing(MemoryStore(out / MEMORY)) as memory:
            memory.rollback(watermark)
        adaptation.export(out / "policy")
    return row


def export_policy_after(out: Path, query: int, folder: Path) -> None:
    """Write the policy after a row; the adaptation itself does not change."""
    with reopen_adaptation(out) as adaptation:
        adaptation.journal.rewind_in_memory(query)
        adaptation.export(folder)


def read_run_config(out: Path) -> TtrlConfig:
    """The configuration of an adaptation; raises ConfigError if the folder holds none."""
    path = out / RESOLVED
    if not path.exists() or not (out / LEDGER).exists():
        raise ConfigError(f"{out} is not an adaptation; `pixelis adapt STREAM -o {out}` makes one")
    return load_config(TtrlConfig, path, [])
