"""One update of phase 3 as a function of what lies on disk: state before, rollouts, advantages (eq:ttrl_clean_loss).

An update is written down before it is taken, tokens and pictures and all. The same update taken again on one thread
gives the same weights bit for bit: that is how adaptation is reverted without a copy of the weights for every query.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pixelis.equations.ema import ema, ema_parameters
from pixelis.equations.kl import drift_allowed, per_token_kl
from pixelis.equations.pid import DEFAULT, PAPER, Pid, pid_step
from pixelis.equations.ttrl import ttrl_loss
from pixelis.errors import TraceError
from pixelis.policy.checkpoint import Loaded
from pixelis.policy.ledger import Ledger, Place
from pixelis.policy.model import Policy
from pixelis.policy.pictures import Picture
from pixelis.rundir import replacing
from pixelis.train.crew import trained
from pixelis.train.experience import Part, parts_of, rows_of
from pixelis.train.precision import computed_in, computing
from pixelis.train.starting import wrap_lora
from pixelis.train.ttrl_config import TtrlConfig


class Lesson(NamedTuple):
    """What one update learns from."""

    ledgers: tuple[Ledger, ...]
    advantages: np.ndarray
    """(n,) normalised; 0 where nothing is learnt."""
    masks: np.ndarray
    """(n,) m(q) of each rollout's query."""
    asked: int
    """Rollouts that the objective is a mean over: those of abstained queries that are not read count too."""


@dataclass
class Learner:
    """What changes: the policy, its EMA, its optimizer and the controller."""

    policy: Policy
    average: Policy
    """π_EMA"""
    start: Policy
    """The policy as adaptation found it; never changes."""
    optimizer: torch.optim.Optimizer
    pid: Pid

    def digest(self) -> str:
        """One hash over everything that an update changes."""
        found = hashlib.sha256()
        for name, value in sorted(tensors_of(self).items()):
            found.update(name.encode())
            found.update(value.detach().cpu().contiguous().numpy().tobytes())
        found.update(repr(self.pid).encode())
        return found.hexdigest()


def begin(config: TtrlConfig, loaded: Loaded) -> Learner:
    """The policy with what anchors it, as adaptation finds them. Beside LoRA all three share the weights that stay."""
    policy = loaded.policy
    shared = {id(value): value for value in policy.parameters()} if config.lora is not None else {}
    start = copy.deepcopy(policy, dict(shared)).eval().requires_grad_(False)
    if config.lora is not None:
        wrap_lora(policy, config.lora, config.seed)
    average = copy.deepcopy(policy, dict(shared)).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        trained(policy).values(), lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=0.0
    )
    return Learner(policy.eval(), average, start, optimizer, Pid(beta=config.kl.beta))


def tensors_of(learner: Learner) -> dict[str, Tensor]:
    """Weights, averages and moments by name."""
    out: dict[str, Tensor] = {}
    average = dict(learner.average.named_parameters())
    for name, value in trained(learner.policy).items():
        out[f"policy.{name}"], out[f"average.{name}"] = value.detach(), average[name].detach()
        for key, kept in learner.optimizer.state[value].items():
            out[f"{key}.{name}"] = kept
    return out


def lay(learner: Learner, tensors: dict[str, Tensor]) -> None:
    """The opposite of `tensors_of`."""
    average = dict(learner.average.named_parameters())
    learner.optimizer.state.clear()
    with torch.no_grad():
        for name, value in trained(learner.policy).items():
            value.copy_(tensors[f"policy.{name}"])
            average[name].copy_(tensors[f"average.{name}"])
            kept = {key: tensors[f"{key}.{name}"].clone() for key in MOMENTS if f"{key}.{name}" in tensors}
            if kept:
                learner.optimizer.state[value] = kept


MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class Updated(NamedTuple):
    """What an update did."""

    kl: float
    """To π_EMA, nats per token, before the step."""
    drift: float
    """To the policy at the start, after it."""
    entropy: float
    beta: float
    """The weight that the KL term had."""
    refused: str
    """Why the weights are as they were; empty where the step was taken."""
    gap: float
    """The largest distance between a sampled and a recomputed log-probability."""
    kls: np.ndarray
    """(n,) KL to π_EMA of each rollout, summed over its sampled tokens."""
    tokens: np.ndarray
    """(n,) how many those are."""


