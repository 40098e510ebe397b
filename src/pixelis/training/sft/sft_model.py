"""Examples collated into tensors, and the network trained on them: the losses of subsec:sft.

Logits are computed only at the tokens that carry loss: three tokens in four are prompt, pictures and tool outputs, and
nano's output matrix costs more than two of its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pixelis.equations.embedding import ACTIONS
from pixelis.equations.sft import IGNORE_INDEX, Head, ToolLoss, early_action_dropout, feedback_dropout, sft_loss
from pixelis.equations.sft import tool_argument_loss as argument_loss
from pixelis.policy.images import ProcessedImage
from pixelis.policy.model import ForwardOutput, Policy, TokenBatch
from pixelis.policy.sequence import compute_positions
from pixelis.rewards.features import StateFeatures, state_features
from pixelis.rewards.heads import ArgumentPredictions, ToolHeads
from pixelis.training.common.precision import autocast_context
from pixelis.training.dataset.examples import ACTION, Example
from pixelis.training.sft.sft_config import SftConfig


class SftBatch(NamedTuple):
    """A batch of examples. Positions are flat: row · L + column."""

    inputs: TokenBatch
    visual_positions: Tensor
    """(m,) positions of visual tokens."""
    visual_pictures: Tensor
    """(m,) the picture that each belongs to."""
    picture_shares: Tensor
    """(D, pictures) equal shares of the pictures shown before a call, each pooled whole."""
    target_positions: Tensor
    """(n,) positions whose states predict the targets."""
    targets: Tensor
    """(n,) token ids of thought, action and answer."""
    actions: Tensor
    """(n,) whether a target has weight w_act."""
    row: Tensor
    """(n,) the example that a target belongs to."""
    call_positions: Tensor
    """(D,) positions that open the decisive calls."""
    confidences: Tensor
    """(D, 6) the last confidence of each tool before a call; 0 before its first answer."""
    box: Tensor
    words: Tensor
    mask: Tensor
    moments: Tensor


STEP_TARGETS = ("box", "words", "mask", "moments")


def sample_hidden_tokens(config: SftConfig, example: Example, rng: np.random.Generator) -> NDArray[np.bool_]:
    """(n,) tokens of an example that the policy does not see this time (subsec:sft).

    Hidden tokens become padding, and a hidden view is not shown; as targets they remain.
    """
    visible = feedback_dropout(example.output_of, rng=rng, p=config.feedback_dropout)
    return ~(visible & early_action_dropout(example.action_step, rng=rng, p=config.early_action_dropout))


def collate(examples: Sequence[Example], hidden: Sequence[NDArray[np.bool_]] | None, policy: Policy) -> SftBatch:
    """Examples as one batch, without the tokens in `hidden` among its inputs."""
    pad, lengths = policy.tokenizer.pad_id, tuple(len(example) for example in examples)
    longest = max(lengths)
    ids = np.full((len(examples), longest), pad, dtype=np.int64)
    position_ids = np.zeros((3, len(examples), longest), dtype=np.int64)
    pictures, picture_masks = list[ProcessedImage](), list[tuple[int, NDArray[np.bool_]]]()
    columns: dict[str, list[NDArray[Any]]] = {
        name: [] for name in SftBatch._fields if name not in ("inputs", "picture_shares")
    }
    for row, example in enumerate(examples):
        hidden_mask = hidden[row] if hidden is not None else np.zeros(len(example), dtype=bool)
        base, length, steps = row * longest, len(example), example.steps
        ids[row, :length] = np.where(hidden_mask, pad, example.ids)
        position_ids[:, row, :length] = compute_positions(example.ids, example.image_spans)  # type: ignore[arg-type]
        visible_spans = [span for span in example.image_spans if not hidden_mask[span.start]]
        starts, decisive = np.array([span.start for span in visible_spans]), np.flatnonzero(steps.decisive)
        picture_masks += [(len(pictures), starts < steps.opens[k]) for k in decisive]
        for span in visible_spans:
            columns["visual_pictures"].append(np.full(span.image.token_count, len(pictures)))
            columns["visual_positions"].append(base + span.start + np.arange(span.image.token_count))
            pictures.append(span.image)
        sampled = np.flatnonzero(example.is_sampled)
        columns["target_positions"].append(base + sampled - 1)
        columns["targets"].append(example.ids[sampled].astype(np.int64))
        columns["actions"].append(example.kinds[sampled] == ACTION)
        columns["row"].append(np.full(len(sampled), row))
        columns["call_positions"].append(base + steps.opens[decisive].astype(np.int64))
        columns["confidences"].append(confidences_before(example)[decisive])
        for name in STEP_TARGETS:
            columns[name].append(getattr(steps, name)[decisive])
    shares = np.zeros((len(picture_masks), len(pictures)), dtype=np.float32)
    for k, (first, before_call) in enumerate(picture_masks):
        shares[k, first : first + len(before_call)] = before_call / max(1, before_call.sum())

    def tensor(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(policy.device)

    inputs = TokenBatch(tensor(ids), tensor(position_ids), tuple(pictures), tuple(range(len(pictures))), lengths)
    none = np.zeros(0, dtype=np.int64)  # a batch may hold no picture
    tensors = {name: tensor(np.concatenate(parts or [none])) for name, parts in columns.items()}
    return SftBatch(inputs=inputs, picture_shares=tensor(shares), **tensors)


def confidences_before(example: Example) -> NDArray[np.float32]:
    """(S, 6) for each step the last confidence of each tool before it."""
    steps = example.steps
    out = np.zeros((len(steps) + 1, len(ACTIONS)), dtype=np.float32)
    for k in range(len(steps)):
        out[k + 1] = out[k]
        if steps.tool[k] >= 0 and np.isfinite(steps.confidence[k]):
            out[k + 1, steps.tool[k]] = steps.confidence[k]
    return out[:-1]


class SftOutput(NamedTuple):
    """The losses of a batch, and what evaluation reads."""

    sft: Tensor
    tool: ToolLoss
    nats: Tensor
    """(n,) −log p of each target, without smoothing or weight."""
    top_tokens: Tensor
    """(n,) the most likely tokens; empty in training."""
    entropy: Tensor
    """(n,) nats."""
    logits: Tensor
    """(n, V'); empty in training."""
    box: Tensor
    """(D, 4) of the box head."""
    states: StateFeatures | None = None
    """v_t and the text of x_t, if requested."""


class SftModel(nn.Module):
    """The policy with its argument heads: one forward pass from a batch to its losses."""

    def __init__(self, policy: Policy, heads: ToolHeads, *, w_act: float, smoothing: float) -> None:
        super().__init__()
        self.policy, self.heads, self.w_act, self.smoothing = policy, heads, w_act, smoothing
        self.dtype = torch.float32
        """Of the forward pass; the losses are always float32."""

    def forward(self, batch: SftBatch, examples: Sequence[Example] | None = None) -> SftOutput:
        """The losses of a batch; with its `examples`, also the states that g_φ and h_ψ read."""
        with autocast_context(self.policy.device, self.dtype):
            return self._compute_output(batch, examples)

    def _compute_output(self, batch: SftBatch, examples: Sequence[Example] | None) -> SftOutput:
        policy = self.policy
        output = policy(batch.inputs)
        states = output.hidden.flatten(0, 1)  # (B·L, d)
        logits = policy.allowed_logits(states[batch.target_positions]).float()  # (n, V')
        targets = policy.allowed_index[batch.targets]
        all_targets = torch.ones_like(batch.actions)
        loss = sft_loss(logits, targets, batch.actions, all_targets, w_act=self.w_act, smoothing=self.smoothing)
        predictions = self.heads(states[batch.call_positions], self._pool_pictures(output, batch), batch.confidences)
        with torch.no_grad():
            log_probs = logits.log_softmax(-1)
            nats = -log_probs.gather(1, targets[:, None])[:, 0]
            entropy = -(log_probs.exp() * log_probs).sum(-1) if not self.training else torch.zeros_like(nats)
            top_tokens = targets[:0] if self.training else policy.allowed_ids[log_probs.argmax(-1)]
        states = state_features(policy, output, batch.inputs.ids, examples) if examples is not None else None
        kept_logits = logits.detach()[:0] if self.training else logits.detach()
        tool_loss, box = self._argument_loss(predictions, batch), predictions.box.detach()
        return SftOutput(loss, tool_loss, nats, top_tokens, entropy, kept_logits, box, states)

    def _pool_pictures(self, output: ForwardOutput, batch: SftBatch) -> Tensor:
        """(D, d) the pictures before each call, pooled whole, each with an equal share."""
        features = output.features.flatten(0, 1)[batch.visual_positions].float()  # (m, d); hundreds are summed
        count = torch.bincount(batch.visual_pictures, minlength=batch.picture_shares.shape[1]).clamp(min=1)
        sums = torch.zeros(batch.picture_shares.shape[1], features.shape[1], device=features.device)
        pooled = sums.index_add(0, batch.visual_pictures, features) / count[:, None].float()
        return batch.picture_shares @ pooled

    def _argument_loss(self, predictions: ArgumentPredictions, batch: SftBatch) -> ToolLoss:
        """ℒ_tool. The text loss is computed only for calls that name a phrase, and weighted by their share of 𝒟."""
        has_phrase = batch.words[:, 0] != IGNORE_INDEX
        ids = batch.words[has_phrase].long()
        words = torch.where(ids == IGNORE_INDEX, IGNORE_INDEX, self.policy.allowed_index[ids.clamp(min=0)])
        logits = self.policy.allowed_logits(predictions.words[has_phrase]).float()
        phrase_loss = argument_loss(text=Head(logits, words, has_phrase[has_phrase])).text
        text = phrase_loss * (len(ids) / max(1, len(has_phrase)))
        targets = (batch.box, batch.mask, batch.moments)
        has_box, has_mask, has_moments = (torch.isfinite(target.flatten(1)[:, 0]) for target in targets)
        other_losses = argument_loss(
            box=Head(predictions.box.float(), batch.box, has_box),
            mask=Head(predictions.mask.float(), batch.mask, has_mask),
            temp=Head(predictions.moments.float(), batch.moments, has_moments),
        )
        return other_losses._replace(total=other_losses.total + text, text=text)


def unwrap(model: Any) -> SftModel:
    """The model inside a distributed wrapper."""
    inner: SftModel = getattr(model, "module", model)
    return inner
