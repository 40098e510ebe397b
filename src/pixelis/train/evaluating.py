"""How a policy does on examples that it does not learn from, under teacher forcing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from pixelis.policy.tokens import Tokens
from pixelis.train.crew import Crew
from pixelis.train.examples import Example
from pixelis.train.lessons import Lessons, Student, Taught, lessons
from pixelis.train.prepared import Prepared
from pixelis.train.run import Log
from pixelis.train.starting import Lesson, example


def readings(
    taught: Any, examples: Prepared, pool: Sequence[Lesson], batch_tokens: int, us: Crew, *, states: bool = False
) -> Iterator[tuple[Sequence[Example], Lessons, Taught]]:
    """This process's share of a pool, read without dropouts and without learning."""
    student: Student = getattr(taught, "module", taught)
    ranked = sorted(range(len(pool)), key=lambda k: (pool[k].tokens, k))
    batches: list[list[int]] = [[]]
    for k in ranked:
        if batches[-1] and (len(batches[-1]) + 1) * pool[k].tokens > batch_tokens:
            batches.append([])
        batches[-1].append(k)
    taught.eval()
    rounds = -(-len(batches) // us.world)
    for k in range(rounds):  # every process reads as many batches: sharded weights are gathered together
        at = k * us.world + us.rank
        read = [example(examples, pool[n]) for n in batches[min(at, len(batches) - 1)]]
        given = lessons(read, None, student.policy)
        with torch.no_grad():
            said = taught(given, read if states else None)
        if at < len(batches):
            yield read, given, said


def evaluate(
    taught: Any, examples: Prepared, pool: Sequence[Lesson], batch_tokens: int, step: int, log: Log, us: Crew
) -> float:
    """Dev loss: weighted nats per token, as in training but without smoothing; accuracies beside it in the log."""
    student: Student = getattr(taught, "module", taught)
    sums = torch.zeros(10, dtype=torch.float64, device=student.policy.device)
    units = coordinates_of(student.policy.tokens).to(sums.device)
    for _, given, said in readings(taught, examples, pool, batch_tokens, us):
        weight = torch.where(given.actions, student.w_act, 1.0)
        boxed = torch.isfinite(given.box[:, 0])
        overlap = box_iou(said.box[boxed], given.box[boxed])
        spelt = box_iou(*written_boxes(said.top, given, units))
        right = said.top == given.targets
        row = (
            (weight * said.nats).sum(), weight.sum(), right.sum(), right.numel(),
            (right & given.actions).sum(), given.actions.sum(), overlap.sum(), overlap.numel(),
            spelt.sum(), spelt.numel(),
        )  # fmt: skip
        sums += torch.stack([torch.as_tensor(v, dtype=torch.float64, device=sums.device) for v in row])
    totals = us.add(sums).tolist()
    loss, right, actions, boxes, written = (totals[k] / max(1.0, totals[k + 1]) for k in range(0, 10, 2))
    log.write(
        step, dev_loss=loss, dev_accuracy=right, dev_action_accuracy=actions, dev_head_box_iou=boxes,
        dev_argument_iou=written,
    )  # fmt: skip
    return loss


def coordinates_of(tokens: Tokens) -> Tensor:
    """(V,) the coordinate that a token stands for; NaN for all others."""
    out = torch.full((len(tokens),), torch.nan)
    for k in range(101):
        for shape in ("{}", "{}, ", "{}]", " {}"):
            ids = tokens.encode(shape.format(f"{k / 100:.2f}"))
            if len(ids) == 1:
                out[ids[0]] = k / 100
    return out


def written_boxes(top: Tensor, given: Lessons, units: Tensor) -> tuple[Tensor, Tensor]:
    """(n, 4) twice: the boxes that the policy would write in its calls, and those that the teacher wrote.

    A box is four coordinates in a row among the tokens of a call. Where the policy would write something else than a
    coordinate, its box has no area.
    """
    wanted = units[given.targets]
    at = torch.nonzero(given.actions & torch.isfinite(wanted))[:, 0]
    if len(at) < 4:
        return units.new_zeros(0, 4), units.new_zeros(0, 4)
    fours = at.unfold(0, 4, 1)  # every run of four coordinates
    whole = (fours[:, 3] - fours[:, 0] == 3) & (given.row[fours[:, 0]] == given.row[fours[:, 3]])
    places = fours[whole]
    return units[top][places].nan_to_num(0.0), wanted[places]


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """(n,) of boxes (n, 4); a box whose corners are crossed has no area."""
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    area = [(box[:, 2:] - box[:, :2]).clamp(min=0).prod(1) for box in (a, b)]
    return inner / (area[0] + area[1] - inner).clamp(min=1e-9)
