import time
from itertools import groupby

import numpy as np
import pytest

from pixelis.equations.coherence import adjacent_cosines
from pixelis.equations.embedding import CosineStatistics, cosine_statistics
from pixelis.equations.process import (
    action_entropy,
    chain_cosines,
    plan_reexecution,
    process_summary,
    racpr,
    rapr,
    run_to_run_stability,
)


def literal_racpr(u, z, *, tau=0.30, l_min=3, l_0=6, alpha_len=0.02, alpha_inv=0.30):
    """The paper's definition, literally, for one trace; z[t] is z(c_t), z[0] is not used."""
    gates = [t for t in range(1, len(u)) if u[t - 1] == 1 and u[t] == 1 and z[t] >= tau]
    candidates = [[t for _, t in run] for _, run in groupby(enumerate(gates), lambda p: p[1] - p[0])]
    best = []
    for chain in candidates:
        n = len(chain)
        if n >= l_min:
            rise = sum(max(z[t] - tau, 0.0) for t in chain) / n
            best.append(rise - alpha_len * max(n - l_0, 0) / n - alpha_inv * sum(1 - u[t] for t in chain) / n)
    return max(best) if best else 0.0


def one(u, z, **settings):
    return racpr(u, [np.nan, *z[1:]] if len(z) else [], mean=0.0, std=1.0, **settings)


def test_rapr_is_the_share_of_valid_steps():
    assert rapr([1, 0, 1, 1]) == pytest.approx([0.75])
    # traces of 2, 0, 1 and 3 steps
    assert rapr([1, 0, 1, 1, 1, 0], [2, 0, 1, 3]) == pytest.approx([0.5, 0.0, 1.0, 2 / 3])


def test_a_trace_without_steps_has_rapr_zero_and_one_step_counts_itself():
    assert rapr([]) == pytest.approx([0.0])
    assert rapr([1]) == pytest.approx([1.0])


def test_a_step_that_was_not_verified_is_not_valid():
    assert rapr([1, np.nan]) == pytest.approx([0.5])
    assert not one([1, 1, np.nan, 1, 1], [0, 1.0, 1.0, 1.0, 1.0], l_min=2).qualified.any()


def test_racpr_by_hand():
    # gates at t = 1, 2, 3 with z - 0.3 = 0.2, 0.7, 0.3: mean 0.4
    ours = one([1, 1, 1, 1], [0, 0.5, 1.0, 0.6])
    assert ours.values == pytest.approx([0.4])
    assert ours.chain_length.tolist() == [3]


def test_three_gates_are_needed_which_are_four_steps():
    assert one([1, 1, 1], [0, 1.0, 1.0]).values == pytest.approx([0.0])
    assert one([1, 1, 1], [0, 1.0, 1.0], l_min=2).values == pytest.approx([0.7])


def test_a_gate_at_tau_itself_is_open():
    assert one([1] * 4, [0, 0.3, 0.3, 0.3]).qualified.tolist() == [True]
    assert one([1] * 4, [0, 0.3, 0.299, 0.3]).qualified.tolist() == [False]


def test_long_chains_pay_the_length_prior():
    # eight gates of z = 1.3: 1.0 - 0.02 x (8 - 6)/8 = 0.995
    assert one([1] * 9, [0] + [1.3] * 8).values == pytest.approx([0.995])


def test_the_best_of_two_chains_counts():
    # gates 1-3 at z = 0.5 give 0.2; u_4 = 0 breaks; gates 6-8 at z = 0.9 give 0.6
    u = [1, 1, 1, 1, 0, 1, 1, 1, 1]
    z = [0, 0.5, 0.5, 0.5, 2.0, 2.0, 0.9, 0.9, 0.9]
    assert one(u, z).values == pytest.approx([0.6])


def test_an_invalid_step_closes_the_gate_on_both_sides():
    assert one([1, 1, 0, 1, 1], [0, 2.0, 2.0, 2.0, 2.0], l_min=2).values == pytest.approx([0.0])


def test_chains_of_no_or_one_step_have_racpr_zero():
    ours = racpr([1], [np.nan], [0, 1, 0], mean=0.0, std=1.0)
    assert ours.values == pytest.approx([0.0, 0.0, 0.0])
    assert not ours.qualified.any()
    assert racpr([], [], mean=0.0, std=1.0).values == pytest.approx([0.0])
    assert racpr([], [], [], mean=0.0, std=1.0).values.shape == (0,)


def test_chains_do_not_run_over_from_one_trace_into_the_next():
    # two traces of three steps: two gates each, not five
    ours = racpr([1] * 6, [np.nan, 2, 2, 2, 2, 2], [3, 3], mean=0.0, std=1.0)
    assert ours.values == pytest.approx([0.0, 0.0])


def test_a_broken_cosine_or_a_task_without_spread_stays_in_its_own_trace():
    # two traces of four gates; the second has z = 1: 1 - 0.3
    for cosine, std in ((np.inf, 1.0), (np.nan, 1.0), (1.0, 1e-16)):
        first = [np.nan, 1.0, cosine, 1.0, 1.0]
        ours = racpr([1] * 10, [*first, np.nan, 1.0, 1.0, 1.0, 1.0], [5, 5], mean=0.0, std=[std, 1.0])
        assert ours.values[1] == pytest.approx(0.7)
    assert not racpr([1] * 5, [np.nan, 1.0, np.inf, 1.0, 1.0], mean=0.0, std=1.0).qualified.any()


