import time

import numpy as np
import pytest

from pixelis.equations.dawid_skene import agreement, dawid_skene


def literal_em(labels, C, epsilon=1e-2, tolerance=1e-6, most=50):
    """Dawid and Skene (1979), eqs. 2.3-2.5, cell by cell, with the paper's start and stop."""
    start = [[((c == k) + epsilon) / (1 + C * epsilon) for k in range(C)] for c in range(C)]
    prior = majority_prior(labels, C, epsilon)
    pi = [start for _ in labels[0]]
    before, iterations, moving = -np.inf, 0, True
    while moving and iterations < most:
        iterations += 1
        q, likelihood = expectation(labels, prior, pi)
        prior = [sum(row[c] for row in q) / len(q) for c in range(C)]
        pi = [maximisation([row[j] for row in labels], q, start, 0.0) for j in range(len(pi))]
        moving = abs(likelihood - before) > tolerance * abs(likelihood)
        before = likelihood
    pi = [maximisation([row[j] for row in labels], q, start, epsilon) for j in range(len(pi))]
    return np.array(q), np.array(prior), np.array(pi), likelihood, iterations


def majority_prior(labels, C, epsilon):
    prior = [epsilon] * C
    for row in labels:
        counts = [row.count(c) for c in range(C)]
        for c in range(C):
            prior[c] += (counts[c] == max(counts)) / counts.count(max(counts))
    return [p / sum(prior) for p in prior]


def expectation(labels, prior, pi):
    q, likelihood = [], 0.0
    for row in labels:
        joint = [p * np.prod([pi[j][c][x] for j, x in enumerate(row) if x >= 0]) for c, p in enumerate(prior)]
        likelihood += np.log(sum(joint))
        q.append([p / sum(joint) for p in joint])
    return q, likelihood


def maximisation(said, q, start, least):
    """One annotator's confusion matrix; a row with at most `least` evidence keeps its start values."""
    rows = []
    for c in range(len(start)):
        total = sum(qi[c] for x, qi in zip(said, q, strict=True) if x >= 0)
        counts = [sum(qi[c] for x, qi in zip(said, q, strict=True) if x == k) for k in range(len(start))]
        rows.append([n / total for n in counts] if total > least else start[c])
    return rows


def noisy(seed, items, accuracies, classes, missing=0.2):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, items)
    wrong = (truth[:, None] + rng.integers(1, classes, (items, len(accuracies)))) % classes
    labels = np.where(rng.random((items, len(accuracies))) < accuracies, truth[:, None], wrong)
    labels[rng.random(labels.shape) < missing] = -1
    labels[(labels < 0).all(axis=1), 0] = 0
    return labels, truth


@pytest.mark.parametrize(("seed", "items", "classes"), [(0, 12, 2), (1, 30, 3), (2, 40, 4), (3, 2, 3), (4, 25, 5)])
def test_every_number_equals_a_literal_em(seed, items, classes):
    labels, _ = noisy(seed, items, [0.9, 0.8, 0.6, 0.5, 0.4], classes)
    ours = dawid_skene(labels, n_classes=classes)
    posterior, prior, confusion, likelihood, iterations = literal_em(labels.tolist(), classes)
    assert ours.iterations == iterations
    np.testing.assert_allclose(ours.posterior, posterior, atol=1e-10)
    np.testing.assert_allclose(ours.prior, prior, atol=1e-10)
    np.testing.assert_allclose(ours.confusion, confusion, atol=1e-10)
    assert ours.log_likelihood == pytest.approx(likelihood, abs=1e-8)


def test_run_to_the_end_it_equals_crowd_kit():
    rng = np.random.default_rng(7)
    truth = rng.integers(0, 2, 300)
    labels = np.where(rng.random((300, 4)) < [0.85, 0.75, 0.7, 0.65], truth[:, None], 1 - truth[:, None])
    labels[rng.random((300, 4)) < 0.2] = -1
    ours = dawid_skene(labels, tolerance=0.0, max_iterations=20_000)
    # crowd-kit 1.4.2, DawidSkene(n_iter=700, tol=-1e9) on these labels
    assert ours.prior == pytest.approx([0.473037271684265, 0.526962728315735], abs=1e-6)
    assert ours.reliability == pytest.approx([0.9038481118, 0.7102947977, 0.6921992041, 0.5730890405], abs=1e-6)
    assert ours.posterior[:4, 0] == pytest.approx([0.305011999, 0.636292219, 0.072840421, 0.018207131], abs=2e-6)


def test_the_likelihood_never_falls():
    labels, _ = noisy(5, 60, [0.8, 0.7, 0.6, 0.5], 3)
    steps = [dawid_skene(labels, tolerance=0.0, max_iterations=k).log_likelihood for k in range(1, 40)]
    assert (np.diff(steps) >= -1e-9).all()


def test_better_annotators_get_a_higher_reliability():
    labels, truth = noisy(11, 400, [0.95, 0.8, 0.65, 0.5], 4, missing=0.0)
    ours = dawid_skene(labels)
    assert (np.diff(ours.reliability) < 0).all()
    assert (ours.labels == truth).mean() > (labels[:, 1] == truth).mean()


def test_unanimous_annotators_are_fully_reliable():
    labels = np.array([[0, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 1]])
    assert dawid_skene(labels).reliability == pytest.approx([1.0, 1.0, 1.0])


