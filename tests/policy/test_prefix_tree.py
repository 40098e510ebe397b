"""Sequences that begin alike: the tree by hand, and that it reads what each sequence alone would."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pixelis.core.errors import ConfigError
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.policy.chat_format import ImagePiece, TextPiece, render_prompt
from pixelis.policy.checkpoint import ModelCard, save_checkpoint
from pixelis.policy.prefix_tree import (
    ATTENTION_NAME,
    MIN_SHARED_TOKENS,
    build_prefix_tree,
    common_prefix_length,
    compute_sequence_keys,
    group_by_prefix,
    use_tree_attention,
)
from pixelis.policy.sequence import TokenSequence

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
    tree = build_prefix_tree(rows, CPU)
    assert tree.sizes == (10, 9, 1, 4)
    assert tree.reaches == (10, 19, 20, 14)
    assert [None if mask is None else tuple(mask.shape) for mask in tree.masks] == [None, (9, 19), (1, 20), (4, 14)]
    longest = 20
    flat = np.concatenate([np.pad(row, (0, longest - len(row))) for row in rows])
    assert flat[tree.tokens].tolist() == counting((0, 10), (20, 29), (29, 30), (40, 44)).tolist()
    back = tree.tokens[tree.inverse].view(3, longest)
    for row, own in enumerate(rows):
        assert flat[back[row, : len(own)]].tolist() == own.tolist()
    seen = tree.visible.split(tree.reaches)
    assert flat[tree.tokens[seen[2]]].tolist() == rows[1].tolist()
    assert flat[tree.tokens[seen[3]]].tolist() == rows[2].tolist()
    assert torch.isneginf(tree.masks[3]).tolist() == [[k > 10 + row for k in range(14)] for row in range(4)]


def test_a_few_tokens_in_common_are_no_branch_and_twins_are_one():
    short = MIN_SHARED_TOKENS - 1
    tree = build_prefix_tree([counting((0, short), (20, 25)), counting((0, short), (30, 35))], CPU)
    assert (tree.sizes, tree.reaches) == ((short + 5, short + 5), (short + 5, short + 5))
    twins = build_prefix_tree([counting((0, 9)), counting((0, 9))], CPU)
    assert twins.sizes == (9,)
    assert twins.inverse.tolist() == [*range(9)] * 2


def test_groups_hold_together_what_shares_most():
    assert common_prefix_length(keys(1, 2, 3), keys(1, 2, 4, 5)) == 2
    assert common_prefix_length(keys(1, 2), keys(1, 2, 4)) == 2
    one, other = [keys(1, 1, 1, 1, k) for k in (2, 3)], [keys(5, 5, 5, k) for k in (6, 7)]
    rows = [one[0], other[0], one[1], other[1]]  # five tokens and one more; four and one more
    assert group_by_prefix(rows, 11) == [[0, 1, 2, 3]]
    assert group_by_prefix(rows, 10) == [[0, 2], [1, 3]]
    assert group_by_prefix(rows, 5) == [[0], [2], [1, 3]]
    assert group_by_prefix(rows, 1) == [[0], [2], [1], [3]]
    assert group_by_prefix([], 10) == []


@pytest.fixture
def talks(policy):
    """Four conversations about two pictures: prompts in common, calls in common, a view of its own for one."""
    rng = np.random.default_rng(3)
    first, second = (rng.integers(0, 256, (48, 64, 3), dtype=np.uint8) for _ in range(2))

    def talk(pixels, *parts):
        sequence = TokenSequence()
        prompt = render_prompt("What does the sign say?", MediaSet((Image.from_array(pixels),)), policy.style, [])
        sequence.append_context(prompt, policy.tokenizer, policy.image_config)
        for part in parts:
            piece = (
                TextPiece(part, "thought", 1)
                if isinstance(part, str)
                else ImagePiece("view", part, 40 * 40, "observation", 1)
            )
            sequence.append_context([piece], policy.tokenizer, policy.image_config)
        return sequence

    thought = "Goal: the text of the sign. First the whole picture, then the part that has letters."
    return [
        talk(first, thought, second, "It says left."),
        talk(first, thought, first, "It says right, and the arrow below it agrees."),
        talk(first, thought, second, "It says"),
        talk(second, "Nothing."),
    ]


def test_what_a_tree_reads_is_what_each_ledger_reads(policy, talks):
    rows, tree = policy.collate(talks), policy.collate(talks, share_prefixes=True)
    assert tree.prefix_tree is not None
    assert len(tree.prefix_tree.tokens) < 0.75 * sum(tree.lengths)
    assert len(tree.prefix_tree.image_order) == 4  # of six places that show a picture: two prompts, two views
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
    found, pictures = compute_sequence_keys(talks)
    assert len(pictures) == 4  # two as questions show them, two as views
    assert common_prefix_length(found[0], found[2]) == len(found[2])
    assert talks[0].image_spans[1].image.pixels is not talks[2].image_spans[1].image.pixels


def test_another_attention_is_refused():
    with pytest.raises(ConfigError, match="has 'eager' attention: open it with 'sdpa'"):
        use_tree_attention(SimpleNamespace(_attn_implementation="eager"))


def test_a_checkpoint_does_not_know_how_it_was_read(policy, tmp_path):
    assert policy.language.config._attn_implementation == ATTENTION_NAME
    save_checkpoint(tmp_path, policy, ModelCard(name="n"))
    assert ATTENTION_NAME not in (tmp_path / "config.json").read_text()
    assert json.loads((tmp_path / "config.json").read_text())["text_config"]["num_hidden_layers"] == 5
