"""The comparison of variants: what is run, what is skipped, and the table from files of scores written by hand."""

import json
import os
import shutil
from typing import NamedTuple

import pytest

from experiments.common.paired_tests import ExperimentPart, merge_config, select_parts
from experiments.rft import reproduce_rft
from experiments.rft.reproduce_rft import ReproduceRftConfig, RftVariant, build_table, collect_runs, read_curve
from experiments.rft.rft_figures import draw_dynamics, draw_process
from pixelis.core.config import load_config
from pixelis.core.errors import ConfigError
from pixelis.evaluation.harness import ScoredItem, to_row
from pixelis.evaluation.process_report import ProcessMeasures
from pixelis.training.grpo.rft_config import RftConfig

FOUR = ProcessMeasures((True,) * 4, 2, (None, 0.6, 0.6, 0.6))


def config(tmp_path, *variants):
    return ReproduceRftConfig.model_validate(
        {"rft": tmp_path / "rft.yaml", "sft": tmp_path / "sft.yaml", "variants": variants}
    )


def scored(item, score, steps, process=FOUR):
    return ScoredItem("search", item, "t", 1, "a", "a", score, steps, steps, "answered", 10, process)


def write(folder, rows):
    (folder / "eval").mkdir(parents=True)
    (folder / "eval" / "items.jsonl").write_text("".join(json.dumps(to_row(row)) + "\n" for row in rows))
    (folder / "eval" / "report.json").write_text("{}")
    (folder / "eval" / "traces.jsonl").write_text("")


def test_parts_are_all_seeds_of_all_variants_and_unknown_names_are_refused(tmp_path):
    given = config(tmp_path, {"name": "sft", "learn": "nothing"}, {"name": "cc-rft", "seeds": 2})
    assert [part.name for part in select_parts(given.variants, ())] == ["sft-0", "cc-rft-0", "cc-rft-1"]
    assert [part.name for part in select_parts(given.variants, ["cc-rft"])] == ["cc-rft-0", "cc-rft-1"]
    assert [part.name for part in select_parts(given.variants, ["cc-rft-1", "sft"])] == ["sft-0", "cc-rft-1"]
    with pytest.raises(ConfigError, match="no variant 'cc-rft-2'"):
        select_parts(given.variants, ["cc-rft-2"])
    with pytest.raises(ConfigError, match="no variant 'nope'"):
        select_parts(given.variants, ["nope"])


def test_a_variant_changes_single_keys():
    assert merge_config({"reward": {"a": 1, "b": 2}, "x": 3}, {"reward": {"b": 5}}) == {
        "reward": {"a": 1, "b": 5},
        "x": 3,
    }


