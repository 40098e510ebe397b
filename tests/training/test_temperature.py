"""The temperature that undoes label smoothing: the fit against scipy's, and what it must not change."""

import numpy as np
import pytest
import torch

from pixelis.equations.calibration import fit_temperature
from pixelis.nano.temperature import GRID, divide_logits_by
from pixelis.rewards.heads import ToolHeads
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.sft.sft_model import SftModel, collate
from pixelis.training.sft.teacher_forced_eval import fit_policy_temperature, teacher_forced_outputs
from pixelis.training.sft.training_index import ExampleRef


@pytest.fixture
def sft_model(policy):
    torch.manual_seed(0)
    return SftModel(policy, ToolHeads(policy.width), w_act=2.0, smoothing=0.05).eval()


@pytest.fixture
def pool(train):
    return [ExampleRef(k, True, entry.tokens) for k, entry in enumerate(train.entries) if entry.accepted]


def test_logits_are_divided_and_nothing_else_moves(sft_model, train, pool):
    batch = collate([train[pool[0].example_index]], None, sft_model.policy)
    with torch.no_grad():
        before = sft_model(batch)
        divide_logits_by(sft_model.policy, 0.5)
        sft_model.heads.undo_division(0.5)
        after = sft_model(batch)
    torch.testing.assert_close(after.logits, 2.0 * before.logits)
    assert torch.equal(after.top_tokens, before.top_tokens)
    torch.testing.assert_close(after.box, before.box)
    torch.testing.assert_close(after.tool.total, before.tool.total)


def test_the_fit_is_the_one_of_the_calibrators(sft_model, train, pool):
    pool = pool[:2]
    for _ in range(10):  # a policy that has learnt something, or T would lie at the end of its range
        batch = collate([train[ref.example_index] for ref in pool], None, sft_model.policy)
        sft_model.train()
        sft_model(batch).sft.backward()
        with torch.no_grad():
            for value in sft_model.policy.parameters():
                if value.grad is not None:
                    value.sub_(0.1 * value.grad.sign() * value.abs().mean())
                    value.grad = None
    divide_logits_by(sft_model.policy, 0.5)  # or T would be 0.2, out of its range
    logits, targets = [], []
    for _, batch, output in teacher_forced_outputs(sft_model, train, pool, 4096, DistributedContext()):
        logits.append(output.logits)
        targets.append(sft_model.policy.allowed_index[batch.targets])
    exact = fit_temperature(torch.cat(logits).numpy(), torch.cat(targets).numpy()).temperature
    fitted = fit_policy_temperature(sft_model, train, pool, 4096, DistributedContext())
    nearest = min(GRID, key=lambda t: abs(np.log(t / exact)))
    assert fitted == nearest
    assert 0.25 < exact < 1.0
    assert fit_policy_temperature(sft_model, train, pool, 4096, DistributedContext()) == pytest.approx(
        1.0
    )  # nothing is left to fit


def test_without_dev_nothing_is_fitted(sft_model, train):
    before = sft_model.policy.language.norm.weight.clone()
    assert fit_policy_temperature(sft_model, train, [], 4096, DistributedContext()) == 1.0
    assert torch.equal(sft_model.policy.language.norm.weight, before)
