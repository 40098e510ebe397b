"""The claims of phase 3 on nano: variants adapt to the same shifted stream, and are then asked the same held-out items.

Before they are asked, the budget is matched: the policy of each variant is taken as it was when it had learnt from as
many queries as the variant that learnt from fewest (supp:budget_fairness); the ledger of an adaptation knows every one
of these policies. Where the configuration names a budget, nobody waits for the others' streams. Greedy, sampled and
voted accuracy are told apart: a gain in sampled accuracy alone is sharpening.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pixelis.config import load_config
from pixelis.errors import ConfigError
from pixelis.eval.comparing import Part, Say, merged, parts_of
from pixelis.eval.kept_parts import TABLE, place_of_table
from pixelis.eval.plain_voting import beside_plain_voting, judged, pooled
from pixelis.eval.ttrl_figures import draw_families, draw_kl, draw_prequential, draw_risk
from pixelis.eval.ttrl_risk import Rows
from pixelis.eval.ttrl_runs import (
    ReproduceTtrlConfig,
    Runs,
    TtrlVariant,
    examine,
    external_statistics,
    finished,
    held,
    live,
    restore_exam,
    restore_stream,
    taken_at,
    thresholds,
)
from pixelis.eval.ttrl_table import Told, answers_before, by_seed, paired_rows, tabulated
from pixelis.retrieval.keys import KeyMaker
from pixelis.rundir import make_folder, provenance, write_json
from pixelis.train.calibrating import FILE as CALIBRATION
from pixelis.train.ttrl_config import StressSettings, TtrlConfig


def reproduce_ttrl(
    config: ReproduceTtrlConfig,
    work: Path,
    results: Path,
    *,
    keys: Callable[[], KeyMaker] | None = None,
    overrides: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    say: Say = lambda words: None,
    show: Any = lambda row, total: None,
) -> dict[str, Any]:
    """Run what is not yet done, then write the table and the figures from everything that is."""
    base = load_config(TtrlConfig, config.ttrl, [])
    base = TtrlConfig.model_validate(merged(base.model_dump(mode="json"), overrides or {}))
    runs, every = Runs(config, base, work, results, keys, say), parts_of(config.variants, ())
    wanted = parts_of(config.variants, only)
    say(f"{len(wanted)} of {len(every)} parts are wanted; what is kept of them in {results} is not run again")
    for part in every:
        if part not in wanted:
            restore_stream(runs, part)
    require_thresholds(runs, wanted)
    for part in wanted:
        live(runs, part, show)
        if config.budget is not None:
            examine(runs, part, config.budget, show)
    done = [part for part in every if runs.rows(part)]
    budget = matched(runs, done)
    waiting = [part.name for part in every if counts(runs, part) and part not in done]
    if waiting and config.budget is None:
        say(f"the budget is known when these streams have ended: {', '.join(waiting)}")
    for part in done:
        if part in wanted and not (waiting and config.budget is None and runs.settings(part).learn):
            examine(runs, part, budget, show)
        else:
            restore_exam(runs, part, budget)
    asked = [part for part in done if part.variant.asked and finished(held(runs, part, budget), part)]
    say(f"the table of {len(done)} parts: intervals and tests over all items, some minutes for many parts")
    found = told(runs, done, asked, budget)
    table, pairs = tabulated(found, config.none), paired_rows(found, config.ours)
    pairs["plain_voting_of"] = plain_voting(runs, done, found)
    left = [part.name for part in every if part not in (asked if part.variant.asked else done)]
    facts = {"config": config.model_dump(mode="json"), "rows": table, "pairs": pairs}
    place = place_of_table(results, work, facts, say)
    if place is not None:
        make_folder(place)
        streams = {name: by_seed(own) for name, own in found.items()}
        first = {name: next(iter(own.values())) for name, own in streams.items()}
        steady = [v.name for v in config.variants if v.name in streams and v.matched and v.course is None]
        draw_risk(streams, place / "risk_coverage.svg", ours=config.ours)
        draw_kl({name: first[name] for name in steady}, place / "kl.svg", target=base.kl.target)
        draw_prequential({name: list(streams[name].values()) for name in steady}, table, place / "accuracy.svg")
        draw_families(table, place / "families.svg")
        own = {"settings": base.model_dump(mode="json"), "budget": budget, "not_run": left}
        write_json(place / TABLE, provenance(**own, **facts))  # last: where it is, the figures are
    return {"rows": table, "pairs": pairs, "left": left, "written": str(place) if place else None}


def plain_voting(
    runs: Runs, done: Sequence[Part[TtrlVariant]], found: Mapping[str, Sequence[Told]]
) -> list[dict[str, Any]]:
    """Ours beside plain majorities of as many rollouts as it has, and of more, up to three times as many: vote, memory
    and learning together cost about that (`pixelis bench adapt`)."""
    still: dict[int, list[Rows]] = {}
    for part in done:
        settings = runs.settings(part)
        as_begun = settings.policy == runs.base.policy and settings.stress == StressSettings()
        if not settings.learn and settings.tools and as_begun and part.variant.course is None:
            still.setdefault(part.seed, []).append(runs.rows(part))
    mine, pool = answers_before(found).get(runs.config.ours), pooled(still)
    most = min(3 * runs.base.samples, min(map(len, pool), default=0))
    if mine is None or most < runs.base.samples:
        return []
    scores = judged(pool, runs.stream("dev", runs.config.stream_items).items())
    return beside_plain_voting(mine, pool, scores, range(runs.base.samples, most + 1))


def require_thresholds(runs: Runs, running: Sequence[Part[TtrlVariant]]) -> None:
    """ConfigError where a variant would be examined before the thresholds exist that all share: those of `none`."""
    none = runs.config.none
    if not runs.base.calibration.items:
        return
    for part in running:
        shared = f"{none}-{part.seed}"
        if not thresholds(runs, part).exists() and all(other.name != shared for other in running):
            raise ConfigError(
                f"{part.name} is asked under the thresholds of {shared}, which has not run: add --only {shared}, "
                "or run it first"
            )


def counts(runs: Runs, part: Part[TtrlVariant]) -> bool:
    """Whether it has a say in the budget."""
    return part.variant.matched and runs.settings(part).learn


def matched(runs: Runs, done: Sequence[Part[TtrlVariant]]) -> int:
    """The budget that is named, or what the variant that learnt from fewest came to, of those that are matched."""
    if runs.config.budget is not None:
        return runs.config.budget
    learnt = [sum(row["learnt"] for row in runs.rows(part)) for part in done if counts(runs, part)]
    return min(learnt, default=0)


def told(
    runs: Runs, done: Sequence[Part[TtrlVariant]], asked: Sequence[Part[TtrlVariant]], budget: int
) -> dict[str, list[Told]]:
    """What came of every stream that has ended, by variant, with the held-out answers of those that were asked."""
    statistics = external_statistics(runs) if asked else {}
    found: dict[str, list[Told]] = {}
    for part in done:
        variant, path = part.variant, runs.stream_of(part) / CALIBRATION
        calibration = json.loads(path.read_text()) if path.exists() else None
        found.setdefault(variant.name, []).append(
            Told(
                part.seed, runs.rows(part), taken_at(runs, part, budget),
                held(runs, part, budget) if part in asked else None, asked=variant.asked,
                base=variant.base or runs.config.none,
                budget=budget if counts(runs, part) else None, calibration=calibration,
                stress=not variant.matched and variant.course is None, statistics=statistics,
            )
        )  # fmt: skip
    return found
