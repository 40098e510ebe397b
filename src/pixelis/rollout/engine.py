"""Batched rollouts: many queries, n trajectories each. A prompt is prefilled once for its group, the cache is kept
across turns, all active rows decode together, and tools run meanwhile. Trajectories of a group with the same tokens so
far are one row: they are decoded, and their calls run, once; a failure holds for all of them.

Each trajectory has its own random generator, with one number for each token: its samples do not depend on the rows
beside it, on the batch size or on which tool was faster. (Floating-point sums differ in their last bit with the batch
size; a number that falls into that gap, about one token in a million, would choose another token.)
"""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pixelis.core.errors import ConfigError
from pixelis.policy.chat_format import Piece, render_prompt
from pixelis.policy.images import ProcessedImage
from pixelis.policy.kv_cache import RowCache
from pixelis.policy.model import ImageFeatures, Policy, gather_image_features
from pixelis.policy.sequence import ImageSpan, TokenSequence, check_sequence, compute_positions
from pixelis.rollout.episode import EndReason, Episode, Limits, Query, Rollout
from pixelis.rollout.rows import RolloutRow, RolloutRows, RowMember
from pixelis.rollout.sampling import AllowedMask, sample_tokens
from pixelis.tools.results import Execution, ToolCall
from pixelis.trace.recorder import TraceRecorder

if TYPE_CHECKING:
    from pixelis.rollout.constrained import TokenConstraint
    from pixelis.trace.plan import ToolProvider

ROWS_AT_ONCE = 64
CACHE_BYTES = 3 * 2**29
"""1.5 GB: upper bound on the cache if every row uses its limits up."""
PROMPTS_AT_ONCE = 16
PREFILL_SHARE, PREFILL_AFTER = 4, 8
"""Observations are prefilled together: once a quarter as many rows wait as decode, or after this many tokens."""

INITIAL_CELLS = 64
"""Initial capacity of the cache beyond a prompt."""
BATCH_WAIT_S = 0.005
"""If nothing decodes, results that arrive within this time of the first are prefilled with it: rows in step are cheaper
than single rows."""

Progress = Callable[[int, int], None]
"""Called with how many rollouts have ended, and how many there will be."""


def rollout(
    policy: Policy,
    toolbox: ToolProvider,
    queries: Sequence[Query],
    *,
    n: int,
    seed: int,
    limits: Limits | None = None,
    temperature: float = 1.0,
    greedy: bool = False,
    grammar: TokenConstraint | None = None,
    on_progress: Progress | None = None,
    name: str = "unnamed",
    rows_at_once: int = ROWS_AT_ONCE,
    cache_bytes: int = CACHE_BYTES,
    clock: Callable[[], float] = time.monotonic,
    created_at: datetime | None = None,
) -> list[list[Rollout]]:
    """n trajectories for each query, in order. Temperature 0 is greedy; `greedy` appends one such trajectory to each
    group. `name` is the policy's name in the traces."""
    if n < 1 or rows_at_once < 1 or not temperature >= 0.0:
        raise ConfigError(f"n={n}, rows_at_once={rows_at_once} and temperature={temperature}: want at least 1, 1 and 0")
    if duplicate_ids := [name for name, count in Counter(query.id for query in queries).items() if count > 1]:
        raise ConfigError(f"two queries have the same id, {duplicate_ids[0]!r}")
    was_training = policy.training
    policy.eval()
    engine = Engine(
        policy, toolbox, queries, n=n + greedy, sampled_count=n, seed=seed, limits=limits or Limits(),
        temperature=temperature, grammar=grammar, on_progress=on_progress, name=name, rows_at_once=rows_at_once,
        cache_bytes=cache_bytes, clock=clock, created_at=created_at or datetime.now(UTC),
    )  # fmt: skip
    try:
        with torch.inference_mode():
            return engine.run()
    finally:
        policy.train(was_training)


class CachedPrompt(NamedTuple):
    """A prefilled prompt and its row of a cache."""

    sequence: TokenSequence
    cache: RowCache
    row: int


