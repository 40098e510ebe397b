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
from pixelis.equations.sft import IGNORED, Head, ToolLoss, early_action_dropout, feedback_dropout, sft_loss
from pixelis.equations.sft import tool_argument_loss as argument_loss
from pixelis.policy.ledger import positions
from pixelis.policy.model import Batch, Policy, Read
from pixelis.policy.pictures import Picture
from pixelis.train.examples import ACTION, Example
from pixelis.train.features import States, state_features
from pixelis.train.heads import Arguments, ToolHeads
from pixelis.train.precision import computing


class Lessons(NamedTuple):
    """A batch. Places are flat: row · L + column."""

    batch: Batch
    at: Tensor
    """(n,) the places that predict."""
    targets: Tensor
    """(n,) token ids, of thought, action and answer."""
    actions: Tensor
    """(n,) which of them weigh w_act."""
    row: Tensor
    """(n,) the example that they belong to."""
    visual_at: Tensor
    """(m,) places of visual tokens."""
    visual_of: Tensor
    """(m,) the picture that they belong to."""
    opens: Tensor
    """(D,) where the decisive calls open."""
    looked: Tensor
    """(D, pictures) equal shares of the pictures that were shown before a call, each pooled whole."""
    confidences: Tensor
    """(D, 6) the last confidence of each tool before a call; 0 where it has not answered yet."""
    box: Tensor
    words: Tensor
    mask: Tensor
    moments: Tensor
    tokens: int
    """Without the filling."""


def hidden_tokens(
    example: Example, rng: np.random.Generator, *, feedback: float, early_action: float
) -> NDArray[np.bool_]:
    """(n,) what the policy may not see of this example this time (subsec:sft).

    Hidden tokens are given as the padding token, and a hidden view is not shown at all; as targets they stay.
    """
    keep = feedback_dropout(example.output_of, rng=rng, p=feedback)
    return ~(keep & early_action_dropout(example.action_step, rng=rng, p=early_action))


