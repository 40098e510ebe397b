"""Phase 3 on nano: variants adapt to the same shifted stream and are evaluated on the same held-out items.

The budget is matched: each variant is evaluated with the policy it had after training on as many queries as the variant
that trained on the fewest (supp:budget_fairness); the journal of an adaptation can restore each of these policies. With
a budget in the configuration, parts need not wait for each other. Greedy, sampled and voted accuracy are separate: a
gain in sampled accuracy alone is sharpening.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.common.paired_tests import ExperimentPart, LogFn, override_config, select_parts
from experiments.common.result_archive import TABLE, choose_table_folder
from experiments.ttrl.majority_baseline import compare_to_majority, pool_answers, score_answers
from experiments.ttrl.ttrl_figures import draw_families, draw_kl, draw_prequential, draw_risk
from experiments.ttrl.ttrl_risk import StreamRows
from experiments.ttrl.ttrl_runs import (
    ReproduceTtrlConfig,
    TtrlExperiment,
    TtrlVariant,
    exam_finished,
    external_statistics,
    held_out_folder,
    restore_exam,
    restore_stream,
    run_exam,
    run_stream,
    snapshot_row,
    thresholds_path,
)
from experiments.ttrl.ttrl_table import StreamResult, build_pairs, build_table, prequential_runs, rows_by_seed
from pixelis.core.atomic import make_directory
from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import provenance, write_json
from pixelis.memory.keys import KeyMaker
from pixelis.training.ttrl.ttrl_config import StressSettings, TtrlConfig
from pixelis.voting.fit_calibration import CALIBRATION_FILE as CALIBRATION


def reproduce_ttrl(
    config: ReproduceTtrlConfig,
    work: Path,
    results: Path,
    *,
    keys: Callable[[], KeyMaker] | None = None,
    overrides: Mapping[str, Any] | None = None,
    only: Sequence[str] = (),
    log: LogFn = lambda words: None,
    show: Any = lambda row, total: None,
) -> dict[str, Any]:
    """Run the unfinished parts, then write the table and the figures of all finished ones."""
    base = load_config(TtrlConfig, config.ttrl, [])
    base = override_config(base, overrides or {})
    experiment, all_parts = TtrlExperiment(config, base, work, results, keys, log), select_parts(config.variants, ())
    selected_parts = select_parts(config.variants, only)
    log(f"{len(selected_parts)} of {len(all_parts)} parts are selected; those archived in {results} are not run again")
    for part in all_parts:
        if part not in selected_parts:
            restore_stream(experiment, part)
    require_thresholds(experiment, selected_parts)
    for part in selected_parts:
        run_stream(experiment, part, show)
        if config.budget is not None:
            run_exam(experiment, part, config.budget, show)
    finished_parts = [part for part in all_parts if experiment.rows(part)]
    budget = matched_budget(experiment, finished_parts)
    waiting = [part.name for part in all_parts if is_budgeted(experiment, part) and part not in finished_parts]
    if waiting and config.budget is None:
        log(f"the budget depends on unfinished streams: {', '.join(waiting)}")
    for part in finished_parts:
        if part in selected_parts and not (waiting and config.budget is None and experiment.settings(part).learn):
            run_exam(experiment, part, budget, show)
        else:
            restore_exam(experiment, part, budget)
    examined_parts = [
        part
        for part in finished_parts
        if part.variant.asked and exam_finished(held_out_folder(experiment, part, budget), part)
    ]
    log(f"computing the table of {len(finished_parts)} parts; this takes minutes for many parts")
    stream_results = collect_results(experiment, finished_parts, examined_parts, budget)
    table, pairs = build_table(stream_results, config.none), build_pairs(stream_results, config.ours)
    pairs["plain_voting_of"] = majority_comparison(experiment, finished_parts, stream_results)
    remaining = [
        part.name for part in all_parts if part not in (examined_parts if part.variant.asked else finished_parts)
    ]
    facts = {"config": config.model_dump(mode="json"), "rows": table, "pairs": pairs}
    table_folder = choose_table_folder(results, work, facts, log)
    if table_folder is not None:
        make_directory(table_folder)
        streams = {name: rows_by_seed(entries) for name, entries in stream_results.items()}
        first = {name: next(iter(entries.values())) for name, entries in streams.items()}
        steady = [v.name for v in config.variants if v.name in streams and v.matched and v.course is None]
        draw_risk(streams, table_folder / "risk_coverage.svg", ours=config.ours)
        draw_kl({name: first[name] for name in steady}, table_folder / "kl.svg", target=base.kl.target)
        draw_prequential({name: list(streams[name].values()) for name in steady}, table, table_folder / "accuracy.svg")
        draw_families(table, table_folder / "families.svg")
        entries = {"settings": base.model_dump(mode="json"), "budget": budget, "not_run": remaining}
        write_json(
            table_folder / TABLE, provenance(**entries, **facts)
        )  # last: with the table, the figures are complete
    return {"rows": table, "pairs": pairs, "left": remaining, "written": str(table_folder) if table_folder else None}


def majority_comparison(
    experiment: TtrlExperiment,
    finished_parts: Sequence[ExperimentPart[TtrlVariant]],
    stream_results: Mapping[str, Sequence[StreamResult]],
) -> list[dict[str, Any]]:
    """Ours and majority votes of as many rollouts, up to three times as many, which is about the cost of vote, memory
    and updates together (`pixelis bench adapt`)."""
    frozen_rows: dict[int, list[StreamRows]] = {}
    for part in finished_parts:
        settings = experiment.settings(part)
        is_unmodified = settings.policy == experiment.base.policy and settings.stress == StressSettings()
        if not settings.learn and settings.tools and is_unmodified and part.variant.course is None:
            frozen_rows.setdefault(part.seed, []).append(experiment.rows(part))
    our_runs, pool = prequential_runs(stream_results).get(experiment.config.ours), pool_answers(frozen_rows)
    max_rollouts = min(3 * experiment.base.group_size, min(map(len, pool), default=0))
    if our_runs is None or max_rollouts < experiment.base.group_size:
        return []
    scores = score_answers(pool, experiment.query_stream("dev", experiment.config.stream_items).items())
    return compare_to_majority(our_runs, pool, scores, range(experiment.base.group_size, max_rollouts + 1))


def require_thresholds(experiment: TtrlExperiment, selected_parts: Sequence[ExperimentPart[TtrlVariant]]) -> None:
    """ConfigError if a variant would be evaluated before the thresholds exist that all share, those of `none`."""
    baseline = experiment.config.none
    if not experiment.base.calibration.items_per_family:
        return
    for part in selected_parts:
        baseline_part = f"{baseline}-{part.seed}"
        if not thresholds_path(experiment, part).exists() and all(
            other.name != baseline_part for other in selected_parts
        ):
            raise ConfigError(
                f"{part.name} needs the thresholds of {baseline_part}, which has not run: run it first, or add "
                f"--only {baseline_part}"
            )


def is_budgeted(experiment: TtrlExperiment, part: ExperimentPart[TtrlVariant]) -> bool:
    """Whether the part counts for the budget."""
    return part.variant.matched and experiment.settings(part).learn


def matched_budget(experiment: TtrlExperiment, finished_parts: Sequence[ExperimentPart[TtrlVariant]]) -> int:
    """The budget of the configuration, or the fewest trained queries among the matched variants."""
    if experiment.config.budget is not None:
        return experiment.config.budget
    trained_queries = [
        sum(row["learnt"] for row in experiment.rows(part)) for part in finished_parts if is_budgeted(experiment, part)
    ]
    return min(trained_queries, default=0)


def collect_results(
    experiment: TtrlExperiment,
    finished_parts: Sequence[ExperimentPart[TtrlVariant]],
    examined_parts: Sequence[ExperimentPart[TtrlVariant]],
    budget: int,
) -> dict[str, list[StreamResult]]:
    """Results of every finished stream by variant, with held-out answers if evaluated."""
    statistics = external_statistics(experiment) if examined_parts else {}
    stream_results: dict[str, list[StreamResult]] = {}
    for part in finished_parts:
        variant, path = part.variant, experiment.stream_folder(part) / CALIBRATION
        calibration = json.loads(path.read_text()) if path.exists() else None
        stream_results.setdefault(variant.name, []).append(
            StreamResult(
                part.seed, experiment.rows(part), snapshot_row(experiment, part, budget),
                held_out_folder(experiment, part, budget) if part in examined_parts else None,
                is_examined=variant.asked, base=variant.base or experiment.config.none,
                budget=budget if is_budgeted(experiment, part) else None, calibration=calibration,
                stress=not variant.matched and variant.course is None, statistics=statistics,
            )
        )  # fmt: skip
    return stream_results
