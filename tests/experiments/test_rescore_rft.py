"""Layer and gate from saved chains of the shipped policy: real rollouts, and what each setting must come to."""

import json
import warnings
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from experiments.rft.rescore_rft import (
    GATES,
    LAYERS,
    RereadChains,
    SavedChains,
    add_delta_length,
    gate_payments,
    gate_row,
    layer_row,
    read_chains,
    read_examples,
    rescore_layers_and_gates,
)
from pixelis import __version__
from pixelis.core.errors import ConfigError
from pixelis.evaluation.run_evaluation import evaluate_model
from pixelis.evaluation.tasks import make_tasks
from pixelis.media import MediaSet
from pixelis.policy.checkpoint import load_checkpoint
from pixelis.rewards.compute import load_rewarder
from pixelis.rewards.dynamics import Trajectory
from pixelis.rewards.features import StateFeatures, state_features
from pixelis.rewards.settings import RewardSettings
from pixelis.trace import codec
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import seal_trace
from pixelis.training.sft.sft_model import collate

FAMILIES = ("motion", "lecture")  # whose chains are long enough for RaCPR
ITEMS = 3


@pytest.fixture(scope="module")
def loaded():
    return load_checkpoint("nano-sft")


@pytest.fixture(scope="module")
def known(loaded):
    return load_rewarder(loaded, "nano-sft")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    tasks = make_tasks(FAMILIES, split="dev")
    evaluate_model("nano-sft", tasks, limit=ITEMS, out=folder)
    return SavedChains((folder,), tasks, ITEMS)


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Two seeds: at temperature 1 their chains are not the same."""
    folders = tuple(tmp_path_factory.mktemp(f"others-{seed}") for seed in range(2))
    tasks = make_tasks(FAMILIES, split="test")
    for seed, folder in enumerate(folders):
        evaluate_model("nano-sft", tasks, limit=ITEMS, temperature=float(seed), seed=seed, out=folder)
    return SavedChains(folders, tasks, ITEMS)


@pytest.fixture(scope="module")
def rows(own, others):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = rescore_layers_and_gates("nano-sft", own, others, RewardSettings())
    return {row["setting"]: row for row in found}


def test_chains_are_read_at_every_layer_and_paid_under_every_gate(rows):
    assert list(rows) == [*(f"layer {k:+d}" for k in (-2, -1, 0, 1, 2)), *(f"gate {name}" for name in GATES)]
    layers = [rows[f"layer {k:+d}"] for k in LAYERS]
    assert {(row["chains"], row["seeds"]) for row in layers} == {(2 * 2 * ITEMS, 2)}
    assert len({row["cosine"] for row in layers}) == 5  # each layer has features of its own
    assert len({row["rapr"] for row in layers}) == 1  # which steps hold does not depend on it
    assert rows["gate off"]["luck"] == pytest.approx(0.0, abs=1e-12)  # no dropout, no luck
    assert rows["gate MC-2"]["luck"] > 0.0
    assert rows["gate off"]["paid"] > rows["gate MC-8"]["paid"]  # 1 / (1 + βσ²) takes something off
    assert rows["gate MC-4"]["rank_correlation"] == pytest.approx(1.0)


def after_states(policy, saved):
    """Of every chain: its family, [v_k ‖ text_k] after each step (read alone) and its tools."""
    for folder in saved.folders:
        for example in read_examples(folder, saved.tasks, saved.limit, policy):
            given = collate([example], None, policy)
            with torch.no_grad():
                states = state_features(policy, policy(given.inputs), given.inputs.ids, [example])
            yield example.family, torch.cat([*states], dim=1)[1:].double().numpy(), example.steps.tool


def embedded(heads, features, tools, mean, std):
    """g_φ in numpy, on features over their scales."""
    weight = {name: value.double().numpy() for name, value in heads.state_dict().items()}
    width = len(weight["visual.mean"])
    scaled = (features - mean) / np.where(std < 1e-6, 1.0, std)
    text = scaled[:, width:] @ weight["projector.linear.weight"].T + weight["projector.linear.bias"]
    given = np.hstack([scaled[:, :width], text, np.eye(6)[tools]])
    hidden = given @ weight["g_phi.net.0.weight"].T + weight["g_phi.net.0.bias"]
    out = (hidden * ndtr(hidden)) @ weight["g_phi.net.3.weight"].T + weight["g_phi.net.3.bias"]
    out = (out - out.mean(1, keepdims=True)) / np.sqrt(out.var(1, keepdims=True) + 1e-5)
    out = out * weight["g_phi.net.4.weight"] + weight["g_phi.net.4.bias"]
    return out / np.linalg.norm(out, axis=1, keepdims=True)


def chain_by_hand(z, valid):
    """q(C) and |C| of the best chain: z of the steps after the first; gates at τ = 0.3, three of them at least."""
    best, run = (0.0, 0), []
    for t, value in enumerate([*z, -np.inf], start=1):
        if value >= 0.3 and valid[t - 1] and valid[t]:
            run.append(value - 0.3)
            continue
        if len(run) >= 3:
            q = (sum(run) - 0.02 * max(len(run) - 6, 0)) / len(run)
            best = max(best, (q, len(run)))
        run = []
    return best


def test_racpr_at_the_usual_layer_is_that_of_another_computation(rows, own, others, loaded, known):
    before, after = (list(after_states(loaded.policy, saved)) for saved in (own, others))
    every = np.concatenate([features for _, features, _ in before])
    scales = every.mean(0), every.std(0)
    seen = {family: [] for family in FAMILIES}
    for family, features, tools in before:
        E = embedded(known.heads, features, tools, *scales)
        seen[family] += [a @ b for a, b in pairwise(E)]
    judged = [json.loads(line) for folder in others.folders for line in (folder / "items.jsonl").open()]
    found = []
    for (family, features, tools), row in zip(after, judged, strict=True):
        E = embedded(known.heads, features, tools, *scales)
        z = [(a @ b - np.mean(seen[family])) / np.std(seen[family]) for a, b in pairwise(E)]
        found.append(chain_by_hand(z, row["process"]["valid"]))
    usual = rows["layer +0"]
    values = np.array([q for q, _ in found])
    assert values.any()
    assert usual["racpr"]["mean"] == pytest.approx(100 * values.mean(), abs=1e-3)
    first, second = values.reshape(2, -1).mean(1)
    assert usual["racpr"]["over_seeds"] == pytest.approx(100 * abs(first - second) / 2, abs=1e-3)
    assert usual["length"] == pytest.approx(np.mean([size for _, size in found if size]))
    assert usual["qualified"] == pytest.approx(100 * np.mean([size > 0 for _, size in found]))
    assert usual["delta_length"] == 0.0
    shares = [np.mean(row["process"]["valid"]) if row["steps"] else 0.0 for row in judged]
    assert usual["rapr"] == pytest.approx(100 * np.mean(shares))


def test_a_gate_by_hand():
    paid = {"MC-2": np.array([[1.0, 2.0, 6.0], [1.0, 4.0, 6.0]]), "MC-4": np.array([[2.0, 3.0, 1.0]])}
    row = gate_row("MC-2", paid, np.array([True, True, False]))
    assert row["paid_valid"] == pytest.approx(2.0)  # (1 + 3) / 2
    assert row["paid_invalid"] == pytest.approx(6.0)
    # spreads 0, 1, 0 over the two draws: 1/3 on average; the means 1, 3, 6 have a spread of sqrt(38) / 3
    assert row["luck"] == pytest.approx((1 / 3) / (38**0.5 / 3))
    assert row["rank_correlation"] == pytest.approx(-0.5)  # ranks 1 2 3 and 2 3 1


def test_a_single_step_has_no_rank():
    row = gate_row("MC-4", {"MC-4": np.array([[2.0], [4.0]])}, np.array([True]))
    assert (row["paid"], row["luck"], row["rank_correlation"]) == (3.0, None, None)


def test_delta_len_by_hand():
    lengths = {"layer -1": 4.5, "layer +0": 4.0, "layer +1": None}
    rows = add_delta_length([{"setting": name, "length": length} for name, length in lengths.items()])
    assert [row["delta_length"] for row in rows] == [0.5, 0.0, None]


def walked(known, *lengths, offset=0):
    """Chains of the search family whose features are noise."""
    rng = torch.Generator().manual_seed(0)
    width, count = len(known.heads.visual.mean), sum(length + 1 for length in lengths)
    noise = StateFeatures(torch.randn(count, width, generator=rng), torch.randn(count, 2 * width + 10, generator=rng))
    trajectories = [Trajectory("search", np.zeros(n, dtype=np.int8), np.ones(n, dtype=bool)) for n in lengths]
    return RereadChains(tuple(trajectories), {offset: [noise]}, 1)


def test_a_layer_that_the_policy_does_not_have_is_a_row_without_numbers(known):
    chains = walked(known, 4, 4)
    row = layer_row(known, chains, chains, 2)
    assert row["racpr"] is row["length"] is row["cosine"] is None
    assert row["reason"] == "the policy has no such layer"


def test_chains_of_one_call_have_no_cosines_and_warn_of_nothing(known):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = layer_row(known, walked(known, 5, 4), walked(known, 1, 0, 1), 0)
        assert (row["racpr"]["mean"], row["qualified"], row["length"], row["cosine"]) == (0.0, 0.0, None, None)
        row = layer_row(known, walked(known, 1, 1), walked(known, 5, 4), 0)
    assert row["racpr"] is None
    assert "two pairs of neighbouring calls" in row["reason"]


def test_payments_follow_the_settings_of_the_run(known):
    steps = walked(known, 1).steps(0)  # of one SEG call
    scaled, plain = (
        gate_payments(known, steps, RewardSettings(tool_scalers=given), samples=1, beta=0.0) for given in (True, False)
    )
    assert known.scaler("SEG", "curiosity") != 1.0
    assert scaled / plain == pytest.approx(known.scaler("SEG", "curiosity"))


def test_chains_of_other_items_are_refused(own, loaded):
    (folder,) = own.folders
    with pytest.raises(ConfigError, match="not the trajectories of 2 items"):
        list(read_examples(folder, own.tasks, 2, loaded.policy))


def test_chains_of_the_same_questions_about_other_pictures_are_refused(own, loaded):
    (folder,) = own.folders
    shifted = make_tasks(FAMILIES, split="dev", shift="noise:1")
    told = [next(iter(tasks[0].items(1))).item.question for tasks in (own.tasks, shifted)]
    assert told[0] == told[1]
    with pytest.raises(ConfigError, match="not the trajectories of 3 items"):
        next(read_examples(folder, shifted, ITEMS, loaded.policy))


def test_chains_without_any_call_are_refused(tmp_path, loaded):
    tasks = make_tasks(["search"], split="dev")
    for made in tasks[0].items(2):
        trace = seal_trace(
            query=made.item.question, media=record_media(MediaSet(made.media)), origin="plan", steps=[], answer="red",
            created_at=datetime(2026, 1, 1, tzinfo=UTC), pixelis=__version__,
        )  # fmt: skip
        codec.append(trace, tmp_path / "traces.jsonl", {})
    with pytest.raises(ConfigError, match=f"no calls in {tmp_path}"):
        read_chains(loaded.policy, SavedChains((tmp_path,), tasks, 2))
