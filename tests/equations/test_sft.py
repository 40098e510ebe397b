import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from pixelis.equations.sft import (
    IGNORE_INDEX,
    Head,
    early_action_dropout,
    feedback_dropout,
    sft_loss,
    sft_total,
    soft_dice,
    tool_argument_loss,
)

YES, NO = torch.tensor(True), torch.tensor(False)
LN3 = math.log(3)


def two_tokens():
    """An action token predicted at 1/2, a plain one at 3/4."""
    logits = torch.tensor([[0.0, 0.0], [LN3, 0.0]], dtype=torch.float64)
    return logits, torch.tensor([0, 0]), torch.tensor([True, False])


def test_an_action_token_weighs_twice_a_plain_one():
    logits, targets, actions = two_tokens()
    # (2·ln 2 + ln 4/3) / 3 = (1.386294 + 0.287682) / 3
    loss = sft_loss(logits, targets, actions, torch.ones(2, dtype=torch.bool), smoothing=0.0)
    assert loss.item() == pytest.approx(0.557992, abs=1e-6)


def test_label_smoothing_moves_a_twentieth_of_the_target_to_all_classes():
    logits, targets, actions = two_tokens()
    # 0.95·0.287682 + 0.05·(0.287682 + 1.386294)/2 = 0.273298 + 0.041849
    loss = sft_loss(logits, targets, actions, torch.tensor([False, True]))
    assert loss.item() == pytest.approx(0.315147, abs=1e-6)


def test_places_without_loss_may_hold_anything():
    logits, targets, actions = two_tokens()
    logits[0] = float("nan")
    targets[0] = IGNORE_INDEX
    loss = sft_loss(logits.requires_grad_(), targets, actions, torch.tensor([False, True]), smoothing=0.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.287682, abs=1e-6)
    assert torch.isfinite(logits.grad).all()


def test_an_ignored_target_inside_the_mask_weighs_nothing():
    logits, targets, actions = two_tokens()
    targets[0] = IGNORE_INDEX
    loss = sft_loss(logits, targets, actions, torch.ones(2, dtype=torch.bool), smoothing=0.0)
    assert loss.item() == pytest.approx(0.287682, abs=1e-6)  # ln 4/3 alone


def test_a_sequence_without_supervised_tokens_has_loss_zero_and_can_be_differentiated():
    logits, targets, actions = two_tokens()
    loss = sft_loss(logits.requires_grad_(), targets, actions, torch.zeros(2, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0.0
    assert (logits.grad == 0).all()


def test_masks_of_another_length_are_refused():
    logits, targets, actions = two_tokens()
    with pytest.raises(ValueError, match="shapes differ"):
        sft_loss(logits, targets, actions[:1], torch.ones(2, dtype=torch.bool))


def test_feedback_dropout_hides_a_tool_output_as_a_whole_and_nothing_else():
    outputs = [-1, 0, 0, -1, 1, 1]
    assert feedback_dropout(outputs, rng=np.random.default_rng(0), p=1.0).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
    ]
    seen = {tuple(feedback_dropout(outputs, rng=np.random.default_rng(s), p=0.5)) for s in range(50)}
    assert seen == {(True, a, a, True, b, b) for a in (False, True) for b in (False, True)}


def test_feedback_dropout_hides_one_output_in_twenty():
    hidden = ~feedback_dropout(np.arange(20_000), rng=np.random.default_rng(1))
    assert hidden.mean() == pytest.approx(0.05, abs=0.006)  # four standard errors


def test_early_action_dropout_touches_the_first_three_actions_only():
    steps = [0, 1, 1, 2, 3, 4, 5]
    kept = early_action_dropout(steps, rng=np.random.default_rng(0), p=1.0)
    assert kept.tolist() == [True, False, False, False, False, True, True]


def test_early_action_dropout_hides_one_action_in_fifty():
    rng = np.random.default_rng(2)
    hidden = np.concatenate([~early_action_dropout([1, 2, 3], rng=rng) for _ in range(8000)])
    assert hidden.mean() == pytest.approx(0.02, abs=0.004)


def test_dropout_of_an_empty_sequence_is_empty():
    assert feedback_dropout([], rng=np.random.default_rng(0)).shape == (0,)


def test_dropout_refuses_a_probability_over_one():
    with pytest.raises(ValueError, match=r"dropout probability is 1\.5"):
        feedback_dropout([0], rng=np.random.default_rng(0), p=1.5)


def four_heads():
    """Two decisive steps. SEG on the first (box, mask), OCR and TEMP on the second; the other rows are NaN."""
    nan = float("nan")
    first, second = torch.stack([YES, NO]), torch.stack([NO, YES])
    return {
        "box": Head(torch.tensor([[0.0] * 4, [nan] * 4]), torch.tensor([[0.2, 0, 0, 0], [0.0] * 4]), first),
        "mask": Head(
            torch.tensor([[[100.0, 100.0], [-100.0, -100.0]], [[nan] * 2] * 2]),
            torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0] * 2] * 2]),
            first,
        ),
        "text": Head(torch.zeros(2, 3, 4), torch.tensor([[0, 0, 0], [1, 2, IGNORE_INDEX]]), second),
        "temp": Head(torch.zeros(2, 5), torch.ones(2, 5), second),
    }


