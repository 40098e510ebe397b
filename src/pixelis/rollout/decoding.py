"""One more token for many rows, as lean as it can be made: the same arithmetic as the model's own layers, with the
projections of a layer in one matrix, no module called, and one query a row, so that attention is two small products.
What rows have heard is read the same way, up to the keys and values of the last layer: nobody asks what comes after.

It serves models whose weights fit in the cache of a processor many times over, such as nano: fused weights are copies.
A large model, one with adapters, or one in half precision decodes through its own layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from pixelis.policy.cache import RowCache
from pixelis.policy.model import Policy, Seen

FUSED_PARAMETERS = 50_000_000
POSITIONS = 1024


class Fused(NamedTuple):
    """The weights of one layer, put together."""

    norm: Tensor
    qkv: Tensor
    """(d, (heads + 2 kv) · head_dim)"""
    scales: Tensor
    """(heads + kv, head_dim) of the norms of queries and keys; the scale of attention is in the former."""
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    down: Tensor


class Shared(NamedTuple):
    """The prompts that rows have in common, once each: most of what attention costs is reading keys and values."""

    length: int
    """Tokens from the beginning that every row shares with its group."""
    members: Tensor
    """(G, m) rows of each group, filled up with any row."""
    back: Tensor
    """(B,) where a row lies among the members, counted through."""
    in_order: bool
    """Whether rows lie as the members do, so that nothing is to be gathered: so it is while a batch walks in step."""
    keys: list[Tensor]
    values: list[Tensor]
    """(G · kv, length, head_dim) of each layer."""


def shared(groups: Sequence[int], length: int, cache: RowCache) -> Shared | None:
    """What rows with these group numbers share; None where too few share anything to be worth it."""
    own: dict[int, list[int]] = {}
    for row, group in enumerate(groups):
        own.setdefault(group, []).append(row)
    if len(groups) < 2 * len(own) or length < 16:
        return None
    most = max(len(rows) for rows in own.values())
    members = torch.tensor([rows + [rows[0]] * (most - len(rows)) for rows in own.values()])
    back = torch.empty(len(groups), dtype=torch.long)
    for number, rows in enumerate(own.values()):
        back[rows] = number * most + torch.arange(len(rows))
    in_order = members.numel() == len(groups) and bool((back == torch.arange(len(groups))).all())
    device = cache.lengths.device
    first = members[:, 0].to(device)
    keys, values = ([store[first, :, :length].flatten(0, 1) for store in part] for part in (cache.keys, cache.values))
    return Shared(length, members.to(device), back.to(device), in_order, keys, values)


class Decoder:
    """Reads one token a row. Made anew for each rollout: weights may have moved in between."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.language = policy.language
        self.lean = serves(policy)
        if not self.lean:
            return
        config = self.language.config
        self.heads, self.kv, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps = float(config.rms_norm_eps)
        self.layers = [fused(layer, self.heads, self.kv, self.size) for layer in self.language.layers]
        self.cos = self.sin = torch.zeros(0, self.size)
        self.sign = torch.ones(self.size, device=policy.device)
        self.sign[: self.size // 2] = -1.0

    def __call__(self, ids: Tensor, where: Tensor, cache: RowCache, common: Shared | None = None) -> Tensor:
        """(B, d) what the layers make of ids (B,) at positions (B,), in the first rows of the cache."""
        rows = slice(0, len(ids))
        if self.lean:
            return self.step(ids, where, cache, common)
        mask = cache.begin(rows, torch.ones_like(ids), 1)
        return self.policy.read(ids[:, None], where.expand(3, -1)[..., None], cache=cache, mask=mask).hidden[:, 0]

    def step(self, ids: Tensor, where: Tensor, cache: RowCache, common: Shared | None) -> Tensor:
        rows, kv, size = len(ids), self.kv, self.size
        bias = cache.begin_one(rows)  # (B, 1, reach), or None where all rows are equally long
        cos, sin = self.turned(where)
        x = self.language.embed_tokens.weight[ids]  # (B, d)
        for k, layer in enumerate(self.layers):
            queries, keys, values = self.mixed(x, layer, cos, sin)
            kept, held = cache.append(keys.reshape(rows * kv, size), values.reshape(rows * kv, size), k)
            if common is None:  # over (B · kv, reach, size)
                seen = attended(queries, kept, held, bias)
            else:
                seen = attended_in_common(queries, kept, held, bias, common, k)
            x = self.thought(x, seen, layer)
        return rms_norm(x, (x.shape[-1],), self.language.norm.weight, self.eps)

    def read(self, ids: Tensor, where: Tensor, seen: Seen | None, cache: RowCache, mask: Tensor) -> None:
        """Keys and values of ids (B, L) at positions (3, B, L) into a cache that was made ready for them."""
        if not self.lean:
            self.policy.read(ids, where, seen, cache=cache, mask=mask)
            return
        rows, width, heads, kv, size = *ids.shape, self.heads, self.kv, self.size
        x = self.language.embed_tokens.weight[ids.flatten()]  # (B · L, d)
        visual = torch.nonzero(ids.flatten() == self.policy.tokens.image)[:, 0]
        if seen is not None:
            x[visual] = seen.tokens
        cos, sin = (part.view(rows * width, 1, size) for part in self.language.rotary_emb(x, where))
        sin = sin * self.sign
        # the heads that share a key are further queries of it: (B, kv, heads / kv · L, size)
        bias = torch.zeros(mask.shape, device=x.device).masked_fill_(~mask, -torch.inf).repeat(1, 1, heads // kv, 1)
        for k, layer in enumerate(self.layers):
            queries, keys, values = self.mixed(x, layer, cos, sin)
            keys, values = (part.view(rows, width, kv, size).transpose(1, 2) for part in (keys, values))
            kept, held = cache.update(keys, values, k)
            if k + 1 == len(self.layers):
                return
            asked = queries.view(rows, width, kv, heads // kv, size).permute(0, 2, 3, 1, 4).flatten(2, 3)
            found = scaled_dot_product_attention(asked, kept, held, attn_mask=bias, scale=1.0)
            found = found.view(rows, kv, heads // kv, width, size).permute(0, 3, 1, 2, 4)
            x = self.thought(x, found.reshape(rows * width, heads * size), layer)
            if seen is not None and k < len(seen.deep):
                x[visual] += seen.deep[k]

    def mixed(self, x: Tensor, layer: Fused, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (n, heads, size), keys and values (n, kv, size) of tokens (n, d), turned to their positions."""
        heads, kv, size = self.heads, self.kv, self.size
        mixed = (rms_norm(x, (x.shape[-1],), layer.norm, self.eps) @ layer.qkv).view(len(x), heads + 2 * kv, size)
        both = rms_norm(mixed[:, : heads + kv], (size,), None, self.eps) * layer.scales
        crossed = both.view(len(x), heads + kv, 2, size // 2).flip(2).view_as(both)
        both = torch.addcmul(both * cos, crossed, sin)
        return both[:, :heads], both[:, heads:], mixed[:, heads + kv :]

    def thought(self, x: Tensor, seen: Tensor, layer: Fused) -> Tensor:
        """(n, d) tokens after what attention saw (n, heads · size) and the layer's MLP."""
        x = torch.addmm(x, seen, layer.out)
        wide = rms_norm(x, (x.shape[-1],), layer.norm_mlp, self.eps) @ layer.gate_up
        gate, up = wide.chunk(2, dim=-1)
        return torch.addmm(x, silu(gate).mul_(up), layer.down)

    def turned(self, where: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, size) cosine and signed sine of rows' positions: words stand at the same one in all three."""
        last = int(where.max())
        if last >= len(self.cos):
            at = torch.arange(max(last + 1, POSITIONS, 2 * len(self.cos)), device=where.device)
            cos, sin = self.language.rotary_emb(self.language.embed_tokens.weight, at.expand(3, 1, -1))
            self.cos, self.sin = cos[0], sin[0] * self.sign
        return self.cos[where][:, None], self.sin[where][:, None]


def attended(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """(B, heads · size) of queries (B, heads, size) over keys and values (B · kv, reach, size)."""
    rows, heads, size = queries.shape
    scores = torch.bmm(queries.reshape(len(keys), -1, size), keys.transpose(1, 2))
    if bias is not None:
        scores.view(rows, heads, -1).add_(bias)
    return torch.bmm(scores.softmax(-1), values).view(rows, heads * size)


def attended_in_common(
    queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, common: Shared, layer: int
) -> Tensor:
    """The same, reading what a group shares once for all its rows."""
    rows, heads, size = queries.shape
    groups, most = common.members.shape
    kv, cut = len(keys) // rows, common.length

    def together(part: Tensor) -> Tensor:  # (B, heads, n) to (G · kv, m · heads / kv, n)
        gathered = part if common.in_order else part[common.members.flatten()]
        gathered = gathered.unflatten(1, (kv, heads // kv)).unflatten(0, (groups, most))
        return gathered.transpose(1, 2).reshape(groups * kv, most * heads // kv, -1)

    def apart(part: Tensor) -> Tensor:  # and back
        spread = part.view(groups, kv, most, heads // kv, -1).transpose(1, 2)
        flat = spread.reshape(groups * most, heads, -1)
        return flat if common.in_order else flat[common.back]

    first = apart(torch.bmm(together(queries), common.keys[layer].transpose(1, 2)))  # (B, heads, cut)
    own = torch.bmm(queries.reshape(len(keys), -1, size), keys[:, cut:].transpose(1, 2)).view(rows, heads, -1)
    if bias is not None:
        own.add_(bias[..., cut:])
    weights = torch.cat([first, own], dim=-1).softmax(-1)
    seen = torch.bmm(weights[..., cut:].reshape(len(keys), heads // kv, -1), values[:, cut:]).view(rows, heads, size)
    seen += apart(torch.bmm(together(weights[..., :cut]), common.values[layer]))
    return seen.view(rows, heads * size)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Products of a few small rows wait for each other on several threads: 783 tokens took 10.4 CPU-s, and 3.6 so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def serves(policy: Policy) -> bool:
    """Whether the lean way is this model's own arithmetic, and worth a copy of its weights."""
    language = policy.language
    linear = [m for m in language.layers.modules() if isinstance(m, nn.Linear)]
    plain = all(type(m) is nn.Linear and m.bias is None for m in linear) and len(linear) == 7 * len(language.layers)
    small = sum(p.numel() for p in language.parameters()) <= FUSED_PARAMETERS
    autocast = torch.is_autocast_enabled(policy.device.type)
    single = language.embed_tokens.weight.dtype == torch.float32 and not autocast
    return plain and small and single and language.config.hidden_act == "silu"


def fused(layer: Any, heads: int, kv: int, size: int) -> Fused:
    attention, mlp = layer.self_attn, layer.mlp
    qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    queries = attention.q_norm.weight * attention.scaling
    return Fused(
        norm=layer.input_layernorm.weight,
        qkv=qkv.t().contiguous(),
        scales=torch.cat([queries.expand(heads, size), attention.k_norm.weight.expand(kv, size)]),
        out=attention.o_proj.weight.t(),
        norm_mlp=layer.post_attention_layernorm.weight,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).t().contiguous(),
        down=mlp.down_proj.weight.t(),
    )