@dataclass(eq=False)
class Engine:
    """The loop of `rollout` and its state."""

    policy: Policy
    toolbox: ToolProvider
    queries: Sequence[Query]
    n: int
    """Trajectories of a query; those from `sampled_count` on are greedy."""
    sampled_count: int
    seed: int
    limits: Limits
    temperature: float
    grammar: TokenConstraint | None
    on_progress: Progress | None
    name: str
    rows_at_once: int
    cache_bytes: int
    clock: Callable[[], float]
    created_at: datetime

    def __post_init__(self) -> None:
        policy, queries, grammar = self.policy, self.queries, self.grammar
        self.schemas = self.toolbox.schemas() if policy.style.tool_schemas else []
        from pixelis.nano.fast_decode import Decoder

        self.decoder = Decoder(policy)
        self.allowed_mask = AllowedMask(grammar, len(policy.ban_bias), policy.device) if grammar else None
        self.pending = deque((q, k) for q in range(len(queries)) for k in range(self.n))
        self.prompts: dict[int, CachedPrompt] = {}
        self.ready: list[RolloutRow] = []
        self.tokens_since_ready = 0
        self.results: queue.SimpleQueue[tuple[RolloutRow, Execution, list[Piece]]] = queue.SimpleQueue()
        self.running_calls = 0
        self.ended_count = 0
        self.rollouts: list[list[Rollout | None]] = [[None] * self.n for _ in queries]

    def run(self) -> list[list[Rollout]]:
        if not self.pending:
            return []
        workers = getattr(getattr(self.toolbox, "config", None), "workers", 1)
        self.prefill_prompts()
        self.rows = self.make_rows()
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="tool") as self.pool:
            while self.pending or self.rows.all_rows:
                self.admit()
                self.collect_results()
                if self.ready and self.should_prefill():
                    self.prefill_ready()
                if self.rows.active:
                    self.decode_step()
        return [[trajectory for trajectory in group if trajectory is not None] for group in self.rollouts]

    def admit(self) -> None:
        """Start new trajectories, those of a group together, with a copy of their prefilled prompt."""
        rows = self.rows
        while self.pending and (free_slots := rows.free_slots):
            query_index = self.pending[0][0]
            group = sum(1 for other, _ in islice(self.pending, rows.size) if other == query_index)
            if free_slots < group and rows.all_rows:  # a split group would not be decoded as one row
                return
            if query_index not in self.prompts:
                self.prefill_prompts()
            prompt = self.prompts[query_index]
            row = self.make_row(prompt, query_index, free_slots)
            rows.all_rows.append(row)
            rows.cache.reserve(len(prompt.sequence) + min(INITIAL_CELLS, self.limits.total_tokens))
            rows.cache.copy_row(prompt.cache, prompt.row, row.index)
            self.begin_turn(row)
            rows.activate(row)
            if not self.pending or self.pending[0][0] != query_index:
                del self.prompts[query_index]

    def collect_results(self) -> None:
        """Append the results of finished calls; waits for one if nothing else can be done."""
        while self.running_calls:
            wait_s = 0.0 if self.rows.active else BATCH_WAIT_S if self.ready else None
            try:
                row, execution, pieces = self.results.get(block=wait_s != 0.0, timeout=wait_s or None)
            except queue.Empty:
                return
            self.running_calls -= 1
            self.feed_observation(row, row.episode.add_result(execution, pieces))

    def should_prefill(self) -> bool:
        self.tokens_since_ready += 1
        return len(self.ready) * PREFILL_SHARE >= self.rows.active or self.tokens_since_ready >= PREFILL_AFTER

    def make_rows(self) -> RolloutRows:
        """Rows for as many trajectories of full length as fit."""
        max_length = max(len(prompt.sequence) for prompt in self.prompts.values()) + self.limits.total_tokens
        fit = self.cache_bytes // (RowCache.token_bytes(self.policy.language) * max_length)
        size = max(min(self.rows_at_once, len(self.pending), fit), 1)
        cache = RowCache.for_model(self.policy.language, size)
        cache.max_length = max_length
        return RolloutRows(cache, size, self.limits)

    def make_row(self, prompt: CachedPrompt, query_index: int, max_members: int) -> RolloutRow:
        """At most `max_members` pending trajectories of a query, as one row."""
        this_query, members = self.queries[query_index], list[RowMember]()
        while self.pending and self.pending[0][0] == query_index and len(members) < max_members:
            _, sample = self.pending.popleft()
            uniforms = np.full(self.limits.total_tokens, np.nan)  # NaN: the likeliest token
            if sample < self.sampled_count:
                rng = np.random.Generator(np.random.PCG64([self.seed, this_query.seed, sample]))
                uniforms = rng.random(len(uniforms))
            members.append(RowMember(sample, uniforms))
        deadline = self.clock() + self.limits.seconds
        episode = Episode(
            this_query, members[0].sample, prompt.sequence.copy(), TraceRecorder(this_query.media), deadline=deadline,
            prompt_tokens=len(prompt.sequence),
        )  # fmt: skip
        return RolloutRow(episode, query_index, len(self.rows.all_rows), members)

    def begin_turn(self, row: RolloutRow) -> None:
        self.rows.begin_turn(row)
        row.state = self.grammar.initial_state() if self.grammar else None

    def finish(self, row: RolloutRow, end_reason: EndReason) -> None:
        """End a row that does not decode, with a rollout for each of its members."""
        self.rows.remove(row)
        check_sequence(row.episode.sequence, self.policy.tokenizer)
        for member in row.members:
            episode = replace(row.episode.copy(), sample=member.sample)
            ended = episode.to_rollout(end_reason, name=self.name, created_at=self.created_at)
            self.rollouts[row.query][member.sample] = ended
            self.ended_count += 1
            if self.on_progress:
                self.on_progress(self.ended_count, len(self.queries) * self.n)

    def prefill_prompts(self) -> None:
        """Prefill the prompts of the next queries together."""
        pending_queries = list(dict.fromkeys(query_index for query_index, _ in self.pending))
        batch_queries = pending_queries[: max(min(self.rows_at_once // self.n, PROMPTS_AT_ONCE), 1)]
        sequences = []
        for next_query in (self.queries[query_index] for query_index in batch_queries):
            pieces = render_prompt(next_query.question, next_query.media, self.policy.style, self.schemas)
            sequences.append(TokenSequence())
            sequences[-1].append_context(pieces, self.policy.tokenizer, self.policy.image_config)
        cache = RowCache.for_model(self.policy.language, len(sequences))
        self.prefill(sequences, cache, 0, [0] * len(sequences))
        for row, (query_index, sequence) in enumerate(zip(batch_queries, sequences, strict=True)):
            self.prompts[query_index] = CachedPrompt(sequence, cache, row)

    def prefill_ready(self) -> None:
        """Prefill the observations of all ready rows together; then they decode again."""
        rows, first = self.rows, self.rows.active
        self.ready.sort(key=lambda row: row.index)
        for row in self.ready:
            rows.activate(row)
        cached_lengths = rows.cache.lengths[first : rows.active].tolist()
        self.prefill([row.episode.sequence for row in self.ready], rows.cache, first, cached_lengths)
        for row in self.ready:
            self.begin_turn(row)
        self.ready, self.tokens_since_ready = [], 0

    def prefill(self, sequences: Sequence[TokenSequence], cache: RowCache, first: int, lengths: Sequence[int]) -> None:
        """Prefill all but the last token of each sequence, which is for decoding, after the tokens already cached."""
        new = [slice(cached, len(sequence) - 1) for sequence, cached in zip(sequences, lengths, strict=True)]
        counts, device = [part.stop - part.start for part in new], self.policy.device
        new_spans = [
            [span for span in sequence.image_spans if span.start >= part.start]
            for sequence, part in zip(sequences, new, strict=True)
        ]
        image_features = self.encode_images([span for spans in new_spans for span in spans])
        cache.reserve(max(part.stop for part in new))
        image_start = 0
        for rows in split_by_tokens(counts, self.decoder.max_prefill_tokens):
            width = max(counts[rows])
            ids = np.full((rows.stop - rows.start, width), self.policy.tokenizer.pad_id, dtype=np.int64)
            position_ids = np.zeros((3, *ids.shape), dtype=np.int64)
            for k, (sequence, part, count) in enumerate(zip(sequences[rows], new[rows], counts[rows], strict=True)):
                ids[k, :count] = sequence.ids[part]
                position_ids[:, k, :count] = compute_positions(sequence.ids, sequence.image_spans)[:, part]
            image_tokens = sum(span.image.token_count for spans in new_spans[rows] for span in spans)
            chunk_features = None
            if image_features is not None and image_tokens:
                chunk_features = image_features.slice_tokens(image_start, image_start + image_tokens)
            cache_rows = slice(first + rows.start, first + rows.stop)
            mask = cache.prepare(cache_rows, torch.tensor(counts[rows], device=device), width)
            ids_tensor, positions = (torch.from_numpy(array).to(device) for array in (ids, position_ids))
            self.decoder.prefill(ids_tensor, positions, chunk_features, cache, mask)
            image_start += image_tokens

    def encode_images(self, image_spans: Sequence[ImageSpan]) -> ImageFeatures | None:
        """Encode each image once, however many rows show it."""
        images, image_index, order = list[ProcessedImage](), dict[bytes, int](), list[int]()
        for span in image_spans:
            key = repr(span.image.pixels.shape).encode() + span.image.pixels.tobytes()
            if key not in image_index:
                image_index[key] = len(images)
                images.append(span.image)
            order.append(image_index[key])
        return gather_image_features(self.policy.encode_images(images), images, order) if images else None

    def feed_observation(self, row: RolloutRow, pieces: Sequence[Piece]) -> None:
        """Append an observation to a row that waits; it becomes ready unless it has reached a limit."""
        episode = row.episode
        episode.sequence.append_context(pieces, self.policy.tokenizer, self.policy.image_config)
        if episode.tokens_left(self.limits) <= 0:
            self.finish(row, "tokens")
        elif self.clock() >= episode.deadline:
            self.finish(row, "seconds")
        else:
            self.ready.append(row)

    def decode_step(self) -> None:
        """Sample one token for every active trajectory. Where members of a row sample different tokens, it forks."""
        rows, count, device = self.rows, self.rows.active, self.policy.device
        ids, position_ids = (torch.from_numpy(part[:count]).to(device) for part in (rows.next_token, rows.position))
        logits = self.policy.logits(self.decoder(ids, position_ids, rows.cache, rows.shared_prefix())).float()  # (B, V)
        allowed = None
        if self.allowed_mask:
            allowed = self.allowed_mask([row.state for row in rows.all_rows[:count]], rows.remaining[:count].tolist())
        owner, uniforms = rows.next_uniforms()  # (m,), m ≥ B
        if len(owner) > count:
            row_index = torch.from_numpy(owner).to(device)
            logits = logits[row_index]
            allowed = allowed[row_index] if allowed is not None and len(allowed) > 1 else allowed
        sampled, logprobs = sample_tokens(logits, uniforms, self.temperature, allowed)  # (m,)
        tokens = sampled.cpu().numpy()
        first = self.fork_rows(owner, tokens)
        row_tokens = tokens[first]
        rows.append_tokens(row_tokens, logprobs.cpu().numpy()[first])
        count = rows.active
        if self.grammar:
            for row, token in zip(rows.all_rows[:count], row_tokens.tolist(), strict=True):
                row.state = self.grammar.advance(row.state, token)
        late = rows.deadline[:count] <= self.clock()
        turn_ended = (row_tokens == self.policy.tokenizer.end_id) | (rows.remaining[:count] <= 0) | late
        # from the last row up: rows that end together leave together, and nothing is copied
        for row, was_late in [(rows.all_rows[k], bool(late[k])) for k in np.flatnonzero(turn_ended)[::-1]]:
            self.end_turn(row, late=was_late)

    def fork_rows(self, owner: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Fork rows whose members sampled different tokens; returns (rows,) one trajectory of each active row."""
        row_starts = np.searchsorted(owner, np.arange(self.rows.active))  # (B,) the first trajectory of each row
        forked = []
        for row_number in np.unique(owner[tokens != tokens[row_starts][owner]]).tolist():
            row, start = self.rows.all_rows[row_number], int(row_starts[row_number])
            row_tokens = tokens[start : start + len(row.members)]
            members = list(row.members)
            for token in dict.fromkeys(row_tokens[row_tokens != row_tokens[0]].tolist()):
                at = np.flatnonzero(row_tokens == token)
                self.rows.fork(row, [members[k] for k in at])
                forked.append(start + int(at[0]))
        return np.array([*row_starts, *forked], dtype=np.int64)

    def end_turn(self, row: RolloutRow, *, late: bool) -> None:
        """Parse a finished turn: the rollout ends, a call goes to the pool, or a reminder follows."""
        episode = row.episode
        turn = episode.add_turn(*self.rows.turn_tokens(row), self.policy.tokenizer)
        self.rows.deactivate(row)
        end_reason = episode.end_reason(self.limits)
        if late and end_reason != "answered":
            end_reason = "seconds"
        if end_reason:
            self.finish(row, end_reason)
        elif turn.call is not None:
            self.running_calls += 1
            self.pool.submit(self.run_tool, row, turn.call)
        else:
            self.feed_observation(row, episode.retry_prompt())

    def run_tool(self, row: RolloutRow, call: ToolCall) -> None:
        """Run a call in a thread of the pool."""
        self.results.put((row, *row.episode.run_tool(self.toolbox, call, self.policy.style)))


def split_by_tokens(counts: Sequence[int], max_tokens: int) -> list[slice]:
    """Runs of neighbours with at most `max_tokens` tokens, padding included, unless a single one has more."""
    out: list[slice] = []
    start, widest = 0, 0
    for row, count in enumerate(counts):
        widest = max(widest, count)
        if row > start and widest * (row + 1 - start) > max_tokens:
            out.append(slice(start, row))
            start, widest = row, count
    return [*out, slice(start, len(counts))]