def test_a_table_by_hand(tmp_path):
    write(tmp_path / "sft-0", [scored(str(k), float(k % 2), 6) for k in range(8)])
    write(tmp_path / "cc-rft-0", [scored(str(k), 1.0, 3) for k in range(8)])
    write(tmp_path / "cc-rft-1", [scored(str(k), 0.5, 3) for k in range(8)])
    metrics = tmp_path / "cc-rft-0" / "train"
    metrics.mkdir()
    told = {"reward": 0.0, "calls": 3, "rapr": 1, "racpr": 1, "share_final": 0.75, "share_penalty": 0.25}
    rows = [
        {**told, "step": k, "kl": k / 100, "mix_SEG": 1.0 if k <= 5 else 0.5, "mix_OCR": 0.0 if k <= 5 else 0.5}
        for k in range(1, 21)
    ]
    (metrics / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = [ExperimentPart(RftVariant(name="sft", learn="nothing"), 0)]
    done += [ExperimentPart(RftVariant(name="cc-rft", seeds=2), k) for k in (0, 1)]
    sft, ours = build_table(done, collect_runs(done, tmp_path, {}), tmp_path)
    assert sft["accuracy"]["mean"] == 50.0
    assert "over_sft" not in sft["accuracy"]
    assert ours["seeds"] == 2
    assert ours["accuracy"]["mean"] == 75.0  # 1.0 and 0.5, averaged item by item
    assert ours["accuracy"]["over_seeds"] == pytest.approx(50 / 2**0.5)
    over = ours["calls"]["over_sft"]
    assert (over["difference"], over["less"]) == (-3.0, 50.0)
    # every one of eight pairs falls by 3: two of 2^8 swaps are as extreme
    assert over["p"] == pytest.approx(2 / 2**8)
    assert ours["updates"] == [20, 0]
    # KL of updates 6 to 20: the median is 0.13
    assert ours["kl"]["p50"] == pytest.approx(0.13)
    # of the updates after the fifth, half of the calls are SEG and half OCR: ln 2
    assert ours["action_entropy"] == pytest.approx(0.693147)
    assert ours["shares"] == pytest.approx({"final": 0.75, "penalty": 0.25})
    draw_dynamics({"cc-rft": [read_curve(tmp_path / "cc-rft-0" / "train")]}, tmp_path / "dynamics.svg", target=0.15)
    draw_process([sft, ours], tmp_path / "process.svg")
    assert (tmp_path / "dynamics.svg").stat().st_size > 5_000
    assert (tmp_path / "process.svg").read_text().count("cc-rft") >= 1


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The folders that were evaluated into: each policy has one question right of two."""
    nothing = tmp_path / "corpus"
    nothing.mkdir()  # of a build that failed
    (nothing / ".lock").touch()
    (tmp_path / "rft.yaml").write_text(f"policy: nano-sft\ncorpus: {nothing}\n")
    folders = []

    def evaluate(*given, out, **more):
        folders.append(out.relative_to(tmp_path).as_posix())
        rows = [scored("0", 1.0, 4), scored("1", 0.0, 2)]
        out.mkdir(parents=True)
        (out / "items.jsonl").write_text("".join(json.dumps(to_row(row)) + "\n" for row in rows))
        (out / "report.json").write_text("{}")

    monkeypatch.setattr(reproduce_rft, "evaluate_model", evaluate)
    return folders


def test_what_has_ended_is_not_run_again(tmp_path, monkeypatch, asked):
    given = config(tmp_path, {"name": "sft", "learn": "nothing"}, {"name": "cc-rft"})
    trained = []
    monkeypatch.setattr(
        reproduce_rft,
        "train_rft",
        lambda *given, **more: trained.append("train") or (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        reproduce_rft.reproduce_rft(given, tmp_path / "work", tmp_path / "out")
    assert asked == ["work/statistics", "work/sft-0/eval"]
    said = []
    found = reproduce_rft.reproduce_rft(given, tmp_path / "work", tmp_path / "out", only=["sft"], log=said.append)
    assert (len(asked), trained) == (2, ["train"])
    assert found["left"] == ["cc-rft-0"]
    assert said == []  # layer and gate are for whoever asks for cc-rft, or for all
    assert json.loads((tmp_path / "out" / "table.json").read_text())["rows"][0]["variant"] == "sft"


def test_what_ended_on_another_machine_is_taken_from_its_archive_unless_it_was_made_of_something_else(tmp_path, asked):
    given = config(tmp_path, {"name": "sft", "learn": "nothing"}, {"name": "cc-rft"})

    def reproduced(work, given=given):
        return reproduce_rft.reproduce_rft(given, tmp_path / work, tmp_path / "out", only=["sft"])

    first = reproduced("here")
    assert first["rows"][0]["accuracy"]["mean"] == 50.0
    assert first["written"] == str(tmp_path / "out")
    assert reproduced("elsewhere") == {**first, "written": None}
    with pytest.raises(ConfigError, match="no variant 'stf'"):
        reproduce_rft.reproduce_rft(given, tmp_path / "here", tmp_path / "out", only=["stf"])
    assert asked == ["here/statistics", "here/sft-0/eval"]
    other = given.model_copy(update={"items": 7})
    with pytest.raises(ConfigError, match="sft-0 is of other weights, settings or questions"):
        reproduced("here", other)
    reproduced("third", other)
    assert asked[2:] == ["third/sft-0/eval"]  # the statistics do not depend on the questions
    (tmp_path / "out" / "parts" / "sft-0.zip").write_bytes(b"PK")
    with pytest.raises(ConfigError, match=r"sft-0.zip is damaged"):
        reproduced("fourth")


class Trained(NamedTuple):
    policy: str


def test_rivals_take_the_weight_that_matches_our_kl_and_more_of_phase_1_takes_our_seconds(tmp_path, monkeypatch, asked):
    """Ours drifts by 0.1 an update's end and takes 2 s an update; a rival's KL is half of its w₃."""
    given = config(
        tmp_path, {"name": "cc-rft"}, {"name": "l2", "search": [0.1, 0.2, 0.4], "change": {"reward": {"prior": "l2"}}},
        {"name": "sft-more", "learn": "sft"},
    ).model_copy(update={"search_updates": 3})  # fmt: skip
    with (tmp_path / "rft.yaml").open("a") as file:
        file.write("lr_floor: 0.25\n")
    (tmp_path / "sft.yaml").write_text("corpus: nowhere\nepochs: 8\n")
    settings, minutes, said = [], [], []

    def learn(own, folder, **more):
        settings.append(own)
        kl = 0.1 if own.reward.coherence_kind == "adjacency" else own.reward.coherence / 2
        rows = [
            {"step": k, "reward": 0.0, "kl": kl, "calls": 3, "rapr": 1, "racpr": 1, "seconds_rollout": 1.5,
             "seconds_update": 0.5}
            for k in range(1, 4)
        ]  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return Trained(str(folder))

    monkeypatch.setattr(reproduce_rft, "train_rft", learn)
    monkeypatch.setattr(
        reproduce_rft, "train_sft", lambda own, folder: minutes.append(own.minutes) or Trained(str(folder))
    )
    half_way = tmp_path / "work" / "cc-rft-0" / "train"
    half_way.mkdir(parents=True)
    (half_way / "metrics.jsonl").write_text('{"step": 1, "reward": 0.0, "kl": 0.1}\n')
    found = reproduce_rft.reproduce_rft(given, tmp_path / "work", tmp_path / "out", only=["l2"], log=said.append)
    assert "l2-0 waits for cc-rft-0" in said
    assert found["left"] == ["cc-rft-0", "l2-0", "sft-more-0"]
    found = reproduce_rft.reproduce_rft(given, tmp_path / "work", tmp_path / "out")
    assert found["left"] == []
    assert [own.reward.coherence for own in settings[1:]] == [0.1, 0.2, 0.4, 0.2]
    assert [own.steps for own in settings] == [100, 3, 3, 3, 100]
    rates = [[own.learning_rate_at(k) for k in range(3)] for own in settings]
    assert all(own == pytest.approx(rates[0], rel=1e-12) for own in rates)  # also where only three updates are tried
    assert minutes == [0.1]
    rival = found["rows"][1]
    assert (rival["search"]["wanted_kl"], rival["search"]["w3"]) == (pytest.approx(0.1), 0.2)
    assert rival["search"]["kl"] == pytest.approx({"0.1": 0.05, "0.2": 0.1, "0.4": 0.2})
    assert [row["over"] for row in found["pairs"]] == ["l2", "sft-more"]


def test_layer_and_gate_are_scored_from_every_seed_that_is_done_and_again_only_when_one_is_new(tmp_path, monkeypatch):
    change = {"reward": {"tool_scalers": False}}
    given = config(tmp_path, {"name": "start", "learn": "nothing"}, {"name": "cc-rft", "seeds": 3, "change": change})
    base = RftConfig.model_validate({"policy": "nano-sft", "corpus": "nowhere", "reward": {"curiosity": 0.7}})
    work, out, asked, said = tmp_path / "work", tmp_path / "out", [], []
    monkeypatch.setattr(
        reproduce_rft, "rescore_layers_and_gates", lambda *what: asked.append(what) or [{"setting": "layer +0"}]
    )

    def rescore():
        reproduce_rft.rescore(given, base, work, out, said.append)
        return len(asked)

    write(work / "start-0", [])
    (work / "statistics").mkdir()
    (work / "statistics" / "report.json").write_text("{}")
    (work / "statistics" / "traces.jsonl").write_text("")
    assert rescore() == 0
    write(work / "cc-rft-0", [])
    write(work / "cc-rft-2", [])
    for report in work.rglob("report.json"):
        os.utime(report, (1, 1))
    assert rescore() == 1
    assert said[-1].endswith("cc-rft: 2 of 3 seeds")
    policy, own, others, reward = asked[0]
    assert policy == "nano-sft"
    assert (own.folders, own.limit, {task.split for task in own.tasks}) == ((work / "statistics",), 40, {"dev"})
    assert others.folders == (work / "cc-rft-0" / "eval", work / "cc-rft-2" / "eval")
    assert (others.limit, {task.split for task in others.tasks}) == (100, {"test"})
    assert (reward.curiosity, reward.tool_scalers) == (0.7, False)  # the run's own: the base, and what it changes
    assert json.loads((out / "rescored.json").read_text())["made_of"]["chains"] == ["cc-rft-0", "cc-rft-2"]
    assert rescore() == 1
    os.utime(work / "cc-rft-2" / "eval" / "report.json", (2**32, 2**32))  # evaluated after that
    assert rescore() == 2
    os.utime(work / "cc-rft-2" / "eval" / "report.json", (1, 1))
    write(work / "cc-rft-1", [])
    os.utime(work / "cc-rft-1" / "eval" / "report.json", (1, 1))  # copied from elsewhere: old, but not among them yet
    assert rescore() == 3
    shutil.rmtree(work / "cc-rft-1")  # another machine, which has run fewer
    assert rescore() == 3
    assert "it is kept" in said[-1]


def test_parts_that_were_kept_before_there_was_a_temperature_are_still_those_of_1(tmp_path):
    given = config(tmp_path, {"name": "cc-rft"})
    base = RftConfig.model_validate({"policy": "nano-sft", "corpus": "nowhere"})
    part = select_parts(given.variants, ())[0]
    fact = reproduce_rft.part_fingerprint(part, given, base)["settings"]
    before = {key: value for key, value in fact.dump().items() if key != "temperature"}
    assert fact.matches(before)
    sharper = base.model_copy(update={"temperature": 0.6})
    assert not reproduce_rft.part_fingerprint(part, given, sharper)["settings"].matches(before)


def test_held_out_items_are_those_after_the_ones_that_settings_were_chosen_on(tmp_path):
    given = config(tmp_path, {"name": "cc-rft"}).model_copy(update={"skip": 7})
    tasks = reproduce_rft.held_out_tasks(given)
    assert [(task.split, task.skip) for task in tasks] == [("test", 7)] * 6
    base = RftConfig.model_validate({"policy": "nano-sft", "corpus": "nowhere"})
    part = select_parts(given.variants, ())[0]
    signed = [reproduce_rft.part_fingerprint(part, own, base) for own in (given, given.model_copy(update={"skip": 8}))]
    assert signed[0] != signed[1]


def test_ours_must_be_one_of_the_variants(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "rft: r.yaml\nsft: s.yaml\nvariants: [{name: full}, {name: start, learn: nothing}]\n"
    )
    with pytest.raises(ConfigError, match="no variant 'cc-rft': expected one of full, start"):
        load_config(ReproduceRftConfig, tmp_path / "a.yaml")
    assert load_config(ReproduceRftConfig, tmp_path / "a.yaml", ["ours=full"]).ours == "full"


def test_the_configuration_that_ships_is_valid():
    from pathlib import Path

    root = Path(__file__).resolve().parents[2]
    given = load_config(ReproduceRftConfig, root / "configs" / "nano" / "reproduce_rft.yaml", [])
    assert {"sft", "cc-rft", "rft-base", "pixel-reasoner", "sft-more", "no-control"} <= {v.name for v in given.variants}
