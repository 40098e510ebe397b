"""Questions put to a policy: rollouts of some items, and the answers that are right by the items' own rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pixelis.data.acceptance import RIGHT
from pixelis.media import MediaSet
from pixelis.policy.model import Policy
from pixelis.rollout.batch import ROWS_AT_ONCE, rollout
from pixelis.rollout.episode import Query, Rollout
from pixelis.tools.toolbox import Toolbox
from pixelis.train.precision import computed_in, computing
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.world import Item, Rendered

Questions = Callable[[], Iterable[Rendered]]
"""Items with known answers, made anew each time: clips of a hundred of them would fill the memory."""
ROLLOUTS_AT_ONCE = 32


def ask(
    config: TtrlConfig,
    policy: Policy,
    toolbox: Toolbox,
    items: Sequence[Rendered],
    *,
    n: int,
    seed: int,
    temperature: float,
    greedy: bool = False,
) -> list[list[Rollout]]:
    """n rollouts of each item; temperature 0 is greedy, and with `greedy` one such rollout comes last in each group.
    What an item draws depends on `seed` and on the item alone."""
    media = [MediaSet(made.media) for made in items]
    queries = [
        Query(made.item.id, made.item.question, own, made.item.seed) for made, own in zip(items, media, strict=True)
    ]
    with computing(policy.device, computed_in(config)):  # as the update will read them
        groups = rollout(
            policy, toolbox, queries, n=n, seed=seed, limits=config.limits, temperature=temperature, greedy=greedy,
            name=config.name, rows_at_once=max(ROWS_AT_ONCE, len(queries) * (n + greedy)),
        )  # fmt: skip
    for own in media:
        toolbox.let_go(own)
    return groups


def ask_each(
    config: TtrlConfig,
    policy: Policy,
    toolbox: Toolbox,
    questions: Questions,
    *,
    n: int,
    seed: int,
    temperature: float,
    asking: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[Item, list[Rollout]]]:
    """The same for many items, a few of whose media are held at a time; `asking` is told how many have been asked."""
    items, done = iter(questions()), 0
    while some := list(islice(items, max(1, ROLLOUTS_AT_ONCE // n))):
        asking(done)
        done += len(some)
        groups = ask(config, policy, toolbox, some, n=n, seed=seed, temperature=temperature)
        for made, group in zip(some, groups, strict=True):
            yield made.item, [rolled._replace(blobs={}) for rolled in group]


def score_of(item: Item, answer: str | None) -> float:
    """How right an answer is, 0 to 1; none is wrong."""
    return item.score(answer) if answer else 0.0


def right(item: Item, answer: str | None) -> bool:
    return score_of(item, answer) >= RIGHT


def blind(item: Item) -> Item:
    """An item without anything that says what is right: all that learning may see of it."""
    nothing = {
        "answer": "", "answers": ("",), "scoring": "exact", "options": (), "references": (), "evidence": (),
        "necessity": {}, "parameters": {},
    }  # fmt: skip
    return item.model_copy(update=nothing)