def test_the_tool_loss_adds_each_head_where_its_tool_applies():
    loss = tool_argument_loss(**four_heads())
    # box: 0.2²/2 / 4 = 0.005; mask: 1 − 2·1/(2+2) = 0.5; text: ln 4; temp: ln 2; each divided by two decisive steps
    assert [part.item() for part in loss[1:]] == pytest.approx(
        [0.0025, math.log(4) / 2, 0.25, math.log(2) / 2], abs=1e-6
    )
    assert loss.total.item() == pytest.approx(1.292221, abs=1e-6)


def test_each_lambda_scales_its_own_head():
    loss = tool_argument_loss(**four_heads(), lambda_box=2.0, lambda_text=3.0, lambda_mask=4.0, lambda_temp=0.0)
    assert [part.item() for part in loss[1:]] == pytest.approx([0.005, 3 * math.log(4) / 2, 1.0, 0.0], abs=1e-6)


def test_without_decisive_steps_the_tool_loss_is_zero():
    empty = Head(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, 4), torch.zeros(0, dtype=torch.bool))
    loss = tool_argument_loss(box=empty).total
    loss.backward()
    assert loss.item() == 0.0
    assert tool_argument_loss().total.item() == 0.0


def test_a_text_without_tokens_adds_nothing():
    head = Head(torch.zeros(1, 2, 4), torch.full((1, 2), IGNORE_INDEX), YES.reshape(1))
    assert tool_argument_loss(text=head).total.item() == 0.0


def test_heads_over_different_numbers_of_steps_are_refused():
    box = Head(torch.zeros(2, 4), torch.zeros(2, 4), torch.ones(2, dtype=torch.bool))
    temp = Head(torch.zeros(1, 4), torch.zeros(1, 4), torch.ones(1, dtype=torch.bool))
    with pytest.raises(ValueError, match="decisive steps"):
        tool_argument_loss(box=box, temp=temp)
    with pytest.raises(ValueError, match="expected the same number"):
        tool_argument_loss(box=box._replace(target=torch.zeros(1, 4)))


def test_dice_of_two_empty_masks_is_one():
    assert soft_dice(torch.zeros(1, 2, 2), torch.zeros(1, 2, 2)).item() == pytest.approx(1.0)


def test_the_total_adds_a_fifth_of_the_tool_loss():
    assert sft_total(torch.tensor(1.0), torch.tensor(0.5)).item() == pytest.approx(1.1)


def test_the_sft_loss_passes_gradcheck():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(5, (2, 4), generator=generator)
    actions, mask = (torch.rand(2, 4, generator=generator) < 0.6 for _ in range(2))
    assert gradcheck(lambda x: sft_loss(x, targets, actions, mask), logits)


def test_the_tool_loss_passes_gradcheck():
    generator = torch.Generator().manual_seed(1)
    some = torch.tensor([True, False, True])

    def draw(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator, requires_grad=True)

    ids = torch.tensor([[0, 1], [2, 2], [3, IGNORE_INDEX]])
    area = (torch.rand(3, 2, 2, generator=generator) < 0.5).double()
    frames = (torch.rand(3, 5, generator=generator) < 0.5).double()

    def total(box, text, mask, temp):
        heads = {
            "box": Head(box, torch.zeros(3, 4, dtype=torch.float64), some),
            "text": Head(text, ids, some),
            "mask": Head(mask, area, some),
            "temp": Head(temp, frames, some),
        }
        return sft_total(torch.zeros(()), tool_argument_loss(**heads).total)

    assert gradcheck(total, (draw(3, 4), draw(3, 2, 4), draw(3, 2, 2), draw(3, 5)))
