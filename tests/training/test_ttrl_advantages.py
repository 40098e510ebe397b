"""What a batch of queries teaches, by hand: returns, baseline, v̄, and who is left out."""

from types import SimpleNamespace

import numpy as np
import pytest

from pixelis.equations.ttrl import Baseline
from pixelis.policy.checkpoint import ModelCard
from pixelis.training.ttrl.ttrl_advantages import StreamState, compute_advantages, get_skip_reason, query_kl
from pixelis.training.ttrl.ttrl_config import TtrlConfig
from pixelis.training.ttrl.ttrl_export import start_kl

CONFIG = TtrlConfig()
MEMORY = SimpleNamespace(neighbourhood_value=lambda neighbours: neighbours)


def heard(agrees, *, value, leak="", ledgers=None, groups=None):
    """A query whose rollouts that gave the voted answer also behave as the exemplar: their return is 2, others' 0."""
    decision = SimpleNamespace(
        ballots=[
            SimpleNamespace(answer="a" if own else "b", group=group)
            for own, group in zip(agrees, groups or range(len(agrees)), strict=True)
        ],
        consensus=SimpleNamespace(answer="a"), similarity=np.array(agrees, dtype=float),
    )  # fmt: skip
    experience = [SimpleNamespace(sequence=name) for name in ledgers or range(len(agrees))]
    return SimpleNamespace(
        vote_result=decision, rollouts=experience, penalties=np.zeros(len(agrees)), neighbours=value, leak_reason=leak
    )


def taught(queries, reasons=None, state=None, config=CONFIG):
    state = state or StreamState(config, [])
    return compute_advantages(config, MEMORY, state, queries, reasons or [""] * len(queries)), state


def test_the_first_query_is_its_own_baseline_and_the_value_survives_where_it_teaches_alone():
    # returns 2, 2, 0, 0 less their mean 1: rms 1; times v̄ = 0.6
    found, state = taught([heard([1, 1, 0, 0], value=0.6)])
    assert found.update_batch.advantages == pytest.approx([0.6, 0.6, -0.6, -0.6])
    assert state.baseline.value == pytest.approx(1.0)
    assert found.row_fields == [
        {"value": 0.6, "baseline": 1.0, "advantage": pytest.approx(0.0), "positive": 0.5, "alike": False}
    ]
    other, _ = taught([heard([1, 1, 0, 0], value=0.3)])
    assert other.update_batch.advantages == pytest.approx(found.update_batch.advantages / 2)


def test_the_baseline_follows_returns_by_a_tenth():
    # 1, then 0.9 x 1 + 0.1 x 2 = 1.1; r - b of the second is 2 - 1 = 1 four times, so that rms is 1 again
    found, state = taught([heard([1, 1, 0, 0], value=0.6), heard([1, 1, 1, 1], value=0.3)])
    assert state.baseline.value == pytest.approx(1.1)
    assert found.update_batch.advantages == pytest.approx([0.6, 0.6, -0.6, -0.6, 0.3, 0.3, 0.3, 0.3])
    assert [row["positive"] for row in found.row_fields] == [0.5, 1.0]
    assert StreamState(CONFIG, [{"labels": {}, "baseline": 1.1}]).baseline == Baseline(1.1)


def test_its_own_baseline_tells_rollouts_of_every_query_apart_and_moves_nothing():
    # the second has 2, 2, 2, 0 less 1.5; over the first's 1, 1, −1, −1 the rms is √((4 + 1.5² + 3 × 0.25) / 8)
    config = TtrlConfig(baseline="own")
    queries = [heard([1, 1, 0, 0], value=1.0), heard([1, 1, 1, 0], value=1.0)]
    found, state = taught(queries, config=config, state=StreamState(config, []))
    rms = ((4 + 1.5**2 + 3 * 0.25) / 8) ** 0.5
    assert found.update_batch.advantages * rms == pytest.approx([1, 1, -1, -1, 0.5, 0.5, 0.5, -1.5])
    assert state.baseline.value is None


def test_a_unanimous_first_query_teaches_nothing_but_its_baseline():
    found, state = taught([heard([1, 1], value=0.5)])
    assert found.update_batch.advantages.tolist() == [0.0, 0.0]
    assert found.row_fields[0]["alike"]
    assert state.baseline.value == 2.0


def test_who_abstained_is_masked_and_evaluation_media_are_no_part_of_the_lesson():
    queries = [
        heard([1, 0], value=0.5, ledgers=["x", "y"]), heard([1, 0], value=0.5, leak="evaluation", ledgers=["no", "no"]),
        heard([1, 0], value=0.5, ledgers=["p", "q"]),
    ]  # fmt: skip
    found, state = taught(queries, ["margin", "evaluation", ""])
    assert found.update_batch.sequences == ("x", "y", "p", "q")
    assert found.update_batch.masks.tolist() == [False, False, True, True]
    assert found.query_indices.tolist() == [0, 0, 2, 2]
    assert found.update_batch.advantages == pytest.approx([0.0, 0.0, 0.5, -0.5])
    assert [row["advantage"] for row in found.row_fields] == [None, None, pytest.approx(0.0)]
    assert state.baseline.value == 1.0
    assert taught([queries[1]], ["evaluation"])[0].update_batch is None


