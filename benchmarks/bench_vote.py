"""Bench row of one query of phase 3 without its rollouts: key, search among 100,000 items, and the vote of eight.

The paper reports 0.34 s for retrieval and voting (runlatency). The rollouts are nano's on an item of the world, the
encoders are the real ones with cached embeddings, and the memory has keys of the generator of `bench_index`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import faiss
import torch

from benchmarks.bench_index import KeyGenerator, fill
from benchmarks.bench_rows import BenchRow, cpu_seconds
from pixelis.dedup.media_collection import ProgressCallback, no_progress
from pixelis.media import MediaSet
from pixelis.memory.keys import Key, KeyMaker
from pixelis.memory.memory_store import MemoryConfig, MemoryStore
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Query, Rollout
from pixelis.tools.toolbox import Toolbox, ToolboxConfig, builtin_thresholds
from pixelis.voting.vote import ReliabilityWindow, VoteSettings, vote
from pixelis.world import generate

MEMORIES, ROLLOUTS, NEIGHBOURS = 100_000, 8, 8
PAPER_S, TARGET_S = 0.34, 0.03
SEED = 7


class BenchQuery(NamedTuple):
    """A query of the world and its rollouts."""

    media: MediaSet
    group: Sequence[Rollout]


def rows(
    keys: KeyMaker, *, model: str = "nano-sft", memories: int = MEMORIES, progress: ProgressCallback = no_progress
) -> list[BenchRow]:
    """CPU seconds of one thread; the median of twenty repetitions."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    bench_query = roll_out_query(model)
    sizes = (keys.text.dimensions, keys.visual.embed([]).shape[1])
    try:
        with TemporaryDirectory(prefix="pixelis-bench-vote-") as temporary:
            folder, settings = Path(temporary) / "memory", MemoryConfig(near_duplicate=None)
            fill(folder, KeyGenerator(memories, sizes=sizes), memories, settings, progress)
            with MemoryStore(folder, settings) as memory:
                memory.build_index(progress=progress)
            with MemoryStore.open_read_only(folder, settings) as memory:
                return [time_query(bench_query, keys, memory)]
    finally:
        torch.set_num_threads(threads)


def roll_out_query(model: str) -> BenchQuery:
    """Eight rollouts of one question about an image."""
    rendered = generate("search", seed=SEED)
    media = MediaSet(rendered.media)
    with Toolbox(ToolboxConfig(seg="classical", isolate=False)) as toolbox:
        policy = load_checkpoint(model).policy.eval()
        query = Query(rendered.item.id, rendered.item.question, media, rendered.item.seed)
        (group,) = rollout(policy, toolbox, [query], n=ROLLOUTS, seed=SEED)
    return BenchQuery(media, group)


def time_query(bench_query: BenchQuery, keys: KeyMaker, memory: MemoryStore) -> BenchRow:
    """Key, search and vote, timed separately and together."""
    traces = [sample.trace for sample in bench_query.group]
    settings, window = VoteSettings(), ReliabilityWindow()

    def key() -> Key:
        return keys.key_for_rollouts(traces, bench_query.media)

    def search(search_key: Key) -> object:
        return memory.search(search_key, NEIGHBOURS)

    def cast_vote() -> object:
        return vote(bench_query.group, settings, thresholds=builtin_thresholds(), window=window)

    def answer_query() -> object:
        search(key())
        return cast_vote()

    query_key = key()
    parts = [cpu_seconds(key), cpu_seconds(lambda: search(query_key)), cpu_seconds(cast_vote)]
    return BenchRow(
        f"key, search among {len(memory):,} and vote of {len(traces)} rollouts", cpu_seconds(answer_query), "the paper",
        PAPER_S, f"{TARGET_S:g} s", "ms: key {:.1f}, search {:.1f}, vote {:.1f}".format(*(1e3 * x for x in parts)),
    )  # fmt: skip
