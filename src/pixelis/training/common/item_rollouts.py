"""Rollouts of items with known answers, and how their answers are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pixelis.items import CORRECT_THRESHOLD
from pixelis.media import MediaSet
from pixelis.policy.model import Policy
from pixelis.rollout.engine import ROWS_AT_ONCE, rollout
from pixelis.rollout.episode import Query, Rollout
from pixelis.tools.toolbox import Toolbox
from pixelis.training.common.precision import autocast_context, compute_dtype
from pixelis.training.common.run_config import RolloutRunConfig
from pixelis.world import Item, RenderedItem

ItemFactory = Callable[[], Iterable[RenderedItem]]
"""Renders the items anew at each call: the clips of a hundred items would fill the memory."""
ROLLOUTS_AT_ONCE = 32


def rollout_items(
    config: RolloutRunConfig,
    policy: Policy,
    toolbox: Toolbox,
    items: Sequence[RenderedItem],
    *,
    n: int,
    seed: int,
    temperature: float,
    greedy: bool = False,
) -> list[list[Rollout]]:
    """n rollouts of each item; the options are those of `rollout`. An item's samples depend on `seed` and on the item
    alone."""
    queries = [Query(r.item.id, r.item.question, MediaSet(r.media), r.item.seed) for r in items]
    with autocast_context(policy.device, compute_dtype(config)):  # as the update will read them
        groups = rollout(
            policy, toolbox, queries, n=n, seed=seed, limits=config.limits, temperature=temperature, greedy=greedy,
            name=config.name, rows_at_once=max(ROWS_AT_ONCE, len(queries) * (n + greedy)),
        )  # fmt: skip
    for query in queries:
        toolbox.release(query.media)
    return groups


def stream_item_rollouts(
    config: RolloutRunConfig,
    policy: Policy,
    toolbox: Toolbox,
    item_factory: ItemFactory,
    *,
    n: int,
    seed: int,
    temperature: float,
    on_question: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[Item, list[Rollout]]]:
    """`rollout_items` for many items, holding the media of a few at a time; `on_question` gets the number of items
    whose rollouts have begun."""
    items, count = iter(item_factory()), 0
    while chunk := list(islice(items, max(1, ROLLOUTS_AT_ONCE // n))):
        on_question(count)
        count += len(chunk)
        groups = rollout_items(config, policy, toolbox, chunk, n=n, seed=seed, temperature=temperature)
        for rendered, group in zip(chunk, groups, strict=True):
            yield rendered.item, [sample._replace(blobs={}) for sample in group]


def score_answer(item: Item, answer: str | None) -> float:
    """How correct an answer is, 0 to 1; a missing answer scores 0."""
    return item.score(answer) if answer else 0.0


def is_correct(item: Item, answer: str | None) -> bool:
    return score_answer(item, answer) >= CORRECT_THRESHOLD


def hide_answers(item: Item) -> Item:
    """The item without any field that tells the correct answer: all that learning may see of it."""
    blank = {"answer": "", "answers": ("",), "scoring": "exact", "necessity": {}, "parameters": {}}
    return item.model_copy(update=blank | dict.fromkeys(("options", "references", "evidence"), ()))
