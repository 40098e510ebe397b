"""The losses of a batch, held against slower ways to the same numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pixelis.rewards.heads import ToolHeads
from pixelis.training.dataset.examples import COLUMNS, Steps
from pixelis.training.sft.sft_model import SftModel, collate, confidences_before, sample_hidden_tokens


@pytest.fixture
def sft_model(policy):
    torch.manual_seed(0)
    return SftModel(policy, ToolHeads(policy.width), w_act=2.0, smoothing=0.0)


@pytest.fixture
def few(train):
    return [train[k] for k, entry in enumerate(train.entries) if entry.accepted][:3]


def test_the_loss_is_that_of_the_policys_own_log_probabilities(sft_model, few):
    with torch.no_grad():
        output = sft_model.eval()(collate(few, None, sft_model.policy))
        logprobs, _ = sft_model.policy.logprobs(sft_model.policy.collate([example.sequence for example in few]))
    total = weight = 0.0
    for row, example in enumerate(few):
        for at in np.flatnonzero(example.is_sampled):
            w = 2.0 if example.kinds[at] == 2 else 1.0
            total, weight = total - w * float(logprobs[row, at]), weight + w
    assert float(output.sft) == pytest.approx(total / weight, rel=1e-5)


def test_argument_heads_do_not_see_a_word_of_the_call(sft_model, few):
    example = max(few, key=lambda e: len(e.steps))
    cut = int(example.steps.opens[0]) + 1
    other = example.ids.copy()
    other[cut:] = np.where(other[cut:] == sft_model.policy.tokenizer.image_id, other[cut:], other[cut])
    only = {name: getattr(example.steps, name)[:1] for name in COLUMNS}
    steps = Steps(**{**only, "decisive": np.array([True])})
    with torch.no_grad():
        a, b = (
            sft_model.eval()(collate([replace(example, ids=ids, steps=steps)], None, sft_model.policy)).box
            for ids in (example.ids, other)
        )
    assert torch.allclose(a, b, atol=1e-6)
    before = example.ids.copy()
    before[cut - 2] = before[cut]
    with torch.no_grad():
        c = sft_model(collate([replace(example, ids=before, steps=steps)], None, sft_model.policy)).box
    assert not torch.allclose(a, c, atol=1e-6)  # while what came before it matters


def test_dropped_tokens_are_hidden_from_the_input_and_stay_targets(sft_model, few, settings):
    example = few[0]
    config = settings(feedback_dropout=1.0, early_action_dropout=1.0)
    hidden = sample_hidden_tokens(config, example, np.random.default_rng(0))
    plain, dropped = (collate([example], drop, sft_model.policy) for drop in (None, [hidden]))
    assert torch.equal(plain.targets, dropped.targets)
    assert torch.equal(plain.target_positions, dropped.target_positions)
    changed = (plain.inputs.ids != dropped.inputs.ids)[0].numpy()
    assert set(dropped.inputs.ids[0, changed].tolist()) == {sft_model.policy.tokenizer.pad_id}
    assert not changed[example.kinds == 0].any()
    assert int((dropped.inputs.ids == sft_model.policy.tokenizer.image_id).sum()) == len(dropped.visual_positions)


def test_without_dropouts_nothing_is_hidden(few, settings):
    config = settings(feedback_dropout=0.0, early_action_dropout=0.0)
    assert not sample_hidden_tokens(config, few[0], np.random.default_rng(0)).any()


def test_confidences_are_those_before_the_call(few):
    steps = few[0].steps
    seen = confidences_before(few[0])
    assert not seen[0].any()
    assert seen[1, steps.tool[0]] == pytest.approx(steps.confidence[0])


def test_a_batch_without_decisive_steps_has_no_argument_loss(sft_model, few):
    output = sft_model(collate([few[0].without_tools()], None, sft_model.policy))
    assert float(output.tool.total.detach()) == 0.0
    (output.sft + output.tool.total).backward()
