"""How phase 1 begins: the policy, its examples, the pool that batches are cut from, the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus import Corpus
from pixelis.nano.nano_model import NANO_STYLE, build_nano
from pixelis.policy.checkpoint import ModelCard, load_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.rewards.heads import ToolHeads
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.optimizers import MuonAdamW
from pixelis.training.common.precision import weights_dtype
from pixelis.training.common.run_folder import Progress, Show
from pixelis.training.dataset.examples import Example
from pixelis.training.dataset.prepared_examples import PreparedExamples, corpus_texts, prepare, tool_schemas
from pixelis.training.sft.sft_config import LoraSettings, SftConfig
from pixelis.training.sft.sft_model import SftModel

SORTED_TOGETHER = 16
"""Batches whose examples are sorted by length among themselves: little filling, yet other company every epoch."""


class ExampleRef(NamedTuple):
    """One entry of the pool."""

    example_index: int
    """Of the prepared example."""
    with_tools: bool
    """Its whole trace, or only question and answer."""
    tokens: int


def build_sft_model(config: SftConfig, corpus: Corpus) -> tuple[SftModel, ModelCard]:
    """The policy that is to learn, with its argument heads: fresh ones, or those that a checkpoint of phase 1 has."""
    policy, card, head_tensors = build_policy(config, corpus)
    torch.manual_seed(config.seed)
    heads = ToolHeads(policy.width)
    saved_heads = {
        name: head_tensors[f"arguments.{name}"] for name in heads.state_dict() if f"arguments.{name}" in head_tensors
    }
    if len(saved_heads) == len(heads.state_dict()):
        heads.load_state_dict(saved_heads)
    heads = heads.to(policy.device)
    return SftModel(policy, heads, w_act=config.w_act, smoothing=config.label_smoothing), card


def build_policy(config: SftConfig, corpus: Corpus) -> tuple[Policy, ModelCard, Mapping[str, Tensor]]:
    """nano with random weights and a tokenizer of this corpus, or a checkpoint with its heads; LoRA around it where it
    is wanted."""
    head_tensors: Mapping[str, Tensor] = {}
    if config.init == "nano":
        texts, schemas = corpus_texts(corpus), tool_schemas()
        quotes = not config.answers_only  # who answers at once has read nothing
        tokenizer = train_tokenizer(texts, schemas, vocabulary=config.nano.vocabulary, quotes=quotes)
        policy = build_nano(config.nano, PolicyTokenizer(tokenizer), seed=config.seed, style=config.style or NANO_STYLE)
        policy, card = policy.to(config.device), ModelCard(name=config.name)
    else:
        checkpoint = load_checkpoint(config.init, device=config.device, dtype=weights_dtype(config))
        policy, card, head_tensors = checkpoint.policy, checkpoint.card, checkpoint.heads
        policy.style = config.style or policy.style
    if config.checkpoint_activations:
        policy.model.gradient_checkpointing_enable()
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
    return policy, card, head_tensors


def wrap_lora(policy: Policy, lora: LoraSettings, seed: int) -> None:
    """Adapters around the policy's model, in place; they alone are trained, in float32 whatever the model is in."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    settings = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets)
    )
    policy.model = get_peft_model(policy.model, settings)


def prepare_split(
    config: SftConfig, corpus: Corpus, policy: Policy, split: str, dist: DistributedContext, show: Show
) -> PreparedExamples:
    """The prepared examples of a split: the first process makes them, the others find them made."""

    def make(workers: int) -> PreparedExamples:
        return prepare(
            corpus,
            split,
            policy.tokenizer,
            policy.style,
            policy.image_config,
            workers=workers,
            folder=config.examples,
            on_progress=lambda done, total: show(Progress(f"preparing {split}", done / max(1, total))),
        )

    if dist.is_main:
        examples = make(config.workers)
    dist.barrier()
    return examples if dist.is_main else make(1)


def training_index(config: SftConfig, examples: PreparedExamples) -> list[ExampleRef]:
    """What is learnt from a split: accepted traces; for nano-base the answers of all records and a few traces."""
    traces = [ExampleRef(k, True, entry.tokens) for k, entry in enumerate(examples.entries) if entry.accepted]
    pool = traces
    if config.answers_only:
        answers = [ExampleRef(k, False, entry.tokens_without_tools) for k, entry in enumerate(examples.entries)]
        format_indices = np.linspace(0, len(traces) - 1, min(config.format_traces, len(traces))).astype(int)
        pool = answers + [traces[k] for k in format_indices]
    return pool


def require_pool(config: SftConfig, corpus: Corpus, pool: Sequence[ExampleRef]) -> None:
    """ConfigError where there is nothing to learn from."""
    if not pool:
        rows = [row.split for row in corpus.rows()]
        counts = f"{rows.count('train')} of its {len(rows)} records are in train, none of them accepted"
        raise ConfigError(f"{config.corpus}: nothing to learn from ({counts}); `pixelis data stats` says why")


def load_example(examples: PreparedExamples, ref: ExampleRef) -> Example:
    full_example = examples[ref.example_index]
    return full_example if ref.with_tools else full_example.without_tools()


def make_batches(
    order: NDArray[np.int64],
    pool: Sequence[ExampleRef],
    batch_tokens: int,
    rng: np.random.Generator,
) -> list[list[int]]:
    """Cut an order into batches of examples of similar length, then shuffle the batches."""
    lengths = np.array([pool[k].tokens for k in order])
    group_size = max(1, int(SORTED_TOGETHER * batch_tokens / max(1.0, lengths.mean())))
    batches: list[list[int]] = []
    for begin in range(0, len(order), group_size):
        group = order[begin : begin + group_size]
        group = group[np.argsort(lengths[begin : begin + group_size], kind="stable")]
        batch: list[int] = []
        for k in group.tolist():
            if batch and (len(batch) + 1) * pool[k].tokens > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(k)
        batches.append(batch)
    return [batches[k] for k in rng.permutation(len(batches))]


def build_optimizer(
    config: SftConfig, sft_model: SftModel, dist: DistributedContext = DistributedContext()
) -> torch.optim.Optimizer:
    """AdamW in one fused pass, with Muon for the policy's inner matrices where that is wanted.

    Vectors do not decay, and the heads have a rate of their own.
    """
    groups: dict[tuple[float, float, bool], list[torch.nn.Parameter]] = {}
    for name, value in sft_model.named_parameters():
        if value.requires_grad:
            muon = config.optimizer == "muon" and value.ndim == 2 and (".layers." in name or ".blocks." in name)
            peak = config.lr_heads if name.startswith("heads.") else config.lr_matrices if muon else config.lr
            groups.setdefault((peak, config.weight_decay if value.ndim > 1 else 0.0, muon), []).append(value)
    param_groups = [
        {"params": parameters, "peak": peak, "weight_decay": decay, "muon": muon}
        for (peak, decay, muon), parameters in groups.items()
    ]
    return MuonAdamW(param_groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True, dist=dist)
