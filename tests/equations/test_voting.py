import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pixelis.equations.voting import (
    answer_entropy,
    class_scores,
    consensus,
    decisive_entropy,
    merge_duplicate_votes,
    normalised_margin,
    single_flips,
    vote_weights,
)


def test_weights_multiply_their_four_factors():
    ours = vote_weights([0.0, np.log(2.0)], [0.8, 0.5], [0.5, 1.0], [1.0, 0.4])
    # 1 x 0.8 x 0.5 x 1 = 0.4; 0.5 x 0.5 x 1 x 0.4 = 0.1
    assert ours.certainty == pytest.approx([1.0, 0.5])
    assert ours.product == pytest.approx([0.4, 0.1])
    assert ours.share == pytest.approx([0.8, 0.2])


def test_without_reliability_it_counts_one():
    assert vote_weights([0.0], [0.7], [0.5]).product == pytest.approx([0.35])


def test_a_factor_that_is_not_a_number_carries_no_weight():
    assert vote_weights([np.nan, 0.0], [1.0, 1.0], [1.0, 1.0]).product == pytest.approx([0.0, 1.0])
    assert vote_weights([0.0, np.inf], [1.0, 1.0], [np.nan, 1.0]).share == pytest.approx([0.0, 0.0])


def test_weights_of_nobody_are_empty():
    assert vote_weights([], [], []).product.shape == (0,)


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="2 entropies, but 1 values of calibration"):
        vote_weights([0.0, 0.0], [1.0], [1.0, 1.0])
    with pytest.raises(ValueError, match="2 answers, but 3 weights"):
        consensus(["A", "B"], np.ones(3))


def test_a_negative_factor_is_refused():
    with pytest.raises(ValueError, match="fidelity of rollout 1 is negative"):
        vote_weights([0.0, 0.0], [1.0, 1.0], [1.0, -0.1])


def test_class_scores_and_margin_by_hand():
    scores = class_scores(["A", "B", "A"], [0.5, 0.3, 0.2])
    assert scores == pytest.approx({"A": 0.7, "B": 0.3})
    assert normalised_margin(list(scores.values())) == pytest.approx(0.4)
    # (0.6 - 0.3) / 1.2
    assert normalised_margin([0.3, 0.6, 0.3]) == pytest.approx(0.25)


def test_one_confident_rollout_outvotes_three_doubtful_ones():
    ours = consensus(["B", "B", "B", "A"], [0.1, 0.1, 0.1, 0.7])
    assert (ours.answer, ours.majority) == ("A", "B")
    assert ours.margin == pytest.approx(0.4)  # 0.7 - 0.3
    assert ours.accepted
    assert not ours.allows_update  # three against one: entropy 0.562 / 1.386 = 0.406


def test_a_tie_abstains():
    ours = consensus(["A", "B"], np.ones(2), delta=0.1)
    assert not ours.accepted
    assert ours.mask == 0
    assert ours.reason == "margin 0.000 under 0.1"


def test_the_margin_decides_at_delta_itself():
    # 0.54 - 0.46 = 0.08, in every rounding
    for scale in (0.1, 0.3, 0.7, 1.0):
        assert consensus(["A", "B"], np.array([0.54, 0.46]) * scale).accepted
    assert not consensus(["A", "B"], [0.5399, 0.4601]).accepted


def test_a_conformal_set_of_two_abstains_whatever_the_margin():
    ours = consensus(["A", "B"], [0.7, 0.3], conformal_threshold=0.75)
    assert ours.conformal_set == ("A", "B")
    assert ours.reason == "conformal set of 2 answers"
    assert consensus(["A", "B"], [0.7, 0.3], conformal_threshold=0.5).accepted


def test_an_empty_conformal_set_abstains_too():
    assert consensus(["A", "B"], [0.7, 0.3], conformal_threshold=0.1).reason == "conformal set of 0 answers"