def test_of_a_query_that_teaches_nothing_two_rollouts_are_read_and_all_are_counted():
    queries = [heard([1, 0, 0], value=0.5, ledgers=list(names)) for names in ("xyz", "pqr")]
    few = TtrlConfig(kl_rollouts=2)
    found, _ = taught(queries, ["margin", ""], config=few)
    assert found.update_batch.sequences == ("x", "y", "p", "q", "r")
    assert found.query_indices.tolist() == [0, 0, 1, 1, 1]
    assert found.update_batch.masks.tolist() == [False, False, True, True, True]
    assert found.update_batch.rollout_count == 6
    whole, _ = taught(queries, ["margin", ""])
    assert whole.update_batch.sequences == ("x", "y", "z", "p", "q", "r")
    assert found.update_batch.advantages[2:] == pytest.approx(whole.update_batch.advantages[3:])


def test_near_duplicates_teach_as_one_where_that_is_asked():
    # three copies that return 2 and one that returns 0: by groups their mean is 1, so 1, 1, 1, −1 with rms 1. A copy
    # counts 4 / (2 groups × 3), the other 4 / (2 × 1): both groups weigh 2 of 4 in the mean over rollouts
    query = heard([1, 1, 1, 0], value=1.0, groups=[0, 0, 0, 3])
    for baseline in ("own", "return"):
        config = TtrlConfig(baseline=baseline, merge_duplicate_rollouts=True)
        found, _ = taught([query], config=config)
        assert found.update_batch.advantages == pytest.approx([2 / 3, 2 / 3, 2 / 3, -2])
    # off a baseline of 0.5: 1.5 three times and −0.5; by groups √((1.5² + 0.5²) / 2) = √1.25, by rollouts √1.75
    before = StreamState(CONFIG, [{"labels": {}, "baseline": 0.5}])
    found, _ = taught([query], config=TtrlConfig(merge_duplicate_rollouts=True), state=before)
    assert found.update_batch.advantages == pytest.approx(np.array([1.0, 1.0, 1.0, -1.0]) / 1.25**0.5)
    apart, _ = taught([query], config=TtrlConfig(baseline="own"))
    rms = ((3 * 0.25 + 1.5**2) / 4) ** 0.5
    assert apart.update_batch.advantages * rms == pytest.approx([0.5, 0.5, 0.5, -1.5])


def test_each_query_has_the_kl_of_its_own_tokens():
    done = SimpleNamespace(
        stats=SimpleNamespace(rollout_kls=np.array([0.2, 0.4, 3.0, 1.0]), rollout_tokens=np.array([2, 1, 10, 10]))
    )
    owners = np.array([0, 0, 2, 2])
    assert query_kl(done, owners, 0) == pytest.approx(0.2)  # 0.6 of 3 tokens
    assert query_kl(done, owners, 2) == pytest.approx(0.2)  # 4 of 20
    assert query_kl(done, owners, 1) is None
    assert query_kl(None, owners, 0) is None


def test_a_vote_that_most_rollouts_contradict_teaches_nothing():
    vote = SimpleNamespace(
        allows_update=False,
        reason="",
        low_entropy=True,
        entropy=0.18,
        majority="b",
        agreement=0.5,
        enough_agreement=True,
    )
    one = SimpleNamespace(vote_result=SimpleNamespace(consensus=vote), leak_reason="")
    assert get_skip_reason(CONFIG, one) == "more rollouts say 'b', or nothing"
    vote.enough_agreement = False
    five = CONFIG.model_copy(update={"vote": CONFIG.vote.model_copy(update={"least_agreement": 0.625})})
    assert get_skip_reason(five, one) == "50 % of the rollouts agree, want 62.5"
    vote.low_entropy = False
    assert get_skip_reason(CONFIG, one) == "answers too mixed: entropy 0.18, want under 0.2"


def test_what_is_known_of_the_way_from_phase_1_to_the_start():
    sft = {"steps": 10}
    assert start_kl(ModelCard(training=sft)) == 0.0
    rft = {"beta": 0.2, "before": sft}
    assert start_kl(ModelCard(training=rft, scores={"rft": {"kl": 0.14}})) == 0.14
    assert start_kl(ModelCard(training={"updates": 3, "before": rft}, scores={"rft": {"kl": 0.14}})) is None
    divided = {"config": {"temperature": 0.6}, **rft}
    assert start_kl(ModelCard(training=divided, scores={"rft": {"kl": 0.14}})) is None
    twice = {"beta": 0.2, "before": rft}  # held to what phase 2 had come to
    assert start_kl(ModelCard(training=twice, scores={"rft": {"kl": 0.14}})) is None
