"""Shared prefixes of token sequences, computed once.

Rollouts of a question share its prompt, and often their first calls with the results. As a tree, a shared run of tokens
(a branch) is stored once; it attends to itself and to the branches before it. Layers run over every token once, and
attention branch by branch. The result is that of each sequence alone, up to rounding.
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

from pixelis.core.errors import ConfigError
from pixelis.policy.images import ProcessedImage
from pixelis.policy.sequence import TokenSequence

ATTENTION_NAME = "pixelis_branches"
"""Under this name transformers knows the attention."""
MIN_SHARED_TOKENS = 8
"""A shorter shared prefix does not get a branch."""
Keys = NDArray[np.int64]


class PrefixTree(NamedTuple):
    """A tree of sequences, branch after branch."""

    tokens: Tensor
    """(N,) every token once: its index in the padded batch, row · L + column."""
    inverse: Tensor
    """(B · L,) the index among `tokens`; 0 for padding."""
    image_order: tuple[int, ...]
    """The image of each image span, in the order of `tokens`."""
    sizes: tuple[int, ...]
    """Tokens of each branch."""
    reaches: tuple[int, ...]
    """Tokens that the last token of each branch attends to, including itself."""
    visible: Tensor
    """(sum of reaches,) indices of those tokens."""
    masks: tuple[Tensor | None, ...]
    """The bias on each branch's scores, (size, reach); None (causal) for a branch that begins a sequence."""


def compute_sequence_keys(sequences: Sequence[TokenSequence]) -> tuple[list[Keys], list[ProcessedImage]]:
    """(n,) for each sequence: its token ids, with −1 − the image's number in place of image tokens.

    Images with the same content have one number; they are returned in the order of their numbers.
    """
    keys, images = list[Keys](), list[ProcessedImage]()
    by_object, by_content = dict[int, int](), dict[tuple[object, ...], int]()
    for sequence in sequences:
        key = np.array(sequence.ids, dtype=np.int64)
        for start, image in sequence.image_spans:
            number = by_object.get(id(image.pixels))  # most sequences share the object: content is compared once
            if number is None:
                content = (image.rows, image.columns, image.pixels.shape, image.pixels.tobytes())
                number = by_object[id(image.pixels)] = by_content.setdefault(content, len(images))
                if number == len(images):
                    images.append(image)
            key[start : start + image.token_count] = -1 - number
        keys.append(key)
    return keys, images


def common_prefix_length(a: Keys, b: Keys) -> int:
    """The number of leading tokens that two sequences share."""
    end = min(len(a), len(b))
    differs = a[:end] != b[:end]
    return int(differs.argmax()) if differs.any() else end


def group_by_prefix(keys: Sequence[Keys], max_tokens: int) -> list[list[int]]:
    """Sequences in groups of at most `max_tokens`, shared tokens counted once, or of a single sequence.

    A group that is too large is split where neighbours share least.
    """
    order = sorted(range(len(keys)), key=lambda k: keys[k].tolist())
    shared = [0, *(common_prefix_length(keys[a], keys[b]) for a, b in pairwise(order))]

    def split(start: int, end: int) -> list[list[int]]:
        size = len(keys[order[start]]) + sum(len(keys[order[k]]) - shared[k] for k in range(start + 1, end))
        if size <= max_tokens or end - start == 1:
            return [sorted(order[start:end])]
        middle = (start + end) / 2
        cut = min(range(start + 1, end), key=lambda k: (shared[k], abs(k - middle)))
        return split(start, cut) + split(cut, end)

    return split(0, len(keys)) if keys else []


def build_prefix_tree(keys: Sequence[Keys], device: torch.device) -> PrefixTree:
    max_length = max(len(key) for key in keys)
    inverse = np.zeros((len(keys), max_length), dtype=np.int64)
    tokens, sizes, paths = list[NDArray[np.int64]](), list[int](), list[NDArray[np.int64]]()

    def add_branches(rows: list[int], start: int, path: NDArray[np.int64]) -> None:
        """Add the branches of sequences that agree up to `start`; `path` holds the tokens before."""
        first = keys[rows[0]]
        stop = min(common_prefix_length(first, keys[row]) for row in rows)
        children: dict[int, list[int]] = {}
        for row in rows:
            if len(keys[row]) > stop:
                children.setdefault(int(keys[row][stop]), []).append(row)
        ends = sum(len(child_rows) for child_rows in children.values()) < len(rows)
        if stop - start >= MIN_SHARED_TOKENS or ends:
            count = sum(sizes)
            branch_range = count + np.arange(stop - start)
            if len(branch_range):
                tokens.append(rows[0] * max_length + np.arange(start, stop))
                sizes.append(len(branch_range))
                path = np.concatenate([path, branch_range])
                paths.append(path)
            for row in rows:
                inverse[row, start:stop] = branch_range
            start = stop
        for child_rows in children.values():
            add_branches(child_rows, start, path)

    add_branches(list(range(len(keys))), 0, np.zeros(0, dtype=np.int64))
    flat = np.concatenate(tokens)
    flat_keys = np.concatenate([np.pad(key, (0, max_length - len(key))) for key in keys])[flat]
    begins = (flat_keys < 0) & np.concatenate([[True], flat_keys[:-1] >= 0])  # text surrounds every image
    image_order, reaches = tuple((-1 - flat_keys[begins]).tolist()), tuple(len(path) for path in paths)
    masks = tuple(causal_bias(size, reach, device) for size, reach in zip(sizes, reaches, strict=True))
    indices = (flat, inverse.ravel(), np.concatenate(paths))
    all_tokens, row_index, visible = (torch.from_numpy(index).to(device) for index in indices)
    return PrefixTree(all_tokens, row_index, image_order, tuple(sizes), reaches, visible, masks)


def causal_bias(size: int, reach: int, device: torch.device) -> Tensor | None:
    """(size, reach) minus infinity for what comes after each token; None if the branch begins a sequence."""
    if size == reach:
        return None
    return torch.full((size, reach), -torch.inf, device=device).triu_(reach - size + 1)


def tree_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    prefix_tree: PrefixTree | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: branch by branch where a tree is given, else its own.

    query (1, heads, N, d), key and value (1, kv heads, N, d); gives (1, N, heads, d).
    """
    if prefix_tree is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        sdpa_output: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, scaling=scaling, **kwargs
        )
        return sdpa_output
    queries = query.split(prefix_tree.sizes, dim=2)
    keys, values = (p.index_select(2, prefix_tree.visible).split(prefix_tree.reaches, dim=2) for p in (key, value))
    repeats = query.shape[1] // key.shape[1]
    outputs = []
    for q, k, v, mask in zip(queries, keys, values, prefix_tree.masks, strict=True):
        if mask is None:
            output = scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=repeats > 1)
        else:  # with grouped heads and a mask together, a GPU would not use its fast kernels
            k, v = (part.repeat_interleave(repeats, dim=1) for part in (k, v))  # noqa: PLW2901
            output = scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype), scale=scaling)
        outputs.append(output)
    return torch.cat(outputs, dim=2).transpose(1, 2), None


def use_tree_attention(config: Any) -> None:
    """Have a language model use `tree_attention`, which without a tree is torch's own."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    if config._attn_implementation not in ("sdpa", ATTENTION_NAME):
        raise ConfigError(f"the model has {config._attn_implementation!r} attention: open it with 'sdpa'")
    AttentionInterface.register(ATTENTION_NAME, tree_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
    config._attn_implementation = ATTENTION_NAME
