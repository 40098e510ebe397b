"""Phase 2 and what goes wrong around it: nothing ends a run that one batch can be passed over for."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

from pixelis.data import acceptance
from pixelis.errors import ConfigError
from pixelis.train import rft
from pixelis.train.crew import Crew
from pixelis.train.rft import Improved, react, train_rft
from pixelis.train.rft_config import KlSettings, RftConfig
from pixelis.train.rft_state import RftState


@pytest.fixture
def settings(corpus):
    def make(**changes):
        given = {
            "policy": "nano-sft", "corpus": str(corpus.folder), "updates": 2, "queries": 2, "samples": 3, "group": 3,
            "lr": 1e-4, "threads": 1, "limits": {"steps": 3, "turn_tokens": 96, "total_tokens": 500},
            "least_calls": 0.0, "least_entropy": 0.0, "save_minutes": 9.0,
        }  # fmt: skip
        return RftConfig.model_validate(given | changes)

    return make


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_verifier_that_fails_says_nothing_about_its_step_and_is_counted(settings, tmp_path, monkeypatch):
    def broken(result, references):
        raise ValueError("a mask of no size")

    monkeypatch.setattr(acceptance, "verify_step", broken)
    train_rft(settings(updates=1), tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert row["unverified"] > 0
    assert row["skipped"] == 0.0


def test_a_score_that_is_no_number_counts_as_wrong(settings, tmp_path, monkeypatch):
    real = rft.lived
    monkeypatch.setattr(rft, "lived", lambda *given: real(*given)._replace(score=float("nan")))
    train_rft(settings(updates=1), tmp_path / "run")
    (row,) = rows_of(tmp_path / "run")
    assert row["final"] == -1.0
    assert np.isfinite(row["reward"])


def test_rollouts_that_come_to_no_call_and_no_answer_are_passed_over(settings, tmp_path):
    short = {"steps": 1, "turn_tokens": 1, "total_tokens": 2}
    report = train_rft(settings(limits=short), tmp_path / "run")
    assert report.updates == 2
    assert all((row["calls"], row["answered"]) == (0.0, 0.0) for row in rows_of(tmp_path / "run"))
    kept = load_file(tmp_path / "run" / "policy" / "model.safetensors")
    assert all(bool(value.isfinite().all()) for value in kept.values())


def test_after_a_kl_out_of_bounds_the_policy_is_led_back_and_goes_on_learning(settings, tmp_path):
    """The second batch lies beyond what is borne and is skipped; those after it step on their KL alone until it is."""
    wild = settings(lr=3e-3, updates=6, kl={"most": 1e-3, "beta": 1.0, "control": False})
    report = train_rft(wild, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert [row["skipped"] for row in rows[:3]] == [0.0, 1.0, 0.0]
    assert rows[1]["kl"] > 1e-3
    assert min(row["kl"] for row in rows[3:]) < rows[1]["kl"]
    assert report.skipped >= 1


@pytest.mark.parametrize("kl", [float("nan"), float("inf")])
def test_a_kl_that_is_no_number_raises_beta(settings, kl):
    state = RftState()
    done = Improved(kl=kl, entropy=0.1, gap=0.0, norm=float("nan"), clipped=0.0, skipped=True)
    values = {"calls": 2.0} | dict.fromkeys(
        (f"share_{name}" for name in ("final", "curiosity", "coherence", "penalty", "tool_use")), 0.2
    )
    before = state.pid.beta
    react(settings(), state, values, done, 1.0)
    assert state.pid.beta > before
    assert state.skipped == 1
    assert state.far == (kl == float("inf"))


def test_fewer_questions_than_processes_are_refused(settings, corpus):
    with pytest.raises(ConfigError, match="2 queries an update for 3 processes"):
        rft.pool_of(settings(), corpus, Crew(world=3))


def test_another_sft_policy_under_the_same_name_is_not_gone_on_with(settings, tmp_path, monkeypatch):
    train_rft(settings(updates=1), tmp_path / "run")
    monkeypatch.setattr(rft, "weights_of", lambda name: "retrained")
    with pytest.raises(ConfigError, match="another policy"):
        train_rft(settings(updates=1), tmp_path / "run")


def test_adapters_with_dropout_are_refused(settings):
    with pytest.raises(ValueError, match="would not read what the rollout read"):
        settings(lora={"rank": 4, "alpha": 8, "dropout": 0.1})


def test_the_most_that_is_borne_is_over_the_corridor():
    assert KlSettings().most > 0.2
