"""The small networks beside the policy: tool-argument heads for phase 1, g_φ and h_ψ for all phases.

**The argument heads must not see the target.** Under teacher forcing every later token depends on the call. A head
therefore reads the hidden state at the token that *opens* the call, and the mean over whole images seen so far: pooling
over the footprint of the call (as v_t does for E_t) would reveal the box.

**States and steps.** s_0 is the query, s_k the state after step k: v_k pools the footprint of its result, x_k combines
the last thoughts, the result's words and the tool's confidence. E_k = g_φ(v_k, x_k, the tool that led there), and
h_ψ(v_{k-1}, x_{k-1}, the tool of step k) predicts v_k and whether the step is valid. This reconciles the indices of
eq:embed_Et (a_{t−1}) and of the dynamics head (a_t): a chain of T steps has T embeddings.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from pixelis.equations.embedding import ACTIONS
from pixelis.training.dataset.examples import CELLS, CLIP_PARTS, PHRASE_TOKENS

COORDINATES = 4


def make_mlp(inputs: int, outputs: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))


class ArgumentPredictions(NamedTuple):
    """Outputs of the argument heads for D calls."""

    box: Tensor
    """(D, 4) unit coordinates."""
    words: Tensor
    """(D, WORDS, d): states for the policy's output matrix, since V·WORDS outputs would be larger than nano."""
    mask: Tensor
    """(D, CELLS, CELLS) logits."""
    moments: Tensor
    """(D, MOMENTS) logits."""


class ToolHeads(nn.Module):
    """Box, text, mask and temporal heads: one hidden layer of 256 each (subsec:sft)."""

    def __init__(self, width: int, *, hidden: int = 256) -> None:
        super().__init__()
        inputs = 2 * width + len(ACTIONS)
        self.width = width
        self.box = make_mlp(inputs, COORDINATES, hidden)
        self.text = make_mlp(inputs, PHRASE_TOKENS * width, hidden)
        self.mask = make_mlp(inputs, CELLS * CELLS, hidden)
        self.temp = make_mlp(inputs, CLIP_PARTS, hidden)

    def forward(self, state: Tensor, visual: Tensor, confidences: Tensor) -> ArgumentPredictions:
        """state (D, d) at the opening token, visual (D, d) of the whole pictures so far, confidences (D, 6) so far."""
        inputs = torch.cat([state, visual.to(state.dtype), confidences.to(state.dtype)], dim=1)
        return ArgumentPredictions(
            box=self.box(inputs).float().sigmoid(),
            words=self.text(inputs).view(-1, PHRASE_TOKENS, self.width),
            mask=self.mask(inputs).view(-1, CELLS, CELLS),
            moments=self.temp(inputs),
        )

    @torch.no_grad()
    def undo_division(self, temperature: float) -> None:
        """Compensate for a division of the policy's logits by T: the heads read the same states."""
        for head in (self.box, self.text, self.mask, self.temp):
            next(head.parameters())[:, : self.width].mul_(temperature)  # the weight of its first layer


class Standardizer(nn.Module):
    """Standardise each feature with its mean and standard deviation on the corpus, fixed afterwards.

    Not in the paper: with very small or large features of a backbone, g_φ would see only the one-hot action or none of
    it, and e_t and the gate's β would mean something else for each backbone.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))

    def fit(self, features: Tensor) -> None:
        self.mean.copy_(features.mean(0))
        self.std.copy_(features.std(0, correction=0))
        self.std[self.std < 1e-6] = 1.0  # a constant dimension

    def forward(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.std


class TextProjector(nn.Module):
    """x_t ∈ ℝ^d from thoughts (d), words of the result (d), its box (4) and confidences (6) (supp:et_dynamics)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        size = 2 * width + COORDINATES + len(ACTIONS)
        self.standard = Standardizer(size)
        self.linear = nn.Linear(size, width)

    def forward(self, text: Tensor) -> Tensor:
        return self.linear(self.standard(text))


class StepEmbedder(nn.Module):
    """g_φ: [2d + |𝒜|] → 768 → 512, GELU, dropout 0.1, LayerNorm on the output, unit norm (supp:et_dynamics)."""

    def __init__(self, width: int, *, hidden: int = 768, size: int = 512, dropout: float = 0.1) -> None:
        super().__init__()
        inputs = 2 * width + len(ACTIONS)
        self.net = nn.Sequential(
            nn.Linear(inputs, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, size), nn.LayerNorm(size)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, 2d + 6) to (n, 512), each of length 1."""
        return functional.normalize(self.net(inputs), dim=-1)


class Dynamics(nn.Module):
    """h_ψ: [2d + |𝒜|] → 1024 → (d + 1): the next visual summary and a validity logit (supp:et_dynamics).

    The paper's table has one hidden layer and its text has dropout "at both": here on the input and the hidden layer.
    In training mode, several passes give the uncertainty that gates curiosity.
    """

    def __init__(self, width: int, *, hidden: int = 1024, dropout: float = 0.1) -> None:
        super().__init__()
        first, last = nn.Linear(2 * width + len(ACTIONS), hidden), nn.Linear(hidden, width + 1)
        self.net = nn.Sequential(nn.Dropout(dropout), first, nn.GELU(), nn.Dropout(dropout), last)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """v̂_{t+1} (n, d) and r̂_t (n,)."""
        out = self.net(inputs)
        return out[:, :-1], out[:, -1]
