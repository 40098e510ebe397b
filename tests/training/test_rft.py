"""Phase 2 with real tools and rollouts: what it learns from, that it goes on, that it cannot be hurt."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import logsumexp

from benchmarks import bench_rft
from pixelis.core.errors import ConfigError
from pixelis.rewards.compute import TrajectoryBatch, compute_rewards
from pixelis.rewards.dynamics import CorpusSteps
from pixelis.rewards.features import StateFeatures
from pixelis.rewards.settings import RewardSettings
from pixelis.training.common.policy_update import UpdateStats
from pixelis.training.grpo import rft_run_log, rft_state, train
from pixelis.training.grpo.rft_state import RftState
from pixelis.training.grpo.train import group_advantages, train_rft, update_controller

OFF_CURVE = ("cache_hits", "gap")
"""What the machine has a say in: which calls were kept from before, and the last bits of a batch's sums."""


def curve(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if "seconds" not in k and k not in OFF_CURVE} for row in rows]


def weights(run):
    """Of the policy and of its heads, h_ψ among them."""
    heads = {f"heads.{name}": value for name, value in load_file(run / "policy" / "heads.safetensors").items()}
    return load_file(run / "policy" / "model.safetensors") | heads


def test_a_run_learns_and_leaves_everything_that_later_verbs_need(rft_settings, tmp_path):
    seen = []
    report = train_rft(rft_settings(), tmp_path / "run", show=lambda now, step, total: seen.append(now))
    assert report.updates == 3
    assert len(seen) == 3
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["gap"] < 1e-4 for row in rows)  # what was sampled is what is learnt from
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)  # the policy is still its anchor
    assert rows[2]["kl"] > 0.0
    mix = sum(value for key, value in rows[0].items() if key.startswith("mix_"))
    assert mix == pytest.approx(1.0)
    summaries = (tmp_path / "run" / "summaries.jsonl").read_text().splitlines()
    assert len(summaries) == 3 * 2 * 3
    assert (tmp_path / "run" / "curves.svg").stat().st_size > 10_000
    from pixelis.policy.checkpoint import load_checkpoint

    loaded = load_checkpoint(str(tmp_path / "run" / "policy"))
    assert loaded.card.name == "rft"
    assert loaded.card.training["before"]["seed"] == 0
    assert {"coherence", "tools", "tokens"} <= set(loaded.card.statistics)
    curiosity = [json.loads(line)["curiosity"] for line in summaries]
    assert loaded.card.statistics["summaries"]["cur_mean"] == pytest.approx(np.mean(curiosity))
    assert {name.split(".")[0] for name in loaded.heads} == {"arguments", "visual", "projector", "g_phi", "h_psi"}


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(rft_settings, tmp_path):
    train_rft(rft_settings(), tmp_path / "whole")
    calls = {"n": 0}
    real = rft_run_log.save_rft

    def killed(*given):
        real(*given)
        calls["n"] += 1
        if calls["n"] == 2:
            raise KeyboardInterrupt

    rft_run_log.save_rft = killed
    try:
        with pytest.raises(KeyboardInterrupt):
            train_rft(rft_settings(), tmp_path / "cut")
    finally:
        rft_run_log.save_rft = real
    (facts,) = (tmp_path / "cut").glob("state-*/state.json")
    old_names = {new: old for old, new in rft_state.OLD_NAMES.items()}  # as an earlier release has written it
    facts.write_text(json.dumps({old_names.get(key, key): v for key, v in json.loads(facts.read_text()).items()}))
    assert train_rft(rft_settings(), tmp_path / "cut").resumed
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "cut")[name]), name
    assert curve(tmp_path / "whole") == curve(tmp_path / "cut")
    assert train_rft(rft_settings(), tmp_path / "cut").ended_before


def test_the_rate_falls_in_a_line_to_its_floor(rft_settings, tmp_path):
    given = rft_settings(steps=5, lr=8e-4, lr_floor=0.25)
    # 8e-4 less a quarter of 6e-4 each time
    assert [given.learning_rate_at(step) for step in range(5)] == pytest.approx([8e-4, 6.5e-4, 5e-4, 3.5e-4, 2e-4])
    assert given.model_copy(update={"steps": 1}).learning_rate_at(0) == 8e-4
    assert given.model_copy(update={"lr_floor": 1.0}).learning_rate_at(4) == 8e-4
    still = rft_settings(steps=2, lr=1e-4, lr_floor=1e-9, group_size=2, keep_best=2)
    train_rft(still.model_copy(update={"steps": 1}), tmp_path / "one")
    train_rft(still, tmp_path / "two")  # the second update has next to no rate
    one, two = (load_file(tmp_path / name / "policy" / "model.safetensors") for name in ("one", "two"))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-9