def lessons(examples: Sequence[Example], hidden: Sequence[NDArray[np.bool_]] | None, policy: Policy) -> Lessons:
    """Examples as one batch; `hidden` says what is dropped from their input."""
    device, pad = policy.device, policy.tokens.pad
    longest = max(len(example) for example in examples)
    ids = np.full((len(examples), longest), pad, dtype=np.int64)
    where = np.zeros((3, len(examples), longest), dtype=np.int64)
    pictures, visual_at, visual_of = list[Picture](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    parts: dict[str, list[NDArray[np.generic]]] = {name: [] for name in (*TARGETS, *DECISIVE)}
    looked: list[tuple[int, int, NDArray[np.bool_]]] = []
    for row, example in enumerate(examples):
        dropped = hidden[row] if hidden is not None else np.zeros(len(example), dtype=bool)
        base, own = row * longest, len(example)
        ids[row, :own] = np.where(dropped, pad, example.ids)
        where[:, row, :own] = positions(example.ids, example.places)  # type: ignore[arg-type]
        shown = [place for place in example.places if not dropped[place.start]]
        first = len(pictures)
        for place in shown:
            visual_of.append(np.full(place.picture.tokens, len(pictures)))
            visual_at.append(base + place.start + np.arange(place.picture.tokens))
            pictures.append(place.picture)
        taught = np.flatnonzero(example.sampled)
        parts["at"].append(base + taught - 1)
        parts["targets"].append(example.ids[taught].astype(np.int64))
        parts["actions"].append(example.kinds[taught] == ACTION)
        parts["row"].append(np.full(len(taught), row))
        steps = example.steps
        chosen = np.flatnonzero(steps.decisive)
        parts["opens"].append(base + steps.opens[chosen].astype(np.int64))
        parts["confidences"].append(confidences_before(example)[chosen])
        for name in ("box", "words", "mask", "moments"):
            parts[name].append(getattr(steps, name)[chosen])
        starts = np.array([place.start for place in shown])
        looked += [(first, len(shown), starts < steps.opens[k]) for k in chosen]
    joined = {name: torch.from_numpy(np.concatenate(columns)).to(device) for name, columns in parts.items()}
    shares = np.zeros((len(looked), len(pictures)), dtype=np.float32)
    for k, (first, count, before) in enumerate(looked):
        shares[k, first : first + count] = before / max(1, before.sum())
    lengths = tuple(len(example) for example in examples)
    batch = Batch(
        torch.from_numpy(ids).to(device),
        torch.from_numpy(where).to(device),
        tuple(pictures),
        tuple(range(len(pictures))),
        lengths,
    )
    none = np.zeros(0, dtype=np.int64)
    return Lessons(
        batch=batch,
        visual_at=torch.from_numpy(np.concatenate(visual_at) if visual_at else none).to(device),
        visual_of=torch.from_numpy(np.concatenate(visual_of) if visual_of else none).to(device),
        looked=torch.from_numpy(shares).to(device),
        tokens=sum(lengths),
        **joined,
    )


TARGETS = ("at", "targets", "actions", "row")
DECISIVE = ("opens", "confidences", "box", "words", "mask", "moments")


def confidences_before(example: Example) -> NDArray[np.float32]:
    """(S, 6) for each step the last confidence of each tool before it."""
    steps = example.steps
    out = np.zeros((len(steps) + 1, len(ACTIONS)), dtype=np.float32)
    for k in range(len(steps)):
        out[k + 1] = out[k]
        if steps.tool[k] >= 0 and np.isfinite(steps.confidence[k]):
            out[k + 1, steps.tool[k]] = steps.confidence[k]
    return out[:-1]


class Taught(NamedTuple):
    """The losses of one batch, and what is worth knowing about it."""

    sft: Tensor
    tool: ToolLoss
    nats: Tensor
    """(n,) −log p of each target, without smoothing or weight."""
    top: Tensor
    """(n,) the most likely token; empty while training."""
    entropy: Tensor
    """(n,) nats."""
    logits: Tensor
    """(n, V'); empty while training."""
    box: Tensor
    """(D, 4) what the box head says."""
    states: States | None = None
    """v_t and the text of x_t, where they were asked for."""


class Student(nn.Module):
    """The policy with its argument heads: one forward pass from a batch to its losses."""

    def __init__(self, policy: Policy, heads: ToolHeads, *, w_act: float, smoothing: float) -> None:
        super().__init__()
        self.policy = policy
        self.heads = heads
        self.w_act = w_act
        self.smoothing = smoothing
        self.dtype = torch.float32
        """What it computes in; its losses are float32 in any case."""

    def forward(self, given: Lessons, examples: Sequence[Example] | None = None) -> Taught:
        """The losses of a batch; with its `examples` also the states that g_φ and h_ψ read."""
        with computing(self.policy.device, self.dtype):
            return self._taught(given, examples)

    def _taught(self, given: Lessons, examples: Sequence[Example] | None) -> Taught:
        policy = self.policy
        read = policy(given.batch)
        states = read.hidden.flatten(0, 1)  # (B·L, d)
        logits = policy.open_logits(states[given.at]).float()  # (n, V')
        targets = policy.open_places[given.targets]
        everywhere = torch.ones_like(given.actions)
        loss = sft_loss(logits, targets, given.actions, everywhere, w_act=self.w_act, smoothing=self.smoothing)
        said = self.heads(states[given.opens], self._looked_at(read, given), given.confidences)
        with torch.no_grad():
            logs = logits.log_softmax(-1)
            nats = -logs.gather(1, targets[:, None])[:, 0]
            entropy = -(logs.exp() * logs).sum(-1) if not self.training else torch.zeros_like(nats)
            top = targets[:0] if self.training else policy.open_ids[logs.argmax(-1)]
        states = state_features(policy, read, given.batch.ids, examples) if examples is not None else None
        kept = logits.detach()[:0] if self.training else logits.detach()
        return Taught(loss, self._argument_loss(said, given), nats, top, entropy, kept, said.box.detach(), states)

    def _looked_at(self, read: Read, given: Lessons) -> Tensor:
        """(D, d) the pictures before each call, pooled whole, each with an equal share."""
        tapped = read.tapped.flatten(0, 1)[given.visual_at].float()  # (m, d): hundreds are added up
        count = torch.bincount(given.visual_of, minlength=given.looked.shape[1]).clamp(min=1)
        sums = torch.zeros(given.looked.shape[1], tapped.shape[1], device=tapped.device)
        pooled = sums.index_add(0, given.visual_of, tapped) / count[:, None].float()
        return given.looked @ pooled

    def _argument_loss(self, said: Arguments, given: Lessons) -> ToolLoss:
        """ℒ_tool; words are spelt out only for the calls that name a phrase, and count by their share of 𝒟."""
        named = given.words[:, 0] != IGNORED
        wanted = given.words[named].long()
        words = torch.where(wanted == IGNORED, IGNORED, self.policy.open_places[wanted.clamp(min=0)])
        spelt = Head(self.policy.open_logits(said.words[named]).float(), words, named[named])
        text = argument_loss(text=spelt).text * (len(wanted) / max(1, len(named)))
        boxed, painted, timed = (torch.isfinite(t.flatten(1)[:, 0]) for t in (given.box, given.mask, given.moments))
        rest = argument_loss(
            box=Head(said.box.float(), given.box, boxed),
            mask=Head(said.mask.float(), given.mask, painted),
            temp=Head(said.moments.float(), given.moments, timed),
        )
        return rest._replace(total=rest.total + text, text=text)
