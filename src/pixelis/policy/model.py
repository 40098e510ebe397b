"""The policy network: Qwen3-VL of transformers, from nano to 8B, called layer by layer.

One path serves training (whole ledgers, no cache), the first reading of a prompt, later observations and decoding (with
a cache): the language model's own layers are run in one loop, so that features can be tapped and no work is repeated.
Pictures are encoded once, however many ledgers show them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pixelis.errors import ConfigError
from pixelis.policy.branches import Branches, branches_of, keys_of, use_branches
from pixelis.policy.cache import RowCache
from pixelis.policy.ledger import Ledger, positions
from pixelis.policy.pictures import Optics, Picture, patches
from pixelis.policy.script import Style
from pixelis.policy.tokens import Tokens


class Seen(NamedTuple):
    """Pictures after the vision tower."""

    tokens: Tensor
    """(n, d) one row for each visual token, picture after picture."""
    deep: tuple[Tensor, ...]
    """Deepstack features, added after the first layers: each (n, d)."""

    def between(self, start: int, end: int) -> Seen:
        """Some of the tokens."""
        return Seen(self.tokens[start:end], tuple(deep[start:end] for deep in self.deep))


class Batch(NamedTuple):
    """Ledgers side by side, filled up on the right."""

    ids: Tensor
    """(B, L)"""
    positions: Tensor
    """(3, B, L)"""
    pictures: tuple[Picture, ...]
    """Each picture once."""
    order: tuple[int, ...]
    """Which picture each place shows, ledger after ledger."""
    lengths: tuple[int, ...]
    branches: Branches | None = None
    """What they share, where it is read once; the order of the pictures is then that of the branches."""


class Read(NamedTuple):
    """What the layers make of tokens."""

    hidden: Tensor
    """(B, L, d) after the final norm."""
    tapped: Tensor
    """(B, L, d) after the tapped layer (supp:et_dynamics)."""


class Policy(nn.Module):
    """A Qwen3-VL with its tokens, its eyes and its manner of speaking."""

    banned: Tensor
    """(V,) what is never sampled."""
    bars: Tensor
    """(V,) the same to be added to logits: minus infinity, 0 everywhere else."""
    open_ids: Tensor
    """(V',) everything else."""
    open_places: Tensor
    """(V,) the place of a token in `open_ids`; −1 where it has none."""

    def __init__(self, model: Any, tokens: Tokens, style: Style, optics: Optics, *, tap: int = -3) -> None:
        super().__init__()
        self.model = model
        self.tokens = tokens
        self.style = style
        self.optics = optics
        self.tap = tap
        use_branches(self.language.config)
        if not 0 <= self.tapped_layer < len(self.language.layers):
            raise ConfigError(f"tap {tap} lies outside the {len(self.language.layers)} layers of the model")
        banned = torch.zeros(self._core.config.text_config.vocab_size, dtype=torch.bool)
        banned[list(tokens.banned)] = True
        banned[len(tokens) :] = True  # rows of the embedding that no token has
        self.register_buffer("banned", banned, persistent=False)
        self.register_buffer("bars", torch.zeros(len(banned)).masked_fill(banned, -torch.inf), persistent=False)
        self.register_buffer("open_ids", torch.nonzero(~banned)[:, 0], persistent=False)
        places = torch.full_like(banned, -1, dtype=torch.long)
        places[self.open_ids] = torch.arange(len(self.open_ids))
        self.register_buffer("open_places", places, persistent=False)

    # --- the parts of the network

    @property
    def _core(self) -> Any:
        """The Hugging Face model itself, also where PEFT is wrapped around it."""
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
        """d, the size of a token."""
        return int(self._core.config.text_config.hidden_size)

    @property
    def device(self) -> torch.device:
        return self.language.embed_tokens.weight.device

    @property
    def tapped_layer(self) -> int:
        """Which layer the features come from: the third from the top, or as configured."""
        return len(self.language.layers) + self.tap

    # --- reading

    def see(self, pictures: Sequence[Picture]) -> Seen:
        """Every picture through the vision tower, in one pass."""
        if not pictures:
            empty = torch.zeros(0, self.width, device=self.device)
            return Seen(empty, ())
        tower = self.vision
        values = np.concatenate([patches(picture, self.optics) for picture in pictures])
        m = self.optics.merge
        grids = torch.tensor([[1, p.rows * m, p.columns * m] for p in pictures], device=self.device)
        out = tower(torch.from_numpy(values).to(self.device, tower.dtype), grid_thw=grids)
        return Seen(out.pooler_output, tuple(out.deepstack_features))

    def read(
        self,
        ids: Tensor,
        where: Tensor,
        seen: Seen | None = None,
        *,
        cache: RowCache | None = None,
        mask: Tensor | None = None,
        branches: Branches | None = None,
    ) -> Read:
        """Run the layers over ids (B, L) at positions (3, B, L); `seen` fills the image tokens, in their order."""
        language, more = self.language, {} if branches is None else {"branches": branches}
        hidden = language.embed_tokens(ids)
        visual = ids == self.tokens.image if seen is not None and len(seen.tokens) else None
        if visual is not None and seen is not None:
            hidden = hidden.masked_scatter(visual[..., None], seen.tokens.to(hidden.dtype))
        turned = language.rotary_emb(hidden, where)
        tapped = hidden
        for k, layer in enumerate(language.layers):
            hidden = layer(hidden, position_embeddings=turned, attention_mask=mask, past_key_values=cache, **more)
            if visual is not None and seen is not None and k < len(seen.deep):
                added = torch.zeros_like(hidden).masked_scatter(visual[..., None], seen.deep[k].to(hidden.dtype))
                hidden = hidden + added
            if k == self.tapped_layer:
                tapped = hidden
        return Read(language.norm(hidden), tapped)

    def forward(self, batch: Batch) -> Read:
        """Whole ledgers at once, as training reads them. Filling on the right needs no mask: attention is causal."""
        seen = shuffled(self.see(batch.pictures), batch.pictures, batch.order)
        tree = batch.branches
        if tree is None:
            return self.read(batch.ids, batch.positions, seen)
        ids, where = batch.ids.flatten()[tree.tokens], batch.positions.flatten(1)[:, tree.tokens]
        read = self.read(ids[None], where[:, None], seen, branches=tree)
        return Read(*(part[0].index_select(0, tree.back).view(*batch.ids.shape, -1) for part in read))

    def logits(self, hidden: Tensor) -> Tensor:
        """(…, V) with what is never sampled at minus infinity, in sampling and in every recomputation alike."""
        head = self._core.lm_head
        if type(head) is nn.Linear and head.bias is None and not torch.is_grad_enabled():
            bars = self.bars.to(head.weight.dtype)
            return nn.functional.linear(hidden, head.weight, bars)  # one pass over V, not two
        logits: Tensor = head(hidden)
        return logits + self.bars.to(logits.dtype)

    def open_logits(self, hidden: Tensor) -> Tensor:
        """(…, V') of the tokens that may be sampled, in the order of `open_ids`: the same softmax without infinities,
        which label smoothing would add up."""
        return nn.functional.linear(hidden, self._core.lm_head.weight[self.open_ids])

    def logprobs(self, batch: Batch) -> tuple[Tensor, Read]:
        """(B, L) log-probability of each token given those before it (the first has 0), and what was read."""
        read = self(batch)
        logits = self.logits(read.hidden[:, :-1]).float()
        targets = batch.ids[:, 1:].clone()
        never = self.banned[targets]
        targets[never] = self.tokens.end  # given tokens that are never sampled have no probability; nobody asks for it
        found = torch.gather(logits.log_softmax(-1), -1, targets[..., None])[..., 0]
        return torch.cat([torch.zeros_like(found[:, :1]), found.masked_fill(never, 0.0)], dim=1), read

    def batch(self, ledgers: Sequence[Ledger], *, once: bool = False) -> Batch:
        """Ledgers as tensors, each picture once; with `once` also what else they share is read once."""
        longest, device = max(len(ledger) for ledger in ledgers), self.device
        ids = torch.full((len(ledgers), longest), self.tokens.pad, dtype=torch.long)
        where = torch.zeros(3, len(ledgers), longest, dtype=torch.long)
        for row, ledger in enumerate(ledgers):
            ids[row, : len(ledger)] = torch.tensor(ledger.ids)
            where[:, row, : len(ledger)] = torch.from_numpy(positions(ledger.ids, ledger.places))
        keys, pictures = keys_of(ledgers)
        tree = branches_of(keys, device) if once else None
        if tree is not None:
            order = tree.order
        else:
            order = tuple(
                int(-1 - own[p.start]) for ledger, own in zip(ledgers, keys, strict=True) for p in ledger.places
            )
        return Batch(
            ids.to(device), where.to(device), tuple(pictures), order, tuple(len(ledger) for ledger in ledgers), tree
        )


def shuffled(seen: Seen, pictures: Sequence[Picture], order: Sequence[int]) -> Seen:
    """The tokens of pictures in the order of their places, repeated where a picture is shown again."""
    if list(order) == list(range(len(pictures))):
        return seen
    starts = np.concatenate([[0], np.cumsum([p.tokens for p in pictures])])
    rows = torch.cat([torch.arange(starts[k], starts[k + 1]) for k in order]) if order else torch.zeros(0).long()
    rows = rows.to(seen.tokens.device)
    return Seen(seen.tokens[rows], tuple(deep[rows] for deep in seen.deep))