def test_advantages_are_inside_groups_and_only_of_the_best(rft_settings):
    config = rft_settings(group_size=4, keep_best=2)
    found = group_advantages(np.array([1.0, 0.0, 3.0, 2.0, 5.0, 5.0, 5.0, 5.0]), config)
    # of the first four the best two are 3 and 2: mean 2.5, spread 0.5; equal rewards teach nothing
    np.testing.assert_allclose(found, [np.nan, np.nan, 1.0, -1.0, 0.0, 0.0, np.nan, np.nan])


def test_a_kl_out_of_bounds_skips_the_update_and_the_controller_hears_of_it(rft_settings, tmp_path):
    report = train_rft(rft_settings(lr=1e-3, kl={"max": 1e-9, "beta": 0.2, "target": 1e-6}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    # before the first step the KL is 0; the third batch is not skipped, it leads back
    assert [row["skipped"] for row in rows] == [0.0, 1.0, 0.0]
    assert report.skipped == 1
    assert report.beta > 0.2


def test_a_reward_that_says_nothing_leaves_the_policy_to_its_anchor(rft_settings, tmp_path):
    silent = {"final": 0.0, "curiosity": 0.0, "coherence": 0.0, "penalty": 0.0}
    train_rft(rft_settings(reward=silent, steps=1), tmp_path / "run")
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    assert row["flat_groups"] == 1.0
    assert row["gradient"] == pytest.approx(0.0, abs=1e-5)  # rounding of the KL's gradient


@pytest.mark.parametrize(
    "reward",
    [
        {"coherence_kind": "l2"},
        {"coherence_kind": "tv"},
        {"coherence_kind": "cpc"},
        {"curiosity": 0.0, "coherence": 0.0, "tool_use": 1.0},
        {"mc_samples": 1},
    ],
)
def test_reward_variants_are_configurations(rft_settings, tmp_path, reward):
    assert train_rft(rft_settings(reward=reward, steps=1), tmp_path / "run").updates == 1


def chains_by_hand():
    """Three chains of one, two and two calls, each somewhere in the picture."""
    return TrajectoryBatch(
        scores=np.zeros(3), penalties=np.zeros(3), lengths=np.array([1, 2, 2]), decisive=np.zeros(3),
        cosine_mean=np.zeros(3), cosine_std=np.ones(3), steps=steps_of([1, 2, 2], width=8),
        arguments=np.random.default_rng(0).random((5, 6)),
    )  # fmt: skip


@pytest.mark.parametrize("prior", ["adjacency", "l2", "tv", "cpc"])
def test_a_single_call_is_neither_coherent_nor_incoherent(prior):
    """It has no neighbours, and gets the batch's mean."""
    known = bench_rft.random_rewarder(SimpleNamespace(width=8))
    found = compute_rewards(chains_by_hand(), known, RewardSettings(coherence_kind=prior), group_size=3, seed=0)
    assert np.isnan(found.coherence[0])
    assert found.terms.coherence[0] == 0.0


def test_each_prior_is_its_own_formula():
    """Of two calls each: l2 and tv of the way between their arguments, the cosine of E_t, its log-probability."""
    chains, known = chains_by_hand(), bench_rft.random_rewarder(SimpleNamespace(width=8))
    got = {
        prior: compute_rewards(chains, known, RewardSettings(coherence_kind=prior), group_size=3, seed=0).coherence[1:]
        for prior in ("adjacency", "l2", "tv", "cpc")
    }
    away = np.array([chains.arguments[2] - chains.arguments[1], chains.arguments[4] - chains.arguments[3]])
    assert got["l2"] == pytest.approx(-(away**2).sum(axis=1))
    assert got["tv"] == pytest.approx(-np.abs(away).sum(axis=1) - 0.1 * np.sqrt((away**2).sum(axis=1)))
    E = known.heads.embed(chains.steps).double().detach().numpy()
    assert got["adjacency"] == pytest.approx([E[1] @ E[2], E[3] @ E[4]])  # unit norm, mean 0 and spread 1
    scores = E @ E.T / 0.1  # a step picks the one before it among all but itself
    picked = [scores[b, a] - logsumexp(np.delete(scores[b], b)) for a, b in ((1, 2), (3, 4))]
    assert got["cpc"] == pytest.approx(picked)


def steps_of(lengths, width):
    rng = torch.Generator().manual_seed(0)
    n = sum(lengths)
    before, after = (
        StateFeatures(torch.randn(n, width, generator=rng), torch.randn(n, 2 * width + 10, generator=rng))
        for _ in range(2)
    )
    tool = torch.zeros(n, dtype=torch.long)
    return CorpusSteps(before, after, tool, torch.ones(n, dtype=torch.bool), np.repeat(range(3), lengths), ())


def test_tool_use_that_dies_out_stops_the_run(rft_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "COLLAPSE_GRACE_STEPS", 0)
    report = train_rft(rft_settings(min_tool_calls=99.0), tmp_path / "run")
    assert report.updates == 1
    assert "tool use has collapsed" in report.stopped


def test_variety_that_dies_out_stops_the_run(rft_settings, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "COLLAPSE_GRACE_STEPS", 0)
    report = train_rft(rft_settings(min_entropy_ratio=99.0), tmp_path / "run")  # 99 times the entropy of π_SFT
    assert report.updates == 1
    assert "entropy has collapsed" in report.stopped


@pytest.mark.parametrize(
    ("entropy", "usual", "stops"),
    [(0.06, 1.0, False), (0.06, 2.0, True), (0.001, 0.01, False), (0.0004, 0.01, True)],
    ids=["6 % of 1", "3 % of 2", "little, and usual for it", "little, and less than usual"],
)
def test_the_floor_under_variety_is_a_share_of_what_is_usual(rft_settings, monkeypatch, entropy, usual, stops):
    monkeypatch.setattr(train, "COLLAPSE_GRACE_STEPS", 0)
    state = RftState()
    done = UpdateStats(kl=0.1, entropy=entropy, logprob_mismatch=0.0, grad_norm=1.0, clip_fraction=0.0)
    values = {"calls": 2.0} | dict.fromkeys(
        (f"share_{name}" for name in ("final", "curiosity", "coherence", "penalty", "tool_use")), 0.2
    )
    update_controller(rft_settings(min_entropy_ratio=0.05), state, values, done, usual)
    assert bool(state.stop_reason) == stops


def test_a_policy_without_phase_1_is_refused(rft_settings, policy, tmp_path):
    from pixelis.policy.checkpoint import ModelCard, save_checkpoint

    save_checkpoint(tmp_path / "bare", policy, ModelCard(name="bare"))
    with pytest.raises(ConfigError, match="train sft"):
        train_rft(rft_settings(policy=str(tmp_path / "bare")), tmp_path / "run")


def test_a_sharper_start_is_its_own_anchor_and_hands_on_the_heads_as_they_read(rft_settings, tmp_path):
    given = rft_settings(steps=1, lr=1e-12, group_size=2, keep_best=2, temperature=0.5)
    train_rft(given, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows[0]["gap"] < 1e-4
    train_rft(given.model_copy(update={"temperature": 1.0}), tmp_path / "plain")
    before, after = weights(tmp_path / "plain"), weights(tmp_path / "run")
    norm = "model.language_model.norm.weight"
    torch.testing.assert_close(after[norm], 2.0 * before[norm])  # no rate to speak of, and logits twice as far apart
    box = next(name for name in before if name.startswith("heads.arguments.box") and name.endswith("weight"))
    assert not torch.equal(after[box], before[box])
    torch.testing.assert_close(2.0 * after[box][:, : len(before[norm])], before[box][:, : len(before[norm])])


def test_lora_is_its_own_anchor(rft_settings, tmp_path):
    report = train_rft(rft_settings(lora={"rank": 4, "alpha": 8}, steps=2, lr=1e-3), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert report.updates == 2
    assert not any("lora" in name for name in weights(tmp_path / "run"))


RUNNER = Path(__file__).with_name("run_rft.py")


def test_two_processes_come_to_the_same_weights_as_one(rft_settings, tmp_path):
    # AdamW turns rounding in a gradient near 0 into a share of the rate: with an ε of 1e-8 a weight lay 1.7e-5 apart
    config = rft_settings(steps=2, lr=1e-5, eps=1e-6)
    train_rft(config, tmp_path / "one")
    (tmp_path / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29613"]
    command += [str(RUNNER), str(tmp_path / "config.json"), str(tmp_path / "two")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(value, weights(tmp_path / "two")[name], rtol=0, atol=1e-6)
    # AdamW would hide a gradient that is twice too large; its norm before the step does not
    norms = [[json.loads(line)["gradient"] for line in (tmp_path / k / "metrics.jsonl").open()] for k in ("one", "two")]
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)


def test_a_run_killed_at_any_moment_goes_on(rft_settings, tmp_path):
    config = rft_settings(steps=4)
    train_rft(config, tmp_path / "whole")
    (tmp_path / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, str(RUNNER), str(tmp_path / "config.json"), str(tmp_path / "killed")]
    for state in ("state-00000001", "state-00000003"):  # once early, and once in the run that went on
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not (tmp_path / "killed" / state).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.kill()  # SIGKILL
        process.wait()
    train_rft(config, tmp_path / "killed")
    assert curve(tmp_path / "killed") == curve(tmp_path / "whole")
    for name, value in weights(tmp_path / "whole").items():
        assert torch.equal(value, weights(tmp_path / "killed")[name]), name
