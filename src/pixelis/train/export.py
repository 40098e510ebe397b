"""What phase 1 leaves behind: π_SFT with its heads, token normalisers, per-tool scalers and coherence statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelis.data.store import Corpus
from pixelis.equations.zscore import mean_and_spread
from pixelis.policy.checkpoint import Card, save_checkpoint
from pixelis.rundir import provenance
from pixelis.train.crew import Crew, unshard
from pixelis.train.dynamics import Trajectory, coherence_statistics, corpus_steps, tool_scalers, train_dynamics
from pixelis.train.evaluating import readings
from pixelis.train.features import States
from pixelis.train.lessons import Student
from pixelis.train.precision import computed_in, round_to
from pixelis.train.prepared import Prepared
from pixelis.train.run import Watch
from pixelis.train.sft_config import SftConfig
from pixelis.train.starting import Lesson
from pixelis.train.state import State

MOST_EXAMPLES = 2000
"""Trajectories whose steps train g_φ and h_ψ: some thousand steps, at d = 4096 a few gigabytes."""


def export(
    config: SftConfig,
    taught: Any,
    card: Card,
    corpus: Corpus,
    state: State,
    train: Prepared,
    pool: Sequence[Lesson],
    out: Path,
    us: Crew,
    watch: Watch,
    temperature: float,
) -> dict[str, Any]:
    """Train the last heads, gather the statistics, and write the checkpoint that later verbs open.

    `temperature` has been put into the weights (`tempering`) and is told in the card.

    A corpus without calls (answers alone) has no steps: the checkpoint has no g_φ, no h_ψ and no statistics of theirs.
    """
    student: Student = getattr(taught, "module", taught)
    chains = ([lesson for lesson in pool if lesson.tools] or list(pool))[:MOST_EXAMPLES]
    alone = Crew()  # every process reads everything: sharded weights are gathered, and nobody waits for sums
    walked, states, nats, entropies = list[Trajectory](), list[States](), list[Tensor](), list[Tensor]()
    for examples, _, said in readings(taught, train, chains, config.batch_tokens, alone, states=True):
        walked += [Trajectory.of(example) for example in examples]  # the examples hold every picture: let them go
        states += [said.states] if said.states else []
        nats.append(said.nats.cpu())
        entropies.append(said.entropy.cpu())
    kept: dict[str, nn.Module] = {"arguments": student.heads}
    losses, statistics = dict[str, float](), dict[str, Any]()
    if any(len(trajectory.tool) for trajectory in walked):
        steps = corpus_steps(walked, states)
        heads, losses = train_dynamics(steps, student.policy.width, epochs=config.dynamics_epochs, seed=config.seed)
        families = coherence_statistics(heads, steps, floor=config.least_spread)
        statistics = {
            "tools": tool_scalers(heads, steps),
            "coherence": {name: found._asdict() for name, found in families.items()},
        }
        kept |= {
            "visual": heads.visual,
            "projector": heads.projector,
            "g_phi": heads.g_phi,
            "h_psi": heads.h_psi,
        }
    tokens = {"logprob": -torch.cat(nats), "entropy": torch.cat(entropies)}
    spreads = {name: mean_and_spread(values.numpy())._asdict() for name, values in tokens.items()}
    statistics = {"tokens": spreads, **statistics}
    parameters = sum(value.numel() for value in student.policy.parameters())
    facts = provenance(
        config=config.model_dump(mode="json"),
        seed=config.seed,
        seconds=round(watch.seconds, 1),
        tokens_per_s=round(watch.tokens_per_s, 1),
        processes=us.world,
        threads=torch.get_num_threads(),
        steps=state.step,
        epochs=round(state.epochs, 3),
        examples=len(pool),
        parameters=parameters,
        temperature=round(temperature, 4),
        init=card.name if config.init != "nano" else "random",
    )
    scores = {"dev_loss": state.dev_losses[-1] if state.dev_losses else None, "dev_losses": state.dev_losses, **losses}
    own = card.model_copy(
        update={
            "name": config.name,
            "corpus": corpus.manifest.corpus,
            "tools": tool_versions(corpus),
            "training": facts,
            "scores": {"sft": scores},
            "statistics": statistics,
        }
    )
    unshard(student, us)
    if us.first:
        policy = student.policy
        policy.model.tie_weights()  # gathered one by one, tied matrices have come apart
        if config.lora is not None:
            policy.model = policy.model.merge_and_unload()
        round_to(policy.model, computed_in(config))
        save_checkpoint(out / "policy", policy, own, kept)
    us.wait()
    return {"parameters": parameters, **scores}


def tool_versions(corpus: Corpus) -> dict[str, str]:
    """Versions of the tools that made the corpus, from its plan."""
    tools = corpus.manifest.plan.get("tools", {})
    if not isinstance(tools, dict):
        return {}
    return {
        str(name): str(facts.get("version", facts) if isinstance(facts, dict) else facts)
        for name, facts in tools.items()
    }
