"""The comparison of phase 3: budgets, tables and figures from ledgers written by hand; the shipped configuration."""

import json
import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from experiments.common.paired_tests import ExperimentPart, RunScores, override_config, select_parts
from experiments.ttrl import reproduce_ttrl as top
from experiments.ttrl import ttrl_runs as module
from experiments.ttrl.reproduce_ttrl import reproduce_ttrl
from experiments.ttrl.ttrl_archives import settings_fingerprint
from experiments.ttrl.ttrl_figures import moving_average
from experiments.ttrl.ttrl_risk import pseudo_label_accuracy, selective_risk, selective_risk_difference, vote_mass
from experiments.ttrl.ttrl_runs import ReproduceTtrlConfig, TtrlVariant, row_at_budget
from experiments.ttrl.ttrl_table import held_out_run, summarise_acceptance, summarise_families
from pixelis.cli.index_files import make_key_maker
from pixelis.cli.reproduce import format_difference, print_ttrl_table
from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.evaluation.harness import ScoredItem, to_row
from pixelis.evaluation.process_report import ProcessMeasures
from pixelis.training.ttrl.ttrl_config import TtrlConfig

ROOT = Path(__file__).resolve().parents[2]


def row(query, *, score=1.0, learnt=True, kl=0.1, margin=1.0, majority=1.0, answered=True, family="search", **changes):
    ballots = [{"answer": "a", "weight": 0.5}, {"answer": "a", "weight": 0.5}, {"answer": "b", "weight": 0.0}]
    return {
        "query": query, "item": f"q{query}", "family": family, "score": score, "sampled": score, "greedy": score,
        "majority": majority, "learnt": learnt, "answered": answered, "kl": kl, "kl_query": kl, "drift": kl,
        "refused": "", "variety": 0.5, "advantage": 0.0 if learnt else None,
        "updates": query,
        "vote": {"margin": margin, "majority": "a", "mass": margin / 2, "ballots": ballots,
                 "agreement": 2 / 3, "entropy": 0.5}, **changes,
    }  # fmt: skip


def test_an_archive_from_before_a_setting_existed_or_was_renamed_is_that_of_its_default():
    stored = settings_fingerprint(TtrlConfig()).dump()
    assert "threads" not in stored
    assert stored["kappa"] == 1.0
    del stored["merge_duplicate_rollouts"]
    stored["samples"] = stored.pop("group_size")
    assert settings_fingerprint(TtrlConfig(threads=2)).matches(stored)
    assert not settings_fingerprint(TtrlConfig(merge_duplicate_rollouts=True)).matches(stored)
    assert not settings_fingerprint(TtrlConfig(group_size=4)).matches(stored)


def test_the_policy_is_taken_after_the_row_that_spends_the_budget():
    rows = [row(1, learnt=False), row(2), row(3, learnt=False), row(4)]
    assert row_at_budget(rows, 1) == 2
    assert row_at_budget(rows, 2) == 4
    assert row_at_budget(rows, 0) == 0
    assert row_at_budget(rows, 3) == 4  # it never learnt from so many: its own end


