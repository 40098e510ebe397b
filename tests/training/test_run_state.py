"""State folders: none replaces another, and none is resumed after its corpus has changed."""

import json

import numpy as np
import pytest
import torch

from pixelis.core.errors import ConfigError
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_state import (
    FACTS,
    Sources,
    list_state_folders,
)
from pixelis.training.sft.sft_state import SftState, load_sft_state, save_sft_state

SOURCES = Sources(corpus="a", tokenizer="b")


@pytest.fixture
def small():
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, fused=True)
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return module, optimizer


def state_at(warmup_task_steps, step):
    return SftState(np.random.default_rng(0), np.zeros(4), warmup_task_steps=warmup_task_steps, step=step)


def test_warmup_steps_count_so_that_no_state_replaces_another(small, tmp_path):
    names = []
    for warmup_task_steps, step in ((1, 0), (2, 0), (2, 1)):
        save_sft_state(tmp_path, state_at(warmup_task_steps, step), SOURCES, *small, DistributedContext())
        names += [folder.name for folder in list_state_folders(tmp_path)]
    assert names == ["state-00000001", "state-00000002", "state-00000003"]


def test_what_was_saved_comes_back_to_the_bit(small, tmp_path):
    save_sft_state(tmp_path, state_at(0, 7), SOURCES, *small, DistributedContext())
    other = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.1, fused=True)
    assert load_sft_state(tmp_path, SOURCES, other, optimizer, DistributedContext()).step == 7
    for mine, theirs in zip(small[0].parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        for key, moment in small[1].state[mine].items():
            assert torch.equal(moment, optimizer.state[theirs][key])


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (Sources("z", "b"), "another corpus: put it back"),
        (Sources("a", "z"), "another tokenizer: put it back"),
        (Sources("z", "z"), "another corpus and another tokenizer"),
    ],
)
def test_another_corpus_at_the_same_path_is_refused(small, tmp_path, now, said):
    save_sft_state(tmp_path, state_at(0, 1), SOURCES, *small, DistributedContext())
    with pytest.raises(ConfigError, match=said):
        load_sft_state(tmp_path, now, *small, DistributedContext())


def test_a_state_that_does_not_name_its_corpus_is_resumed(small, tmp_path):
    save_sft_state(tmp_path, state_at(0, 1), SOURCES, *small, DistributedContext())
    file = list_state_folders(tmp_path)[0] / FACTS
    facts = json.loads(file.read_text())
    del facts["sources"]
    file.write_text(json.dumps(facts))
    assert load_sft_state(tmp_path, SOURCES, *small, DistributedContext()) is not None


def test_a_state_saved_under_the_names_of_earlier_releases_is_resumed(small, tmp_path):
    save_sft_state(tmp_path, state_at(3, 1), SOURCES, *small, DistributedContext())
    file = list_state_folders(tmp_path)[0] / FACTS
    facts = json.loads(file.read_text())
    names = ("warmup_task_steps", "drilled"), ("warmup_task_s", "drilled_s"), ("training_s", "teaching_s")
    for new, old in (*names, ("smoothed_nats", "trend")):
        facts[old] = facts.pop(new)
    file.write_text(json.dumps(facts))
    assert load_sft_state(tmp_path, SOURCES, *small, DistributedContext()).warmup_task_steps == 3
