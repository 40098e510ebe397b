"""Evaluation under teacher forcing: the dev loss, and the temperature fitted on dev."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pixelis.nano.temperature import GRID, divide_logits_by, grid_losses
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.training.common.distributed import DistributedContext, reshard
from pixelis.training.dataset.examples import Example
from pixelis.training.dataset.prepared_examples import PreparedExamples
from pixelis.training.sft.sft_model import SftBatch, SftOutput, collate, unwrap
from pixelis.training.sft.sft_state import SftRun
from pixelis.training.sft.training_index import ExampleRef, cut_by_tokens, load_example

MAX_TEMPERATURE_EXAMPLES = 1000
"""Some hundred thousand tokens, to fit one number."""


def teacher_forced_outputs(
    model: Any,
    examples: PreparedExamples,
    index: Sequence[ExampleRef],
    batch_tokens: int,
    dist: DistributedContext,
    *,
    states: bool = False,
) -> Iterator[tuple[Sequence[Example], SftBatch, SftOutput]]:
    """Forward passes over this process's share of an index, without dropout."""
    by_length = sorted(range(len(index)), key=lambda k: (index[k].tokens, k))
    batches = cut_by_tokens(by_length, index, batch_tokens)
    model.eval()
    for k in range(dist.rank, len(batches) + dist.rank, dist.world_size):
        # every process reads the same number of batches: sharded weights are gathered together
        batch_examples = [load_example(examples, index[n]) for n in batches[min(k, len(batches) - 1)]]
        batch = collate(batch_examples, None, unwrap(model).policy)
        with torch.no_grad():
            output = model(batch, batch_examples if states else None)
        if k < len(batches):
            yield batch_examples, batch, output


def fit_policy_temperature(
    model: Any, dev: PreparedExamples, index: Sequence[ExampleRef], batch_tokens: int, dist: DistributedContext
) -> float:
    """Fit T on dev and build it into the weights; 1 without dev examples."""
    if not index:
        return 1.0
    policy = unwrap(model).policy
    sums = torch.zeros(len(GRID), dtype=torch.float64, device=policy.device)
    index = index[:MAX_TEMPERATURE_EXAMPLES]
    for _, batch, output in teacher_forced_outputs(model, dev, index, batch_tokens, dist):
        sums += grid_losses(output.logits, policy.allowed_index[batch.targets])
    temperature = GRID[int(dist.all_reduce_sum(sums).argmin())]
    reshard(unwrap(model))
    divide_logits_by(policy, temperature)
    unwrap(model).heads.undo_division(temperature)
    return temperature


def evaluate_dev_loss(run: SftRun, dev: PreparedExamples, index: Sequence[ExampleRef]) -> float:
    """Dev loss: weighted nats per token, as in training but without smoothing. Accuracies go into the log."""
    sft_model = unwrap(run.model)
    sums = torch.zeros(10, dtype=torch.float64, device=sft_model.policy.device)
    coordinates = token_coordinates(sft_model.policy.tokenizer).to(sums.device)
    for _, batch, output in teacher_forced_outputs(run.model, dev, index, run.config.batch_tokens, run.dist):
        weight = torch.where(batch.actions, sft_model.w_act, 1.0)
        has_box = torch.isfinite(batch.box[:, 0])
        head_iou = box_iou(output.box[has_box], batch.box[has_box])
        written_iou = box_iou(*written_boxes(output.top_tokens, batch, coordinates))
        correct = output.top_tokens == batch.targets
        row = (
            (weight * output.nats).sum(), weight.sum(), correct.sum(), correct.numel(),
            (correct & batch.actions).sum(), batch.actions.sum(), head_iou.sum(), head_iou.numel(),
            written_iou.sum(), written_iou.numel(),
        )  # fmt: skip
        sums += torch.stack([torch.as_tensor(v, dtype=torch.float64, device=sums.device) for v in row])
    totals = run.dist.all_reduce_sum(sums).tolist()
    names = ("dev_loss", "dev_accuracy", "dev_action_accuracy", "dev_head_box_iou", "dev_argument_iou")
    means = {name: totals[2 * k] / max(1.0, totals[2 * k + 1]) for k, name in enumerate(names)}
    run.log.write(run.state.step, **means)
    return means["dev_loss"]


def token_coordinates(tokens: PolicyTokenizer) -> Tensor:
    """(V,) the coordinate that a token spells; NaN for all others."""
    out = torch.full((len(tokens),), torch.nan)
    for k in range(101):
        for shape in ("{}", "{}, ", "{}]", " {}"):
            ids = tokens.encode(shape.format(f"{k / 100:.2f}"))
            if len(ids) == 1:
                out[ids[0]] = k / 100
    return out


def written_boxes(top_tokens: Tensor, batch: SftBatch, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 4) twice: the boxes that the policy would write in its calls, and those that the teacher wrote.

    A box is four coordinates in a row among the tokens of a call. If the policy would write something else than a
    coordinate, its box has no area.
    """
    targets = coordinates[batch.targets]
    positions = torch.nonzero(batch.actions & torch.isfinite(targets))[:, 0]
    if len(positions) < 4:
        return targets.new_zeros(0, 4), targets.new_zeros(0, 4)
    runs = positions.unfold(0, 4, 1)  # every four coordinates that follow each other
    is_box = (runs[:, 3] - runs[:, 0] == 3) & (batch.row[runs[:, 0]] == batch.row[runs[:, 3]])
    boxes = runs[is_box]
    return coordinates[top_tokens][boxes].nan_to_num(0.0), targets[boxes]


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """(n,) IoU of boxes (n, 4); a box with crossed corners has no area."""
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    area = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b)]
    return inner / (area[0] + area[1] - inner).clamp(min=1e-9)
