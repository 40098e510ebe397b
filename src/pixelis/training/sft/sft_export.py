"""What phase 1 leaves behind: π_SFT with its heads, token normalisers, per-tool scalers and coherence statistics."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pixelis.core.provenance import provenance
from pixelis.data.corpus.corpus import Corpus
from pixelis.equations.zscore import mean_and_std
from pixelis.policy.checkpoint import ModelCard, save_checkpoint
from pixelis.rewards.dynamics import Trajectory, coherence_statistics, corpus_steps, fit_dynamics_heads, tool_scalers
from pixelis.rewards.features import StateFeatures
from pixelis.training.common.distributed import DistributedContext, unshard
from pixelis.training.common.precision import cast_parameters, compute_dtype
from pixelis.training.common.run_folder import RunClock
from pixelis.training.common.run_state import SftState
from pixelis.training.dataset.prepared_examples import PreparedExamples
from pixelis.training.dataset.training_index import ExampleRef
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_model import SftModel
from pixelis.training.sft.teacher_forced_eval import teacher_forced_outputs

MAX_DYNAMICS_EXAMPLES = 2000
"""Trajectories whose steps train g_φ and h_ψ: some thousand steps, at d = 4096 a few gigabytes."""


def export_sft(
    config: SftConfig,
    model: Any,
    card: ModelCard,
    corpus: Corpus,
    state: SftState,
    train: PreparedExamples,
    pool: Sequence[ExampleRef],
    out: Path,
    dist: DistributedContext,
    clock: RunClock,
    temperature: float,
) -> dict[str, Any]:
    """Train the last heads, gather the statistics, and write the checkpoint that later verbs open.

    `temperature` has been put into the weights (`tempering`) and is told in the card.

    A corpus without calls (answers alone) has no steps: the checkpoint has no g_φ, no h_ψ and no statistics of theirs.
    """
    sft_model: SftModel = getattr(model, "module", model)
    traces = ([ref for ref in pool if ref.with_tools] or list(pool))[:MAX_DYNAMICS_EXAMPLES]
    single_process = (
        DistributedContext()
    )  # every process reads everything: sharded weights are gathered, and nobody waits for sums
    trajectories, states, nats, entropies = list[Trajectory](), list[StateFeatures](), list[Tensor](), list[Tensor]()
    for examples, _, output in teacher_forced_outputs(
        model, train, traces, config.batch_tokens, single_process, states=True
    ):
        trajectories += [
            Trajectory.from_example(example) for example in examples
        ]  # the examples hold every picture: let them go
        states += [output.states] if output.states else []
        nats.append(output.nats.cpu())
        entropies.append(output.entropy.cpu())
    exported_heads: dict[str, nn.Module] = {"arguments": sft_model.heads}
    losses, statistics = dict[str, float](), dict[str, Any]()
    if any(len(trajectory.tool) for trajectory in trajectories):
        steps = corpus_steps(trajectories, states)
        heads, losses = fit_dynamics_heads(
            steps, sft_model.policy.width, epochs=config.dynamics_epochs, seed=config.seed
        )
        families = coherence_statistics(heads, steps, floor=config.least_spread)
        statistics = {
            "tools": tool_scalers(heads, steps),
            "coherence": {name: family_statistics._asdict() for name, family_statistics in families.items()},
        }
        exported_heads |= {
            "visual": heads.visual,
            "projector": heads.projector,
            "g_phi": heads.g_phi,
            "h_psi": heads.h_psi,
        }
    tokens = {"logprob": -torch.cat(nats), "entropy": torch.cat(entropies)}
    spreads = {name: mean_and_std(values.numpy())._asdict() for name, values in tokens.items()}
    statistics = {"tokens": spreads, **statistics}
    parameters = sum(value.numel() for value in sft_model.policy.parameters())
    facts = provenance(
        config=config.model_dump(mode="json"),
        seed=config.seed,
        seconds=round(clock.seconds, 1),
        tokens_per_s=round(clock.tokens_per_s, 1),
        processes=dist.world_size,
        threads=torch.get_num_threads(),
        steps=state.step,
        epochs=round(state.epochs, 3),
        examples=len(pool),
        parameters=parameters,
        temperature=round(temperature, 4),
        init=card.name if config.init != "nano" else "random",
    )
    scores = {"dev_loss": state.dev_losses[-1] if state.dev_losses else None, "dev_losses": state.dev_losses, **losses}
    new_card = card.model_copy(
        update={
            "name": config.name,
            "corpus": corpus.manifest.corpus,
            "tools": tool_versions(corpus),
            "training": facts,
            "scores": {"sft": scores},
            "statistics": statistics,
        }
    )
    unshard(sft_model, dist)
    if dist.is_main:
        policy = sft_model.policy
        policy.model.tie_weights()  # gathered one by one, tied matrices have come apart
        if config.lora is not None:
            policy.model = policy.model.merge_and_unload()
        cast_parameters(policy.model, compute_dtype(config))
        save_checkpoint(out / "policy", policy, new_card, exported_heads)
    dist.barrier()
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
