"""Fast decoding of one token for many rows on a CPU: the arithmetic of the model's layers, with the projections of a
layer in one matrix, no module calls, and one query per row, so that attention is two small products. Prefill works the
same way and stops at the keys and values of the last layer, because its outputs are not needed.

It serves models that are much smaller than a processor's cache, such as nano: fused weights are copies. A large model,
one with adapters, or one in half precision decodes through its own layers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

from pixelis.nano.fast_attention import SharedPrefix, attend, attend_shared
from pixelis.policy.kv_cache import RowCache
from pixelis.policy.model import ImageFeatures, Policy

MAX_FUSED_PARAMETERS = 50_000_000
MIN_POSITIONS = 1024
PREFILL_TOKENS = 1024
"""Tokens prefilled together on a CPU: the activations of a layer stay in its cache."""


class FusedLayer(NamedTuple):
    """The fused weights of one layer; a norm's weight and √n are folded into the next matrix."""

    qkv: Tensor
    """(kv, d, (heads / kv + 2) · size): for each kv head its queries, its key and its value."""
    scales: Tensor
    """(heads / kv + 1, size) weights of the query and key norms; attention's scale is in the former."""
    out: Tensor
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Decodes one token per row. Created for each rollout, because weights may have changed since the last."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.language = policy.language
        self.is_fast = supports_fast_decode(policy)
        self.max_prefill_tokens = PREFILL_TOKENS if self.is_fast and policy.device.type == "cpu" else sys.maxsize
        if not self.is_fast:
            return
        config = self.language.config
        self.heads, self.kv, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps = float(config.rms_norm_eps)
        self.eps_norm, self.eps_norm_head = (
            torch.tensor((n * self.eps) ** 0.5, device=policy.device) for n in (config.hidden_size, self.size)
        )
        self.layers = [fuse_layer(layer, self.heads, self.kv, self.size) for layer in self.language.layers]
        self.cos = self.sin = torch.zeros(0, self.size)
        self.sign = torch.ones(self.size, device=policy.device)
        self.sign[: self.size // 2] = -1.0

    def __call__(self, ids: Tensor, positions: Tensor, cache: RowCache, shared: SharedPrefix | None = None) -> Tensor:
        """(B, d) hidden states of ids (B,) at positions (B,), in the first rows of the cache."""
        rows = slice(0, len(ids))
        if self.is_fast:
            return self.decode_fast(ids, positions, cache, shared)
        mask = cache.prepare(rows, torch.ones_like(ids), 1)
        positions = positions.expand(3, -1)[..., None]
        return self.policy.forward_tokens(ids[:, None], positions, cache=cache, mask=mask).hidden[:, 0]

    def decode_fast(self, ids: Tensor, position_ids: Tensor, cache: RowCache, shared: SharedPrefix | None) -> Tensor:
        bias = cache.prepare_one(len(ids))  # (B, 1, reach), or None where all rows are equally long
        cos, sin = self.rotary_at(position_ids)
        x = self.language.embed_tokens.weight[ids]  # (B, d)
        for k, layer in enumerate(self.layers):
            queries, keys, values = self.project_qkv(x, layer, cos, sin)
            cached_keys, cached_values = cache.append(keys, values, k)
            if shared is None:
                attended = attend(queries, cached_keys, cached_values, bias)
            else:
                attended = attend_shared(queries, cached_keys, cached_values, bias, shared, k)
            self.finish_layer(x, attended, layer)
        return rms_norm(x, (x.shape[-1],), self.language.norm.weight, self.eps)

    def prefill(
        self, ids: Tensor, position_ids: Tensor, image_features: ImageFeatures | None, cache: RowCache, mask: Tensor
    ) -> None:
        """Write keys and values of ids (B, L) at positions (3, B, L) to a prepared cache."""
        if not self.is_fast:
            self.policy.forward_tokens(ids, position_ids, image_features, cache=cache, mask=mask)
            return
        rows, width, heads, kv, size = *ids.shape, self.heads, self.kv, self.size
        x = self.language.embed_tokens.weight[ids.flatten()]  # (B · L, d)
        image_rows = torch.nonzero(ids.flatten() == self.policy.tokenizer.image_id)[:, 0]
        if image_features is not None:
            x[image_rows] = image_features.embeddings
        cos, sin = (part.view(rows * width, 1, size) for part in self.language.rotary_emb(x, position_ids))
        sin = sin * self.sign
        # heads that share a key are adjacent further queries of it: (1, B, L · heads / kv, reach)
        bias = torch.zeros(mask[:, 0].shape, device=x.device).masked_fill_(~mask[:, 0], -torch.inf)
        bias = bias.repeat_interleave(heads // kv, dim=1)[None]
        for k, layer in enumerate(self.layers):
            queries, keys, values = self.project_qkv(x, layer, cos, sin)
            keys, values = (part.view(kv, rows, width, size).transpose(0, 1) for part in (keys, values))
            cached_keys, cached_values = (part.transpose(0, 1) for part in cache.update(keys, values, k))
            if k + 1 == len(self.layers):
                return
            query_rows = queries.view(kv, rows, width * heads // kv, size)
            attended = scaled_dot_product_attention(query_rows, cached_keys, cached_values, attn_mask=bias, scale=1.0)
            self.finish_layer(x, attended.reshape(kv, rows * width, heads // kv, size), layer)
            if image_features is not None and k < len(image_features.deepstack):
                x[image_rows] += image_features.deepstack[k]

    def project_qkv(self, x: Tensor, layer: FusedLayer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (kv, n, heads / kv, size), keys and values (kv · n, size) of tokens (n, d), with rotary positions."""
        n, kv, size = len(x), self.kv, self.size
        group_size = self.heads // kv
        projected = torch.bmm(rms_scale(x, self.eps_norm).expand(kv, -1, -1), layer.qkv)
        projected = projected.view(kv, n, group_size + 2, size)
        queries_and_keys = rms_scale(projected[:, :, : group_size + 1], self.eps_norm_head).mul_(layer.scales)
        rotated = queries_and_keys.roll(size // 2, -1)
        queries_and_keys = torch.addcmul(queries_and_keys * cos, rotated, sin)
        queries = queries_and_keys[:, :, :group_size].contiguous()
        keys = queries_and_keys.view(kv * n, group_size + 1, size)[:, group_size]
        values = projected.view(kv * n, group_size + 2, size)[:, group_size + 1]
        return queries, keys, values

    def finish_layer(self, x: Tensor, attended: Tensor, layer: FusedLayer) -> None:
        """Add attention's output (kv, n, heads / kv, size) and the layer's MLP to tokens (n, d), in place."""
        x.addmm_(attended.transpose(0, 1).reshape(len(x), -1), layer.out)
        gate, up = (rms_scale(x, self.eps_norm) @ layer.gate_up).chunk(2, dim=-1)
        x.addmm_(silu(gate, inplace=True).mul_(up), layer.down)

    def rotary_at(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 1, size) cosine and signed sine of text positions, which are the same on all three axes."""
        last_position = int(position_ids.max())
        if last_position >= len(self.cos):
            count = max(last_position + 1, MIN_POSITIONS, 2 * len(self.cos))
            all_positions = torch.arange(count, device=position_ids.device)
            cos, sin = self.language.rotary_emb(self.language.embed_tokens.weight, all_positions.expand(3, 1, -1))
            self.cos, self.sin = cos[0], sin[0] * self.sign
        return self.cos[position_ids][:, None], self.sin[position_ids][:, None]


@contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread: for small products, threads wait for each other (783 tokens: 3.6 CPU-s instead of 10.4)."""
    thread_count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(thread_count)


def supports_fast_decode(policy: Policy) -> bool:
    """Whether fast decoding has this model's arithmetic and its weights are small enough to copy."""
    language = policy.language
    linear = [m for m in language.layers.modules() if isinstance(m, nn.Linear)]
    is_plain = all(type(m) is nn.Linear and m.bias is None for m in linear) and len(linear) == 7 * len(language.layers)
    is_small = sum(p.numel() for p in language.parameters()) <= MAX_FUSED_PARAMETERS
    autocast = torch.is_autocast_enabled(policy.device.type)
    is_float32 = language.embed_tokens.weight.dtype == torch.float32 and not autocast
    return is_plain and is_small and is_float32 and language.config.hidden_act == "silu"


def rms_scale(x: Tensor, eps_norm: Tensor) -> Tensor:
    """(…, n) divided by its norm, with `eps_norm` = √(n · eps): an RMS norm without √n, which is in the next weights.
    Three small operations; `rms_norm` on a CPU takes nine."""
    return x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), eps_norm)


def fuse_layer(layer: Any, heads: int, kv: int, size: int) -> FusedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    norm, norm_mlp = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    by_key = [part.weight.view(kv, -1, len(norm)) for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
    queries = attention.q_norm.weight * attention.scaling
    group_size = heads // kv
    return FusedLayer(
        qkv=(torch.cat(by_key, dim=1) * norm).transpose(1, 2).contiguous() * len(norm) ** 0.5,
        scales=torch.cat([queries.expand(group_size, size), attention.k_norm.weight[None]]) * size**0.5,
        out=attention.o_proj.weight.t(),
        gate_up=(torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]) * norm_mlp).t().contiguous() * len(norm) ** 0.5,
        down=mlp.down_proj.weight.t(),
    )
