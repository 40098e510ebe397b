"""The policy network: Qwen3-VL of transformers, from nano to 8B, called layer by layer.

One path serves training (whole sequences, no cache), prefill of prompts and observations, and decoding (with a cache):
the language model's own layers run in one loop, so that hidden features can be read out and no work is repeated.
Images are encoded once, however many sequences show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pixelis.core.errors import ConfigError
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.images import ImageProcessorConfig, ProcessedImage, extract_patches
from pixelis.policy.kv_cache import RowCache
from pixelis.policy.prefix_tree import PrefixTree, build_prefix_tree, compute_sequence_keys, use_tree_attention
from pixelis.policy.sequence import TokenSequence, compute_positions
from pixelis.policy.tokenizer import PolicyTokenizer


class ImageFeatures(NamedTuple):
    """Images after the vision tower."""

    embeddings: Tensor
    """(n, d) one row for each visual token, image after image."""
    deepstack: tuple[Tensor, ...]
    """Deepstack features, added after the first layers: each (n, d)."""

    def slice_tokens(self, start: int, end: int) -> ImageFeatures:
        return ImageFeatures(self.embeddings[start:end], tuple(layer[start:end] for layer in self.deepstack))


class TokenBatch(NamedTuple):
    """Token sequences as rows, padded on the right."""

    ids: Tensor
    """(B, L)"""
    positions: Tensor
    """(3, B, L)"""
    images: tuple[ProcessedImage, ...]
    """Each image once."""
    image_order: tuple[int, ...]
    """The image of each image span, sequence after sequence; with a prefix tree, in the order of its branches."""
    lengths: tuple[int, ...]
    prefix_tree: PrefixTree | None = None
    """Shared prefixes, where they are computed once."""


class ForwardOutput(NamedTuple):
    hidden: Tensor
    """(B, L, d) after the final norm."""
    features: Tensor
    """(B, L, d) after the feature layer (supp:et_dynamics)."""


class Policy(nn.Module):
    """A Qwen3-VL with its tokenizer, its image preprocessing and its prompt style."""

    banned_mask: Tensor
    """(V,) tokens that are never sampled."""
    ban_bias: Tensor
    """(V,) what is added to logits: minus infinity for banned tokens, 0 for all others."""
    allowed_ids: Tensor
    """(V',) tokens that may be sampled."""
    allowed_index: Tensor
    """(V,) index of a token in `allowed_ids`, or −1."""

    def __init__(
        self,
        model: Any,
        tokenizer: PolicyTokenizer,
        style: PromptStyle,
        image_config: ImageProcessorConfig,
        *,
        tap: int = -3,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.style = model, tokenizer, style
        self.image_config, self.tap = image_config, tap
        use_tree_attention(self.language.config)
        if not 0 <= self.feature_layer < len(self.language.layers):
            raise ConfigError(f"tap {tap} lies outside the {len(self.language.layers)} layers of the model")
        banned = torch.zeros(self._core.config.text_config.vocab_size, dtype=torch.bool)
        banned[list(tokenizer.banned_ids)] = True
        banned[len(tokenizer) :] = True  # rows of the embedding without a token
        self.register_buffer("banned_mask", banned, persistent=False)
        self.register_buffer("ban_bias", torch.zeros(len(banned)).masked_fill(banned, -torch.inf), persistent=False)
        self.register_buffer("allowed_ids", torch.nonzero(~banned)[:, 0], persistent=False)
        allowed_index = torch.full_like(banned, -1, dtype=torch.long)
        allowed_index[self.allowed_ids] = torch.arange(len(self.allowed_ids))
        self.register_buffer("allowed_index", allowed_index, persistent=False)

    @property
    def _core(self) -> Any:
        """The Hugging Face model, without PEFT's wrapper."""
        model = self.model
        return model.get_base_model() if hasattr(model, "get_base_model") else model

    @property
    def language(self) -> Any:
        return self._core.model.language_model

    @property
    def vision(self) -> Any:
        return self._core.model.visual

    @property
    def width(self) -> int:
        """d, the hidden size."""
        return int(self._core.config.text_config.hidden_size)

    @property
    def device(self) -> torch.device:
        return self.language.embed_tokens.weight.device

    @property
    def feature_layer(self) -> int:
        """Index of the layer whose output is `features`."""
        return len(self.language.layers) + self.tap

    def encode_images(self, images: Sequence[ProcessedImage]) -> ImageFeatures:
        """Run all images through the vision tower in one pass."""
        if not images:
            return ImageFeatures(torch.zeros(0, self.width, device=self.device), ())
        tower = self.vision
        values = np.concatenate([extract_patches(image, self.image_config) for image in images])
        m = self.image_config.merge
        grids = torch.tensor([[1, p.rows * m, p.columns * m] for p in images], device=self.device)
        out = tower(torch.from_numpy(values).to(self.device, tower.dtype), grid_thw=grids)
        return ImageFeatures(out.pooler_output, tuple(out.deepstack_features))

    def forward_tokens(
        self,
        ids: Tensor,
        position_ids: Tensor,
        image_features: ImageFeatures | None = None,
        *,
        cache: RowCache | None = None,
        mask: Tensor | None = None,
        prefix_tree: PrefixTree | None = None,
    ) -> ForwardOutput:
        """Run the layers over ids (B, L) at positions (3, B, L); `image_features` fill the image tokens in order."""
        language, extra = self.language, {} if prefix_tree is None else {"prefix_tree": prefix_tree}
        hidden = language.embed_tokens(ids)  # (B, L, d)
        image_mask = (ids == self.tokenizer.image_id)[..., None]
        deepstack: tuple[Tensor, ...] = ()
        if image_features is not None and len(image_features.embeddings):
            hidden = hidden.masked_scatter(image_mask, image_features.embeddings.to(hidden.dtype))
            deepstack = image_features.deepstack
        rotary = language.rotary_emb(hidden, position_ids)
        features = hidden
        for k, layer in enumerate(language.layers):
            hidden = layer(hidden, position_embeddings=rotary, attention_mask=mask, past_key_values=cache, **extra)
            if k < len(deepstack):
                hidden = hidden + torch.zeros_like(hidden).masked_scatter(image_mask, deepstack[k].to(hidden.dtype))
            if k == self.feature_layer:
                features = hidden
        return ForwardOutput(language.norm(hidden), features)

    def forward(self, batch: TokenBatch) -> ForwardOutput:
        """Run whole sequences, as training does. Padding on the right needs no mask: attention is causal."""
        image_features = gather_image_features(self.encode_images(batch.images), batch.images, batch.image_order)
        tree = batch.prefix_tree
        if tree is None:
            return self.forward_tokens(batch.ids, batch.positions, image_features)
        ids, position_ids = batch.ids.flatten()[tree.tokens], batch.positions.flatten(1)[:, tree.tokens]
        output = self.forward_tokens(ids[None], position_ids[:, None], image_features, prefix_tree=tree)
        return ForwardOutput(*(part[0].index_select(0, tree.inverse).view(*batch.ids.shape, -1) for part in output))

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) with banned tokens at minus infinity, in sampling and in every recomputation alike."""
        head = self._core.lm_head
        if type(head) is nn.Linear and head.bias is None and not torch.is_grad_enabled():
            bias = self.ban_bias.to(head.weight.dtype)
            return nn.functional.linear(hidden, head.weight, bias)  # one pass over V, not two
        logits: Tensor = head(hidden)
        return logits + self.ban_bias.to(logits.dtype)

    def allowed_logits(self, hidden: Tensor) -> Tensor:
        """(…, V') in the order of `allowed_ids`: the same softmax without infinities, which label smoothing would
        sum."""
        return nn.functional.linear(hidden, self._core.lm_head.weight[self.allowed_ids])

    def logprobs(self, batch: TokenBatch) -> tuple[Tensor, ForwardOutput]:
        """(B, L) log-probability of each token given those before it, 0 for the first token; and the output."""
        output = self(batch)
        logits = self.logits(output.hidden[:, :-1]).float()
        targets = batch.ids[:, 1:].clone()
        is_banned = self.banned_mask[targets]
        targets[is_banned] = self.tokenizer.end_id  # a banned token occurs only as context and gets 0
        token_logprobs = torch.gather(logits.log_softmax(-1), -1, targets[..., None])[..., 0]
        return nn.functional.pad(token_logprobs.masked_fill(is_banned, 0.0), (1, 0)), output

    def collate(self, sequences: Sequence[TokenSequence], *, share_prefixes: bool = False) -> TokenBatch:
        """Sequences as tensors, each image once; with `share_prefixes`, shared prefixes are computed once."""
        max_length, device = max(len(sequence) for sequence in sequences), self.device
        ids = torch.full((len(sequences), max_length), self.tokenizer.pad_id, dtype=torch.long)
        position_ids = torch.zeros(3, len(sequences), max_length, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.tensor(sequence.ids)
            positions = compute_positions(sequence.ids, sequence.image_spans)
            position_ids[:, row, : len(sequence)] = torch.from_numpy(positions)
        keys, images = compute_sequence_keys(sequences)
        tree = build_prefix_tree(keys, device) if share_prefixes else None
        spans = [(key, s.start) for sequence, key in zip(sequences, keys, strict=True) for s in sequence.image_spans]
        order = tree.image_order if tree else tuple(int(-1 - key[start]) for key, start in spans)
        lengths = tuple(len(sequence) for sequence in sequences)
        return TokenBatch(ids.to(device), position_ids.to(device), tuple(images), order, lengths, tree)


def gather_image_features(
    image_features: ImageFeatures, images: Sequence[ProcessedImage], order: Sequence[int]
) -> ImageFeatures:
    """The features of images in this order, repeated where an image is shown again."""
    if list(order) == list(range(len(images))):
        return image_features
    starts = np.concatenate([[0], np.cumsum([p.token_count for p in images])])
    rows = torch.cat([torch.arange(starts[k], starts[k + 1]) for k in order]) if order else torch.zeros(0).long()
    rows = rows.to(image_features.embeddings.device)
    return ImageFeatures(image_features.embeddings[rows], tuple(layer[rows] for layer in image_features.deepstack))
