"""The boxes that a policy would write, read back from its tokens."""

import json
import re

import pytest
import torch

from pixelis.training.sft.sft_model import collate
from pixelis.training.sft.teacher_forced_eval import box_iou, token_coordinates, written_boxes


@pytest.fixture
def given(train, policy):
    return collate([train[k] for k in range(len(train)) if train[k].accepted], None, policy)


def test_a_policy_that_writes_what_the_teacher_wrote_has_its_boxes(given, policy, train):
    units = token_coordinates(policy.tokenizer)
    said, wanted = written_boxes(given.targets, given, units)
    calls = [
        box
        for example in (train[k] for k in range(len(train)) if train[k].accepted)
        for call in re.findall(r"<tool_call>(.*?)</tool_call>", policy.tokenizer.decode(example.ids.tolist()))
        for box in (json.loads(call)["arguments"].get("box"), json.loads(call)["arguments"].get("target"))
        if isinstance(box, list) and len(box) == 4
    ]
    assert calls
    torch.testing.assert_close(wanted, torch.tensor(calls))
    assert box_iou(said, wanted).tolist() == pytest.approx([1.0] * len(calls))


def test_a_word_in_place_of_a_coordinate_leaves_no_area(given, policy):
    units = token_coordinates(policy.tokenizer)
    other = torch.full_like(given.targets, policy.tokenizer.end_id)
    said, wanted = written_boxes(other, given, units)
    assert not box_iou(said, wanted).any()


def test_overlap_by_hand():
    a = torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.6, 0.6, 0.4, 0.4]])
    b = torch.tensor([[0.25, 0.0, 0.75, 1.0], [0.4, 0.4, 0.6, 0.6]])
    assert box_iou(a, b).tolist() == pytest.approx([1 / 3, 0.0])  # 0.25 of 0.75; crossed corners
