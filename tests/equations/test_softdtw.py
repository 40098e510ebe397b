import numpy as np
import pytest

from pixelis.equations.softdtw import soft_dtw


def all_alignments(n, m):
    """Every monotone path from (0, 0) to (n-1, m-1) as a list of cells."""
    ending = {(0, 0): [[(0, 0)]]}
    for i in range(n):
        for j in range(m):
            if (i, j) != (0, 0):
                before = [(i - 1, j), (i, j - 1), (i - 1, j - 1)]
                ending[i, j] = [[*path, (i, j)] for b in before for path in ending.get(b, [])]
    return ending[n - 1, m - 1]


def enumerated(costs, gamma):
    """Value and expected alignment straight from the definition: a Gibbs distribution over all alignments."""
    n, m = costs.shape
    paths = [tuple(np.array(path).T) for path in all_alignments(n, m)]
    totals = np.array([costs[path].sum() for path in paths])
    least = totals.min()
    weights = np.exp(-(totals - least) / gamma)
    alignment = np.zeros((n, m))
    for path, weight in zip(paths, weights / weights.sum(), strict=True):
        alignment[path] += weight
    return least - gamma * np.log(weights.sum()), alignment


@pytest.mark.parametrize(("n", "m", "gamma"), [(1, 1, 0.2), (2, 3, 0.2), (5, 4, 0.2), (6, 6, 0.15), (1, 5, 0.3)])
def test_value_and_alignment_equal_the_sum_over_all_alignments(n, m, gamma):
    costs = np.random.default_rng(n * 10 + m).random((n, m))
    value, alignment = enumerated(costs, gamma)
    ours = soft_dtw(costs, gamma=gamma)
    assert ours.value == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(ours.alignment, alignment, atol=1e-12)


def test_eight_by_eight_equals_autograd_over_the_literal_recursion():
    torch = pytest.importorskip("torch")
    costs = torch.rand((8, 8), dtype=torch.float64, generator=torch.Generator().manual_seed(3), requires_grad=True)
    total = {(0, 0): torch.zeros((), dtype=torch.float64)}
    for i in range(1, 9):
        for j in range(1, 9):
            before = torch.stack([total[b] for b in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if b in total])
            total[i, j] = costs[i - 1, j - 1] - 0.2 * torch.logsumexp(-before / 0.2, dim=0)
    total[8, 8].backward()
    ours = soft_dtw(costs.detach().numpy())
    assert ours.value == pytest.approx(total[8, 8].item(), abs=1e-9)
    np.testing.assert_allclose(ours.alignment, costs.grad.numpy(), atol=1e-9)


def test_two_by_two_by_hand():
    # paths: diagonal 0+0, down-right and right-down 0+1+0; value = -0.2 ln(1 + 2 e^-5) = -0.2 x 0.01338575
    ours = soft_dtw([[0.0, 1.0], [1.0, 0.0]])
    assert ours.value == pytest.approx(-0.2 * np.log(1 + 2 * np.exp(-5.0)))
    # each detour has probability e^-5 / (1 + 2 e^-5) = 0.00664893
    assert ours.alignment[0, 1] == pytest.approx(0.0066489, abs=1e-6)
    assert ours.alignment[0, 0] == ours.alignment[1, 1] == pytest.approx(1.0)


def test_a_small_gamma_gives_plain_dynamic_time_warping():
    costs = np.array([[0.0, 1.0, 1.0], [1.0, 0.5, 0.0]])
    # best path (0,0) -> (1,1) -> (1,2): 0 + 0.5 + 0; or (0,0) -> (0,1) -> (1,2): 0 + 1 + 0
    assert soft_dtw(costs, gamma=1e-4).value == pytest.approx(0.5)


def test_transposed_costs_give_the_transposed_alignment_to_the_last_bit():
    costs = np.random.default_rng(0).random((7, 5))
    there, back = soft_dtw(costs), soft_dtw(costs.T)
    assert there.value == back.value
    assert (there.alignment == back.alignment.T).all()


def test_empty_chains_have_a_value():
    assert soft_dtw(np.zeros((0, 0))).value == 0.0
    assert soft_dtw(np.zeros((0, 3))).value == np.inf
    assert soft_dtw(np.zeros((0, 3))).alignment.shape == (0, 3)


def test_costs_far_apart_do_not_overflow():
    ours = soft_dtw([[1e6, 0.0], [0.0, 1e6]])
    assert np.isfinite(ours.value)
    assert np.isfinite(ours.alignment).all()


@pytest.mark.parametrize(
    ("costs", "gamma", "says"),
    [([[0.0]], 0.0, "gamma > 0"), ([0.0], 0.2, "matrix"), ([[np.nan]], 0.2, "finite")],
)
def test_bad_input_is_one_sentence(costs, gamma, says):
    with pytest.raises(ValueError, match=says):
        soft_dtw(costs, gamma=gamma)
