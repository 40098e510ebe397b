"""Drills are real conversations: the grammar reads their calls, and what they ask for was given before."""

import json
import re

import numpy as np
import pytest

from pixelis.policy.nano import NANO_STYLE
from pixelis.policy.pictures import Optics
from pixelis.rollout.episode import read_turn
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.train.drills import DRILLS, drill, drill_batch
from pixelis.train.sft import train_sft


@pytest.mark.parametrize("make", DRILLS)
def test_whatever_a_call_or_an_answer_says_was_given_before(make):
    rng = np.random.default_rng(1)
    for _ in range(50):
        question, talk, thought, answer = make(rng)
        known = question
        for _, call, said in talk:
            where = call.args.get("box")
            if where:
                assert "[" + ", ".join(f"{v:.2f}" for v in where) + "]" in known
            target = call.args.get("target")
            assert target is None or target in question
            known += "\n" + said
        assert answer in known
        assert answer in thought


def test_the_side_that_is_asked_for_is_the_one_that_is_answered():
    rng = np.random.default_rng(2)
    for _ in range(50):
        question, talk, thought, answer = DRILLS[2](rng)
        edges = {call.args["target"]: float(re.search(r"\[([\d.]+)", said)[1]) for _, call, said in talk}
        best = (min if "leftmost" in question else max)(edges.values())
        assert edges[answer] == best
        assert thought.endswith(f"is the {answer}.")


def test_their_tokens_are_turns_that_a_rollout_can_read(tokens):
    rng = np.random.default_rng(3)
    schemas = {
        schema["function"]["name"]: schema["function"]["parameters"]["properties"]
        for schema in Toolbox(ToolboxConfig(isolate=False, cache=False)).schemas()
    }
    for _ in range(20):
        example = drill(rng, tokens, NANO_STYLE, Optics(patch=8))
        for step in range(1, int(example.step_of.max()) + 1):
            own = (example.step_of == step) & example.sampled
            said = read_turn(example.ids[own].tolist(), tokens)
            assert said.answer or set(said.call.args) <= set(schemas[said.call.tool])


def test_a_batch_is_as_large_as_it_may_be(tokens):
    batch = drill_batch(np.random.default_rng(4), tokens, NANO_STYLE, Optics(patch=8), 3000)
    assert 3000 / 2 < len(batch) * max(len(each) for each in batch) <= 3000


def test_a_run_that_drills_logs_it_and_goes_on_to_the_corpus(settings, tmp_path):
    train_sft(settings(drill_steps=4, epochs=1), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    drills = [row["drill_loss"] for row in rows if "drill_loss" in row]
    assert len(drills) == 4
    assert drills[-1] < drills[0]
    assert any("dev_loss" in row for row in rows)
