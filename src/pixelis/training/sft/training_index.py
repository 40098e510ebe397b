"""The training index of phase 1: which examples are trained on, and how they are cut into batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus import Corpus
from pixelis.policy.model import Policy
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_folder import Progress, Show
from pixelis.training.dataset.examples import Example
from pixelis.training.dataset.prepared_examples import PreparedExamples, prepare
from pixelis.training.sft.sft_config import SftConfig

SORTED_TOGETHER = 16
"""Batches whose examples are sorted by length together: little padding, yet other batches every epoch."""


class ExampleRef(NamedTuple):
    """One entry of the index."""

    example_index: int
    """In the prepared examples."""
    with_tools: bool
    """The whole trace, or only question and answer."""
    tokens: int


def prepare_split(
    config: SftConfig, corpus: Corpus, policy: Policy, split: str, dist: DistributedContext, show: Show
) -> PreparedExamples:
    """The prepared examples of a split. The main process prepares them, the others wait and open them."""
    open_examples = partial(
        prepare, corpus, split, policy.tokenizer, policy.style, policy.image_config, folder=config.examples_folder,
        on_progress=lambda done, total: show(Progress(f"preparing {split}", done / max(1, total))),
    )  # fmt: skip
    if dist.is_main:
        examples = open_examples(workers=config.workers)
    dist.barrier()
    return examples if dist.is_main else open_examples(workers=1)


def training_index(config: SftConfig, examples: PreparedExamples) -> list[ExampleRef]:
    """Accepted traces; with `answers_only`, the answers of all records and a few traces."""
    traces = [ExampleRef(k, True, entry.tokens) for k, entry in enumerate(examples.entries) if entry.accepted]
    if not config.answers_only:
        return traces
    answers = [ExampleRef(k, False, entry.tokens_without_tools) for k, entry in enumerate(examples.entries)]
    chosen = np.linspace(0, len(traces) - 1, min(config.format_traces, len(traces))).astype(int)
    return answers + [traces[k] for k in chosen]


def require_examples(config: SftConfig, corpus: Corpus, index: Sequence[ExampleRef]) -> None:
    """Raise ConfigError if there is nothing to train on."""
    if not index:
        splits = [row.split for row in corpus.rows()]
        counts = f"{splits.count('train')} of its {len(splits)} records are in train, none of them accepted"
        raise ConfigError(f"{config.corpus}: nothing to train on ({counts}); `pixelis data stats` shows why")


def load_example(examples: PreparedExamples, ref: ExampleRef) -> Example:
    example = examples[ref.example_index]
    return example if ref.with_tools else example.without_tools()


def make_batches(
    order: NDArray[np.int64], index: Sequence[ExampleRef], batch_tokens: int, rng: np.random.Generator
) -> list[list[int]]:
    """Cut an order into batches of examples of similar length, then shuffle the batches."""
    lengths = np.array([index[k].tokens for k in order])
    group_size = max(1, int(SORTED_TOGETHER * batch_tokens / max(1.0, lengths.mean())))
    batches: list[list[int]] = []
    for begin in range(0, len(order), group_size):
        by_length = np.argsort(lengths[begin : begin + group_size], kind="stable")
        batches += cut_by_tokens(order[begin : begin + group_size][by_length].tolist(), index, batch_tokens)
    return [batches[k] for k in rng.permutation(len(batches))]


def cut_by_tokens(order: Sequence[int], index: Sequence[ExampleRef], batch_tokens: int) -> list[list[int]]:
    """Cut an order of rising lengths into batches of at most `batch_tokens`, padding included."""
    batches: list[list[int]] = [[]]
    for k in order:
        if batches[-1] and (len(batches[-1]) + 1) * index[k].tokens > batch_tokens:
            batches.append([])
        batches[-1].append(k)
    return batches
