"""Many queries, n trajectories each, at once. A prompt is read once for its group, the cache is kept across turns, all
rows that have something to say decode together, and tools run beside them. Trajectories of a group that have said the
same so far are one row: they are decoded, and their calls are made, once; what fails once has failed for all of them.

A trajectory has a generator of its own, which gives one number for each token: what it samples does not depend on the
rows beside it, on the size of the batch or on which tool was quicker. (Sums of floating point differ in their last bit
with the size of a batch; a number that falls into that gap, about one token in a million, would choose another token.)
"""

from __future__ import annotations

import queue
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pixelis.errors import ConfigError
from pixelis.policy.cache import RowCache
from pixelis.policy.ledger import Ledger, Place, check, positions
from pixelis.policy.model import Policy, Seen, shuffled
from pixelis.policy.pictures import Picture
from pixelis.policy.script import Piece, opening
from pixelis.rollout.decoding import Decoder
from pixelis.rollout.episode import Ended, Episode, Limits, Query, Rollout
from pixelis.rollout.grammar import Constrains
from pixelis.rollout.rows import Member, Row, Rows
from pixelis.rollout.sampling import Allowed, drawn
from pixelis.tools.results import Execution, ToolCall
from pixelis.trace.running import OffersTools

ROWS_AT_ONCE = 64
CACHE_BYTES = 3 * 2**29
"""1.5 GB: what all rows may come to, should every one of them use its limits up."""
PROMPTS_AT_ONCE = 16
READ_SHARE, READ_AFTER = 4, 8
"""Observations are read together: as soon as a quarter as many wait as decode, or after so many tokens."""

READ_AHEAD = 64
"""Cells beyond a prompt that the cache has from the start."""
MOMENT_S = 0.005
"""Where nothing decodes, others that come within this time are read together with the first: rows that walk in step are
cheaper than rows that walk alone."""

Progress = Callable[[int, int], None]
"""Called with how many rollouts have ended, and how many there will be."""


def rollout(
    policy: Policy,
    toolbox: OffersTools,
    queries: Sequence[Query],
    *,
    n: int,
    seed: int,
    limits: Limits | None = None,
    temperature: float = 1.0,
    greedy: bool = False,
    grammar: Constrains | None = None,
    on_progress: Progress | None = None,
    name: str = "unnamed",
    rows_at_once: int = ROWS_AT_ONCE,
    cache_bytes: int = CACHE_BYTES,
    clock: Callable[[], float] = time.monotonic,
    created_at: datetime | None = None,
) -> list[list[Rollout]]:
    """n trajectories for each query, in order. Temperature 0 is greedy; with `greedy` one such trajectory comes last in
    each group, beside those that are sampled. The policy's own name goes into the traces."""
    if n < 1 or rows_at_once < 1 or not temperature >= 0.0:
        raise ConfigError(f"n {n}, rows_at_once {rows_at_once}, temperature {temperature}: want 1 or more, 0 or more")
    if twice := [name for name, count in Counter(query.id for query in queries).items() if count > 1]:
        raise ConfigError(f"two queries have the same id, {twice[0]!r}")
    was_training = policy.training
    policy.eval()
    engine = Engine(
        policy, toolbox, queries, n=n, seed=seed, limits=limits or Limits(), temperature=temperature, greedy=greedy,
        grammar=grammar, on_progress=on_progress, name=name, rows_at_once=rows_at_once, cache_bytes=cache_bytes,
        clock=clock, created_at=created_at or datetime.now(UTC),
    )  # fmt: skip
    try:
        with torch.inference_mode():
            return engine.run()
    finally:
        policy.train(was_training)


class Prompt(NamedTuple):
    """A query as it was read, in a row of its own."""

    ledger: Ledger
    cache: RowCache
    row: int


class Observation(NamedTuple):
    """What came back for a row."""

    row: Row
    execution: Execution
    pieces: list[Piece]


