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

from pixelis.policy.tokens import Tokens

BACK = 3
"""Frequencies of the rotary embedding, from the fastest, by which a head looks a fixed number of tokens back."""
SHARP = 2.0
"""The norms of queries and keys in these two layers; at 1 a head of 32 cannot single out one token among hundreds."""
CLEAR = 4.0
"""How much stronger than a present token's own words the ones before it are written."""
LOUD = 6.0
"""How much stronger the copied token is written than the present one is held."""


def begin_copying(model: Any, generator: torch.Generator) -> None:
    """Lay the copying heads into the first two layers of a Qwen3-VL text model with two heads or more."""
    text = model.model.language_model
    first, second = text.layers[0].self_attn, text.layers[1].self_attn
    width, size, half = text.embed_tokens.weight.shape[1], first.head_dim, first.head_dim // 2
    group = first.q_proj.out_features // first.k_proj.out_features
    # the slower half of the frequencies: a match over a hundred tokens does not turn away from itself
    slow = torch.tensor([*range(half // 2, half), *range(half + half // 2, size)])
    frame, _ = torch.linalg.qr(torch.randn(width, width, generator=generator))
    told, content = frame[:, :1].T, frame[:, 1 : 1 + len(slow)].T  # (1, d), (s, d): rows
    one, two = (frame[:, a : a + len(slow)].T for a in (1 + len(slow), 1 + 2 * len(slow)))
    own = frame[:, 1 + 3 * len(slow) :].T
    with torch.no_grad():
        words = text.embed_tokens.weight
        scale = float(words.norm(dim=1).mean())
        words -= words @ torch.cat([told, one, two]).T @ torch.cat([told, one, two])
        words += scale * told  # a part that all tokens share: heads that look at places need something to hold on to
        for attention in (first, second):
            attention.q_norm.weight.fill_(SHARP)
            attention.k_norm.weight.fill_(SHARP)
        key = torch.zeros(size)
        key[:BACK] = 1.0
        for head, (back, place) in enumerate(((1, one), (2, two))):
            lay_rows(first.k_proj, head // group, key[:, None] @ told)
            lay_rows(first.v_proj, head // group, spread(content, slow, size))
            lay_rows(first.q_proj, head, turned(key, back, text)[:, None] @ told)
            lay_columns(first.o_proj, head, spread(place, slow, size).T * (CLEAR * scale / width**0.5))
        rows = torch.cat([content, own])[:size]
        everything = spread(rows, torch.arange(len(rows)), size)
        matches = ((content, one), (one, two))[: first.k_proj.out_features // size]
        for shared, (asks, holds) in enumerate(matches):
            lay_rows(second.q_proj, shared * group, spread(asks, slow, size))
            lay_rows(second.k_proj, shared, spread(holds, slow, size))
            lay_rows(second.v_proj, shared, everything)
            lay_columns(second.o_proj, shared * group, everything.T * (LOUD * scale / width**0.5))


ALIKE = 0.8
"""How much of a coordinate's embedding is the number itself; the rest tells its tokens apart."""
WAVES = 6
"""Waves over 0 to 1 by which near numbers are alike and far ones are not."""


def share_numbers(model: Any, tokens: Tokens, generator: torch.Generator) -> None:
    """Tokens of one number begin alike, whatever sign or space stands beside it, and near numbers begin alike too.

    A box has `0.61, ` and a sentence ` 0.61`. Were they strangers, carrying a number from one to the other would be a
    dictionary to learn by heart, and so would be which of two numbers is larger.
    """
    words = model.model.language_model.embed_tokens.weight
    width, scale = words.shape[1], float(words.detach().norm(dim=1).mean())
    directions = torch.randn(2 * WAVES, width, generator=generator)
    with torch.no_grad():
        for k in range(101):
            value, text = k / 100, f"{k / 100:.2f}"
            spellings = (text, f"{text}, ", f"{text}]", f" {text}")
            ids = [found[0] for text in spellings if len(found := tokens.encode(text)) == 1]
            phase = torch.pi * value * torch.arange(1, WAVES + 1)
            ordered = unit(torch.cat([phase.cos(), phase.sin()]) @ directions)
            number = unit(ordered + unit(torch.randn(width, generator=generator)))
            for token in ids:
                words[token] = scale * (ALIKE**0.5 * number + (1 - ALIKE) ** 0.5 * unit(words[token].clone()))


def unit(vector: Tensor) -> Tensor:
    return vector / vector.norm()


def spread(rows: Tensor, places: Tensor, size: int) -> Tensor:
    """(size, d) rows at these places of a head, nothing elsewhere."""
    out = torch.zeros(size, rows.shape[1])
    out[places] = rows
    return out


def turned(key: Tensor, back: int, text: Any) -> Tensor:
    """The query that meets this key `back` tokens before itself."""
    half = len(key) // 2
    angle = -back * text.rotary_emb.inv_freq[:half]
    a, b = key[:half], key[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def lay_rows(layer: Any, head: int, rows: Tensor) -> None:
    layer.weight[head * len(rows) : (head + 1) * len(rows)] = rows


def lay_columns(layer: Any, head: int, columns: Tensor) -> None:
    size = columns.shape[1]
    layer.weight[:, head * size : (head + 1) * size] = columns