def update(config: TtrlConfig, learner: Learner, lesson: Lesson) -> Updated:
    """One step on some rollouts; the EMA and the controller move too, also where every query abstained.

    Then the KL alone is followed, by a plain gradient step: AdamW's moments hold what accepted queries taught and would
    go on moving the policy in their direction, though m(q) = 0.
    """
    policy, optimizer, beta = learner.policy, learner.optimizer, learner.pid.beta
    parts = parts_of(lesson.ledgers, policy, config.batch_tokens)
    before = {name: value.clone() for name, value in tensors_of(learner).items()}
    optimizer.zero_grad(set_to_none=True)
    read = gradients(config, learner, lesson, parts)
    if read.gap > config.ledger_tolerance:
        optimizer.zero_grad(set_to_none=True)
        raise TraceError(
            f"a sampled log-probability lies {read.gap:.2g} nats from the recomputed one: the update does not read "
            "what the rollout read"
        )
    norm = float(torch.nn.utils.clip_grad_norm_(trained(policy).values(), config.grad_norm))
    tokens = max(1, int(read.tokens.sum()))
    kl = float(read.kls.sum()) / tokens
    refused = ""
    if not (math.isfinite(norm) and math.isfinite(kl)):
        refused = "the loss is not a number"
    elif not lesson.masks.any():  # leads back, however far the policy is
        step_plainly(policy, config.lr)
    elif kl > config.kl.most:
        refused = f"KL to {'its average' if config.anchored else 'the start'} is {kl:.3f}, over {config.kl.most:g}"
    else:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    drift = drift_of(config, policy, learner.start, parts, tokens)
    limit = math.inf if config.guard is None else config.guard
    if not refused and not drift_allowed(drift, limit=limit):
        refused, drift = guarded(config, learner, before, parts, drift=drift, limit=limit)
    move_average(learner, config.rho)
    learner.pid = heard(config, learner.pid, kl)
    return Updated(kl, drift, read.entropy / tokens, beta, refused, read.gap, read.kls, read.tokens)


class Read(NamedTuple):
    """What the policy makes of the rollouts before the step; `Updated` says what its fields are."""

    kls: np.ndarray
    tokens: np.ndarray
    entropy: float
    """Summed over the tokens."""
    gap: float


def gradients(config: TtrlConfig, learner: Learner, lesson: Lesson, parts: Sequence[Part]) -> Read:
    """Read the rollouts part by part, and leave the gradients of the loss in the policy."""
    tokens = max(1, sum(len(part.which) for part in parts))
    anchor = learner.average if config.anchored else learner.start
    kls, counts = np.zeros(len(lesson.ledgers)), np.zeros(len(lesson.ledgers), dtype=np.int64)
    entropy = gap = 0.0
    for part in parts:
        logits = open_logits(config, learner.policy, part)
        logs = logits.log_softmax(-1)
        own = logs[part.which, part.targets]  # (n,)
        gap = max(gap, float((own.detach() - part.sampled).abs().max()) if len(own) else 0.0)
        with torch.no_grad():
            reference = open_logits(config, anchor, part)
        kl = per_token_kl(logits, reference)[part.which]
        numbers = list(part.numbers)
        weights = torch.from_numpy(lesson.advantages[numbers]).to(own)
        masks = torch.from_numpy(lesson.masks[numbers].astype(np.float32)).to(own)
        mask = rows_of(torch.ones_like(own), part.counts)
        nats = -(logs.exp() * logs).sum(-1)[part.which]  # (n,)
        if config.objective == "entropy":
            learnt = rows_of(nats, part.counts).sum(1) * masks
            loss = learnt.sum() / tokens
        else:
            nothing = own.new_zeros(())  # the KL is over all tokens of the batch, and not of a part
            said = rows_of(own, part.counts)
            loss = ttrl_loss(said, mask, weights, masks, nothing, beta=0.0, over_tokens=config.over_tokens)
            loss = loss * len(numbers) / lesson.asked
        (loss + learner.pid.beta * kl.sum() / tokens).backward()
        entropy += float(nats.detach().sum())
        kls[numbers] = [float(each.sum()) for each in kl.detach().split(list(part.counts))]
        counts[numbers] = part.counts
    return Read(kls, counts, entropy, gap)


def guarded(
    config: TtrlConfig,
    learner: Learner,
    before: dict[str, Tensor],
    parts: Sequence[Part],
    *,
    drift: float,
    limit: float,
) -> tuple[str, float]:
    """A step beyond the guard is taken back, unless the policy was farther away before it. Why not, and the drift."""
    tokens = max(1, sum(len(part.which) for part in parts))
    after = {name: value.clone() for name, value in tensors_of(learner).items()}
    lay(learner, before)
    stood = drift_of(config, learner.policy, learner.start, parts, tokens)
    if drift < stood:  # what the guard is for is the way out, not the way back
        lay(learner, after)
        return "", drift
    return f"KL to the start would be {drift:.3f}, over {limit:g}", stood


