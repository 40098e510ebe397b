"""Evaluation of a policy on the world: a random one, since what is tested is the counting."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import bootstrap

from pixelis.core.errors import ConfigError, PixelisError
from pixelis.data.build.build_corpus import build
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.importers import ImportOptions, find_or_import_items
from pixelis.evaluation.harness import ScoredItem, score_interval, summarise_scores
from pixelis.evaluation.process_report import ProcessMeasures
from pixelis.evaluation.run_evaluation import evaluate_model
from pixelis.evaluation.tasks import WorldTask, make_tasks
from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy.checkpoint import ModelCard, save_checkpoint
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.tools.toolbox import ToolboxConfig, build_tools


def row(score: float, *, steps: int = 2, valid: int = 2, answer: str | None = "x") -> ScoredItem:
    process = ProcessMeasures((True,) * valid + (False,) * (steps - valid), min(valid, 1), (None,) * steps)
    return ScoredItem("search", "id", "t", 1, answer, "x", score, steps, valid, "answered", 10, process)


def test_the_figures_of_three_items_worked_out_by_hand():
    found = summarise_scores("search", [row(1.0), row(0.0, steps=4, valid=1), row(1.0, steps=0, valid=0, answer=None)])
    assert found.score == pytest.approx(200 / 3)
    assert found.valid_calls == pytest.approx(50.0)  # 3 of 6 calls
    assert summarise_scores("t", [row(1.0, steps=0, valid=0)]).valid_calls is None
    assert found.answered == pytest.approx(200 / 3)
    assert found.steps == pytest.approx(2.0)
    assert found.decisive == pytest.approx(2 / 3)
    assert found.rapr == pytest.approx(100 * (1 + 0.25 + 0) / 3)  # 2 of 2, 1 of 4, and a chain without steps


def test_an_interval_of_right_and_wrong_is_exact_and_of_shares_is_scipys_bca():
    # Clopper–Pearson of 0 of 10 ends at 1 - 0.025^(1/10)
    assert score_interval(np.zeros(10)) == pytest.approx((0.0, 100 * (1 - 0.025**0.1)))
    shares = np.array([1.0, 1.0, 1.0, 0.9, 1.0, 0.2, 1.0, 0.6])  # skewed: percentiles would be 63.75 to 100
    reference = bootstrap((shares,), np.mean, n_resamples=10_000, rng=np.random.default_rng(0), method="BCa")
    interval = reference.confidence_interval
    assert score_interval(shares) == pytest.approx((100 * interval.low, 100 * interval.high), abs=0.5)


def test_a_task_gives_the_same_items_again_and_none_that_a_corpus_has():
    first, again = ([made.item.id for made in WorldTask("search").items(3)] for _ in range(2))
    assert first == again
    assert all(int(name.rpartition("/")[2]) >= 3_000_500_000 for name in first)


def test_items_that_somebody_has_looked_at_are_passed_over():
    whole, later = (list(WorldTask("space", skip=skip).items(5 - skip)) for skip in (0, 2))
    assert [made.item for made in later] == [made.item for made in whole][2:]


def test_an_unknown_task_is_one_line():
    with pytest.raises(ConfigError, match="no task 'serach'"):
        make_tasks(["serach"], split="test")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Two pictures with a question each, as a corpus (train and test) beside its file of items."""
    rows = []
    for k, colour in enumerate(("red", "blue")):
        Image.new("RGB", (32, 24), colour).save(tmp_path / f"{k}.png")
        rows.append({"media": f"{k}.png", "question": "What colour?", "answer": colour, "references": [BOX]})
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    items, _ = find_or_import_items(
        tmp_path / "mine.jsonl", tmp_path / "items.jsonl", ImportOptions(tmp_path, items_path=tmp_path / "i")
    )
    config = {"items": [str(items)], "teacher": {"kind": "answers"}, "toolbox": {"isolate": False}}
    assert build(CorpusConfig.model_validate(config), tmp_path / "corpus", workers=1).is_complete
    return tmp_path


BOX = {"box": [0.1, 0.1, 0.9, 0.9]}


def test_a_corpus_is_a_task_by_its_split_and_a_file_of_items_by_its_order(own):
    corpus, file = str(own / "corpus"), str(own / "items.jsonl")
    held_out, train, both = make_tasks([corpus, f"{corpus}:train", file], split="test")
    assert [task.name for task in (held_out, train, both)] == [f"{corpus}:test", f"{corpus}:train", file]
    assert [task.size(200) for task in (held_out, train, both)] == [1, 1, 2]
    first, second = both.items(200)
    assert {made.item.id for task in (held_out, train) for made in task.items(9)} == {first.item.id, second.item.id}
    assert first.media[0].sha256 == first.item.media[0].sha256
    assert len(list(both.items(1))) == 1


def test_a_shift_reaches_questions_that_have_no_program(own):
    (task,) = make_tasks([str(own / "items.jsonl")], split="test", shift="occlusion:5")
    made = next(task.items(1))
    assert made.item.shift.name == "occlusion"
    assert made.item.answer == "red"


def test_what_is_no_task_is_one_line(own):
    for name, reason in (
        (f"{own}/corpus:dev", "no items in its split dev (it has train 1, test 1)"),
        (f"{own}/mine.jsonl", "mine.jsonl:1: not an item"),
        (f"{own}/gone", "no task"),
        (str(own), "not a corpus; build one there with `pixelis data build"),
        ("search", "split train is for a corpus"),
    ):
        with pytest.raises(PixelisError, match=re.escape(reason)):
            make_tasks([name], split="train")


def test_a_run_leaves_a_report_its_items_and_its_traces(tmp_path: Path):
    schemas = [tool.schema() for tool in build_tools(ToolboxConfig(seg="classical")).values()]
    tokens = PolicyTokenizer(train_tokenizer(["Read the red panel."] * 40, schemas, vocabulary=300))
    tiny = NanoConfig(hidden=32, layers=5, heads=2, head_dim=16, mlp=64, vision_hidden=32)
    save_checkpoint(tmp_path / "tiny", build_nano(tiny, tokens, seed=0), ModelCard(name="tiny"))
    found = evaluate_model(str(tmp_path / "tiny"), make_tasks(["search"], split="test"), limit=2, out=tmp_path / "out")
    assert found.overall.items == 2
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["report"]["overall"]["items"] == 2
    assert {"command", "commit", "seed"} <= report.keys() | report.get("settings", {}).keys()
    assert len((tmp_path / "out" / "items.jsonl").read_text().splitlines()) == 2
    assert len((tmp_path / "out" / "traces.jsonl").read_text().splitlines()) == 2