def test_a_class_never_seen_keeps_its_row_of_the_laplace_diagonal():
    ours = dawid_skene(np.array([[0, 0], [1, 1], [0, 0]]), n_classes=3)
    # (1 + 0.01) / (1 + 3 x 0.01) = 0.980583, and 0.01 / 1.03 beside it
    assert ours.confusion[0, 2] == pytest.approx([0.01 / 1.03, 0.01 / 1.03, 1.01 / 1.03])
    assert ours.prior[2] == pytest.approx(0.0, abs=1e-3)


def test_an_annotator_without_labels_keeps_the_start_and_an_item_without_labels_gets_the_prior():
    ours = dawid_skene(np.array([[0, -1], [-1, -1], [0, -1], [1, -1]]), n_classes=2)
    assert ours.reliability[1] == pytest.approx(1.01 / 1.02)
    assert ours.posterior[1] == pytest.approx(ours.prior)


def test_no_items_give_a_uniform_prior():
    ours = dawid_skene(np.zeros((0, 3), dtype=int), n_classes=4)
    assert ours.prior == pytest.approx([0.25] * 4)
    assert (ours.iterations, ours.log_likelihood, ours.converged) == (0, 0.0, True)


def test_no_rollouts_have_no_reliability_and_tell_nothing_about_the_items():
    ours = dawid_skene(np.zeros((2, 0), dtype=int), n_classes=4)
    assert ours.posterior == pytest.approx(np.full((2, 4), 0.25))
    assert ours.reliability.shape == (0,)
    assert agreement(np.zeros((2, 0), dtype=int)).shape == (0,)


def test_agreement_on_a_single_query_by_hand():
    # (2 + 0.01) / (3 + 0.02) for each of the three, (0 + 0.01) / 3.02 for the one alone
    assert agreement(np.array([[0, 0, 0, 1]])) == pytest.approx([2.01 / 3.02] * 3 + [0.01 / 3.02])


def test_agreement_of_all_different_answers_is_equal_and_of_one_rollout_is_one():
    assert agreement(np.array([[0, 1, 2]])) == pytest.approx([0.01 / 2.03] * 3)
    assert agreement(np.array([[0]])) == pytest.approx([1.0])
    # the third labelled nothing, the others agree: (1 + 0.01) / (1 + 0.01), as there is one class
    assert agreement(np.array([[0, 0, -1]])) == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize("labels", [np.array([0, 1]), np.array([[0.5]]), np.zeros((0,))])
def test_a_matrix_of_whole_numbers_is_wanted(labels):
    with pytest.raises(ValueError, match="items, annotators"):
        dawid_skene(labels)


def test_a_label_beyond_the_classes_is_refused():
    with pytest.raises(ValueError, match="label 5 in a problem of 3 classes"):
        dawid_skene(np.array([[5, 0]]), n_classes=3)


def test_eight_rollouts_take_far_less_than_crowd_kits_quarter_of_a_second():
    labels, _ = noisy(1, 64, np.linspace(0.45, 0.9, 8), 4, missing=0.0)
    dawid_skene(labels)
    start = time.process_time()
    for _ in range(10):
        dawid_skene(labels)
    assert (time.process_time() - start) / 10 < 0.010  # about 0.4 ms on a quiet core


def test_accuracy_weighs_classes_by_how_often_they_occur():
    # two annotators always say 0 and one always 1: the truth is 0, so they are right and it is wrong
    found = dawid_skene([[0, 0, 1]] * 10, n_classes=2)
    assert found.accuracy[0] > 0.95
    assert found.accuracy[2] < 0.05
    np.testing.assert_allclose(found.accuracy, [found.confusion[j].diagonal() @ found.prior for j in range(3)])


def test_pseudo_counts_by_hand():
    """All truths are 0 from the start and stay there, so that the counts are those of the labels themselves."""
    found = dawid_skene([[0, 1]] * 8, n_classes=2, epsilon=1e-9, pseudo=(2.0, 1.0), majority=[0] * 8, max_iterations=1)
    # first E-step: prior (1, 1e-9 / 8), likelihoods of "0 and 1" equal under both: the truth is 0
    # the first said 0 eight times: (8 + 2) / (8 + 3); the second never: 2 / 11; of class 1 both keep 2 / 3
    assert found.confusion[:, 0, 0] == pytest.approx([10 / 11, 2 / 11])
    assert found.confusion[:, 1, 1] == pytest.approx([2 / 3, 2 / 3], abs=1e-6)
    assert found.reliability == pytest.approx([(10 / 11 + 2 / 3) / 2, (2 / 11 + 2 / 3) / 2], abs=1e-6)


def test_with_pseudo_counts_a_few_labels_make_no_reliability_of_zero_or_one():
    labels = [[1, 0, 0], [0, 1, -1]]
    assert dawid_skene(labels, n_classes=2).accuracy[:2] == pytest.approx([0.0, 1.0], abs=1e-3)
    found = dawid_skene(labels, n_classes=2, pseudo=(2.0, 1.0), majority=[0, 0])
    # either was right once and wrong once: near (1 + 2) / (2 + 3) of class 0, near 2 / 3 of class 1
    assert found.reliability[:2] == pytest.approx([(3 / 5 + 2 / 3) / 2] * 2, abs=0.02)
