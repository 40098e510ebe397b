"""One more token for many rows, as lean as it can be made: the same arithmetic as the model's own layers, with the
projections of a layer in one matrix, no module called, and one query a row, so that attention is two small products.
What rows have heard is read the same way, up to the keys and values of the last layer: nobody asks what comes after.

It serves models whose weights fit in the cache of a processor many times over, such as nano: fused weights are copies.
A large model, one with adapters, or one in half precision decodes through its own layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from pixelis.policy.cache import RowCache
from pixelis.policy.model import Policy, Seen
from pixelis.rollout.attention import Shared, attended, attended_in_common

FUSED_PARAMETERS = 50_000_000
POSITIONS = 1024
TOKENS_AT_ONCE = 1024
"""Read together on a CPU: what a layer makes of them stays in its cache. A whole batch at once waits for memory."""


class Fused(NamedTuple):
    """The weights of one layer, put together; a norm's weight and √n are in the matrix after it."""

    qkv: Tensor
    """(kv, d, (heads / kv + 2) · size): for each key's head the queries that ask it, the key and the value."""
    scales: Tensor
    """(heads / kv + 1, size) of the norms of queries and keys; the scale of attention is in the former."""
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Reads one token a row. Made anew for each rollout: weights may have moved in between."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.language = policy.language
        self.lean = serves(policy)
        self.most_tokens = TOKENS_AT_ONCE if self.lean and policy.device.type == "cpu" else sys.maxsize
        """Tokens that are read together."""
        if not self.lean:
            return
        config = self.language.config
        self.heads, self.kv, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps = float(config.rms_norm_eps)
        self.least, self.least_head = (
            torch.tensor((n * self.eps) ** 0.5, device=policy.device) for n in (config.hidden_size, self.size)
        )
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
        bias = cache.begin_one(len(ids))  # (B, 1, reach), or None where all rows are equally long
        cos, sin = self.turned(where)
        x = self.language.embed_tokens.weight[ids]  # (B, d)
        for k, layer in enumerate(self.layers):
            queries, keys, values = self.mixed(x, layer, cos, sin)
            kept, held = cache.append(keys, values, k)
            if common is None:
                seen = attended(queries, kept, held, bias)
            else:
                seen = attended_in_common(queries, kept, held, bias, common, k)
            self.think(x, seen, layer)
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
        # the heads that share a key are further queries of it, beside each other: (1, B, L · heads / kv, reach)
        bias = torch.zeros(mask[:, 0].shape, device=x.device).masked_fill_(~mask[:, 0], -torch.inf)
        bias = bias.repeat_interleave(heads // kv, dim=1)[None]
        for k, layer in enumerate(self.layers):
            queries, keys, values = self.mixed(x, layer, cos, sin)
            keys, values = (part.view(kv, rows, width, size).transpose(0, 1) for part in (keys, values))
            kept, held = (part.transpose(0, 1) for part in cache.update(keys, values, k))
            if k + 1 == len(self.layers):
                return
            asked = queries.view(kv, rows, width * heads // kv, size)
            found = scaled_dot_product_attention(asked, kept, held, attn_mask=bias, scale=1.0)
            self.think(x, found.reshape(kv, rows * width, heads // kv, size), layer)
            if seen is not None and k < len(seen.deep):
                x[visual] += seen.deep[k]

    def mixed(self, x: Tensor, layer: Fused, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (kv, n, heads / kv, size), keys and values (kv · n, size) of tokens (n, d), turned as they stand."""
        n, kv, size = len(x), self.kv, self.size
        asking = self.heads // kv
        mixed = torch.bmm(normed(x, self.least).expand(kv, -1, -1), layer.qkv).view(kv, n, asking + 2, size)
        both = normed(mixed[:, :, : asking + 1], self.least_head).mul_(layer.scales)
        crossed = both.roll(size // 2, -1)
        both = torch.addcmul(both * cos, crossed, sin)
        keys = both.view(kv * n, asking + 1, size)[:, asking]
        return both[:, :, :asking].contiguous(), keys, mixed.view(kv * n, asking + 2, size)[:, asking + 1]

    def think(self, x: Tensor, seen: Tensor, layer: Fused) -> None:
        """Tokens (n, d) become what they are after what attention saw (kv, n, heads / kv, size) and the layer's MLP."""
        x.addmm_(seen.transpose(0, 1).reshape(len(x), -1), layer.out)
        gate, up = (normed(x, self.least) @ layer.gate_up).chunk(2, dim=-1)
        x.addmm_(silu(gate, inplace=True).mul_(up), layer.down)

    def turned(self, where: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, size) cosine and signed sine of rows' positions: words stand at the same one in all three."""
        last = int(where.max())
        if last >= len(self.cos):
            at = torch.arange(max(last + 1, POSITIONS, 2 * len(self.cos)), device=where.device)
            cos, sin = self.language.rotary_emb(self.language.embed_tokens.weight, at.expand(3, 1, -1))
            self.cos, self.sin = cos[0], sin[0] * self.sign
        return self.cos[where][:, None], self.sin[where][:, None]


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


def normed(x: Tensor, least: Tensor) -> Tensor:
    """(…, n) over the root of the sum of its squares and that of `least`, √(n · eps): an RMS norm but for √n, which is
    in the weights that come after. Three small operations where `rms_norm` on a CPU takes nine."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), least)


def fused(layer: Any, heads: int, kv: int, size: int) -> Fused:
    attention, mlp = layer.self_attn, layer.mlp
    norm, norm_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    by_key = [part.weight.view(kv, -1, len(norm)) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    queries = attention.q_norm.weight * attention.scaling
    asking = heads // kv
    return Fused(
        qkv=(torch.cat(by_key, dim=1) * norm).transpose(1, 2).contiguous() * len(norm) ** 0.5,
        scales=torch.cat([queries.expand(asking, size), attention.k_norm.weight[None]]) * size**0.5,
        out=attention.o_proj.weight.t(),
        gate_up=(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * norm_mlp).t().contiguous() * len(norm) ** 0.5,
        down=mlp.down_proj.weight.t(),
    )
