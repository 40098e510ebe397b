"""g_φ and h_ψ on steps whose answers are known."""

import numpy as np
import pytest
import torch

from pixelis.equations.embedding import CollapseError
from pixelis.rewards.dynamics import CorpusSteps, DynamicsHeads, coherence_statistics, fit_dynamics_heads, tool_scalers
from pixelis.rewards.features import StateFeatures
from pixelis.rewards.heads import Standardizer

D = 8


def steps_of(chains=20, length=5, seed=0):
    """Chains that walk: what is seen next is what is seen now, turned by one place."""
    rng = np.random.default_rng(seed)
    start = torch.from_numpy(rng.normal(size=(chains, D)).astype(np.float32))
    visual = torch.stack([torch.roll(start, k, dims=1) for k in range(length + 1)], dim=1)
    text = torch.from_numpy(rng.normal(size=(chains, length + 1, 2 * D + 10)).astype(np.float32))
    tool = torch.from_numpy(rng.integers(0, 6, size=chains * length))
    return CorpusSteps(
        StateFeatures(visual[:, :-1].reshape(-1, D), text[:, :-1].reshape(chains * length, -1)),
        StateFeatures(visual[:, 1:].reshape(-1, D), text[:, 1:].reshape(chains * length, -1)),
        tool,
        tool != 2,  # TRK never succeeds here
        np.repeat(np.arange(chains), length),
        tuple("search" if k % 2 else "motion" for k in range(chains)),
    )


@pytest.fixture(scope="module")
def trained():
    steps = steps_of()
    return steps, *fit_dynamics_heads(steps, D, epochs=150, seed=0, lr=3e-3)


def test_h_psi_learns_where_a_step_leads_and_whether_it_is_valid(trained):
    steps, heads, losses = trained
    v_hat, r_hat = heads.h_psi(heads.inputs(steps.before, steps.tool))
    assert losses["dynamics_loss"] < 0.3
    assert float((v_hat - heads.visual(steps.after.visual)).abs().mean()) < 0.3
    assert bool(((r_hat > 0) == steps.valid).all())


def test_embeddings_have_length_one_and_differ(trained):
    steps, heads, _ = trained
    E = heads.embed(steps)
    assert E.shape == (100, 512)
    assert E.norm(dim=1).tolist() == pytest.approx([1.0] * 100, abs=1e-5)
    families = coherence_statistics(heads, steps)
    assert {name: s.samples for name, s in families.items()} == {"motion": 40, "search": 40}  # 10 chains, 4 pairs each


def test_embeddings_that_do_not_differ_fail_loudly(trained):
    steps = trained[0]
    dead = DynamicsHeads(D).eval()
    torch.nn.init.zeros_(dead.g_phi.net[0].weight)
    with pytest.raises(CollapseError, match="collapsed"):
        coherence_statistics(dead, steps)


def test_a_tool_that_always_fails_is_punished_less_for_it(trained):
    steps, heads, _ = trained
    scalers = tool_scalers(heads, steps)
    assert scalers["TRK"]["penalty"] == 0.5
    assert scalers["SEG"]["penalty"] == 2.0
    assert scalers["TRK"]["valid"] == 0.0


def test_standard_features_have_mean_zero_and_spread_one_and_constants_stay_finite():
    scale = Standardizer(2)
    scale.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    assert scale(torch.tensor([[1.0, 5.0], [3.0, 5.0]])).tolist() == [[-1.0, 0.0], [1.0, 0.0]]


def test_the_heads_have_the_papers_sizes():
    """g_φ: [2d + 6] → 768 → 512; h_ψ: [2d + 6] → 1024 → (d + 1), dropout 0.1 (supp:et_dynamics)."""
    heads = DynamicsHeads(32)
    layers = [m for m in heads.g_phi.net if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(70, 768), (768, 512)]
    layers = [m for m in heads.h_psi.net if isinstance(m, torch.nn.Linear)]
    assert [(m.in_features, m.out_features) for m in layers] == [(70, 1024), (1024, 33)]
    assert {m.p for m in heads.h_psi.net if isinstance(m, torch.nn.Dropout)} == {0.1}
