"""How a policy does on examples that it does not learn from, under teacher forcing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.common.run_folder import MetricsLog
from pixelis.training.dataset.examples import Example
from pixelis.training.dataset.prepared_examples import PreparedExamples
from pixelis.training.dataset.training_index import ExampleRef, load_example
from pixelis.training.sft.sft_model import SftBatch, SftModel, SftOutput, collate


def teacher_forced_outputs(
    model: Any,
    examples: PreparedExamples,
    pool: Sequence[ExampleRef],
    batch_tokens: int,
    dist: DistributedContext,
    *,
    states: bool = False,
) -> Iterator[tuple[Sequence[Example], SftBatch, SftOutput]]:
    """This process's share of a pool, read without dropouts and without learning."""
    sft_model: SftModel = getattr(model, "module", model)
    by_length = sorted(range(len(pool)), key=lambda k: (pool[k].tokens, k))
    batches: list[list[int]] = [[]]
    for k in by_length:
        if batches[-1] and (len(batches[-1]) + 1) * pool[k].tokens > batch_tokens:
            batches.append([])
        batches[-1].append(k)
    model.eval()
    rounds = -(-len(batches) // dist.world_size)
    for k in range(rounds):  # every process reads as many batches: sharded weights are gathered together
        batch_number = k * dist.world_size + dist.rank
        batch_examples = [load_example(examples, pool[n]) for n in batches[min(batch_number, len(batches) - 1)]]
        batch = collate(batch_examples, None, sft_model.policy)
        with torch.no_grad():
            output = model(batch, batch_examples if states else None)
        if batch_number < len(batches):
            yield batch_examples, batch, output


def evaluate_dev_loss(
    model: Any,
    examples: PreparedExamples,
    pool: Sequence[ExampleRef],
    batch_tokens: int,
    step: int,
    log: MetricsLog,
    dist: DistributedContext,
) -> float:
    """Dev loss: weighted nats per token, as in training but without smoothing; accuracies beside it in the log."""
    sft_model: SftModel = getattr(model, "module", model)
    sums = torch.zeros(10, dtype=torch.float64, device=sft_model.policy.device)
    units = token_coordinates(sft_model.policy.tokenizer).to(sums.device)
    for _, batch, output in teacher_forced_outputs(model, examples, pool, batch_tokens, dist):
        weight = torch.where(batch.actions, sft_model.w_act, 1.0)
        has_box = torch.isfinite(batch.box[:, 0])
        head_iou = box_iou(output.box[has_box], batch.box[has_box])
        written_iou = box_iou(*written_boxes(output.top_tokens, batch, units))
        correct = output.top_tokens == batch.targets
        row = (
            (weight * output.nats).sum(), weight.sum(), correct.sum(), correct.numel(),
            (correct & batch.actions).sum(), batch.actions.sum(), head_iou.sum(), head_iou.numel(),
            written_iou.sum(), written_iou.numel(),
        )  # fmt: skip
        sums += torch.stack([torch.as_tensor(v, dtype=torch.float64, device=sums.device) for v in row])
    totals = dist.all_reduce_sum(sums).tolist()
    loss, correct, actions, boxes, mean_written_iou = (totals[k] / max(1.0, totals[k + 1]) for k in range(0, 10, 2))
    log.write(
        step, dev_loss=loss, dev_accuracy=correct, dev_action_accuracy=actions, dev_head_box_iou=boxes,
        dev_argument_iou=mean_written_iou,
    )  # fmt: skip
    return loss


def token_coordinates(tokens: PolicyTokenizer) -> Tensor:
    """(V,) the coordinate that a token stands for; NaN for all others."""
    out = torch.full((len(tokens),), torch.nan)
    for k in range(101):
        for shape in ("{}", "{}, ", "{}]", " {}"):
            ids = tokens.encode(shape.format(f"{k / 100:.2f}"))
            if len(ids) == 1:
                out[ids[0]] = k / 100
    return out


def written_boxes(top_tokens: Tensor, batch: SftBatch, units: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 4) twice: the boxes that the policy would write in its calls, and those that the teacher wrote.

    A box is four coordinates in a row among the tokens of a call. Where the policy would write something else than a
    coordinate, its box has no area.
    """
    target_units = units[batch.targets]
    coordinate_positions = torch.nonzero(batch.actions & torch.isfinite(target_units))[:, 0]
    if len(coordinate_positions) < 4:
        return units.new_zeros(0, 4), units.new_zeros(0, 4)
    runs_of_four = coordinate_positions.unfold(0, 4, 1)  # every run of four coordinates
    is_box = (runs_of_four[:, 3] - runs_of_four[:, 0] == 3) & (
        batch.row[runs_of_four[:, 0]] == batch.row[runs_of_four[:, 3]]
    )
    box_positions = runs_of_four[is_box]
    return units[top_tokens][box_positions].nan_to_num(0.0), target_units[box_positions]


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """(n,) of boxes (n, 4); a box whose corners are crossed has no area."""
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    area = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b)]
    return inner / (area[0] + area[1] - inner).clamp(min=1e-9)
