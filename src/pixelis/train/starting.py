"""How phase 1 begins: the policy, its examples, the pool that batches are cut from, the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pixelis.data.store import Corpus
from pixelis.errors import ConfigError
from pixelis.policy.checkpoint import Card, load_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.nano import NANO_STYLE, build_nano
from pixelis.policy.tokens import Tokens, train_tokenizer
from pixelis.train.crew import Crew
from pixelis.train.examples import Example
from pixelis.train.heads import ToolHeads
from pixelis.train.lessons import Student
from pixelis.train.optimizers import MuonAdamW
from pixelis.train.precision import held_in
from pixelis.train.prepared import Prepared, corpus_texts, prepare, tool_schemas
from pixelis.train.run import Now, Show
from pixelis.train.sft_config import LoraSettings, SftConfig

SORTED_TOGETHER = 16
"""Batches whose examples are sorted by length among themselves: little filling, yet other company every epoch."""


class Lesson(NamedTuple):
    """One entry of the pool."""

    number: int
    """Of the prepared example."""
    tools: bool
    """Its whole trace, or only question and answer."""
    tokens: int


def begin_student(config: SftConfig, corpus: Corpus) -> tuple[Student, Card]:
    """The policy that is to learn, with its argument heads: fresh ones, or those that a checkpoint of phase 1 has."""
    policy, card, known = begin_policy(config, corpus)
    torch.manual_seed(config.seed)
    heads = ToolHeads(policy.width)
    own = {name: known[f"arguments.{name}"] for name in heads.state_dict() if f"arguments.{name}" in known}
    if len(own) == len(heads.state_dict()):
        heads.load_state_dict(own)
    heads = heads.to(policy.device)
    return Student(policy, heads, w_act=config.w_act, smoothing=config.label_smoothing), card


def begin_policy(config: SftConfig, corpus: Corpus) -> tuple[Policy, Card, Mapping[str, Tensor]]:
    """nano with random weights and a tokenizer of this corpus, or a checkpoint with its heads; LoRA around it where it
    is wanted."""
    known: Mapping[str, Tensor] = {}
    if config.init == "nano":
        texts, schemas = corpus_texts(corpus), tool_schemas()
        quotes = not config.answers_only  # who answers at once has read nothing
        tokenizer = train_tokenizer(texts, schemas, vocabulary=config.nano.vocabulary, quotes=quotes)
        policy = build_nano(config.nano, Tokens(tokenizer), seed=config.seed, style=config.style or NANO_STYLE)
        policy, card = policy.to(config.device), Card(name=config.name)
    else:
        loaded = load_checkpoint(config.init, device=config.device, dtype=held_in(config))
        policy, card, known = loaded.policy, loaded.card, loaded.heads
        policy.style = config.style or policy.style
    if config.checkpoint_activations:
        policy.model.gradient_checkpointing_enable()
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
    return policy, card, known


def wrap_lora(policy: Policy, own: LoraSettings, seed: int) -> None:
    """Adapters around the policy's model, in place; they alone are trained, in float32 whatever the model is in."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    settings = LoraConfig(r=own.rank, lora_alpha=own.alpha, lora_dropout=own.dropout, target_modules=list(own.targets))
    policy.model = get_peft_model(policy.model, settings)


def examples_of(config: SftConfig, corpus: Corpus, policy: Policy, split: str, us: Crew, show: Show) -> Prepared:
    """The prepared examples of a split: the first process makes them, the others find them made."""

    def make(workers: int) -> Prepared:
        return prepare(
            corpus,
            split,
            policy.tokens,
            policy.style,
            policy.optics,
            workers=workers,
            folder=config.examples,
            on_progress=lambda done, total: show(Now(f"preparing {split}", done / max(1, total))),
        )

    if us.first:
        made = make(config.workers)
    us.wait()
    return made if us.first else make(1)


def pool_of(config: SftConfig, examples: Prepared) -> list[Lesson]:
    """What is learnt from a split: accepted traces; for nano-base the answers of all records and a few traces."""
    traces = [Lesson(k, True, entry.tokens) for k, entry in enumerate(examples.entries) if entry.accepted]
    pool = traces
    if config.answers_only:
        answers = [Lesson(k, False, entry.tokens_without_tools) for k, entry in enumerate(examples.entries)]
        few = np.linspace(0, len(traces) - 1, min(config.format_traces, len(traces))).astype(int)
        pool = answers + [traces[k] for k in few]
    return pool


def require_pool(config: SftConfig, corpus: Corpus, pool: Sequence[Lesson]) -> None:
    """ConfigError where there is nothing to learn from."""
    if not pool:
        rows = [row.split for row in corpus.rows()]
        told = f"{rows.count('train')} of its {len(rows)} records are in train, none of them accepted"
        raise ConfigError(f"{config.corpus}: nothing to learn from ({told}); `pixelis data stats` says why")


def example(examples: Prepared, lesson: Lesson) -> Example:
    whole = examples[lesson.number]
    return whole if lesson.tools else whole.without_tools()


def batches_of(
    order: NDArray[np.int64],
    pool: Sequence[Lesson],
    batch_tokens: int,
    rng: np.random.Generator,
) -> list[list[int]]:
    """Cut an order into batches of examples of similar length, then shuffle the batches."""
    lengths = np.array([pool[k].tokens for k in order])
    together = max(1, int(SORTED_TOGETHER * batch_tokens / max(1.0, lengths.mean())))
    batches: list[list[int]] = []
    for begin in range(0, len(order), together):
        part = order[begin : begin + together]
        part = part[np.argsort(lengths[begin : begin + together], kind="stable")]
        batch: list[int] = []
        for k in part.tolist():
            if batch and (len(batch) + 1) * pool[k].tokens > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(k)
        batches.append(batch)
    return [batches[k] for k in rng.permutation(len(batches))]


def begin_optimizer(config: SftConfig, student: Student, us: Crew = Crew()) -> torch.optim.Optimizer:
    """AdamW in one fused pass, with Muon for the policy's inner matrices where that is wanted.

    Vectors do not decay, and the heads have a rate of their own.
    """
    groups: dict[tuple[float, float, bool], list[torch.nn.Parameter]] = {}
    for name, value in student.named_parameters():
        if value.requires_grad:
            muon = config.optimizer == "muon" and value.ndim == 2 and (".layers." in name or ".blocks." in name)
            peak = config.lr_heads if name.startswith("heads.") else config.lr_matrices if muon else config.lr
            groups.setdefault((peak, config.weight_decay if value.ndim > 1 else 0.0, muon), []).append(value)
    listed = [
        {"params": own, "peak": peak, "weight_decay": decay, "muon": muon}
        for (peak, decay, muon), own in groups.items()
    ]
    return MuonAdamW(listed, lr=config.lr, betas=config.betas, eps=config.eps, fused=True, us=us)
