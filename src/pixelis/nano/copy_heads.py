"""Where nano begins: random weights, but for a few heads that copy.

Calls repeat words of the question and numbers of the results, and a transformer copies by two heads in turn (an
induction circuit, Olsson et al. 2022): one that writes down the token before, and one that finds where the token before
was the present one and passes on what stood there. Large models find this circuit in the course of a long training.
nano has an hour, and on our corpus did not find it in two epochs; so the first two layers begin with it. Everything is
trained from there on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pixelis.policy.tokenizer import PolicyTokenizer

FAST_FREQUENCIES = 3
"""Frequencies of the rotary embedding, from the fastest, by which a head looks a fixed number of tokens back."""
QK_NORM = 2.0
"""The norms of queries and keys in these two layers; at 1 a head of 32 cannot single out one token among hundreds."""
PREVIOUS_TOKEN_GAIN = 4.0
"""How much stronger than a present token's own words the ones before it are written."""
COPY_GAIN = 6.0
"""How much stronger the copied token is written than the present one is held."""


def init_copy_heads(model: Any, generator: torch.Generator) -> None:
    """Lay the copying heads into the first two layers of a Qwen3-VL text model with two heads or more."""
    text = model.model.language_model
    first, second = text.layers[0].self_attn, text.layers[1].self_attn
    width, size, half = text.embed_tokens.weight.shape[1], first.head_dim, first.head_dim // 2
    group = first.q_proj.out_features // first.k_proj.out_features
    # the slower half of the frequencies: a match over a hundred tokens does not turn away from itself
    slow = torch.tensor([*range(half // 2, half), *range(half + half // 2, size)])
    frame, _ = torch.linalg.qr(torch.randn(width, width, generator=generator))
    shared_direction, content = frame[:, :1].T, frame[:, 1 : 1 + len(slow)].T  # (1, d), (s, d): rows
    previous_one, previous_two = (frame[:, a : a + len(slow)].T for a in (1 + len(slow), 1 + 2 * len(slow)))
    remainder = frame[:, 1 + 3 * len(slow) :].T
    with torch.no_grad():
        embeddings = text.embed_tokens.weight
        scale = float(embeddings.norm(dim=1).mean())
        embeddings -= (
            embeddings
            @ torch.cat([shared_direction, previous_one, previous_two]).T
            @ torch.cat([shared_direction, previous_one, previous_two])
        )
        embeddings += (
            scale * shared_direction
        )  # a part that all tokens share: heads that look at places need something to hold on to
        for attention in (first, second):
            attention.q_norm.weight.fill_(QK_NORM)
            attention.k_norm.weight.fill_(QK_NORM)
        key = torch.zeros(size)
        key[:FAST_FREQUENCIES] = 1.0
        for head, (offset, subspace) in enumerate(((1, previous_one), (2, previous_two))):
            set_head_rows(first.k_proj, head // group, key[:, None] @ shared_direction)
            set_head_rows(first.v_proj, head // group, scatter_rows(content, slow, size))
            set_head_rows(first.q_proj, head, rotate_key(key, offset, text)[:, None] @ shared_direction)
            set_head_columns(
                first.o_proj, head, scatter_rows(subspace, slow, size).T * (PREVIOUS_TOKEN_GAIN * scale / width**0.5)
            )
        rows = torch.cat([content, remainder])[:size]
        value_rows = scatter_rows(rows, torch.arange(len(rows)), size)
        matches = ((content, previous_one), (previous_one, previous_two))[: first.k_proj.out_features // size]
        for key_head, (query_rows, key_rows) in enumerate(matches):
            set_head_rows(second.q_proj, key_head * group, scatter_rows(query_rows, slow, size))
            set_head_rows(second.k_proj, key_head, scatter_rows(key_rows, slow, size))
            set_head_rows(second.v_proj, key_head, value_rows)
            set_head_columns(second.o_proj, key_head * group, value_rows.T * (COPY_GAIN * scale / width**0.5))


NUMBER_SHARE = 0.8
"""How much of a coordinate's embedding is the number itself; the rest tells its tokens apart."""
WAVE_COUNT = 6
"""Waves over 0 to 1 by which near numbers are alike and far ones are not."""


def init_number_embeddings(model: Any, tokenizer: PolicyTokenizer, generator: torch.Generator) -> None:
    """Tokens of one number begin alike, whatever sign or space stands beside it, and near numbers begin alike too.

    A box has `0.61, ` and a sentence ` 0.61`. Were they strangers, carrying a number from one to the other would be a
    dictionary to learn by heart, and so would be which of two numbers is larger.
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
                embeddings[token] = scale * (
                    NUMBER_SHARE**0.5 * number + (1 - NUMBER_SHARE) ** 0.5 * normalise(embeddings[token].clone())
                )


def normalise(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def scatter_rows(rows: Tensor, places: Tensor, size: int) -> Tensor:
    """(size, d) rows at these places of a head, nothing elsewhere."""
    out = torch.zeros(size, rows.shape[1])
    out[places] = rows
    return out


def rotate_key(key: Tensor, offset: int, text: Any) -> Tensor:
    """The query that meets this key `back` tokens before itself."""
    half = len(key) // 2
    angle = -offset * text.rotary_emb.inv_freq[:half]
    a, b = key[:half], key[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def set_head_rows(layer: Any, head: int, rows: Tensor) -> None:
    layer.weight[head * len(rows) : (head + 1) * len(rows)] = rows


def set_head_columns(layer: Any, head: int, columns: Tensor) -> None:
    size = columns.shape[1]
    layer.weight[:, head * size : (head + 1) * size] = columns