def test_entropy_gate_passes_seven_of_eight_and_stops_six_of_eight():
    # -(7/8 ln 7/8 + 1/8 ln 1/8) / ln 8 = 0.376770 / 2.079442
    assert answer_entropy(["A"] * 7 + ["B"]) == pytest.approx(0.181188, abs=1e-6)
    assert answer_entropy(["A"] * 6 + ["B"] * 2) == pytest.approx(0.270426, abs=1e-6)
    assert consensus(["A"] * 7 + ["B"], np.ones(8)).allows_update
    assert not consensus(["A"] * 6 + ["B"] * 2, np.ones(8)).allows_update


def test_equal_chains_are_one_vote_and_yet_seven_of_eight_agree():
    # seven rollouts say A by one chain: one vote against one where the answer is chosen, 7 of 8 at the gate
    weights = merge_duplicate_votes(np.array([0.5] * 7 + [0.4]), [0] * 7 + [7])
    ours = consensus(["A"] * 7 + ["B"], weights)
    assert ours.scores == pytest.approx({"A": 5 / 9, "B": 4 / 9})
    assert ours.entropy == pytest.approx(0.181188, abs=1e-6)
    assert ours.allows_update


def test_nothing_is_learnt_where_most_rollouts_say_something_else():
    ours = consensus(["A"] * 7 + ["B"], [0.01] * 7 + [0.9])
    assert (ours.answer, ours.majority, ours.accepted, ours.low_entropy) == ("B", "A", True, True)
    assert not ours.most_frequent
    assert not ours.allows_update


def test_answers_from_outside_are_no_agreement_of_the_rollouts():
    # of two rollouts each has its own answer; what memory adds to A lowers no entropy
    ours = consensus(["A", "B", "A", "A"], [0.5, 0.1, 0.5, 0.5], rollout_answers=["A", "B"])
    assert (ours.answer, ours.entropy) == ("A", 1.0)
    assert consensus(["B", "B", "A"], [0.1, 0.1, 0.9], rollout_answers=["B", "B"]).majority == "B"


def test_entropy_of_agreement_is_zero_and_of_all_different_one():
    assert answer_entropy(["A"] * 5) == 0.0
    assert answer_entropy(["A", "B", "C", "D"]) == pytest.approx(1.0)
    assert answer_entropy([]) == answer_entropy(["A"]) == 0.0
    assert answer_entropy([None, "A"]) == 1.0  # to say nothing is something else than A


def test_one_voice_among_seven_that_are_silent_decides_nothing():
    ours = consensus(["A", *[None] * 7], np.ones(8))
    assert (ours.answer, ours.margin, ours.scores) == ("A", 0.125, {"A": 0.125})
    assert ours.accepted  # an eighth is over 0.08
    assert not ours.allows_update  # more said nothing
    assert consensus(["A"] * 7 + [None], np.ones(8)).allows_update


def test_so_many_must_agree_for_an_answer_to_teach():
    def teaches(*counts):
        said = [answer for answer, count in zip("ABCD", counts, strict=False) for _ in range(count)]
        return consensus(said, np.ones(8), delta=0.0, max_entropy=1.1, min_agreement=5 / 8).allows_update

    assert teaches(5, 1, 1, 1)
    assert teaches(5, 3)
    assert not teaches(4, 4)
    assert not teaches(4, 3, 1)


def test_no_rollouts_give_no_answer():
    ours = consensus([], [])
    assert (ours.answer, ours.margin, ours.accepted, ours.majority) == (None, 0.0, False, None)
    assert not ours.low_entropy


def test_one_rollout_is_its_own_consensus():
    ours = consensus(["A"], [0.3])
    assert (ours.answer, ours.margin, ours.accepted) == ("A", 1.0, True)


def test_all_answers_different_with_equal_weights_abstains():
    ours = consensus(["A", "B", "C"], np.ones(3))
    assert ours.margin == 0.0
    assert not ours.accepted