def test_a_batch_that_would_overshoot_the_budget_is_not_taken():
    """Batches of two that are learnt from by 2, 1 and 2 queries: 2, 3 and 5 in all."""
    learnt = [True, True, False, True, True, True]
    rows = [row(k, learnt=own, until=2 * -(-k // 2)) for k, own in enumerate(learnt, start=1)]
    assert [row_at_budget(rows, budget) for budget in range(7)] == [0, 0, 2, 4, 4, 6, 6]


def test_an_update_that_was_refused_counts_once_however_many_queries_it_had():
    rows = [row(k, updates=-(-k // 2), refused="too far" if k <= 4 else "") for k in range(1, 7)]
    assert summarise_acceptance([rows])["refused"] == 2
    assert summarise_acceptance([rows, rows])["refused"] == 4


def test_acceptance_and_drift_by_hand():
    rows = [row(k, learnt=k % 4 != 0, kl=k / 100, answered=k % 5 != 0) for k in range(1, 21)]
    found = summarise_acceptance([rows])
    assert found["accepted"] == 75.0
    assert found["accepted_per_1k"] == 750.0
    assert found["abstained"] == 20.0
    assert found["kl"]["p50"] == pytest.approx(0.105)
    assert found["kl"]["p95"] == pytest.approx(0.1905)  # numpy: 19.05th of 1 … 20
    assert found["drift"] == pytest.approx(0.20)
    assert summarise_acceptance([[row(1, kl=None, learnt=False)]])["kl"] is None


def test_risk_by_margin_and_by_the_share_of_a_majority():
    rows = [row(1, margin=0.9), row(2, margin=0.5), row(3, margin=0.1, score=0.0, answered=False, majority=0.0)]
    found = selective_risk([rows])
    assert found["vote"]["aurc"]["mean"] == pytest.approx((0 + 0 + 1 / 3) / 3)
    assert found["mass"]["aurc"]["mean"] == found["vote"]["aurc"]["mean"]  # half the margins: the same order
    assert found["majority"]["aurc"]["mean"] == pytest.approx(1 / 3)  # every share is 2/3: no order
    assert found["coverage"] == pytest.approx(200 / 3)
    assert found["error_given"] == 0.0
    assert found["vote"]["error"] == pytest.approx(100 / 3)  # 88.9 % of three is three


def test_the_mass_of_a_vote_counts_near_duplicates_and_those_without_an_answer():
    terms = {"entropy": 0.0, "calibrated": 0.5, "fidelity": 1.0, "reliability": 1.0}
    ballots = [
        {"answer": "a", **terms}, {"answer": "a", **terms, "weight": 0.0},  # one of two near-duplicates
        {"answer": "b", **terms, "fidelity": 0.5, "entropy": np.log(2.0)}, {"answer": None, **terms},
    ]  # fmt: skip
    # a: 0.5 + 0.5; b: 0.5 · 0.5 · 0.5; of four rollouts
    assert vote_mass({"vote": {"scores": {"b": 0.1, "a": 0.9}, "ballots": ballots}}) == pytest.approx((1.0 - 0.125) / 4)
    assert vote_mass({"vote": {"scores": {}, "ballots": ballots[3:]}}) == 0.0


def test_families_are_told_apart():
    # one batch, one KL; but each query has its own
    found = summarise_families([[row(1, kl_query=0.3), row(2, family="space", score=0.0, learnt=False)]])
    assert (found["search"]["kl_p95"], found["space"]["kl_p95"]) == (0.3, 0.1)
    assert found["search"]["accepted_per_1k"] == 1000.0
    assert found["space"]["voted"] == 0.0
    ours = [RunScores(0, ("search.0", "space.0"), {"greedy": np.array([50.0, 0.0])})]
    base = [RunScores(seed, ours[0].items, {"greedy": np.array([own, 0.0])}) for seed, own in ((0, 100.0), (1, 20.0))]
    found = summarise_families([[row(1)]], ours, base)
    assert (found["search"]["pre"], found["search"]["post"]) == (100.0, 50.0)  # the other seed has no part in it


def test_risk_of_two_variants_is_compared_on_the_same_queries():
    """Ours is sure of what it knows; the majority's share says nothing, so that its risk is 1/2 at every coverage."""
    ours = [row(1, margin=0.9), row(2, margin=0.1, score=0.0), row(3, margin=0.8), row(4, margin=0.2, score=0.0)]
    hard = [row(k, majority=float(k % 2)) for k in range(1, 5)]
    found = selective_risk_difference({0: ours}, {0: hard, 1: hard})
    assert found["aurc"]["difference"] == pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4 - 1 / 2)
    assert found["aurc"]["low"] <= found["aurc"]["difference"] <= found["aurc"]["high"]
    assert found["seeds"] == 1
    # by the share of plain majorities: ours is never wrong
    assert found["aurc_by_share"]["difference"] == pytest.approx(-1 / 2)
    by_mass = selective_risk_difference({0: with_mass(ours)}, {0: with_mass(hard)})
    # sure of the wrong ones first: 1, 1, 2/3, 1/2
    assert by_mass["aurc_by_mass"]["difference"] == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4 - 1 / 2)
    assert by_mass["aurc"] == found["aurc"]


def test_lessons_are_right_as_often_as_what_was_learnt_from_is():
    ours = [row(1), row(2, score=0.0), row(3, score=0.0, learnt=False), row(4, score=0.5)]
    hard = [row(1, learnt=False), row(2), row(3), row(4, score=0.0)]
    found = pseudo_label_accuracy([ours, ours])
    assert (found["learnt"], found["wrong"]) == (6, 3.0)
    assert found["mean"] == pytest.approx(50.0)
    assert found["low"] <= 50.0 <= found["high"]
    assert pseudo_label_accuracy([[row(1, learnt=False)]]) is None
    assert pseudo_label_accuracy([[row(1, advantage=None)]]) is None  # less entropy, and no answer
    assert selective_risk_difference({0: ours}, {0: hard})["lessons_right"]["difference"] == pytest.approx(
        50.0 - 200 / 3
    )
    assert "lessons_right" not in selective_risk_difference({0: ours}, {0: [r | {"learnt": False} for r in hard]})


def with_mass(rows):
    """Rows whose votes weigh most where their margins are least."""
    return [r | {"vote": r["vote"] | {"mass": 1.0 - r["vote"]["margin"]}} for r in rows]


def test_accuracy_is_drawn_over_the_last_queries_and_over_fewer_at_first():
    found = moving_average(np.array([100.0, 0.0, 0.0, 100.0]), width=2)
    assert found.tolist() == [100.0, 50.0, 0.0, 50.0]


def write_part(folder, rows, scores, budget):
    (folder / "stream").mkdir(parents=True)
    (folder / "stream" / "ledger.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    held = folder / budget
    (held / "voted").mkdir(parents=True)
    (held / "voted" / "ledger.jsonl").write_text("".join(json.dumps(row(k, score=s)) + "\n" for k, s in scores))
    (held / "voted" / "done.json").write_text("{}")
    write_greedy(held / "greedy", [s for _, s in scores])


def sign(runs, budget):
    """As the runs would have done."""
    for part in select_parts(runs.config.variants, ()):
        module.write_fingerprint(runs.stream_folder(part), runs.fingerprint(part))
        module.write_fingerprint(
            module.held_out_folder(runs, part, budget), module.exam_fingerprint(runs, part, budget)
        )
    facts = {"families": ("search",), "shifts": runs.config.shifts, "items": 20, "skip": 4}
    module.write_fingerprint(runs.work / "statistics", {"weights": module.hash_weights("nano-sft"), **facts})


def write_greedy(folder, scores):
    folder.mkdir(parents=True)
    process = ProcessMeasures((True,) * 4, 2, (None, 0.6, 0.5, 0.7))
    rows = [
        ScoredItem("held-out", str(k), "t", 1, "a", "a", s, 4, 4, "answered", 10, process) for k, s in enumerate(scores)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(to_row(r)) + "\n" for r in rows))
    (folder / "report.json").write_text("{}")


def test_what_has_ended_is_not_run_again_and_becomes_a_table_with_figures(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "adapt", lambda *a, **k: pytest.fail("ran again"))
    monkeypatch.setattr(module, "evaluate_model", lambda *a, **k: pytest.fail("asked again"))
    (tmp_path / "ttrl.yaml").write_text("policy: nano-sft\n")
    config = ReproduceTtrlConfig.model_validate(
        {
            "ttrl": tmp_path / "ttrl.yaml", "families": ["search"], "stream_items": 4, "held_items": 8,
            "variants": [
                {"name": "no-adaptation", "change": {"learn": False}}, {"name": "ours"},
                {"name": "hard", "change": {"kappa": 0.0}},
                {"name": "ours-flips-30", "matched": False, "base": "ours"},
                {"name": "majority-flips-30", "matched": False, "whole": True, "base": "hard"},
                {"name": "ans-ssc", "asked": False, "change": {"learn": False}},
                {"name": "not-yet"},
            ],
        }
    )  # fmt: skip
    work = tmp_path / "work"
    runs = module.TtrlExperiment(config, load_config(TtrlConfig, config.ttrl, []), work, tmp_path / "out", None, print)
    still = [row(k, score=0.0, learnt=False, kl=None, drift=None) for k in range(1, 5)]
    write_part(work / "no-adaptation-0", still, [(k, 0.0) for k in range(8)], "held")
    write_part(work / "ours-0", [row(k) for k in range(1, 5)], [(k, 1.0) for k in range(8)], "held-2")
    # the one with the fewest: two queries, which is the budget of all
    write_part(work / "hard-0", [row(k, learnt=k < 3) for k in range(1, 5)], [(k, k % 2) for k in range(8)], "held-2")
    for name, folder, right in (("ours-flips-30", "held-2", 4), ("majority-flips-30", "held-whole", 2)):
        write_part(work / f"{name}-0", [row(k) for k in range(1, 5)], [(k, float(k < right)) for k in range(8)], folder)
        shutil.rmtree(work / f"{name}-0" / folder / "voted")  # stress is asked greedily alone
    write_part(work / "ans-ssc-0", still, [], "held")
    write_greedy(work / "statistics", [1.0, 1.0])
    sign(runs, 2)
    shutil.rmtree(work / "not-yet-0")
    names = ["no-adaptation", "ours", "hard", "ours-flips-30", "majority-flips-30", "ans-ssc"]
    config = config.model_copy(update={"budget": 2})  # the fewest are two queries too, but for one that has not run
    found = reproduce_ttrl(config, work, tmp_path / "out", only=names, log=print)
    assert found["left"] == ["not-yet-0"]
    none, ours, hard, flips, majority, ssc = found["rows"]
    assert flips["held_out"]["greedy"]["over_none"]["base"] == "ours"
    assert flips["held_out"]["greedy"]["over_none"]["difference"] == -50.0
    assert (majority["spent"], ssc["held_out"]) == ([4], None)  # at its end; its policy is that of no adaptation
    assert [(row["over"], row["key"]) for row in found["pairs"]["plain_voting"]][:2] == [
        ("no-adaptation", "majority_later"), ("no-adaptation", "voted_later")
    ]  # fmt: skip
    assert found["pairs"]["plain_voting"][1]["difference"] == 100.0
    held_against = [(r["variant"], r["over"]) for r in found["pairs"]["selective"]]
    assert ("ours-flips-30", "majority-flips-30") in held_against
    assert ("ours", "hard") in held_against
    assert not {("ours", "ours-flips-30"), ("ours", "majority-flips-30")} & set(held_against)
    print_ttrl_table(found["rows"])
    assert "as none" in capsys.readouterr().out
    assert format_difference({"over_none": {"difference": 4.16, "p_adjusted": 0.0002}}, "over_none") == (
        "+4.2",
        "<.001",
    )
    assert (ours["spent"], none["spent"]) == ([2], [0])
    gained = ours["held_out"]["greedy"]["over_none"]
    assert (gained["difference"], gained["p"]) == (100.0, pytest.approx(2 / 2**8))
    assert ours["per_point"]["mean"] == pytest.approx(2 / 100)  # two queries for a hundred points
    (over_none, over_hard, *_) = found["pairs"]["held_out"]
    assert (over_none["over"], over_hard["over"]) == ("no-adaptation", "hard")
    assert over_hard["voted"]["over"]["difference"] == 50.0
    assert hard["held_out"]["voted"]["mean"] == 50.0
    assert none["kl"] is None
    assert ours["prequential"]["voted_later"]["mean"] == 100.0
    for name in ("risk_coverage.svg", "kl.svg", "accuracy.svg", "families.svg"):
        assert (tmp_path / "out" / name).stat().st_size > 5_000
    written = json.loads((tmp_path / "out" / "table.json").read_text())
    assert (written["budget"], written["not_run"]) == (2, ["not-yet-0"])


def test_a_small_part_lives_its_stream_and_is_examined_with_the_shipped_configuration(tmp_path):
    """Real rollouts of the shipped policy; canary questions, which the shipped configuration wants, are not asked."""
    given = load_config(ReproduceTtrlConfig, ROOT / "configs" / "nano" / "reproduce_ttrl.yaml", [])
    config = given.model_copy(
        update={"families": ("search", "choice"), "stream_items": 1, "held_items": 2, "voted_items": 1}
    )
    short = {"samples": 2, "neighbours": 0, "workers": 1, "calibration": {"items": 1}, "limits": {"steps": 8}}
    base = load_config(TtrlConfig, ROOT / given.ttrl, [])
    assert base.canary.items_per_family > 0
    base = override_config(base, short)
    runs = module.TtrlExperiment(config, base, tmp_path, tmp_path / "results", None, lambda words: None)
    part = ExperimentPart(next(variant for variant in config.variants if variant.name == "ours"), 0)
    none = ExperimentPart(next(variant for variant in config.variants if variant.name == config.none), 0)
    module.run_stream(runs, none, lambda row, total: None)
    shared = tmp_path / none.name / "stream" / "calibration.json"
    facts = json.loads(shared.read_text())
    shared.write_text(json.dumps(facts | {"questions": 99}))
    module.archive_stream(runs, none)
    module.run_stream(runs, part, lambda row, total: None)
    assert json.loads((tmp_path / part.name / "stream" / "calibration.json").read_text())["questions"] == 99
    assert [row["family"] for row in runs.rows(part)] == ["search", "choice"]
    budget = top.matched_budget(runs, [part])
    module.run_exam(runs, part, budget, lambda row, total: None)
    folder = module.held_out_folder(runs, part, budget)
    assert module.exam_finished(folder, part)
    assert len(module.read_rows(folder / "voted" / "ledger.jsonl")) == 2
    assert len(module.read_scored_items(folder / "greedy")) == 4
    assert not (tmp_path / part.name / "stream" / "canary.jsonl").exists()
    other = runs._replace(work=tmp_path / "another machine")
    for each in (none, part):
        assert module.restore_stream(other, each)
    assert module.restore_exam(other, part, budget)
    (kept,) = module.read_rows(other.stream_folder(part) / "ledger.jsonl")[:1]
    assert "fidelity" not in json.dumps(kept)  # the terms of ballots stay with the runs
    module.run_exam(other, none, budget, lambda row, total: None)  # whose rows are short already
    assert module.exam_finished(module.held_out_folder(other, none, budget), none)
    for measured in (summarise_acceptance, selective_risk):
        assert measured([other.rows(part)]) == measured([runs.rows(part)])
    voted = [held_out_run(0, module.held_out_folder(own, part, budget), {}).measures for own in (runs, other)]
    assert all(np.array_equal(voted[0][key], voted[1][key], equal_nan=True) for key in voted[0] | voted[1])


def test_all_variants_search_the_same_memory_and_leave_it_as_it_is(tmp_path):
    """Real rollouts and encoders: what the policy at the start accepts of two questions without a shift."""
    given = load_config(ReproduceTtrlConfig, ROOT / "configs" / "nano" / "reproduce_ttrl.yaml", [])
    config = given.model_copy(update={"families": ("choice",), "stream_items": 2, "memory_items": 2})
    base = load_config(TtrlConfig, ROOT / given.ttrl, [])
    short = {"samples": 2, "calibration": {"items": 0}, "limits": {"steps": 3}, "vote": {"max_entropy": 9.0}}
    base = override_config(base, short)
    runs = module.TtrlExperiment(
        config, base, tmp_path, tmp_path / "results", cache(make_key_maker), lambda words: None
    )
    for name in (config.none, "ours"):
        module.run_stream(
            runs, ExperimentPart(next(v for v in config.variants if v.name == name), 0), lambda row, total: None
        )
    marks = [
        [row["memory"] for row in module.read_rows(folder / "ledger.jsonl")]
        for folder in (tmp_path / "memory", tmp_path / "no-adaptation-0/stream", tmp_path / "ours-0/stream")
    ]
    assert marks[0][-1] > 0  # at least one was accepted
    assert marks[1] == marks[2] == [marks[0][-1]] * 2
    shown = {row["item"] for row in module.read_rows(tmp_path / "memory" / "ledger.jsonl")}
    assert not shown & {row["item"] for row in module.read_rows(tmp_path / "ours-0/stream/ledger.jsonl")}


def test_thresholds_are_shared_by_those_who_would_fit_the_same():
    given = load_config(ReproduceTtrlConfig, ROOT / "configs" / "nano" / "reproduce_ttrl.yaml", [])
    runs = module.TtrlExperiment(given, load_config(TtrlConfig, ROOT / given.ttrl, []), ROOT, ROOT, None, print)
    alike = {v.name for v in given.variants if module.shares_baseline_calibration(runs, ExperimentPart(v, 0))}
    assert {"ours", "ours-flips-30", "no-control", "no-ema", "abrupt"} <= alike
    assert not alike & {"hard-majority", "majority-flips-30", "voting-16", "answer-voting", "tta-without-tools"}


def small_runs(tmp_path, work, **changes):
    config = ReproduceTtrlConfig.model_validate(
        {"ttrl": tmp_path / "t.yaml", "families": ["search"], "stream_items": 4, "held_items": 8,
         "variants": [{"name": "ours"}]}
    )  # fmt: skip
    return module.TtrlExperiment(config, TtrlConfig(**changes), work, tmp_path / "out", None, print)


@pytest.mark.parametrize("key", ["stream_items", "statistics_items", "memory_items", "skip"])
def test_a_memory_of_other_items_is_not_gone_on_with(tmp_path, monkeypatch, key):
    """Which items fill the memory depends on how many are asked before them."""
    monkeypatch.setattr(module, "adapt", lambda settings, items, folder, **more: filled.append(folder))
    filled, runs = [], small_runs(tmp_path, tmp_path / "work")
    module.build_shared_memory(runs, print)
    (runs.work / "memory" / "ledger.jsonl").write_text("".join(json.dumps(row(k)) + "\n" for k in range(1, 200)))
    module.build_shared_memory(runs, print)
    assert len(filled) == 1  # the same ones: nothing is asked again
    other = runs.config.model_copy(update={key: getattr(runs.config, key) + 1})
    with pytest.raises(ConfigError, match="other weights, settings or questions"):
        module.build_shared_memory(runs._replace(config=other), print)


def test_a_stream_of_another_machine_is_taken_from_its_archive_and_asked_only_where_its_answers_are_kept(
    tmp_path, monkeypatch, capsys
):
    lives = []
    monkeypatch.setattr(module, "adapt", lambda *a, **k: lives.append(a))
    part, first = ExperimentPart(TtrlVariant(name="ours"), 0), small_runs(tmp_path, tmp_path / "a")
    write_part(first.work / "ours-0", [row(k) for k in range(1, 5)], [(k, 1.0) for k in range(8)], "held-4")
    module.archive_part(
        first.stream_folder(part), first.archive("ours-0-stream"), module.STREAM_FILES, first.fingerprint(part)
    )
    module.archive_part(
        first.work / "ours-0" / "held-4", first.archive("ours-0-held-4"), module.HELD_OUT_FILES,
        module.exam_fingerprint(first, part, 4),
    )  # fmt: skip
    second = small_runs(tmp_path, tmp_path / "b")
    module.run_stream(second, part, None)
    assert len(second.rows(part)) == 4
    module.run_exam(second, part, 4, None)
    assert module.exam_finished(module.held_out_folder(second, part, 4), part)
    module.run_exam(second, part, 2, None)  # its weights after two queries are on the other machine
    assert not module.exam_finished(module.held_out_folder(second, part, 2), part)
    assert "delete that file" in capsys.readouterr().out
    assert lives == []
    with pytest.raises(ConfigError, match="other weights, settings or questions"):
        module.run_stream(small_runs(tmp_path, tmp_path / "b", kappa=0.0), part, None)
    module.run_stream(small_runs(tmp_path, tmp_path / "c", kappa=0.0), part, None)  # made of something else
    assert [settings.name for settings, *_ in lives] == ["memory", "ours-0"]


def test_what_a_kill_left_half_done_is_done_at_the_next_start(tmp_path, monkeypatch):
    """A stream that ended without its archive; one whose files were being taken from its archive; an exam without its
    questions of the old domain."""
    monkeypatch.setattr(module, "adapt", lambda *a, **k: pytest.fail("ran again"))
    part, runs = ExperimentPart(TtrlVariant(name="ours"), 0), small_runs(tmp_path, tmp_path / "a", learn=False)
    write_part(runs.work / "ours-0", [row(k, learnt=False) for k in range(1, 5)], [(k, 1.0) for k in range(8)], "held")
    module.write_fingerprint(runs.stream_folder(part), runs.fingerprint(part))
    assert not module.exam_finished(module.held_out_folder(runs, part, 0), part)
    module.run_stream(runs, part, None)
    assert runs.archive("ours-0-stream").exists()
    other = runs._replace(work=tmp_path / "b")
    write_part(other.work / "ours-0", [row(1, learnt=False)], [], "held")
    module.run_stream(other, part, None)
    assert len(other.rows(part)) == 4


def test_a_figure_that_fails_leaves_no_table_that_would_say_all_is_drawn(tmp_path, monkeypatch):
    (tmp_path / "t.yaml").write_text("policy: nano-sft\nlearn: false\n")
    runs = small_runs(tmp_path, tmp_path / "work", policy="nano-sft", learn=False)
    part = ExperimentPart(TtrlVariant(name="ours"), 0)
    write_part(runs.work / "ours-0", [row(k, learnt=False) for k in range(1, 5)], [(k, 1.0) for k in range(8)], "held")
    module.write_fingerprint(runs.stream_folder(part), runs.fingerprint(part))
    module.write_fingerprint(module.held_out_folder(runs, part, 0), module.exam_fingerprint(runs, part, 0))
    write_greedy(runs.work / "statistics", [1.0, 1.0])
    facts = {"families": ("search",), "shifts": runs.config.shifts, "items": 20, "skip": 4}
    module.write_fingerprint(runs.work / "statistics", {"weights": module.hash_weights("nano-sft"), **facts})
    with monkeypatch.context() as broken:
        broken.setattr(top, "draw_families", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            reproduce_ttrl(runs.config, runs.work, tmp_path / "out", log=print)
    assert not (tmp_path / "out" / "table.json").exists()
    reproduce_ttrl(runs.config, runs.work, tmp_path / "out", log=print)
    assert (tmp_path / "out" / "families.svg").exists()


def test_stress_is_asked_greedily_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "adapt", lambda *a, **k: pytest.fail("asked by vote"))
    asked = []
    monkeypatch.setattr(module, "evaluate_model", lambda *a, out, **k: (asked.append(out.name), write_greedy(out, [1])))
    runs, part = (
        small_runs(tmp_path, tmp_path / "work", learn=False),
        ExperimentPart(TtrlVariant(name="flips", matched=False), 0),
    )
    module.run_exam(runs, part, 0, None)
    folder = module.held_out_folder(runs, part, 0)
    assert asked == ["greedy", "old"]
    assert module.exam_finished(folder, part)
    assert not module.exam_finished(folder, ExperimentPart(TtrlVariant(name="flips"), 0))
    measures = held_out_run(0, folder, {}).measures
    assert measures["greedy"].tolist() == [100.0]
    assert "voted" not in measures


def test_nobody_who_learns_is_asked_before_the_budget_is_known(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "adapt", lambda *a, **k: None)
    monkeypatch.setattr(top, "run_exam", lambda *a, **k: pytest.fail("asked too soon"))
    (tmp_path / "ttrl.yaml").write_text("policy: nano-sft\n")
    config = ReproduceTtrlConfig.model_validate(
        {"ttrl": tmp_path / "ttrl.yaml", "families": ["search"], "stream_items": 4,
         "variants": [{"name": "ours"}, {"name": "hard"}]}
    )  # fmt: skip
    write_part(tmp_path / "work" / "ours-0", [row(k) for k in range(1, 5)], [(0, 1.0)], "held-2")
    runs = module.TtrlExperiment(
        config, load_config(TtrlConfig, config.ttrl, []), tmp_path / "work", tmp_path, None, print
    )
    part = ExperimentPart(config.variants[0], 0)
    module.write_fingerprint(runs.stream_folder(part), runs.fingerprint(part))
    found = reproduce_ttrl(config, tmp_path / "work", tmp_path / "out", only=["ours"], log=print)
    assert "depends on unfinished streams: hard-0" in capsys.readouterr().out
    assert found["left"] == ["ours-0", "hard-0"]


def test_with_a_budget_that_is_named_each_is_asked_after_its_own_stream(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(top, "run_stream", lambda runs, part, show: told.append(f"{part.name} lives"))
    monkeypatch.setattr(top, "run_exam", lambda runs, part, budget, show: told.append(f"{part.name} after {budget}"))
    (tmp_path / "ttrl.yaml").write_text("policy: nano-sft\n")
    config = ReproduceTtrlConfig.model_validate(
        {"ttrl": tmp_path / "ttrl.yaml", "families": ["search"], "budget": 3,
         "variants": [{"name": "ours"}, {"name": "hard"}]}
    )  # fmt: skip
    reproduce_ttrl(config, tmp_path / "work", tmp_path / "out")
    assert told == ["ours-0 lives", "ours-0 after 3", "hard-0 lives", "hard-0 after 3"]
    assert json.loads((tmp_path / "out" / "table.json").read_text())["budget"] == 3


def test_a_stream_that_is_not_finished_is_left_over(tmp_path):
    config = ReproduceTtrlConfig.model_validate(
        {"ttrl": tmp_path / "t.yaml", "families": ["search"], "stream_items": 4, "variants": [{"name": "ours"}]}
    )
    runs = module.TtrlExperiment(config, TtrlConfig(), tmp_path, tmp_path, None, print)
    part = ExperimentPart(TtrlVariant(name="ours"), 0)
    (tmp_path / "ours-0" / "stream").mkdir(parents=True)
    (tmp_path / "ours-0" / "stream" / "ledger.jsonl").write_text(json.dumps(row(1)) + "\n")
    assert runs.rows(part) == []


def test_a_variant_without_thresholds_of_its_own_waits_for_those_that_are_shared(tmp_path):
    config = load_config(ReproduceTtrlConfig, ROOT / "configs" / "nano" / "reproduce_ttrl.yaml", [])
    config = config.model_copy(update={"ttrl": ROOT / config.ttrl})
    with pytest.raises(ConfigError, match="hard-majority-0 needs the thresholds of no-adaptation-0"):
        reproduce_ttrl(config, tmp_path / "runs", tmp_path / "results", only=["hard-majority"])
    assert not (tmp_path / "runs").exists()


def test_the_configuration_that_ships_is_valid_and_has_the_variants_of_the_paper():
    given = load_config(ReproduceTtrlConfig, ROOT / "configs" / "nano" / "reproduce_ttrl.yaml", [])
    base = load_config(TtrlConfig, ROOT / given.ttrl, [])
    names = {variant.name: variant for variant in given.variants}
    for variant in given.variants:
        override_config(base, variant.change)
    assert all(names[name].seeds == 3 for name in ("ours", "hard-majority", "no-adaptation", "no-control"))
    assert {
        "ans-ssc", "answer-voting", "no-value", "no-ema", "tta-without-tools", "ra-tta-without-tools", "ours-flips-20",
        "ours-flips-30", "majority-flips-30", "mismatched", "retrieval-shift", "abrupt", "gradual", "returning",
    } <= set(names)  # fmt: skip
    assert names["majority-flips-30"].change["vote"]["weighted"] is False
    entropy = [v.name for v in given.variants if v.change.get("objective") == "entropy"]
    assert all(not names[name].change.get("neighbour_votes") for name in entropy)  # its gradient hears no vote


@pytest.mark.parametrize("name", ["reproduce_ttrl", "settings_ttrl"])
def test_no_two_variants_are_the_same_thing_under_two_names(name):
    given = load_config(ReproduceTtrlConfig, ROOT / "configs" / "nano" / f"{name}.yaml", [])
    base = load_config(TtrlConfig, ROOT / given.ttrl, [])
    learning = [(override_config(base, v.change).model_dump_json(), v.course) for v in given.variants]
    assert len(set(learning)) == len(learning)
