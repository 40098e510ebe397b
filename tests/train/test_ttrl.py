"""Phase 3 on the shipped policy with real tools: rows before learning, updates bit for bit, SIGKILL, the guard."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from pixelis.errors import TraceError
from pixelis.eval.tasks import interleaved, tasks_of
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Query
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.train.adaptation import LEDGER, read_rows
from pixelis.train.ttrl import adapt, begin, go_back
from pixelis.train.ttrl_config import TtrlConfig
from pixelis.train.ttrl_update import Lesson, read_lesson, update, write_lesson

RUNNER = Path(__file__).with_name("run_ttrl.py")


def stream(count):
    return list(islice(interleaved(tasks_of(["search", "space"], split="test"), count), count))


@pytest.fixture
def settings():
    def make(**changes):
        given = {
            "policy": "nano-sft", "samples": 3, "neighbours": 0, "value_weighting": False, "lr": 1e-3,
            "vote": {"delta": 0.0, "max_entropy": 1.1}, "limits": {"steps": 5, "total_tokens": 900},
            "snapshot_every": 2, "guard": 5.0,
        }  # fmt: skip
        return TtrlConfig.model_validate(given | changes)

    return make


@pytest.fixture(scope="module")
def lessons():
    """Real rollouts of the shipped policy."""
    loaded = load_checkpoint("nano-sft")
    made = stream(2)
    queries = [Query(m.item.id, m.item.question, MediaSet(m.media), m.item.seed) for m in made]
    with Toolbox(ToolboxConfig(seg="classical", isolate=False)) as toolbox:
        groups = rollout(loaded.policy, toolbox, queries, n=3, seed=1)
    return [
        Lesson(tuple(r.ledger for r in group), np.array([1.0, -0.5, 0.2]), np.array([True, True, True]))
        for group in groups
    ]


def test_an_update_taken_again_from_disk_gives_the_same_bits(settings, lessons, tmp_path):
    torch.set_num_threads(1)
    digests = []
    for again in (False, True):
        learner = begin(settings(), load_checkpoint("nano-sft"))
        for k, lesson in enumerate(lessons):
            write_lesson(tmp_path / f"{k}.safetensors", lesson)
            done = update(settings(), learner, read_lesson(tmp_path / f"{k}.safetensors") if again else lesson)
            assert not done.refused
        digests.append(learner.digest())
    assert digests[0] == digests[1]


def test_where_all_abstain_only_the_average_moves(settings, lessons):
    learner = begin(settings(), load_checkpoint("nano-sft"))
    before = {k: v.clone() for k, v in learner.policy.state_dict().items()}
    done = update(settings(), learner, lessons[0]._replace(masks=np.zeros(3, dtype=bool), advantages=np.zeros(3)))
    assert done.kl == pytest.approx(0.0, abs=1e-6)
    for name, value in learner.policy.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=1e-5)


def test_an_update_that_drifts_too_far_is_refused_and_leaves_everything_as_it_was(settings, lessons):
    learner = begin(settings(), load_checkpoint("nano-sft"))
    before = {k: v.clone() for k, v in learner.policy.state_dict().items()}
    done = update(settings(lr=0.5, guard=0.01), learner, lessons[0])
    assert "over 0.01" in done.refused
    assert all(torch.equal(value, before[name]) for name, value in learner.policy.state_dict().items())


def test_a_stream_is_answered_before_it_is_learnt_from_and_can_be_reverted(settings, tmp_path):
    items = stream(4)
    report = adapt(settings(), items, tmp_path / "run")
    rows = read_rows(tmp_path / "run" / LEDGER)
    assert report.queries == len(rows) == 4
    assert len({row["weights"] for row in rows}) > 1
    # the first answer is that of the policy that was never touched
    still = adapt(settings(learn=False), items, tmp_path / "still")
    untouched = read_rows(tmp_path / "still" / LEDGER)
    assert rows[0]["vote"] == untouched[0]["vote"]
    assert still.updates == 0
    row = go_back(tmp_path / "run", 2)
    assert row["weights"] == rows[1]["weights"]
    assert len(read_rows(tmp_path / "run" / LEDGER)) == 2
    # and from there it goes on to the same rows
    adapt(settings(), items, tmp_path / "run")
    assert [r["weights"] for r in read_rows(tmp_path / "run" / LEDGER)] == [r["weights"] for r in rows]
    with pytest.raises(TraceError, match="cannot go back"):
        go_back(tmp_path / "run", 99)


def test_sigkill_twenty_times_and_nothing_acknowledged_is_lost(settings, tmp_path):
    """Killed at random moments; what was acknowledged stays, and the whole is the same as without."""
    config = settings(samples=2, limits={"steps": 2, "total_tokens": 400})
    adapt(config, stream(5), tmp_path / "whole")
    wanted = [row["weights"] for row in read_rows(tmp_path / "whole" / LEDGER)]
    (tmp_path / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, str(RUNNER), str(tmp_path / "config.json"), str(tmp_path / "run"), "5"]
    chance, known = random.Random(0), 0
    for _ in range(20):
        process = subprocess.Popen(command)
        time.sleep(3.0 + 4.0 * chance.random())
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        rows = read_rows(tmp_path / "run" / LEDGER)
        assert len(rows) >= known
        assert [row["weights"] for row in rows] == wanted[: len(rows)]
        known = len(rows)
    adapt(config, stream(5), tmp_path / "run")
    assert [row["weights"] for row in read_rows(tmp_path / "run" / LEDGER)] == wanted


def test_a_ledger_whose_last_line_was_cut_off_is_read_without_it(tmp_path):
    (tmp_path / LEDGER).write_text(json.dumps({"query": 1}) + "\n" + '{"query": 2, "ans')
    assert read_rows(tmp_path / LEDGER) == [{"query": 1}]
    assert (tmp_path / LEDGER).read_text() == json.dumps({"query": 1}) + "\n"
