"""The layers run by us, against transformers' own forward; the cache, against reading everything again."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from pixelis.core.errors import ConfigError, TraceError
from pixelis.media import MediaSet
from pixelis.nano.nano_model import NANO_STYLE
from pixelis.policy import chat_format
from pixelis.policy.images import extract_patches
from pixelis.policy.kv_cache import RowCache
from pixelis.policy.model import ImageFeatures, Policy, gather_image_features
from pixelis.policy.sequence import TokenSequence, check_recomputed, check_sequence, compute_positions
from pixelis.tools.results import ToolCall, ToolResult


def tool_dialogue(policy: Policy, media: MediaSet, *, thought: str = "Find the red panel first.") -> TokenSequence:
    sequence = TokenSequence()
    result = ToolResult(tool="SEG", status="ok", text="red [0.31, 0.20, 0.45, 0.29]")
    parts = (
        chat_format.render_prompt("What does the red panel say?", media, NANO_STYLE, []),
        chat_format.render_call(thought, ToolCall(tool="SEG", args={"target": "red panel"}), step=1),
        chat_format.render_observation(result, None, media, NANO_STYLE, step=1),
        chat_format.render_answer("It says Zorvan.", "Zorvan", NANO_STYLE, step=2),
    )  # fmt: skip
    for pieces in parts:
        sequence.append_context(pieces, policy.tokenizer, policy.image_config)
    return sequence


@pytest.fixture
def sequences(policy: Policy, media: MediaSet) -> list[TokenSequence]:
    one = MediaSet(media.sources[:1])
    return [
        tool_dialogue(policy, media),
        tool_dialogue(policy, one, thought="Read."),
        tool_dialogue(policy, media, thought=""),
    ]


@torch.no_grad()
def test_logits_are_those_of_the_model_itself(policy: Policy, sequences: list[TokenSequence]):
    batch = policy.collate(sequences)
    shown = [batch.images[k] for k in batch.image_order]
    grids = torch.tensor([[1, 2 * p.rows, 2 * p.columns] for p in shown])
    filled = torch.zeros_like(batch.ids)
    for row, length in enumerate(batch.lengths):
        filled[row, :length] = 1
    kinds = (batch.ids == policy.tokenizer.image_id).long()
    theirs = policy.model(
        input_ids=batch.ids, attention_mask=filled, mm_token_type_ids=kinds, image_grid_thw=grids,
        pixel_values=torch.from_numpy(np.concatenate([extract_patches(p, policy.image_config) for p in shown])),
    ).logits  # fmt: skip
    ours = policy.logits(policy(batch).hidden)
    for row, length in enumerate(batch.lengths):
        kept = ~policy.banned_mask
        assert torch.equal(ours[row, :length][:, kept], theirs[row, :length][:, kept])
    assert torch.isinf(ours[..., policy.banned_mask]).all()


def test_positions_are_those_of_the_model_itself(policy: Policy, sequences: list[TokenSequence]):
    for sequence in sequences:
        ids = torch.tensor([sequence.ids])
        grids = torch.tensor([[1, 2 * p.image.rows, 2 * p.image.columns] for p in sequence.image_spans])
        kinds = (ids == policy.tokenizer.image_id).long()
        theirs, _ = policy.model.model.get_rope_index(ids, image_grid_thw=grids, mm_token_type_ids=kinds)
        assert np.array_equal(compute_positions(sequence.ids, sequence.image_spans), theirs[:, 0].numpy())


@torch.no_grad()
def test_reading_in_parts_with_the_cache_equals_reading_at_once(policy: Policy, sequences: list[TokenSequence]):
    batch = policy.collate(sequences)
    seen = gather_image_features(policy.encode_images(batch.images), batch.images, batch.image_order)
    whole = policy.forward_tokens(batch.ids, batch.positions, seen).hidden
    image = batch.ids == policy.tokenizer.image_id
    number = torch.full(batch.ids.shape, -1)
    number[image] = torch.arange(int(image.sum()))
    cache, parts = RowCache.for_model(policy.language, len(sequences)), []
    borders = [0, 40, 41, 42, 77, min(batch.lengths)]
    for start, end in pairwise(borders):
        ids = batch.ids[:, start:end]
        rows = number[:, start:end][ids == policy.tokenizer.image_id]
        some = ImageFeatures(seen.embeddings[rows], tuple(deep[rows] for deep in seen.deepstack))
        mask = cache.prepare(slice(0, len(sequences)), torch.full((len(sequences),), end - start), end - start)
        parts.append(policy.forward_tokens(ids, batch.positions[:, :, start:end], some, cache=cache, mask=mask).hidden)
    assert (torch.cat(parts, 1) - whole[:, : borders[-1]]).abs().max() < 1e-5


def test_a_row_that_was_taken_over_and_swapped_keeps_what_it_held():
    prompt, cache = (RowCache(1, rows, 1, 2, dtype=torch.float32, device=torch.device("cpu")) for rows in (1, 3))
    prompt.prepare(slice(0, 1), torch.tensor([2]), 2)
    prompt.update(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), 0)
    for row in range(3):
        cache.copy_row(prompt, 0, row)
    cache.prepare(slice(2, 3), torch.tensor([1]), 1)
    cache.update(torch.full((1, 1, 1, 2), 5.0), torch.full((1, 1, 1, 2), 5.0), 0)
    cache.swap(0, 2)
    assert cache.lengths.tolist() == [3, 2, 2]
    assert cache.keys[0][0, 0, :3, 0].tolist() == [1.0, 1.0, 5.0]
    assert cache.keys[0][2, 0, :2, 0].tolist() == [1.0, 1.0]


def test_a_token_sees_its_row_and_the_new_tokens_up_to_itself():
    cache = RowCache(1, 2, 1, 2, dtype=torch.float32, device=torch.device("cpu"))
    cache.lengths[:] = torch.tensor([0, 2])
    mask = cache.prepare(slice(0, 2), torch.tensor([2, 1]), 2)
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert mask[1, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert cache.lengths.tolist() == [2, 3]


def test_the_question_stands_before_the_pictures(policy: Policy, sequences: list[TokenSequence]):
    ids = sequences[0].ids
    question = policy.tokenizer.encode("What does the red panel say?")
    at = next(k for k in range(len(ids)) if ids[k : k + len(question)] == question)
    assert at < ids.index(policy.tokenizer.image_id)


def test_kinds_divide_a_trajectory_as_the_paper_weighs_it(policy: Policy, sequences: list[TokenSequence]):
    sequence = sequences[0]
    texts = {
        kind: policy.tokenizer.decode([k for k, own in zip(sequence.ids, sequence.kinds, strict=True) if own == kind])
        for kind in ("thought", "action", "answer")
    }
    assert texts["thought"] == "Find the red panel first.\nIt says Zorvan.\n"
    assert texts["action"] == '<tool_call>{"name": "SEG", "arguments": {"target": "red panel"}}</tool_call><|im_end|>'
    assert texts["answer"] == "<answer> Zorvan</answer><|im_end|>"


@torch.no_grad()
def test_the_sanitizer_finds_a_changed_mask_picture_or_probability(policy: Policy, sequences: list[TokenSequence]):
    sequence = sequences[1]
    found = policy.logprobs(policy.collate([sequence]))[0][0].tolist()
    for k in np.flatnonzero(sequence.kind_mask("thought", "action", "answer")):
        sequence.logprobs[k] = found[k]
    check_sequence(sequence, policy.tokenizer)
    assert check_recomputed(sequence, found) == 0.0
    k = int(np.flatnonzero(sequence.kind_mask("action"))[0])
    sequence.logprobs[k] = found[k] - 0.01
    with pytest.raises(TraceError, match=f"token {k} \\(action\\) was sampled"):
        check_recomputed(sequence, found)
    sequence.logprobs[0] = -1.0
    with pytest.raises(TraceError, match="token 0 \\(prompt\\) has a log-probability"):
        check_sequence(sequence, policy.tokenizer)
    sequence.logprobs[0] = None
    del sequence.image_spans[0]
    with pytest.raises(TraceError, match="image tokens, but its images need"):
        check_sequence(sequence, policy.tokenizer)


def test_a_probability_that_is_no_number_is_never_overlooked(policy: Policy, sequences: list[TokenSequence]):
    sequence = copy.deepcopy(sequences[0])
    sequence.logprobs[-2:] = [-0.5, -0.5]
    recomputed = [0.0] * (len(sequence) - 2) + [math.nan, -0.5]
    with pytest.raises(TraceError, match="nan"):
        check_recomputed(sequence, recomputed)


def test_features_are_tapped_after_the_third_layer_from_the_top(policy: Policy, sequences: list[TokenSequence]):
    batch, kept = policy.collate(sequences[:1]), list[torch.Tensor]()
    layer = policy.language.layers[len(policy.language.layers) - 3]
    handle = layer.register_forward_hook(lambda module, given, out: kept.append(out))
    with torch.no_grad():
        tapped = policy(batch).features
    handle.remove()
    assert torch.equal(tapped, kept[0])
    with pytest.raises(ConfigError, match="outside"):
        Policy(policy.model, policy.tokenizer, policy.style, policy.image_config, tap=-9)


def test_a_picture_that_two_ledgers_share_is_encoded_once(policy: Policy, media: MediaSet):
    sequence = tool_dialogue(policy, media)
    twin = TokenSequence(
        list(sequence.ids),
        list(sequence.kinds),
        list(sequence.steps),
        list(sequence.logprobs),
        list(sequence.image_spans),
    )
    batch = policy.collate([sequence, twin])
    assert len(batch.images) == 2
    assert batch.image_order == (0, 1, 0, 1)
