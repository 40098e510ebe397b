"""Evaluation of a policy on the world: a random one, since what is tested is the counting."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from pixelis.errors import ConfigError
from pixelis.eval.harness import Scored, interval, summed_up
from pixelis.eval.running import evaluate_model
from pixelis.eval.tasks import WorldTask, tasks_of
from pixelis.policy.checkpoint import Card, save_checkpoint
from pixelis.policy.nano import NanoConfig, build_nano
from pixelis.policy.tokens import Tokens, train_tokenizer
from pixelis.tools.toolbox import ToolboxConfig, build_tools


def row(score: float, *, steps: int = 2, valid: int = 2, answer: str | None = "x") -> Scored:
    return Scored("search", "id", "t", 1, answer, "x", score, steps, valid, "answered", 10)


def test_the_figures_of_three_items_worked_out_by_hand():
    found = summed_up("search", [row(1.0), row(0.0, steps=4, valid=1), row(1.0, steps=0, valid=0, answer=None)])
    assert found.score == pytest.approx(200 / 3)
    assert found.valid_calls == pytest.approx(50.0)  # 3 of 6 calls
    assert found.answered == pytest.approx(200 / 3)
    assert found.steps == pytest.approx(2.0)


def test_an_interval_of_right_and_wrong_is_exact_and_of_shares_holds_the_mean():
    # Clopper–Pearson of 0 of 10 ends at 1 - 0.025^(1/10)
    assert interval(np.zeros(10)) == pytest.approx((0.0, 100 * (1 - 0.025**0.1)))
    low, high = interval(np.array([0.2, 0.4, 0.6, 0.8]))
    assert low < 50.0 < high


def test_a_task_gives_the_same_items_again_and_none_that_a_corpus_has():
    first, again = ([made.item.id for made in WorldTask("search").items(3)] for _ in range(2))
    assert first == again
    assert all(int(name.rpartition("/")[2]) >= 3_000_500_000 for name in first)


def test_an_unknown_task_is_one_line():
    with pytest.raises(ConfigError, match="no task 'serach'"):
        tasks_of(["serach"], split="test")


def test_a_run_leaves_a_report_its_items_and_its_traces(tmp_path: Path):
    schemas = [tool.schema() for tool in build_tools(ToolboxConfig(seg="classical")).values()]
    tokens = Tokens(train_tokenizer(["Read the red panel."] * 40, schemas, vocabulary=300))
    tiny = NanoConfig(hidden=32, layers=5, heads=2, head_dim=16, mlp=64, vision_hidden=32)
    save_checkpoint(tmp_path / "tiny", build_nano(tiny, tokens, seed=0), Card(name="tiny"))
    found = evaluate_model(str(tmp_path / "tiny"), tasks_of(["search"], split="test"), limit=2, out=tmp_path / "out")
    assert found.overall.items == 2
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["report"]["overall"]["items"] == 2
    assert {"command", "commit", "seed"} <= report.keys() | report.get("settings", {}).keys()
    assert len((tmp_path / "out" / "items.jsonl").read_text().splitlines()) == 2
    assert len((tmp_path / "out" / "traces.jsonl").read_text().splitlines()) == 2
