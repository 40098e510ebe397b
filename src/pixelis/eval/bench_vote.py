"""Bench row of one query of phase 3 beside its rollouts: key, search among 100,000 memories, and the vote of eight.

The paper says 0.34 s for retrieval and voting (runlatency). The rollouts are nano's own on an item of the world, the
encoders are the real ones with their embeddings kept, and the memory holds keys of their sizes from `bench_index`'s
generator.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import faiss
import torch

from pixelis.eval.bench import BenchRow, cpu_seconds
from pixelis.eval.bench_index import Generator, fill
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.retrieval.collection import Progress, silent
from pixelis.retrieval.keys import Key, KeyMaker
from pixelis.retrieval.memory import Memory, MemoryConfig
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Query, Rollout
from pixelis.scoring.consensus import VoteSettings, Window, decide
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.world import generate

MEMORIES, ROLLOUTS, NEIGHBOURS = 100_000, 8, 8
PAPER_S, TARGET_S = 0.34, 0.03
SEED = 7


class Asked(NamedTuple):
    """A query of the world with what was rolled out for it."""

    media: MediaSet
    group: Sequence[Rollout]


def rows(
    keys: KeyMaker, *, model: str = "nano-sft", memories: int = MEMORIES, progress: Progress = silent
) -> list[BenchRow]:
    """One thread, CPU seconds; the median over twenty queries alike."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    asked = roll(model)
    sizes = (keys.text.dimensions, keys.visual.embed([]).shape[1])
    try:
        with TemporaryDirectory(prefix="pixelis-bench-vote-") as temporary:
            folder, settings = Path(temporary) / "memory", MemoryConfig(near_duplicate=None)
            fill(folder, Generator(memories, sizes=sizes), memories, settings, progress)
            with Memory.open(folder, settings) as memory:
                memory.build_index(progress=progress)
            with Memory.reading(folder, settings) as memory:
                return [one_query(asked, keys, memory)]
    finally:
        torch.set_num_threads(threads)


def roll(model: str) -> Asked:
    """Eight rollouts of one question about a picture."""
    made = generate("search", seed=SEED)
    media = MediaSet(made.media)
    with Toolbox(ToolboxConfig(seg="classical", isolate=False)) as toolbox:
        policy = load_checkpoint(model).policy.eval()
        query = Query(made.item.id, made.item.question, media, made.item.seed)
        (group,) = rollout(policy, toolbox, [query], n=ROLLOUTS, seed=SEED)
    return Asked(media, group)


def one_query(asked: Asked, keys: KeyMaker, memory: Memory) -> BenchRow:
    """Key, search and vote, each timed alone and all together."""
    traces = [rolled.trace for rolled in asked.group]
    settings, window = VoteSettings(), Window()

    def key() -> Key:
        return keys.of_rollouts(traces, asked.media)

    def search(found: Key) -> object:
        return memory.search(found, NEIGHBOURS)

    def vote() -> object:
        return decide(asked.group, settings, window=window)

    def whole() -> object:
        search(key())
        return vote()

    own = key()
    parts = [cpu_seconds(key), cpu_seconds(lambda: search(own)), cpu_seconds(vote)]
    return BenchRow(
        f"key, search among {len(memory):,} and vote of {len(traces)} rollouts", cpu_seconds(whole), "the paper",
        PAPER_S, f"{TARGET_S:g} s", "ms: key {:.1f}, search {:.1f}, vote {:.1f}".format(*(1e3 * x for x in parts)),
    )  # fmt: skip
