"""What an adaptation leaves: its policy as a checkpoint, now or as it was after any row, and the way back to a row."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from pixelis.config import load_config
from pixelis.errors import ConfigError
from pixelis.policy.checkpoint import Card, Loaded, load_checkpoint, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.retrieval.memory import Memory
from pixelis.rundir import provenance
from pixelis.train.adaptation import LEDGER, MEMORY, Adaptation
from pixelis.train.canary import Canary
from pixelis.train.crew import Crew
from pixelis.train.precision import computed_in, held_in, round_to
from pixelis.train.recollection import BEFORE, watermark_at_start
from pixelis.train.rft_export import heads_of
from pixelis.train.run import RESOLVED, run_folder
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_update import begin
from pixelis.train.worth import Known, known_of


def export(config: TtrlConfig, loaded: Loaded, known: Known, home: Adaptation, folder: Path) -> None:
    """The policy where an adaptation stands, as a checkpoint that other verbs open."""
    policy: Policy = copy.deepcopy(home.learner.policy)
    if config.lora is not None:
        policy.model = policy.model.merge_and_unload()
    round_to(policy.model, computed_in(config))
    facts = provenance(
        config=config.model_dump(mode="json"), seed=config.seed, queries=len(home.rows), updates=home.taken,
        weights=home.learner.digest(),
    )  # fmt: skip
    card = loaded.card.model_copy(update={"name": config.name, "training": {**facts, "before": loaded.card.training}})
    save_checkpoint(folder, policy, card, heads_of(loaded, known))


def start_kl(card: Card) -> float | None:
    """KL of a policy to π_SFT as its card tells: 0 for one of phase 1; nobody knows that of one that adapted before,
    whose logits phase 2 divided, or that phase 2 began with a policy of phase 2."""
    if "before" not in card.training:
        return 0.0
    if card.training.get("config", {}).get("temperature", 1.0) != 1.0 or "before" in card.training["before"]:
        return None
    known = card.scores.get("rft", {}).get("kl")
    return known if "beta" in card.training else None  # phase 2 writes its β; phase 3 keeps the scores of what it found


class Reopened(NamedTuple):
    """An adaptation that is looked at again."""

    config: TtrlConfig
    loaded: Loaded
    known: Known
    home: Adaptation

    def export(self, folder: Path) -> None:
        export(self.config, self.loaded, self.known, self.home, folder)


@contextmanager
def reopened(out: Path) -> Iterator[Reopened]:
    """The adaptation in a folder, which nobody else writes to meanwhile, before it has gone to any row."""
    config = config_of(out)
    torch.set_num_threads(config.threads)
    with run_folder(config, out, Crew()):
        loaded = load_checkpoint(config.policy, device=config.device, dtype=held_in(config))
        known = known_of(loaded, config.policy)
        yield Reopened(config, loaded, known, Adaptation(out, config, begin(config, loaded), stand=False))


def go_back(out: Path, query: int) -> dict[str, Any]:
    """Take an adaptation back to a row: weights, moments, averages, controller, baseline, memory, canary, policy.

    All that is read is read before anything is changed: where a file is damaged, everything stays as it is.
    """
    with reopened(out) as own:
        canary = Canary(out, own.config.canary)
        watermark = own.home.row(query)["memory"] if query else watermark_at_start(out / BEFORE)
        with closing(Memory.reading(out / MEMORY)) as memory:  # who opens it to write drops what its rows do not name
            memory.require_reachable(watermark)
        row = own.home.revert(query)
        canary.forget_after(query)
        with closing(Memory.open(out / MEMORY)) as memory:
            memory.rollback(watermark)
        own.export(out / "policy")
    return row


def policy_after(out: Path, query: int, folder: Path) -> None:
    """Write the policy as it was after a row; the adaptation itself stays where it is."""
    with reopened(out) as own:
        own.home.look_back(query)
        own.export(folder)


def config_of(out: Path) -> TtrlConfig:
    """The settings that a folder was adapted with; ConfigError where it holds no adaptation."""
    path = out / RESOLVED
    if not path.exists() or not (out / LEDGER).exists():
        raise ConfigError(f"{out} is no adaptation; `pixelis adapt STREAM -o {out}` makes one")
    return load_config(TtrlConfig, path, [])
