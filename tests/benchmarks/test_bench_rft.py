"""An update of phase 2 as the bench takes it, and its rows where TRL is not installed."""

import json

import numpy as np

from benchmarks.bench_rft import make_update, rows
from benchmarks.bench_rollout import random_nano, random_picture
from pixelis.nano.fast_decode import Decoder
from pixelis.nano.nano_model import NanoConfig

SMALL = NanoConfig(hidden=32, layers=5, heads=2, head_dim=16, mlp=64, vision_hidden=16, vision_layers=1)


def test_an_update_takes_two_tool_turns_and_learns_from_what_it_sampled(tmp_path, monkeypatch):
    decoded, real = [], Decoder.__call__
    monkeypatch.setattr(Decoder, "__call__", lambda own, ids, *rest: decoded.append(len(ids)) or real(own, ids, *rest))
    policy, _ = random_nano(SMALL)
    rng = np.random.default_rng(0)
    update = make_update(policy, tmp_path, [random_picture(rng), random_picture(rng)], samples=3)
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    step = update()
    assert max(decoded) == 2 * 3  # none is decoded as one with another: TRL has no such way either
    assert step.values["calls"] == 2.0
    assert step.values["rapr"] == 100.0  # the view and the line of text came back, not a failure
    assert step.values["flat_groups"] == 0.0  # views differ, and so do rewards: there is something to learn
    assert step.values["skipped"] == 0.0
    assert step.values["gap"] < 1e-4
    assert any((value != before[name]).any() for name, value in policy.state_dict().items())
    assert step.sampled_tokens % (2 * 3 * 3) == 0  # three turns of equal length: two calls, and one too many
    assert step.read_tokens > step.sampled_tokens
    assert set(step.seconds) == {"rollouts", "rewards", "anchor", "step", "h_psi", "log"}
    assert 0.0 < step.seconds["log"] < step.without_reference < step.total
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 1


def test_without_trl_its_row_is_not_run_and_ours_is_measured(tmp_path, capsys):
    beside, shown, log = rows(SMALL, queries=2, samples=2, steps=1, peers=tmp_path)
    assert beside.ours_cpu_s > log.ours_cpu_s > 0.0
    assert (beside.peer, shown.peer) == (
        "TRL GRPOTrainer, one turn, no picture", "TRL GRPOTrainer, one turn, with the picture"
    )  # fmt: skip
    assert beside.peer_cpu_s is None
    assert "make peers" in beside.note
    assert 0.0 < float(log.note.split()[0]) < 100.0
    assert beside.name.startswith("an update of RFT, 2 queries x 2, 2 tool turns, ")
    assert capsys.readouterr().out == ""


def test_a_peer_that_fails_says_why_and_costs_nothing_of_ours(tmp_path):
    python = tmp_path / "trl" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no trl' >&2\nexit 1\n")
    python.chmod(0o755)
    beside, _, _ = rows(SMALL, queries=2, samples=2, steps=1, peers=tmp_path)
    assert beside.peer_cpu_s is None
    assert "no trl" in beside.note
    assert beside.ours_cpu_s > 0.0
