"""Ledgers that begin alike, read once as far as they do.

Rollouts of a question share its prompt, and often their first calls with what came back. Laid out as a tree, what they
share stands once: a branch is a run of tokens that the same ledgers have, and sees itself and the branches below it.
Layers then run over every token once, and attention branch by branch; what comes out is what each ledger alone would
have given, but for rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pixelis.errors import ConfigError
from pixelis.policy.ledger import Ledger
from pixelis.policy.pictures import Picture

ATTENTION = "pixelis_branches"
"""The name that transformers knows the attention by."""
WORTH_SHARING = 8
"""Tokens in common under which ledgers are not worth a branch of their own."""
Keys = NDArray[np.int64]


class Branches(NamedTuple):
    """A tree of ledgers, branch after branch."""

    tokens: Tensor
    """(N,) every token once: where it stands among the ledgers side by side, row · L + column."""
    back: Tensor
    """(B · L,) the other way round; filling has 0."""
    order: tuple[int, ...]
    """Which picture each place shows, in the order of the tokens."""
    sizes: tuple[int, ...]
    """Tokens of each branch."""
    reaches: tuple[int, ...]
    """Tokens that the last one of each branch sees, itself among them."""
    seen: Tensor
    """(sum of reaches,) which tokens those are."""
    masks: tuple[Tensor | None, ...]
    """For each branch what is added to its scores, (size, reach); None for one that begins a ledger: causal."""


def keys_of(ledgers: Sequence[Ledger]) -> tuple[list[Keys], list[Picture]]:
    """(n,) of each ledger: its tokens, and in the place of image tokens which picture they show, as −1 − its number.

    Pictures of the same content have one number; they come back in the order of their numbers.
    """
    keys, pictures = list[Keys](), list[Picture]()
    by_object, by_content = dict[int, int](), dict[tuple[object, ...], int]()
    for ledger in ledgers:
        own = np.array(ledger.ids, dtype=np.int64)
        for start, picture in ledger.places:
            number = by_object.get(id(picture.pixels))  # most ledgers share the object: content is looked at once
            if number is None:
                content = (picture.rows, picture.columns, picture.pixels.shape, picture.pixels.tobytes())
                number = by_object[id(picture.pixels)] = by_content.setdefault(content, len(pictures))
                if number == len(pictures):
                    pictures.append(picture)
            own[start : start + picture.tokens] = -1 - number
        keys.append(own)
    return keys, pictures


def in_common(a: Keys, b: Keys) -> int:
    """Tokens from the beginning that two ledgers share."""
    end = min(len(a), len(b))
    differs = a[:end] != b[:end]
    return int(differs.argmax()) if differs.any() else end


def grouped(keys: Sequence[Keys], most: int) -> list[list[int]]:
    """Ledgers in groups of at most so many tokens, each counted once in a group, or of a single ledger.

    Those that share most stay together: a group too large is parted where neighbours share least.
    """
    order = sorted(range(len(keys)), key=lambda k: keys[k].tolist())
    shared = [0, *(in_common(keys[a], keys[b]) for a, b in pairwise(order))]

    def parted(start: int, end: int) -> list[list[int]]:
        size = len(keys[order[start]]) + sum(len(keys[order[k]]) - shared[k] for k in range(start + 1, end))
        if size <= most or end - start == 1:
            return [sorted(order[start:end])]
        middle = (start + end) / 2
        cut = min(range(start + 1, end), key=lambda k: (shared[k], abs(k - middle)))
        return parted(start, cut) + parted(cut, end)

    return parted(0, len(keys)) if keys else []


def branches_of(keys: Sequence[Keys], device: torch.device) -> Branches:
    """The tree of some ledgers."""
    longest = max(len(own) for own in keys)
    back = np.zeros((len(keys), longest), dtype=np.int64)
    tokens, sizes, paths = list[NDArray[np.int64]](), list[int](), list[NDArray[np.int64]]()

    def grow(rows: list[int], start: int, path: NDArray[np.int64]) -> None:
        """The branches of ledgers that are alike up to `start`, on top of the tokens of their path."""
        first = keys[rows[0]]
        stop = min(in_common(first, keys[row]) for row in rows)
        above: dict[int, list[int]] = {}
        for row in rows:
            if len(keys[row]) > stop:
                above.setdefault(int(keys[row][stop]), []).append(row)
        ends = sum(len(later) for later in above.values()) < len(rows)
        if stop - start >= WORTH_SHARING or ends:
            count = sum(sizes)
            own = count + np.arange(stop - start)
            if len(own):
                tokens.append(rows[0] * longest + np.arange(start, stop))
                sizes.append(len(own))
                path = np.concatenate([path, own])
                paths.append(path)
            for row in rows:
                back[row, start:stop] = own
            start = stop
        for later in above.values():
            grow(later, start, path)

    grow(list(range(len(keys))), 0, np.zeros(0, dtype=np.int64))
    flat = np.concatenate(tokens)
    shown = np.concatenate([np.concatenate([own, np.zeros(longest - len(own), dtype=np.int64)]) for own in keys])[flat]
    begins = (shown < 0) & np.concatenate([[True], shown[:-1] >= 0])  # words stand before and after every picture
    return Branches(
        tokens=torch.from_numpy(flat).to(device),
        back=torch.from_numpy(back.ravel()).to(device),
        order=tuple((-1 - shown[begins]).tolist()),
        sizes=tuple(sizes),
        reaches=tuple(len(path) for path in paths),
        seen=torch.from_numpy(np.concatenate(paths)).to(device),
        masks=tuple(later_hidden(size, len(path), device) for size, path in zip(sizes, paths, strict=True)),
    )


def later_hidden(size: int, reach: int, device: torch.device) -> Tensor | None:
    """(size, reach) minus infinity for what comes after each token of a branch; None where that is all of a ledger."""
    if size == reach:
        return None
    return torch.full((size, reach), -torch.inf, device=device).triu_(reach - size + 1)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    branches: Branches | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: branch by branch where branches are given, else its own.

    query (1, heads, N, d), key and value (1, kv heads, N, d); gives (1, N, heads, d).
    """
    if branches is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **more
        )
        return found
    asked = query.split(branches.sizes, dim=2)
    keys, values = (part.index_select(2, branches.seen).split(branches.reaches, dim=2) for part in (key, value))
    times = query.shape[1] // key.shape[1]
    heard = []
    for q, k, v, mask in zip(asked, keys, values, branches.masks, strict=True):
        if mask is None:
            own = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=times > 1)
        else:  # grouped heads and a mask together would keep a GPU from its quick kernels
            k, v = (part.repeat_interleave(times, dim=1) for part in (k, v))  # noqa: PLW2901
            own = scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), scale=scaling)
        heard.append(own)
    return torch.cat(heard, dim=2).transpose(1, 2), None


def use_branches(config: Any) -> None:
    """Have a language model use `attention`, which is torch's own where nothing branches."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if config._attn_implementation not in ("sdpa", ATTENTION):
        raise ConfigError(f"the model has {config._attn_implementation!r} attention: open it with 'sdpa'")
    AttentionInterface.register(ATTENTION, attention)
    AttentionMaskInterface.register(ATTENTION, sdpa_mask)
    config._attn_implementation = ATTENTION
