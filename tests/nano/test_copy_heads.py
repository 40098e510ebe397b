"""nano begins with heads that copy: seen in their attention, worked out beside the model's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_vl.modeling_qwen3_vl import apply_rotary_pos_emb

from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy.tokenizer import PolicyTokenizer

LENGTH = 60


def attention(tokens: PolicyTokenizer, config: NanoConfig) -> list[Tensor]:
    """[(heads, 2·LENGTH, 2·LENGTH)] of the first two layers, over a random text that is said twice."""
    policy = build_nano(config, tokens, seed=3)
    text = policy.model.model.language_model
    once = policy.allowed_ids[
        torch.randperm(len(policy.allowed_ids), generator=torch.Generator().manual_seed(5))[:LENGTH]
    ]
    ids, places = torch.cat([once, once])[None], torch.arange(2 * LENGTH).expand(3, 1, -1)
    out = []
    with torch.no_grad():
        x = text.embed_tokens(ids)
        turn = text.rotary_emb(x, places)
        for layer in text.layers[:2]:
            own, h = layer.self_attn, layer.input_layernorm(x)
            q, k = (
                norm(project(h).view(1, 2 * LENGTH, -1, own.head_dim)).transpose(1, 2)
                for norm, project in ((own.q_norm, own.q_proj), (own.k_norm, own.k_proj))
            )
            q, k = apply_rotary_pos_emb(q, k, *turn)
            scores = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / own.head_dim**0.5
            later = torch.ones(2 * LENGTH, 2 * LENGTH).triu(1).bool()
            out.append(scores.masked_fill(later, -torch.inf).softmax(-1)[0])
            x = layer(x, position_embeddings=turn, attention_mask=None)
            x = x[0] if isinstance(x, tuple) else x
    return out


def given_to(attention: Tensor, head: int, back: int) -> float:
    """What a head gives to the token so far back, on the mean over the second saying."""
    at = torch.arange(LENGTH + 5, 2 * LENGTH)
    return float(attention[head, at, at - back].mean())


def test_one_head_looks_back_one_token_another_two_and_a_third_to_what_came_next_last_time(tokens: PolicyTokenizer):
    first, second = attention(tokens, NanoConfig())
    assert given_to(first, 0, 1) > 0.8
    assert given_to(first, 1, 2) > 0.8
    assert given_to(second, 2, LENGTH - 1) > 0.5  # where the same two tokens stood before, and one further
    assert given_to(second, 0, LENGTH - 1) > 0.15


def test_random_weights_do_none_of_this(tokens: PolicyTokenizer):
    first, second = attention(tokens, NanoConfig(copies=False))
    assert all(given_to(first, head, back) < 0.1 for head in range(4) for back in (1, 2))
    assert all(given_to(second, head, LENGTH - 1) < 0.1 for head in range(4))


@pytest.mark.parametrize(("heads", "kv_heads", "hidden"), [(2, 2, 32), (2, 1, 64), (8, 2, 128)])
def test_other_shapes_begin_as_well(tokens: PolicyTokenizer, heads: int, kv_heads: int, hidden: int):
    config = NanoConfig(hidden=hidden, layers=5, heads=heads, kv_heads=kv_heads, head_dim=16, mlp=64)
    assert given_to(attention(tokens, config)[0], 0, 1) > 0.5  # a head of 16 is less sharp


def test_a_number_begins_alike_in_all_its_spellings_and_near_numbers_nearly_so(tokens: PolicyTokenizer):
    words = build_nano(NanoConfig(), tokens, seed=3).model.model.language_model.embed_tokens.weight.detach()
    words = words - words.mean(0)  # the part that all tokens share

    def like(a: str, b: str) -> float:
        (first,), (second,) = tokens.encode(a), tokens.encode(b)
        return float(torch.cosine_similarity(words[first], words[second], dim=0))

    assert like("0.61, ", " 0.61") > 0.6
    assert like("0.61]", "0.61") > 0.6
    apart = {step: [like(f"{k / 100:.2f}, ", f" {(k + step) / 100:.2f}") for k in range(50)] for step in (1, 8, 40)}
    near, further, far = (sum(found) / 50 for found in apart.values())
    assert near > further + 0.1
    assert further > far + 0.1
