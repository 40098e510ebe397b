"""Examples side by side as tensors, and the network that is taught with them: the losses of subsec:sft.

Logits are computed at the tokens that carry loss and nowhere else: three tokens in four are prompt, pictures and tool
outputs, and nano's output matrix is dearer than two of its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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


class SftBatch(NamedTuple):
    """A batch. Places are flat: row · L + column."""

    inputs: TokenBatch
    at: Tensor
    """(n,) the places that predict."""
    targets: Tensor
    """(n,) token ids, of thought, action and answer."""
    actions: Tensor
    """(n,) which of them weigh w_act."""
    row: Tensor
    """(n,) the example that they belong to."""
    visual_positions: Tensor
    """(m,) places of visual tokens."""
    visual_pictures: Tensor
    """(m,) the picture that they belong to."""
    opens: Tensor
    """(D,) where the decisive calls open."""
    picture_shares: Tensor
    """(D, pictures) equal shares of the pictures that were shown before a call, each pooled whole."""
    confidences: Tensor
    """(D, 6) the last confidence of each tool before a call; 0 where it has not answered yet."""
    box: Tensor
    words: Tensor
    mask: Tensor
    moments: Tensor
    tokens: int
    """Without the filling."""


def sample_hidden_tokens(
    example: Example, rng: np.random.Generator, *, feedback: float, early_action: float
) -> NDArray[np.bool_]:
    """(n,) what the policy may not see of this example this time (subsec:sft).

    Hidden tokens are given as the padding token, and a hidden view is not shown at all; as targets they stay.
    """
    visible = feedback_dropout(example.output_of, rng=rng, p=feedback)
    return ~(visible & early_action_dropout(example.action_step, rng=rng, p=early_action))


def collate(examples: Sequence[Example], hidden: Sequence[NDArray[np.bool_]] | None, policy: Policy) -> SftBatch:
    """Examples as one batch; `hidden` says what is dropped from their input."""
    device, pad = policy.device, policy.tokenizer.pad_id
    longest = max(len(example) for example in examples)
    ids = np.full((len(examples), longest), pad, dtype=np.int64)
    position_ids = np.zeros((3, len(examples), longest), dtype=np.int64)
    pictures, visual_positions, visual_pictures = (
        list[ProcessedImage](),
        list[NDArray[np.int64]](),
        list[NDArray[np.int64]](),
    )
    fields: dict[str, list[NDArray[np.generic]]] = {name: [] for name in (*TARGET_COLUMNS, *DECISIVE_COLUMNS)}
    picture_masks: list[tuple[int, int, NDArray[np.bool_]]] = []
    for row, example in enumerate(examples):
        hidden_mask = hidden[row] if hidden is not None else np.zeros(len(example), dtype=bool)
        base, length = row * longest, len(example)
        ids[row, :length] = np.where(hidden_mask, pad, example.ids)
        position_ids[:, row, :length] = compute_positions(example.ids, example.image_spans)  # type: ignore[arg-type]
        visible_spans = [image_span for image_span in example.image_spans if not hidden_mask[image_span.start]]
        first_picture = len(pictures)
        for image_span in visible_spans:
            visual_pictures.append(np.full(image_span.image.token_count, len(pictures)))
            visual_positions.append(base + image_span.start + np.arange(image_span.image.token_count))
            pictures.append(image_span.image)
        target_positions = np.flatnonzero(example.is_sampled)
        fields["at"].append(base + target_positions - 1)
        fields["targets"].append(example.ids[target_positions].astype(np.int64))
        fields["actions"].append(example.kinds[target_positions] == ACTION)
        fields["row"].append(np.full(len(target_positions), row))
        steps = example.steps
        decisive_steps = np.flatnonzero(steps.decisive)
        fields["opens"].append(base + steps.opens[decisive_steps].astype(np.int64))
        fields["confidences"].append(confidences_before(example)[decisive_steps])
        for name in ("box", "words", "mask", "moments"):
            fields[name].append(getattr(steps, name)[decisive_steps])
        starts = np.array([image_span.start for image_span in visible_spans])
        picture_masks += [(first_picture, len(visible_spans), starts < steps.opens[k]) for k in decisive_steps]
    tensors = {name: torch.from_numpy(np.concatenate(columns)).to(device) for name, columns in fields.items()}
    shares = np.zeros((len(picture_masks), len(pictures)), dtype=np.float32)
    for k, (first_picture, count, visible_before) in enumerate(picture_masks):
        shares[k, first_picture : first_picture + count] = visible_before / max(1, visible_before.sum())
    lengths = tuple(len(example) for example in examples)
    inputs = TokenBatch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(position_ids).to(device),
        tuple(pictures),
        tuple(range(len(pictures))),
        lengths,
    )
    no_positions = np.zeros(0, dtype=np.int64)
    return SftBatch(
        inputs=inputs,
        visual_positions=torch.from_numpy(np.concatenate(visual_positions) if visual_positions else no_positions).to(
            device
        ),
        visual_pictures=torch.from_numpy(np.concatenate(visual_pictures) if visual_pictures else no_positions).to(
            device
        ),
        picture_shares=torch.from_numpy(shares).to(device),
        tokens=sum(lengths),
        **tensors,
    )


TARGET_COLUMNS = ("at", "targets", "actions", "row")
DECISIVE_COLUMNS = ("opens", "confidences", "box", "words", "mask", "moments")


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
    """The losses of one batch, and what is worth knowing about it."""

    sft: Tensor
    tool: ToolLoss
    nats: Tensor
    """(n,) −log p of each target, without smoothing or weight."""
    top_tokens: Tensor
    """(n,) the most likely token; empty while training."""
    entropy: Tensor
    """(n,) nats."""
    logits: Tensor
    """(n, V'); empty while training."""
    box: Tensor
    """(D, 4) what the box head says."""
    states: StateFeatures | None = None
    """v_t and the text of x_t, where they were asked for."""


class SftModel(nn.Module):
    """The policy with its argument heads: one forward pass from a batch to its losses."""

    def __init__(self, policy: Policy, heads: ToolHeads, *, w_act: float, smoothing: float) -> None:
        super().__init__()
        self.policy = policy
        self.heads = heads
        self.w_act = w_act
        self.smoothing = smoothing
        self.dtype = torch.float32
        """What it computes in; its losses are float32 in any case."""

    def forward(self, batch: SftBatch, examples: Sequence[Example] | None = None) -> SftOutput:
        """The losses of a batch; with its `examples` also the states that g_φ and h_ψ read."""
        with autocast_context(self.policy.device, self.dtype):
            return self._compute_output(batch, examples)

    def _compute_output(self, batch: SftBatch, examples: Sequence[Example] | None) -> SftOutput:
        policy = self.policy
        output = policy(batch.inputs)
        states = output.hidden.flatten(0, 1)  # (B·L, d)
        logits = policy.allowed_logits(states[batch.at]).float()  # (n, V')
        targets = policy.open_places[batch.targets]
        all_targets = torch.ones_like(batch.actions)
        loss = sft_loss(logits, targets, batch.actions, all_targets, w_act=self.w_act, smoothing=self.smoothing)
        predictions = self.heads(states[batch.opens], self._pool_pictures(output, batch), batch.confidences)
        with torch.no_grad():
            log_probs = logits.log_softmax(-1)
            nats = -log_probs.gather(1, targets[:, None])[:, 0]
            entropy = -(log_probs.exp() * log_probs).sum(-1) if not self.training else torch.zeros_like(nats)
            top_tokens = targets[:0] if self.training else policy.open_ids[log_probs.argmax(-1)]
        states = state_features(policy, output, batch.inputs.ids, examples) if examples is not None else None
        kept_logits = logits.detach()[:0] if self.training else logits.detach()
        return SftOutput(
            loss,
            self._argument_loss(predictions, batch),
            nats,
            top_tokens,
            entropy,
            kept_logits,
            predictions.box.detach(),
            states,
        )

    def _pool_pictures(self, output: ForwardOutput, batch: SftBatch) -> Tensor:
        """(D, d) the pictures before each call, pooled whole, each with an equal share."""
        features = output.features.flatten(0, 1)[batch.visual_positions].float()  # (m, d): hundreds are added up
        count = torch.bincount(batch.visual_pictures, minlength=batch.picture_shares.shape[1]).clamp(min=1)
        sums = torch.zeros(batch.picture_shares.shape[1], features.shape[1], device=features.device)
        pooled = sums.index_add(0, batch.visual_pictures, features) / count[:, None].float()
        return batch.picture_shares @ pooled

    def _argument_loss(self, predictions: ArgumentPredictions, batch: SftBatch) -> ToolLoss:
        """ℒ_tool; words are spelt out only for the calls that name a phrase, and count by their share of 𝒟."""
        has_phrase = batch.words[:, 0] != IGNORE_INDEX
        phrase_ids = batch.words[has_phrase].long()
        words = torch.where(phrase_ids == IGNORE_INDEX, IGNORE_INDEX, self.policy.open_places[phrase_ids.clamp(min=0)])
        phrase_head = Head(
            self.policy.allowed_logits(predictions.words[has_phrase]).float(), words, has_phrase[has_phrase]
        )
        text = argument_loss(text=phrase_head).text * (len(phrase_ids) / max(1, len(has_phrase)))
        has_box, has_mask, has_moments = (
            torch.isfinite(t.flatten(1)[:, 0]) for t in (batch.box, batch.mask, batch.moments)
        )
        other_losses = argument_loss(
            box=Head(predictions.box.float(), batch.box, has_box),
            mask=Head(predictions.mask.float(), batch.mask, has_mask),
            temp=Head(predictions.moments.float(), batch.moments, has_moments),
        )
        return other_losses._replace(total=other_losses.total + text, text=text)
