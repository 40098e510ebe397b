"""Ledgers that begin alike: the tree by hand, and that it reads what each ledger alone would."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pixelis.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.policy.branches import ATTENTION, WORTH_SHARING, branches_of, grouped, in_common, keys_of, use_branches
from pixelis.policy.checkpoint import Card, save_checkpoint
from pixelis.policy.ledger import Ledger
from pixelis.policy.script import Look, Words, opening

CPU = torch.device("cpu")


def keys(*numbers):
    return np.array(numbers, dtype=np.int64)


def counting(*parts):
    """Runs of tokens, one after another."""
    return np.concatenate([np.arange(start, end) for start, end in parts])


def test_a_tree_by_hand():
    """Ten in common; two of three go on together for nine more; one of these ends there, the other has one token more.

    Tokens: 10 + 9 + 1 of the first two, 4 of the third.
    """
    rows = [counting((0, 10), (20, 29)), counting((0, 10), (20, 30)), counting((0, 10), (40, 44))]
    tree = branches_of(rows, CPU)
    assert tree.sizes == (10, 9, 1, 4)
    assert tree.reaches == (10, 19, 20, 14)
    assert [None if mask is None else tuple(mask.shape) for mask in tree.masks] == [None, (9, 19), (1, 20), (4, 14)]
    longest = 20
    flat = np.concatenate([np.pad(row, (0, longest - len(row))) for row in rows])
    assert flat[tree.tokens].tolist() == counting((0, 10), (20, 29), (29, 30), (40, 44)).tolist()
    back = tree.tokens[tree.back].view(3, longest)
    for row, own in enumerate(rows):
        assert flat[back[row, : len(own)]].tolist() == own.tolist()
    seen = tree.seen.split(tree.reaches)
    assert flat[tree.tokens[seen[2]]].tolist() == rows[1].tolist()
    assert flat[tree.tokens[seen[3]]].tolist() == rows[2].tolist()
    assert torch.isneginf(tree.masks[3]).tolist() == [[k > 10 + row for k in range(14)] for row in range(4)]


def test_a_few_tokens_in_common_are_no_branch_and_twins_are_one():
    short = WORTH_SHARING - 1
    tree = branches_of([counting((0, short), (20, 25)), counting((0, short), (30, 35))], CPU)
    assert (tree.sizes, tree.reaches) == ((short + 5, short + 5), (short + 5, short + 5))
    twins = branches_of([counting((0, 9)), counting((0, 9))], CPU)
    assert twins.sizes == (9,)
    assert twins.back.tolist() == [*range(9)] * 2


def test_groups_hold_together_what_shares_most():
    assert in_common(keys(1, 2, 3), keys(1, 2, 4, 5)) == 2
    assert in_common(keys(1, 2), keys(1, 2, 4)) == 2
    one, other = [keys(1, 1, 1, 1, k) for k in (2, 3)], [keys(5, 5, 5, k) for k in (6, 7)]
    rows = [one[0], other[0], one[1], other[1]]  # five tokens and one more; four and one more
    assert grouped(rows, 11) == [[0, 1, 2, 3]]
    assert grouped(rows, 10) == [[0, 2], [1, 3]]
    assert grouped(rows, 5) == [[0], [2], [1, 3]]
    assert grouped(rows, 1) == [[0], [2], [1], [3]]
    assert grouped([], 10) == []


@pytest.fixture
def talks(policy):
    """Four conversations about two pictures: prompts in common, calls in common, a view of its own for one."""
    rng = np.random.default_rng(3)
    first, second = (rng.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(2))

    def talk(pixels, *parts):
        ledger = Ledger()
        prompt = opening("What does the sign say?", MediaSet((Image.from_array(pixels),)), policy.style, [])
        ledger.give(prompt, policy.tokens, policy.optics)
        for part in parts:
            piece = (
                Words(part, "thought", 1) if isinstance(part, str) else Look("view", part, 40 * 40, "observation", 1)
            )
            ledger.give([piece], policy.tokens, policy.optics)
        return ledger

    said = "Goal: the text of the sign. First the whole picture, then the part that has letters."
    return [
        talk(first, said, second, "It says left."),
        talk(first, said, first, "It says right, and the arrow below it agrees."),
        talk(first, said, second, "It says"),
        talk(second, "Nothing."),
    ]


def test_what_a_tree_reads_is_what_each_ledger_reads(policy, talks):
    rows, tree = policy.batch(talks), policy.batch(talks, once=True)
    assert tree.branches is not None
    assert len(tree.branches.tokens) < 0.75 * sum(tree.lengths)
    assert len(tree.branches.order) == 4  # of six places that show a picture: two prompts, two views
    read, again = policy(rows), policy(tree)
    for row, length in enumerate(rows.lengths):
        for one, other in zip(read, again, strict=True):
            torch.testing.assert_close(one[row, :length], other[row, :length], atol=2e-5, rtol=1e-4)
    weight = policy.language.layers[0].self_attn.k_proj.weight
    gradients = []
    for found in (read, again):
        own = torch.cat([found.hidden[row, :length] for row, length in enumerate(rows.lengths)])
        gradients.append(torch.autograd.grad(own.square().sum(), weight)[0])
    torch.testing.assert_close(gradients[0], gradients[1], atol=1e-3, rtol=1e-3)


def test_pictures_are_told_apart_by_content(talks):
    found, pictures = keys_of(talks)
    assert len(pictures) == 4  # two as questions show them, two as views
    assert in_common(found[0], found[2]) == len(found[2])
    assert talks[0].places[1].picture.pixels is not talks[2].places[1].picture.pixels


def test_another_attention_is_refused():
    with pytest.raises(ConfigError, match="has 'eager' attention: open it with 'sdpa'"):
        use_branches(SimpleNamespace(_attn_implementation="eager"))


def test_a_checkpoint_does_not_know_how_it_was_read(policy, tmp_path):
    assert policy.language.config._attn_implementation == ATTENTION
    save_checkpoint(tmp_path, policy, Card(name="n"))
    assert ATTENTION not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["text_config"]["num_hidden_layers"] == 5