@torch.no_grad()
def step_plainly(policy: Policy, lr: float) -> None:
    """θ ← θ − lr·∇: a step that leaves the optimizer's moments as they are."""
    for value in trained(policy).values():
        if value.grad is not None:
            value.sub_(value.grad, alpha=lr)


def open_logits(config: TtrlConfig, policy: Policy, part: Part) -> Tensor:
    """(u, V') at the places of a part that predict sampled tokens."""
    with computing(policy.device, computed_in(config)):
        return policy.open_logits(policy(part.batch).hidden.flatten(0, 1)[part.at]).float()


@torch.no_grad()
def drift_of(config: TtrlConfig, policy: Policy, start: Policy, parts: Sequence[Part], tokens: int) -> float:
    """KL(π_θ ‖ π_start), nats per token."""
    kls = [per_token_kl(open_logits(config, policy, part), open_logits(config, start, part)) for part in parts]
    return sum(float(kl[part.which].sum()) for part, kl in zip(parts, kls, strict=True)) / tokens


@torch.no_grad()
def move_average(learner: Learner, rho: float) -> None:
    """π_EMA ← ρ·π_EMA + (1−ρ)·π_θ, in place."""
    theta, average = trained(learner.policy), dict(learner.average.named_parameters())
    for name, value in ema_parameters({name: average[name] for name in theta}, theta, rho=rho).items():
        average[name].copy_(value)


def heard(config: TtrlConfig, pid: Pid, kl: float) -> Pid:
    """The controller after a reading; without control β stays."""
    if not config.kl.control:
        return replace(pid, kl=ema(pid.kl, kl, rho=0.9)) if math.isfinite(kl) else pid
    gains = PAPER if config.kl.gains == "paper" else DEFAULT
    return pid_step(pid, kl, target=config.kl.target, gains=gains, one_sided=config.kl.one_sided)


# --- on disk


def write_lesson(path: Path, lesson: Lesson) -> None:
    """Everything that `update` needs, in one safetensors file, whole or not at all."""
    from safetensors.numpy import save

    pictures: list[Picture] = []
    known: dict[int, int] = {}
    places = []
    for row, ledger in enumerate(lesson.ledgers):
        for place in ledger.places:
            key = id(place.picture.pixels)  # a group shares its prompt's pictures, and the update reads them once
            if key not in known:
                known[key] = len(pictures)
                pictures.append(place.picture)
            places.append((row, place.start, known[key]))
    sampled = [np.nan if p is None else p for ledger in lesson.ledgers for p in ledger.logprobs]
    tensors: dict[str, Any] = {
        "ids": np.array([k for ledger in lesson.ledgers for k in ledger.ids], dtype=np.int32),
        "lengths": np.array([len(ledger) for ledger in lesson.ledgers], dtype=np.int32),
        "logprobs": np.array(sampled, dtype=np.float64),
        "places": np.array(places, dtype=np.int32).reshape(-1, 3),
        "grids": np.array([(p.rows, p.columns) for p in pictures], dtype=np.int32).reshape(-1, 2),
        "advantages": lesson.advantages.astype(np.float64),
        "masks": lesson.masks.astype(np.uint8),
        "asked": np.array(lesson.asked, dtype=np.int64),
    }
    tensors |= {f"picture.{k}": np.ascontiguousarray(p.pixels) for k, p in enumerate(pictures)}
    with replacing(path) as file:
        file.write(save(tensors))


def read_lesson(path: Path) -> Lesson:
    """The opposite of `write_lesson`."""
    from safetensors.numpy import load_file

    tensors = load_file(path)
    pictures = [
        Picture(f"picture.{k}", tensors[f"picture.{k}"], int(rows), int(columns))
        for k, (rows, columns) in enumerate(tensors["grids"])
    ]
    ends = np.cumsum(tensors["lengths"])
    ledgers = []
    for row, end in enumerate(ends):
        own = slice(int(end - tensors["lengths"][row]), int(end))
        logprobs = [None if np.isnan(p) else float(p) for p in tensors["logprobs"][own]]
        shown = [Place(int(start), pictures[k]) for r, start, k in tensors["places"] if r == row]
        count = own.stop - own.start
        ledgers.append(Ledger(tensors["ids"][own].tolist(), ["thought"] * count, [0] * count, logprobs, shown))
    return Lesson(tuple(ledgers), tensors["advantages"], tensors["masks"].astype(bool), int(tensors["asked"]))
