"""One more token for many rows, as lean as it can be made: the same arithmetic as the model's own layers, with the
projections of a layer in one matrix, no module called, and one query a row, so that attention is two small products.

It serves models whose weights fit in the cache of a processor many times over, such as nano: fused weights are copies.
A large model, one with adapters, or one in half precision decodes through its own layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from pixelis.policy.cache import RowCache
from pixelis.policy.model import Policy

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
    device = cache.lengths.device
    first = members[:, 0].to(device)
    keys, values = ([store[first, :, :length].flatten(0, 1) for store in part] for part in (cache.keys, cache.values))
    return Shared(length, members.to(device), back.to(device), keys, values)


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

    def __call__(self, ids: Tensor, where: Tensor, cache: RowCache, common: Shared | None = None) -> Tensor:
        """(B, d) what the layers make of ids (B,) at positions (B,), in the first rows of the cache."""
        rows = slice(0, len(ids))
        if self.lean:
            return self.step(ids, where, cache, common)
        mask = cache.begin(rows, torch.ones_like(ids), 1)
        return self.policy.read(ids[:, None], where.expand(3, -1)[..., None], cache=cache, mask=mask).hidden[:, 0]

    def step(self, ids: Tensor, where: Tensor, cache: RowCache, common: Shared | None) -> Tensor:
        rows, heads, kv, size = len(ids), self.heads, self.kv, self.size
        bias = cache.begin_one(rows)  # (B, 1, reach), or None where all rows are equally long
        cos, sin = self.turned(where)
        x = self.language.embed_tokens.weight[ids]  # (B, d)
        width = (x.shape[-1],)
        for k, layer in enumerate(self.layers):
            mixed = rms_norm(x, width, layer.norm, self.eps) @ layer.qkv
            both = mixed[:, : (heads + kv) * size].view(rows, heads + kv, size)
            both = rms_norm(both, (size,), None, self.eps) * layer.scales
            crossed = both.view(rows, heads + kv, 2, size // 2).flip(2).view_as(both)
            both = torch.addcmul(both * cos, crossed, sin)
            values = mixed[:, (heads + kv) * size :].reshape(rows * kv, size)
            kept, held = cache.append(both[:, heads:].reshape(rows * kv, size), values, k)  # (B · kv, reach, size)
            if common is None:
                seen = attended(both[:, :heads], kept, held, bias)
            else:
                seen = attended_in_common(both[:, :heads], kept, held, bias, common, k)
            x = torch.addmm(x, seen, layer.out)
            wide = rms_norm(x, width, layer.norm_mlp, self.eps) @ layer.gate_up
            gate, up = wide.chunk(2, dim=-1)
            x = torch.addmm(x, silu(gate).mul_(up), layer.down)
        return rms_norm(x, width, self.language.norm.weight, self.eps)

    def turned(self, where: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, size) cosine and signed sine of rows' positions: words stand at the same one in all three."""
        last = int(where.max())
        if last >= len(self.cos):
            at = torch.arange(max(last + 1, POSITIONS, 2 * len(self.cos)), device=where.device)
            cos, sin = self.language.rotary_emb(self.language.embed_tokens.weight, at.expand(3, 1, -1))
            sign = torch.ones(self.size, device=where.device)
            sign[: self.size // 2] = -1.0
            self.cos, self.sin = cos[0], sin[0] * sign
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
        gathered = part[common.members].view(groups, most, kv, heads // kv, -1)
        return gathered.transpose(1, 2).reshape(groups * kv, most * heads // kv, -1)

    def apart(part: Tensor) -> Tensor:  # and back
        spread = part.view(groups, kv, most, heads // kv, -1).transpose(1, 2)
        return spread.reshape(groups * most, heads, -1)[common.back]

    first = apart(torch.bmm(together(queries), common.keys[layer].transpose(1, 2)))  # (B, heads, cut)
    own = torch.bmm(queries.reshape(len(keys), -1, size), keys[:, cut:].transpose(1, 2)).view(rows, heads, -1)
    if bias is not None:
        own.add_(bias[..., cut:])
    weights = torch.cat([first, own], dim=-1).softmax(-1)
    seen = torch.bmm(weights[..., cut:].reshape(len(keys), heads // kv, -1), values[:, cut:]).view(rows, heads, size)
    seen = seen + apart(torch.bmm(together(weights[..., :cut]), common.values[layer]))
    return seen.view(rows, heads * size)


def serves(policy: Policy) -> bool:
    """Whether the lean way is this model's own arithmetic, and worth a copy of its weights."""
    language = policy.language
    linear = [m for m in language.layers.modules() if isinstance(m, nn.Linear)]
    plain = all(type(m) is nn.Linear and m.bias is None for m in linear) and len(linear) == 7 * len(language.layers)
    small = sum(p.numel() for p in language.parameters()) <= FUSED_PARAMETERS
    single = language.embed_tokens.weight.dtype == torch.float32
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