class Engine:
    """The loop and what it holds. `rollout` is the way in."""

    def __init__(
        self,
        policy: Policy,
        toolbox: OffersTools,
        queries: Sequence[Query],
        *,
        n: int,
        seed: int,
        limits: Limits,
        temperature: float,
        greedy: bool,
        grammar: Constrains | None,
        on_progress: Progress | None,
        name: str,
        rows_at_once: int,
        cache_bytes: int,
        clock: Callable[[], float],
        created_at: datetime,
    ) -> None:
        self.policy, self.toolbox, self.queries, self.seed = policy, toolbox, queries, seed
        self.sampled, self.n = n, n + greedy
        self.limits, self.temperature, self.grammar = limits, temperature, grammar
        self.on_progress, self.name, self.clock, self.created_at = on_progress, name, clock, created_at
        self.rows_at_once, self.cache_bytes = rows_at_once, cache_bytes
        self.schemas = toolbox.schemas() if policy.style.tool_schemas else []
        self.decoder = Decoder(policy)
        self.allowed = Allowed(grammar, len(policy.bars), policy.device) if grammar else None
        self.pending = deque((q, k) for q in range(len(queries)) for k in range(self.n))
        self.prompts: dict[int, Prompt] = {}
        self.ready: list[Row] = []
        self.since_ready = 0
        self.results: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self.running = 0
        self.ended = 0
        self.done: list[list[Rollout | None]] = [[None] * self.n for _ in queries]

    # --- the story

    def run(self) -> list[list[Rollout]]:
        if not self.pending:
            return []
        workers = getattr(getattr(self.toolbox, "config", None), "workers", 1)
        self.read_prompts()
        self.rows = self.new_rows()
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="tool") as self.pool:
            while self.pending or self.rows.held:
                self.admit()
                self.collect()
                if self.ready and self.worth_reading():
                    self.read_ready()
                if self.rows.active:
                    self.decode()
        return [[one for one in group if one is not None] for group in self.done]

    def admit(self) -> None:
        """New trajectories, their prompt copied from the row in which it was read; those of a group together."""
        rows = self.rows
        while self.pending and (free := rows.free):
            query = self.pending[0][0]
            group = sum(1 for other, _ in islice(self.pending, rows.size) if other == query)
            if free < group and rows.held:  # alone they would not be decoded as one
                return
            if query not in self.prompts:
                self.read_prompts()
            prompt = self.prompts[query]
            row = self.new_row(prompt, query, free)
            rows.held.append(row)
            rows.cache.reserve(len(prompt.ledger) + min(READ_AHEAD, self.limits.total_tokens))
            rows.cache.take(prompt.cache, prompt.row, row.at)
            self.begin_turn(row)
            rows.lift(row)
            if not self.pending or self.pending[0][0] != query:
                del self.prompts[query]

    def collect(self) -> None:
        """What tools gave back, into the ledgers; waits for one where nothing else is to be done."""
        while self.running:
            wait_s = 0.0 if self.rows.active else MOMENT_S if self.ready else None
            try:
                row, execution, pieces = self.results.get(block=wait_s != 0.0, timeout=wait_s or None)
            except queue.Empty:
                return
            self.running -= 1
            self.hear(row, row.episode.keep(execution, pieces))

    def worth_reading(self) -> bool:
        self.since_ready += 1
        return len(self.ready) * READ_SHARE >= self.rows.active or self.since_ready >= READ_AFTER

    # --- coming and going

    def new_rows(self) -> Rows:
        """Rows for as many trajectories as fit, each at its longest."""
        longest = max(len(prompt.ledger) for prompt in self.prompts.values()) + self.limits.total_tokens
        fit = self.cache_bytes // (RowCache.token_bytes(self.policy.language) * longest)
        size = max(min(self.rows_at_once, len(self.pending), fit), 1)
        cache = RowCache.of(self.policy.language, size)
        cache.longest = longest
        return Rows(cache, size, self.limits)

    def new_row(self, prompt: Prompt, query: int, most: int) -> Row:
        """At most so many of the trajectories of a query that are still to come, as one row."""
        own, members = self.queries[query], list[Member]()
        while self.pending and self.pending[0][0] == query and len(members) < most:
            _, sample = self.pending.popleft()
            uniforms = np.full(self.limits.total_tokens, np.nan)  # no number: the likeliest token
            if sample < self.sampled:
                uniforms = np.random.Generator(np.random.PCG64([self.seed, own.seed, sample])).random(len(uniforms))
            members.append(Member(sample, uniforms))
        deadline = self.clock() + self.limits.seconds
        episode = Episode(
            own, members[0].sample, prompt.ledger.copy(), own.media, deadline=deadline,
            prompt_tokens=len(prompt.ledger),
        )  # fmt: skip
        return Row(episode, query, len(self.rows.held), members)

    def begin_turn(self, row: Row) -> None:
        self.rows.begin_turn(row)
        row.state = self.grammar.begin() if self.grammar else None

    def leave(self, row: Row, ended: Ended) -> None:
        """A row that waits has ended: out of the batch."""
        self.rows.remove(row)
        check(row.episode.ledger, self.policy.tokens)
        for member in row.members:
            own = replace(row.episode.copy(), sample=member.sample)
            self.done[row.query][member.sample] = own.end(ended, name=self.name, created_at=self.created_at)
            self.ended += 1
            if self.on_progress:
                self.on_progress(self.ended, len(self.queries) * self.n)

    # --- reading

    def read_prompts(self) -> None:
        """The prompts of the next queries, together, each picture once."""
        coming = list(dict.fromkeys(query for query, _ in self.pending))
        wanted = coming[: max(min(self.rows_at_once // self.n, PROMPTS_AT_ONCE), 1)]
        ledgers = []
        for own in (self.queries[query] for query in wanted):
            pieces = opening(own.question, own.media, self.policy.style, self.schemas)
            ledgers.append(Ledger())
            ledgers[-1].give(pieces, self.policy.tokens, self.policy.optics)
        cache = RowCache.of(self.policy.language, len(ledgers))
        self.read(ledgers, cache, 0, [0] * len(ledgers))
        for row, (query, ledger) in enumerate(zip(wanted, ledgers, strict=True)):
            self.prompts[query] = Prompt(ledger, cache, row)

    def read_ready(self) -> None:
        """What the rows that are ready have heard, together; then they decode again."""
        rows, first = self.rows, self.rows.active
        self.ready.sort(key=lambda row: row.at)
        for row in self.ready:
            rows.lift(row)
        known = rows.cache.lengths[first : rows.active].tolist()
        self.read([row.episode.ledger for row in self.ready], rows.cache, first, known)
        for row in self.ready:
            self.begin_turn(row)
        self.ready, self.since_ready = [], 0

    def read(self, ledgers: Sequence[Ledger], cache: RowCache, first: int, held: Sequence[int]) -> None:
        """All but the last token of ledgers, of which `held` are in the cache already: the last one is for decoding."""
        counts = [len(ledger) - 1 - known for ledger, known in zip(ledgers, held, strict=True)]
        new = [
            [place for place in ledger.places if place.start >= known]
            for ledger, known in zip(ledgers, held, strict=True)
        ]
        seen = self.see([place for places in new for place in places])
        cache.reserve(max(known + count for known, count in zip(held, counts, strict=True)))
        shown = 0
        for rows in portions(counts, self.decoder.most_tokens):
            width = max(counts[rows])
            ids = np.full((rows.stop - rows.start, width), self.policy.tokens.pad, dtype=np.int64)
            where = np.zeros((3, *ids.shape), dtype=np.int64)
            for k, (ledger, known, count) in enumerate(zip(ledgers[rows], held[rows], counts[rows], strict=True)):
                ids[k, :count] = ledger.ids[known : known + count]
                where[:, k, :count] = positions(ledger.ids, ledger.places)[:, known : known + count]
            looked = sum(place.picture.tokens for places in new[rows] for place in places)
            device = self.policy.device
            at = slice(first + rows.start, first + rows.stop)
            mask = cache.begin(at, torch.tensor(counts[rows], device=device), width)
            some = seen.between(shown, shown + looked) if seen is not None and looked else None
            self.decoder.read(torch.from_numpy(ids).to(device), torch.from_numpy(where).to(device), some, cache, mask)
            shown += looked

    def see(self, places: Sequence[Place]) -> Seen | None:
        """Each picture through the tower once, however many rows look at it."""
        known: dict[bytes, int] = {}
        pictures: list[Picture] = []
        order = []
        for place in places:
            key = repr(place.picture.pixels.shape).encode() + place.picture.pixels.tobytes()
            if key not in known:
                known[key] = len(pictures)
                pictures.append(place.picture)
            order.append(known[key])
        return shuffled(self.policy.see(pictures), pictures, order) if pictures else None

    def hear(self, row: Row, pieces: Sequence[Piece]) -> None:
        """Words for a row that waits; it is ready, unless they were the last that it had room for."""
        episode = row.episode
        episode.ledger.give(pieces, self.policy.tokens, self.policy.optics)
        if episode.tokens_left(self.limits) <= 0:
            self.leave(row, "tokens")
        elif self.clock() >= episode.deadline:
            self.leave(row, "seconds")
        else:
            self.ready.append(row)

    # --- speaking

    def decode(self) -> None:
        """One token for every trajectory that decodes. Those of a row that draw another one than its first go on in a
        row of their own."""
        rows, count, device = self.rows, self.rows.active, self.policy.device
        ids, where = torch.from_numpy(rows.token[:count]).to(device), torch.from_numpy(rows.place[:count]).to(device)
        logits = self.policy.logits(self.decoder(ids, where, rows.cache, rows.common())).float()  # (B, V)
        allowed = None
        if self.allowed:
            allowed = self.allowed([row.state for row in rows.held[:count]], rows.left[:count].tolist())
        owner, uniforms = rows.next_uniforms()  # (m,), m ≥ B
        if len(owner) > count:
            each = torch.from_numpy(owner).to(device)
            logits, allowed = logits[each], allowed[each] if allowed is not None and len(allowed) > 1 else allowed
        chosen, own = drawn(logits, uniforms, self.temperature, allowed)  # (m,)
        tokens = chosen.cpu().numpy()
        first = self.part(owner, tokens)
        said = tokens[first]
        rows.say(said, own.cpu().numpy()[first])
        count = rows.active
        if self.grammar:
            for row, token in zip(rows.held[:count], said.tolist(), strict=True):
                row.state = self.grammar.after(row.state, token)
        late = rows.deadline[:count] <= self.clock()
        over = (said == self.policy.tokens.end) | (rows.left[:count] <= 0) | late
        # from the bottom up: rows that end together leave in step, and nothing is copied
        for row, was_late in [(rows.held[k], bool(late[k])) for k in np.flatnonzero(over)[::-1]]:
            self.end_turn(row, late=was_late)

    def part(self, owner: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Fork rows whose trajectories drew different tokens; (rows,) a trajectory of each row that decodes now."""
        begins = np.searchsorted(owner, np.arange(self.rows.active))  # (B,) the first trajectory of each row
        forked = []
        for row_number in np.unique(owner[tokens != tokens[begins][owner]]).tolist():
            row, start = self.rows.held[row_number], int(begins[row_number])
            own = tokens[start : start + len(row.members)]
            members = list(row.members)
            for token in dict.fromkeys(own[own != own[0]].tolist()):
                at = np.flatnonzero(own == token)
                self.rows.fork(row, [members[k] for k in at])
                forked.append(start + int(at[0]))
        return np.array([*begins, *forked], dtype=np.int64)

    def end_turn(self, row: Row, *, late: bool) -> None:
        """What a row said: the end, a call for the pool, or a slip and its reminder."""
        episode = row.episode
        said = episode.speak(*self.rows.turn(row), self.policy.tokens)
        self.rows.lower(row)
        ended = episode.verdict(self.limits)
        if late and ended != "answered":
            ended = "seconds"
        if ended:
            self.leave(row, ended)
        elif said.call is not None:
            self.running += 1
            self.pool.submit(self.act, row, said.call)
        else:
            self.hear(row, episode.remind())

    def act(self, row: Row, call: ToolCall) -> None:
        """One call, in a thread of the pool."""
        execution, pieces = row.episode.act(self.toolbox, call, self.policy.style)
        self.results.put(Observation(row, execution, pieces))


def portions(counts: Sequence[int], most: int) -> list[slice]:
    """Neighbours to be read together: of no more tokens than `most`, filling included, unless one alone has more."""
    out: list[slice] = []
    start, widest = 0, 0
    for row, count in enumerate(counts):
        widest = max(widest, count)
        if row > start and widest * (row + 1 - start) > most:
            out.append(slice(start, row))
            start, widest = row, count
    return [*out, slice(start, len(counts))]
