"""Phase 2 and what goes wrong around it: nothing ends a run that one batch can be passed over for."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from pixelis.core.errors import ConfigError
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.policy_update import UpdateStats
from pixelis.training.grpo import rft_run_log, train
from pixelis.training.grpo.rft_state import RftState
from pixelis.training.grpo.train import train_rft, update_controller
from pixelis.verification import operators


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_verifier_that_fails_says_nothing_about_its_step_and_is_counted(rft_settings, tmp_path, monkeypatch):
    def broken(result, references):
        raise ValueError("a mask of no size")

    monkeypatch.setattr(operators, "verify_step", broken)
    train_rft(rft_settings(steps=1), tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert row["unverified"] > 0
    assert row["skipped"] == 0.0


def test_a_score_that_is_no_number_counts_as_wrong(rft_settings, tmp_path, monkeypatch):
    real = train.score_rollout
    monkeypatch.setattr(train, "score_rollout", lambda *given: real(*given)._replace(score=float("nan")))
    train_rft(rft_settings(steps=1), tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert row["final"] == -1.0
    assert np.isfinite(row["reward"])


def test_rollouts_that_come_to_no_call_and_no_answer_are_passed_over(rft_settings, tmp_path):
    short = {"steps": 1, "turn_tokens": 1, "total_tokens": 2}
    report = train_rft(rft_settings(limits=short, steps=2), tmp_path / "run")
    assert report.updates == 2
    assert all((row["calls"], row["answered"]) == (0.0, 0.0) for row in rows_of(tmp_path / "run"))
    kept = load_file(tmp_path / "run" / "policy" / "model.safetensors")
    assert all(bool(value.isfinite().all()) for value in kept.values())


def test_after_a_kl_out_of_bounds_the_policy_is_led_back_and_goes_on_learning(rft_settings, tmp_path):
    """The second batch lies beyond what is borne and is skipped; those after it step on their KL alone until it is."""
    wild = rft_settings(lr=3e-3, steps=6, kl={"max": 1e-3, "beta": 1.0, "adaptive": False})
    report = train_rft(wild, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert [row["skipped"] for row in rows[:3]] == [0.0, 1.0, 0.0]
    assert rows[1]["kl"] > 1e-3
    assert min(row["kl"] for row in rows[3:]) < rows[1]["kl"]
    assert report.skipped >= 1


@pytest.mark.parametrize("kl", [float("nan"), float("inf")])
def test_a_kl_that_is_no_number_raises_beta(rft_settings, kl):
    state = RftState()
    done = UpdateStats(
        kl=kl, entropy=0.1, logprob_mismatch=0.0, grad_norm=float("nan"), clip_fraction=0.0, skip_reason="NaN"
    )
    values = {"calls": 2.0} | dict.fromkeys(
        (f"share_{name}" for name in ("final", "curiosity", "coherence", "penalty", "tool_use")), 0.2
    )
    before = state.pid.beta
    update_controller(rft_settings(), state, values, done, 1.0)
    assert state.pid.beta > before
    assert state.skipped == 1
    assert state.kl_exceeded == (kl == float("inf"))


def test_fewer_questions_than_processes_are_refused(rft_settings, corpus):
    with pytest.raises(ConfigError, match="prompts_per_step is 2 for 3 processes"):
        train.training_prompts(rft_settings(), corpus, DistributedContext(world_size=3))


def test_another_sft_policy_under_the_same_name_is_not_gone_on_with(rft_settings, tmp_path, monkeypatch):
    train_rft(rft_settings(steps=1), tmp_path / "run")
    monkeypatch.setattr(rft_run_log, "hash_weights", lambda name: "retrained")
    with pytest.raises(ConfigError, match="another policy"):
        train_rft(rft_settings(steps=1), tmp_path / "run")


def test_adapters_with_dropout_are_refused(rft_settings):
    with pytest.raises(ValueError, match="would not read what the rollout read"):
        rft_settings(lora={"rank": 4, "alpha": 8, "dropout": 0.1})
