"""What label smoothing spread is gathered in again: the fit against scipy's, and what stays as it was."""

import numpy as np
import pytest
import torch

from pixelis.equations.calibration import fit_temperature
from pixelis.train.crew import Crew
from pixelis.train.evaluating import readings
from pixelis.train.heads import ToolHeads
from pixelis.train.lessons import Student, lessons
from pixelis.train.starting import Lesson
from pixelis.train.tempering import GRID, divide_logits, temper, undo_division


@pytest.fixture
def student(policy):
    torch.manual_seed(0)
    return Student(policy, ToolHeads(policy.width), w_act=2.0, smoothing=0.05).eval()


@pytest.fixture
def pool(train):
    return [Lesson(k, True, entry.tokens) for k, entry in enumerate(train.entries) if entry.accepted]


def test_logits_are_divided_and_nothing_else_moves(student, train, pool):
    given = lessons([train[pool[0].number]], None, student.policy)
    with torch.no_grad():
        before = student(given)
        divide_logits(student.policy, 0.5)
        undo_division(student.heads, 0.5)
        after = student(given)
    torch.testing.assert_close(after.logits, 2.0 * before.logits)
    assert torch.equal(after.top, before.top)
    torch.testing.assert_close(after.box, before.box)
    torch.testing.assert_close(after.tool.total, before.tool.total)


def test_the_fit_is_the_one_of_the_calibrators(student, train, pool):
    pool = pool[:2]
    for _ in range(10):  # a policy that has learnt something, or T would lie at the end of its range
        given = lessons([train[lesson.number] for lesson in pool], None, student.policy)
        student.train()
        student(given).sft.backward()
        with torch.no_grad():
            for value in student.policy.parameters():
                if value.grad is not None:
                    value.sub_(0.1 * value.grad.sign() * value.abs().mean())
                    value.grad = None
    divide_logits(student.policy, 0.5)  # or T would be 0.2, out of its range
    logits, targets = [], []
    for _, given, said in readings(student, train, pool, 4096, Crew()):
        logits.append(said.logits)
        targets.append(student.policy.open_places[given.targets])
    exact = fit_temperature(torch.cat(logits).numpy(), torch.cat(targets).numpy()).temperature
    fitted = temper(student, train, pool, 4096, Crew())
    nearest = min(GRID, key=lambda t: abs(np.log(t / exact)))
    assert fitted == nearest
    assert 0.25 < exact < 1.0
    assert temper(student, train, pool, 4096, Crew()) == pytest.approx(1.0)  # nothing is left to fit


def test_without_dev_nothing_is_fitted(student, train):
    before = student.policy.language.norm.weight.clone()
    assert temper(student, train, [], 4096, Crew()) == 1.0
    assert torch.equal(student.policy.language.norm.weight, before)