def test_a_thousand_random_traces_equal_the_papers_sentences():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 15, 1000)
    u = (rng.random(lengths.sum()) < 0.92).astype(int)
    z = rng.normal(0.8, 0.8, lengths.sum())
    tasks = rng.integers(0, 2, 1000)
    mean, std = np.array([0.2, 0.5])[tasks], np.array([0.1, 0.3])[tasks]
    owner = np.repeat(np.arange(1000), lengths)
    ours = racpr(u, z * std[owner] + mean[owner], lengths, mean=mean, std=std)
    ends = np.cumsum(lengths)
    literal = [literal_racpr(u[e - n : e], z[e - n : e]) for e, n in zip(ends, lengths, strict=True)]
    np.testing.assert_allclose(ours.values, literal, atol=1e-9)
    assert ours.qualified.sum() > 200


def test_cosines_by_hand():
    # (1,0)-(1,1): 0.7071; a new trace begins at step 2; (0,0) has cosine 0 with everything
    E = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0], [0.0, 0.0], [0.0, 1.0]])
    c = chain_cosines(E, [2, 3])
    assert np.isnan(c[[0, 2]]).all()
    assert c[[1, 3, 4]] == pytest.approx([0.707107, 0.0, 0.0], abs=1e-6)


def test_a_broken_embedding_has_no_cosine_on_either_side():
    assert np.isnan(chain_cosines([[1.0, 0.0], [np.nan, 1.0], [1.0, 0.0]], [3])).all()


def test_cosines_of_many_traces_equal_those_of_each_alone():
    E = np.random.default_rng(2).normal(size=(9000, 5))
    alone = [[np.nan, *adjacent_cosines(part)] for part in np.split(E, [4000])]
    np.testing.assert_allclose(chain_cosines(E, [4000, 5000]), np.concatenate(alone), atol=1e-12)


def test_half_precision_embeddings_give_the_same_cosines():
    E = np.random.default_rng(1).normal(size=(5000, 32)).astype(np.float16)
    lengths = [2500, 2500]
    np.testing.assert_allclose(chain_cosines(E, lengths), chain_cosines(E.astype(np.float64), lengths), atol=1e-5)


def test_statistics_leave_out_first_steps_and_constant_cosines_open_no_gate():
    assert cosine_statistics([np.nan, 0.2, 0.4]) == pytest.approx(CosineStatistics(0.3, 0.1, 2))
    nothing = cosine_statistics([])
    assert nothing == CosineStatistics(0.0, 0.0, 0)
    assert not racpr([1] * 5, [np.nan] + [0.9] * 4, mean=nothing.mean, std=nothing.std).qualified.any()
    assert not racpr([1] * 5, [np.nan] + [0.9] * 4, mean=0.9, std=0.0).qualified.any()


def test_the_summary_is_times_one_hundred():
    chains = racpr([1] * 6, [np.nan, 1, 1, 1, np.nan, 1], [4, 2], mean=0.0, std=1.0)
    summary = process_summary(rapr([1, 1, 1, 0, 1, 1], [4, 2]), chains)
    # RaPR (0.75 + 1)/2, RaCPR (0.7 + 0)/2, one of two qualified
    assert (summary.rapr, summary.racpr, summary.qualified) == pytest.approx((87.5, 35.0, 50.0))
    assert process_summary([], racpr([], [], [], mean=0.0, std=1.0)).traces == 0


def test_stability_of_runs_by_hand():
    # SEG OCR against SEG ZOOM OCR: one edit of three, 2/3; second query identical: 1; third has one run: left out
    runs = [[["SEG", "OCR"], ["SEG", "ZOOM", "OCR"]], [["TRK"], ["TRK"], ["TRK"]], [["SEG"]]]
    assert run_to_run_stability(runs) == pytest.approx((2 / 3 + 1) / 2)
    assert run_to_run_stability([[1, 2]], similarity=lambda a, b: 0.25) == pytest.approx(0.25)


def test_stability_needs_two_runs_of_something():
    with pytest.raises(ValueError, match="at least two runs"):
        run_to_run_stability([[["SEG"]]])


def test_action_entropy_by_hand():
    # 1/2, 1/4, 1/4: 1.5 bits = 1.039721 nats, over ln 6
    ae = action_entropy(["SEG", "SEG", "OCR", "ZOOM"])
    assert ae.nats == pytest.approx(1.5 * np.log(2))
    assert ae.normalised == pytest.approx(1.5 * np.log(2) / np.log(6))
    assert action_entropy([]).nats == action_entropy(["SEG"]).nats == 0.0
    assert action_entropy(["SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP"]).normalised == pytest.approx(1.0)


def test_reexecution_counts_the_perturbations_that_apply():
    prc = plan_reexecution([[1, 0, np.nan], [1, 1, 1], [np.nan, np.nan, np.nan]])
    assert prc[:2] == pytest.approx([0.5, 1.0])
    assert np.isnan(prc[2])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rapr([1, 0], [3]), "sum to 3, but there are 2 steps"),
        (lambda: racpr([1, 0], [0.0], mean=0, std=1), "2 validity marks, but 1 cosines"),
        (lambda: chain_cosines(np.zeros((3, 2)), [2]), "sum to 2, but there are 3 steps"),
        (lambda: process_summary([0.5], racpr([], [], [], mean=0, std=1)), "RaPR of 1 traces"),
    ],
)
def test_lengths_that_differ_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_ten_thousand_traces_from_cached_embeddings_take_under_two_seconds():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 13, 10_000)
    E = rng.standard_normal((lengths.sum(), 384), dtype=np.float32)
    valid = rng.random(lengths.sum()) < 0.9
    start = time.process_time()
    c = chain_cosines(E, lengths)
    stats = cosine_statistics(c)
    racpr(valid, c, lengths, mean=stats.mean, std=stats.std)
    rapr(valid, lengths)
    assert time.process_time() - start < 2.0
