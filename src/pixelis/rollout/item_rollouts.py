"""Questions put to a policy: rollouts of some items, and the answers that are right by the items' own rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pixelis.data.corpus.acceptance_checks import CORRECT_THRESHOLD
from pixelis.media import MediaSet
from pixelis.policy.model import Policy
from pixelis.rollout.engine import ROWS_AT_ONCE, rollout
from pixelis.rollout.episode import Query, Rollout
from pixelis.tools.toolbox import Toolbox
from pixelis.training.common.precision import autocast_context, compute_dtype
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.world import Item, RenderedItem

ItemFactory = Callable[[], Iterable[RenderedItem]]
"""Items with known answers, made anew each time: clips of a hundred of them would fill the memory."""
ROLLOUTS_AT_ONCE = 32


def rollout_items(
    config: TtrlConfig,
    policy: Policy,
    toolbox: Toolbox,
    items: Sequence[RenderedItem],
    *,
    n: int,
    seed: int,
    temperature: float,
    greedy: bool = False,
) -> list[list[Rollout]]:
    """n rollouts of each item; temperature 0 is greedy, and with `greedy` one such rollout comes last in each group.
    What an item draws depends on `seed` and on the item alone."""
    media = [MediaSet(rendered_item.media) for rendered_item in items]
    queries = [
        Query(rendered_item.item.id, rendered_item.item.question, media_set, rendered_item.item.seed)
        for rendered_item, media_set in zip(items, media, strict=True)
    ]
    with autocast_context(policy.device, compute_dtype(config)):  # as the update will read them
        groups = rollout(
            policy, toolbox, queries, n=n, seed=seed, limits=config.limits, temperature=temperature, greedy=greedy,
            name=config.name, rows_at_once=max(ROWS_AT_ONCE, len(queries) * (n + greedy)),
        )  # fmt: skip
    for media_set in media:
        toolbox.release(media_set)
    return groups


def stream_item_rollouts(
    config: TtrlConfig,
    policy: Policy,
    toolbox: Toolbox,
    item_factory: ItemFactory,
    *,
    n: int,
    seed: int,
    temperature: float,
    on_question: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[Item, list[Rollout]]]:
    """The same for many items, a few of whose media are held at a time; `asking` is told how many have been asked."""
    items, asked_count = iter(item_factory()), 0
    while chunk := list(islice(items, max(1, ROLLOUTS_AT_ONCE // n))):
        on_question(asked_count)
        asked_count += len(chunk)
        groups = rollout_items(config, policy, toolbox, chunk, n=n, seed=seed, temperature=temperature)
        for rendered_item, group in zip(chunk, groups, strict=True):
            yield rendered_item.item, [sample._replace(blobs={}) for sample in group]


def score_answer(item: Item, answer: str | None) -> float:
    """How right an answer is, 0 to 1; none is wrong."""
    return item.score(answer) if answer else 0.0


def is_correct(item: Item, answer: str | None) -> bool:
    return score_answer(item, answer) >= CORRECT_THRESHOLD


def hide_answers(item: Item) -> Item:
    """An item without anything that says what is right: all that learning may see of it."""
    blank_fields = {
        "answer": "", "answers": ("",), "scoring": "exact", "options": (), "references": (), "evidence": (),
        "necessity": {}, "parameters": {},
    }  # fmt: skip
    return item.model_copy(update=blank_fields)
