"""nano's initial weights: random, except for a few heads that copy.

Calls repeat words of the question and numbers of results, and a transformer copies by two heads in sequence (an
induction circuit, Olsson et al. 2022): one writes down the previous token, the other finds where the previous token was
the present one and passes on what followed. Large models learn this circuit in a long training. nano, which trains for
an hour, did not learn it in two epochs of our corpus, so its first two layers begin with it. All weights are trained.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pixelis.policy.tokenizer import PolicyTokenizer

FAST_FREQUENCIES = 3
"""Fastest frequencies of the rotary embedding, by which a head attends a fixed number of tokens back."""
QK_NORM = 2.0
"""Weight of the query and key norms in these two layers; at 1 a head of 32 cannot single out one of many tokens."""
PREVIOUS_TOKEN_GAIN = 4.0
"""Gain of the previous tokens over the present token's own embedding."""
COPY_GAIN = 6.0
"""Gain of the copied token over the present one."""


def init_copy_heads(model: Any, generator: torch.Generator) -> None:
    """Initialise copying heads in the first two layers of a Qwen3-VL text model with at least two heads."""
    text = model.model.language_model
    first, second = text.layers[0].self_attn, text.layers[1].self_attn
    width, size, half = text.embed_tokens.weight.shape[1], first.head_dim, first.head_dim // 2
    group = first.q_proj.out_features // first.k_proj.out_features
    # the slower half of the frequencies: a match over a hundred tokens is not rotated away
    slow = torch.tensor([*range(half // 2, half), *range(half + half // 2, size)])
    frame, _ = torch.linalg.qr(torch.randn(width, width, generator=generator))
    shared_direction, content = frame[:, :1].T, frame[:, 1 : 1 + len(slow)].T  # (1, d), (s, d): rows
    previous_one, previous_two = (frame[:, a : a + len(slow)].T for a in (1 + len(slow), 1 + 2 * len(slow)))
    remainder = frame[:, 1 + 3 * len(slow) :].T
    with torch.no_grad():
        embeddings = text.embed_tokens.weight
        scale = float(embeddings.norm(dim=1).mean())
        reserved = torch.cat([shared_direction, previous_one, previous_two])
        embeddings -= embeddings @ reserved.T @ reserved
        embeddings += scale * shared_direction  # heads that attend by position need a part that all tokens share
        for attention in (first, second):
            attention.q_norm.weight.fill_(QK_NORM)
            attention.k_norm.weight.fill_(QK_NORM)
        key = torch.zeros(size)
        key[:FAST_FREQUENCIES] = 1.0
        for head, (offset, subspace) in enumerate(((1, previous_one), (2, previous_two))):
            set_head_rows(first.k_proj, head // group, key[:, None] @ shared_direction)
            set_head_rows(first.v_proj, head // group, scatter_rows(content, slow, size))
            set_head_rows(first.q_proj, head, rotate_key(key, offset, text)[:, None] @ shared_direction)
            columns = scatter_rows(subspace, slow, size).T * (PREVIOUS_TOKEN_GAIN * scale / width**0.5)
            set_head_columns(first.o_proj, head, columns)
        rows = torch.cat([content, remainder])[:size]
        value_rows = scatter_rows(rows, torch.arange(len(rows)), size)
        matches = ((content, previous_one), (previous_one, previous_two))[: first.k_proj.out_features // size]
        for key_head, (query_rows, key_rows) in enumerate(matches):
            set_head_rows(second.q_proj, key_head * group, scatter_rows(query_rows, slow, size))
            set_head_rows(second.k_proj, key_head, scatter_rows(key_rows, slow, size))
            set_head_rows(second.v_proj, key_head, value_rows)
            set_head_columns(second.o_proj, key_head * group, value_rows.T * (COPY_GAIN * scale / width**0.5))


NUMBER_SHARE = 0.8
"""The share of a coordinate's embedding that stands for the number; the rest tells its tokens apart."""
WAVE_COUNT = 6
"""Waves over [0, 1] that make near numbers similar."""


def init_number_embeddings(model: Any, tokenizer: PolicyTokenizer, generator: torch.Generator) -> None:
    """Give the tokens of one number similar embeddings, with any sign or space beside it, and near numbers too.

    A box has `0.61, ` and a sentence ` 0.61`. With unrelated embeddings, copying a number from one to the other would
    have to be memorised, and so would which of two numbers is larger.
    """
    embeddings = model.model.language_model.embed_tokens.weight
    width, scale = embeddings.shape[1], float(embeddings.detach().norm(dim=1).mean())
    directions = torch.randn(2 * WAVE_COUNT, width, generator=generator)
    with torch.no_grad():
        for k in range(101):
            value, text = k / 100, f"{k / 100:.2f}"
            spellings = (text, f"{text}, ", f"{text}]", f" {text}")
            ids = [token_ids[0] for text in spellings if len(token_ids := tokenizer.encode(text)) == 1]
            phase = torch.pi * value * torch.arange(1, WAVE_COUNT + 1)
            ordered = normalise(torch.cat([phase.cos(), phase.sin()]) @ directions)
            number = normalise(ordered + normalise(torch.randn(width, generator=generator)))
            for token in ids:
                own_part = (1 - NUMBER_SHARE) ** 0.5 * normalise(embeddings[token].clone())
                embeddings[token] = scale * (NUMBER_SHARE**0.5 * number + own_part)


def normalise(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def scatter_rows(rows: Tensor, places: Tensor, size: int) -> Tensor:
    """(size, d) these rows at these indices, zeros elsewhere."""
    out = torch.zeros(size, rows.shape[1])
    out[places] = rows
    return out


def rotate_key(key: Tensor, offset: int, text: Any) -> Tensor:
    """The query that matches this key `offset` tokens before itself."""
    half = len(key) // 2
    angle = -offset * text.rotary_emb.inv_freq[:half]
    a, b = key[:half], key[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def set_head_rows(layer: Any, head: int, rows: Tensor) -> None:
    layer.weight[head * len(rows) : (head + 1) * len(rows)] = rows


def set_head_columns(layer: Any, head: int, columns: Tensor) -> None:
    size = columns.shape[1]
    layer.weight[:, head * size : (head + 1) * size] = columns