def test_zero_weights_give_no_answer_and_abstain():
    ours = consensus(["A", "A", "B"], np.zeros(3))
    assert (ours.answer, ours.accepted, ours.majority) == (None, False, "A")
    assert ours.scores == {"A": 0.0, "B": 0.0}
    assert not consensus(["A", "A"], np.zeros(2)).low_entropy


def test_a_rollout_without_an_answer_casts_no_vote():
    ours = consensus([None, "A", None], [0.9, 0.1, 0.9])
    assert (ours.answer, ours.margin) == ("A", pytest.approx(1 / 3))  # its part of the vote goes to nobody


def test_infinite_or_negative_weights_are_refused():
    for weight in (np.inf, -0.1):
        with pytest.raises(ValueError, match="finite and 0 or more"):
            consensus(["A"], [weight])


def test_near_duplicates_vote_once_with_their_best_weight():
    assert merge_duplicate_votes(np.array([0.2, 0.5, 0.3]), [0, 0, 2]) == pytest.approx([0.0, 0.5, 0.3])
    with pytest.raises(ValueError, match="3 weights, but 1 groups"):
        merge_duplicate_votes(np.ones(3), [0])


def test_the_smallest_single_change_that_flips_the_answer():
    # A 0.5 + 0.1 against B 0.4: A leads by 0.2. Rollout 0 flips below 0.5 - 0.2 = 0.3, rollout 2 above 0.4 + 0.2.
    # Rollout 1 (0.1) would have to fall under -0.1: impossible.
    flips = single_flips(["A", "A", "B"], [0.5, 0.1, 0.4])
    assert {(f.rollout, round(f.flips_at, 9), f.answer) for f in flips} == {(0, 0.3, "B"), (2, 0.6, "B")}


@pytest.mark.parametrize("nudge", [1e-6, -1e-6])
def test_a_flip_is_real(nudge):
    answers, weights = ["A", "B", "C", "A"], np.array([0.4, 0.5, 0.2, 0.3])
    before = consensus(answers, weights).answer
    for flip in single_flips(answers, weights):
        past = nudge if flip.flips_at > flip.weight else -nudge
        changed = weights.copy()
        changed[flip.rollout] = flip.flips_at + past
        after = consensus(answers, changed).answer
        assert after == (flip.answer if nudge > 0 else before)


def test_nothing_flips_a_single_answer_or_an_empty_vote():
    assert single_flips(["A", "A"], [0.5, 0.5]) == ()
    assert single_flips([], []) == ()
    assert single_flips(["A", "B"], [0.0, 0.0]) == ()


rollouts = st.lists(
    st.tuples(st.sampled_from(["A", "B", "C", None]), st.floats(0.0, 1.0, allow_subnormal=False)), max_size=9
)


@settings(max_examples=150)
@given(rollouts, st.randoms(use_true_random=False))
def test_the_order_of_the_rollouts_decides_nothing(votes, random):
    shuffled = votes[:]
    random.shuffle(shuffled)
    ours, theirs = (consensus([a for a, _ in v], [w for _, w in v], conformal_threshold=0.6) for v in (votes, shuffled))
    assert ours == theirs
    assert list(ours.scores) == list(theirs.scores)
    assert 0.0 <= ours.margin <= 1.0


def test_entropy_counts_the_tokens_of_decisive_steps_alone():
    assert decisive_entropy([0.5, 2.0, 0.1, 9.0], [True, False, True, False]) == pytest.approx(0.3)  # (0.5 + 0.1) / 2


def test_without_decisive_steps_all_tokens_count_and_without_tokens_nothing_is_known():
    assert decisive_entropy([1.0, 3.0], [False, False]) == 2.0
    assert np.isnan(decisive_entropy([], []))
    with pytest.raises(ValueError, match="2 token entropies, but 1"):
        decisive_entropy([1.0, 3.0], [True])
