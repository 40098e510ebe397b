"""A step of phase 1 beside one of transformers' Trainer: the same tokens on both sides, and CPU seconds of each."""

import numpy as np
import torch

from benchmarks.bench_rollout import random_nano
from benchmarks.bench_sft import collate_for_trainer, make_example, rows
from pixelis.nano.nano_model import NanoConfig
from pixelis.training.sft.sft_model import collate

SMALL = NanoConfig(hidden=32, layers=5, heads=2, head_dim=16, mlp=64, vision_hidden=16, vision_layers=1)


def test_both_sides_read_the_same_ids_and_are_taught_the_same_targets():
    policy, _ = random_nano(SMALL)
    rng = np.random.default_rng(0)
    examples = [make_example(policy, rng, number) for number in range(3)]
    given, theirs = collate(examples, None, policy), collate_for_trainer(examples, policy)
    assert torch.equal(given.inputs.ids, theirs["input_ids"])
    assert torch.equal(given.targets, theirs["labels"][theirs["labels"] != -100])
    assert len(given.inputs.images) == len(theirs["image_grid_thw"]) == 6
    assert len(given.call_positions) == 6  # two calls each: the heads have something to learn
    assert torch.isfinite(given.box).all()


def test_a_small_run_measures_both_in_cpu_seconds_and_prints_nothing(capsys):
    (row,) = rows(SMALL, batch=2, steps=2)
    assert row.ours_cpu_s > 0
    assert row.peer_cpu_s is not None
    assert row.peer_cpu_s / row.ours_cpu_s > 0
    assert capsys.readouterr().out == ""
