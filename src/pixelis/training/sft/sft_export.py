"""The export of phase 1: π_SFT with its heads, token normalisers, per-tool scalers and coherence statistics."""

from __future__ import annotations

from collections.abc import Sequence
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
from pixelis.training.dataset.prepared_examples import PreparedExamples
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_model import unwrap
from pixelis.training.sft.sft_state import SftRun
from pixelis.training.sft.teacher_forced_eval import fit_policy_temperature, teacher_forced_outputs
from pixelis.training.sft.training_index import ExampleRef

MAX_DYNAMICS_EXAMPLES = 2000
"""Trajectories whose steps train g_φ and h_ψ: some thousand steps, a few gigabytes at d = 4096."""


def export_sft(
    run: SftRun,
    card: ModelCard,
    corpus: Corpus,
    train: PreparedExamples,
    train_index: Sequence[ExampleRef],
    dev: PreparedExamples,
    dev_index: Sequence[ExampleRef],
) -> dict[str, Any]:
    """Fit the temperature and the dynamics heads, gather the statistics, and write the checkpoint; returns its scores.

    A corpus without calls (answers alone) has no steps: the checkpoint then has no g_φ, no h_ψ, and no statistics of
    them.
    """
    config, state, dist, sft_model = run.config, run.state, run.dist, unwrap(run.model)
    smoothed = config.fit_temperature and config.label_smoothing > 0.0
    temperature = fit_policy_temperature(run.model, dev, dev_index if smoothed else [], config.batch_tokens, dist)
    heads, losses, statistics = fit_dynamics(config, run.model, train, train_index)
    parameters = sum(value.numel() for value in sft_model.policy.parameters())
    speed = {"seconds": round(run.clock.seconds, 1), "tokens_per_s": round(run.clock.tokens_per_s, 1)}
    machine = {"processes": dist.world_size, "threads": torch.get_num_threads()}
    size = {"steps": state.step, "epochs": round(state.epochs, 3), "examples": len(train_index)}
    policy_facts = {"parameters": parameters, "temperature": round(temperature, 4)}
    settings = {"config": config.model_dump(mode="json"), "seed": config.seed}
    facts = provenance(**settings, **speed, **machine, **size, **policy_facts)
    facts["init"] = card.name if config.init != "nano" else "random"
    scores = {"dev_loss": state.dev_losses[-1] if state.dev_losses else None, "dev_losses": state.dev_losses, **losses}
    origin = {"name": config.name, "corpus": corpus.manifest.corpus, "tools": tool_versions(corpus), "training": facts}
    new_card = card.model_copy(update={**origin, "scores": {"sft": scores}, "statistics": statistics})
    unshard(sft_model, dist)
    if dist.is_main:
        policy = sft_model.policy
        policy.model.tie_weights()  # tied matrices were gathered one by one
        if config.lora is not None:
            policy.model = policy.model.merge_and_unload()
        cast_parameters(policy.model, compute_dtype(config))
        save_checkpoint(run.out / "policy", policy, new_card, heads)
    dist.barrier()
    return {"parameters": parameters, **scores}


def fit_dynamics(
    config: SftConfig, model: Any, train: PreparedExamples, index: Sequence[ExampleRef]
) -> tuple[dict[str, nn.Module], dict[str, float], dict[str, Any]]:
    """The heads to export, with g_φ and h_ψ trained on the steps of the corpus; their losses; all statistics."""
    sft_model = unwrap(model)
    traces = ([ref for ref in index if ref.with_tools] or list(index))[:MAX_DYNAMICS_EXAMPLES]
    dist = DistributedContext()  # every process reads everything: sharded weights are gathered, and no sums are awaited
    trajectories, states, nats, entropies = list[Trajectory](), list[StateFeatures](), list[Tensor](), list[Tensor]()
    for examples, _, output in teacher_forced_outputs(model, train, traces, config.batch_tokens, dist, states=True):
        trajectories += map(Trajectory.from_example, examples)  # without the pictures that the examples hold
        states += [output.states] if output.states else []
        nats.append(output.nats.cpu())
        entropies.append(output.entropy.cpu())
    tokens = {"logprob": -torch.cat(nats), "entropy": torch.cat(entropies)}
    statistics: dict[str, Any] = {"tokens": {name: mean_and_std(x.numpy())._asdict() for name, x in tokens.items()}}
    exported: dict[str, nn.Module] = {"arguments": sft_model.heads}
    if not any(len(trajectory.tool) for trajectory in trajectories):
        return exported, {}, statistics
    steps = corpus_steps(trajectories, states)
    heads, losses = fit_dynamics_heads(steps, sft_model.policy.width, epochs=config.dynamics_epochs, seed=config.seed)
    families = coherence_statistics(heads, steps, floor=config.min_cosine_std)
    statistics["tools"] = tool_scalers(heads, steps)
    statistics["coherence"] = {name: family._asdict() for name, family in families.items()}
    exported |= {name: getattr(heads, name) for name in ("visual", "projector", "g_phi", "h_psi")}
    return exported, losses, statistics


def tool_versions(corpus: Corpus) -> dict[str, str]:
    """Versions of the tools that made the corpus, from its plan."""
    tools = corpus.manifest.plan.get("tools", {})
    facts_by_tool = tools.items() if isinstance(tools, dict) else ()
    return {str(name): str(f.get("version", f) if isinstance(f, dict) else f) for name, f in facts_by_tool}
