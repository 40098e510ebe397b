"""Phase 1: masked imitation, teacher-forcing dropouts, tool-argument loss, total (subsec:sft).

Tensors are on one device; `mask` arguments are booleans. Positions are aligned by the caller: `logits[..., t, :]` is
the prediction of `targets[..., t]`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

IGNORE_INDEX = -100
"""Target id of a position without loss, as in torch."""

_Loss = Callable[[Tensor, Tensor], Tensor]


def sft_loss(
    logits: Tensor,
    targets: Tensor,
    action_mask: Tensor,
    loss_mask: Tensor,
    *,
    w_act: float = 2.0,
    smoothing: float = 0.05,
) -> Tensor:
    """ℒ_SFT: next-token cross-entropy in which tool names and arguments weigh w_act (subsec:sft), label-smoothed.

    logits (..., V), the others (...). The weighted sum is divided by the sum of the weights, so the loss stays in nats
    per token whatever the share of action tokens. Positions outside `loss_mask` (prompt, tool outputs, padding), or
    with target `IGNORE_INDEX`, carry neither loss nor weight and may hold NaN; if no other position is left, the loss
    is 0.
    """
    _same_shape(logits=logits[..., 0], targets=targets, action_mask=action_mask, loss_mask=loss_mask)
    loss_mask = loss_mask & (targets != IGNORE_INDEX)
    if not bool(loss_mask.any()):
        return _zero(logits)
    nats = functional.cross_entropy(logits[loss_mask], targets[loss_mask], reduction="none", label_smoothing=smoothing)
    weights = torch.where(action_mask[loss_mask], w_act, 1.0).to(nats.dtype)
    return (weights * nats).sum() / weights.sum()


def feedback_dropout(output_of_token: ArrayLike, *, rng: np.random.Generator, p: float = 0.05) -> NDArray[np.bool_]:
    """Which tokens stay visible when each tool output is hidden with probability 5 % (subsec:sft).

    `output_of_token` is the number, from 0, of the tool output that a token belongs to, or −1. An output is hidden as a
    whole: half a box would not teach how to cope with a missing one.
    """
    outputs = np.asarray(output_of_token, dtype=int)
    return _keep_mask(outputs, outputs >= 0, p, rng)


def early_action_dropout(
    step_of_token: ArrayLike, *, rng: np.random.Generator, p: float = 0.02, last_step: int = 3
) -> NDArray[np.bool_]:
    """Which tokens stay visible when each of the first three actions is hidden with probability 2 % (subsec:sft).

    `step_of_token` is the step t = 1, 2, … of the action that a token belongs to, or 0. The mask applies to the
    teacher-forced input; the dropped action remains a target.
    """
    steps = np.asarray(step_of_token, dtype=int)
    return _keep_mask(steps, (steps >= 1) & (steps <= last_step), p, rng)


class Head(NamedTuple):
    """One argument head over the decisive steps: its outputs, their targets, and the steps where its tool applies."""

    predicted: Tensor
    target: Tensor
    applies: Tensor
    """(|𝒟|,) booleans. The values of rows where it is False are ignored."""


class ToolLoss(NamedTuple):
    """ℒ_tool and its four parts, each weighted: they add up to `total`."""

    total: Tensor
    box: Tensor
    text: Tensor
    mask: Tensor
    temp: Tensor


def tool_argument_loss(
    *,
    box: Head | None = None,
    text: Head | None = None,
    mask: Head | None = None,
    temp: Head | None = None,
    lambda_box: float = 1.0,
    lambda_text: float = 1.0,
    lambda_mask: float = 1.0,
    lambda_temp: float = 1.0,
) -> ToolLoss:
    """ℒ_tool over the decisive steps 𝒟, each head on the steps where its tool applies (eq:sft_tool_aux_compact).

    box: (|𝒟|, 4) unit coordinates, SmoothL1 averaged over the four. text: logits (|𝒟|, L, V) against ids (|𝒟|, L), with
    `IGNORE_INDEX` after the end, cross-entropy averaged over a step's tokens. mask: logits (|𝒟|, H, W) against {0, 1},
    one minus Dice. temp: logits (|𝒟|, frames) against {0, 1}, BCE averaged over frames. As in the paper the divisor is
    |𝒟| and not the steps of a head: a rarely used tool has little weight. An empty 𝒟, or no head, gives 0.
    The paper does not give the λ; ours are 1, because nothing favours one part.
    """
    heads = [head for head in (box, text, mask, temp) if head is not None]
    if len({len(head.applies) for head in heads}) > 1:
        raise ValueError(f"heads cover {[len(head.applies) for head in heads]} decisive steps: expected one number")
    decisive = len(heads[0].applies) if heads else 0
    parts = [
        weight * _per_step(head, loss).sum() / max(1, decisive) if head is not None else torch.zeros(())
        for head, loss, weight in (
            (box, _smooth_l1, lambda_box),
            (text, _cross_entropy, lambda_text),
            (mask, _one_minus_dice, lambda_mask),
            (temp, _bce, lambda_temp),
        )
    ]
    return ToolLoss(parts[0] + parts[1] + parts[2] + parts[3], *parts)


def soft_dice(probability: Tensor, target: Tensor, *, epsilon: float = 1e-6) -> Tensor:
    """Dice of (n, ...) probabilities against {0, 1}, one value per row. Both empty: 1 (eq:sft_tool_aux_compact)."""
    p, m = probability.flatten(1), target.flatten(1).to(probability.dtype)
    return (2 * (p * m).sum(1) + epsilon) / (p.sum(1) + m.sum(1) + epsilon)


def sft_total(sft: Tensor, tool: Tensor, *, alpha_tool: float = 0.2) -> Tensor:
    """ℒ_SFT,tot = ℒ_SFT + α_tool·ℒ_tool (eq:sft_total_obj_compact)."""
    return sft + alpha_tool * tool


def _per_step(head: Head, loss: _Loss) -> Tensor:
    if not len(head.predicted) == len(head.target) == len(head.applies):
        raise ValueError(
            f"a head has {len(head.predicted)} outputs, {len(head.target)} targets and {len(head.applies)} steps: "
            "expected the same number"
        )
    if not bool(head.applies.any()):
        return _zero(head.predicted).reshape(1)
    return loss(head.predicted[head.applies], head.target[head.applies])


def _smooth_l1(predicted: Tensor, target: Tensor) -> Tensor:
    return functional.smooth_l1_loss(predicted, target, reduction="none").flatten(1).mean(1)


def _cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    nats = functional.cross_entropy(logits.transpose(1, 2), target, ignore_index=IGNORE_INDEX, reduction="none")
    return nats.sum(1) / (target != IGNORE_INDEX).sum(1).clamp(min=1)


def _one_minus_dice(logits: Tensor, target: Tensor) -> Tensor:
    return 1.0 - soft_dice(logits.sigmoid(), target)


def _bce(logits: Tensor, target: Tensor) -> Tensor:
    return (
        functional.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
        .flatten(1)
        .mean(1)
    )


def _keep_mask(
    group: NDArray[np.int_], droppable: NDArray[np.bool_], p: float, rng: np.random.Generator
) -> NDArray[np.bool_]:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"dropout probability is {p}, expected 0 to 1")
    names = np.unique(group[droppable])
    dropped = names[rng.random(names.size) < p]
    return ~(droppable & np.isin(group, dropped))


def _same_shape(**tensors: Tensor) -> None:
    if len({tuple(tensor.shape) for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"shapes differ: {shapes}")


def _zero(like: Tensor) -> Tensor:
    """A 0 that is attached to the graph, so that backward() works on a batch without any target."""
    return like[:0].sum()
