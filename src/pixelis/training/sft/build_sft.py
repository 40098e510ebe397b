"""Build what phase 1 trains: the policy with its argument heads, and their optimizer."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pixelis.data.corpus.corpus import Corpus
from pixelis.nano.nano_model import NANO_STYLE, build_nano
from pixelis.policy.checkpoint import ModelCard, load_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.rewards.heads import ToolHeads
from pixelis.training.common.distributed import DistributedContext, trainable_parameters
from pixelis.training.common.lora import wrap_lora
from pixelis.training.common.optimizers import MuonAdamW
from pixelis.training.common.precision import weights_dtype
from pixelis.training.dataset.prepared_examples import corpus_texts, tool_schemas
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_model import SftModel


def build_sft_model(config: SftConfig, corpus: Corpus) -> tuple[SftModel, ModelCard]:
    """The policy to train with its argument heads: those of a phase-1 checkpoint if it has them, else new ones."""
    policy, card, tensors = build_policy(config, corpus)
    torch.manual_seed(config.seed)
    heads = ToolHeads(policy.width)
    saved = {name: tensors[key] for name in heads.state_dict() if (key := f"arguments.{name}") in tensors}
    if len(saved) == len(heads.state_dict()):
        heads.load_state_dict(saved)
    sft_model = SftModel(policy, heads.to(policy.device), w_act=config.w_act, smoothing=config.label_smoothing)
    return sft_model, card


def build_policy(config: SftConfig, corpus: Corpus) -> tuple[Policy, ModelCard, Mapping[str, Tensor]]:
    """The policy, its card and its head tensors: nano with random weights and a tokenizer of this corpus, or a
    checkpoint. With `lora`, adapters are added."""
    heads: Mapping[str, Tensor] = {}
    if config.init == "nano":
        quotes = not config.answers_only  # a policy that answers at once has read nothing that it could quote
        vocabulary = config.nano.vocabulary
        tokenizer = train_tokenizer(corpus_texts(corpus), tool_schemas(), vocabulary=vocabulary, quotes=quotes)
        policy = build_nano(config.nano, PolicyTokenizer(tokenizer), seed=config.seed, style=config.style or NANO_STYLE)
        policy, card = policy.to(config.device), ModelCard(name=config.name)
    else:
        policy, card, heads = load_checkpoint(config.init, device=config.device, dtype=weights_dtype(config))
        policy.style = config.style or policy.style
    if config.checkpoint_activations:
        policy.model.gradient_checkpointing_enable()
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
    return policy, card, heads


def build_optimizer(
    config: SftConfig, sft_model: SftModel, dist: DistributedContext = DistributedContext()
) -> torch.optim.Optimizer:
    """AdamW in one fused pass; with `optimizer: muon`, Muon for the matrices inside the policy's layers.

    Vectors have no weight decay, and the heads have their own learning rate.
    """
    groups: dict[tuple[float, float, bool], list[torch.nn.Parameter]] = {}
    for name, value in trainable_parameters(sft_model).items():
        muon = config.optimizer == "muon" and value.ndim == 2 and (".layers." in name or ".blocks." in name)
        peak = config.lr_heads if name.startswith("heads.") else config.lr_matrices if muon else config.lr
        groups.setdefault((peak, config.weight_decay if value.ndim > 1 else 0.0, muon), []).append(value)
    names = ("peak", "weight_decay", "muon")
    param_groups = [{"params": values, **dict(zip(names, key, strict=True))} for key, values in groups.items()]
    return MuonAdamW(param_groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True, dist=dist)
