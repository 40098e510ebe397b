"""One process or several: the loop is the same. Under `torchrun` each process takes its share of every batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn

from pixelis.train.precision import gathered_in

T = TypeVar("T")
LONGEST_WAIT = timedelta(hours=6)
"""The others wait while the first process prepares the examples."""


class Crew(NamedTuple):
    """Who works here."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, batch: Sequence[T]) -> Sequence[T]:
        """This process's part of a batch; empty where there are more processes than examples."""
        return batch[self.rank :: self.world]

    def add(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world > 1:
            distributed.all_reduce(values)
        return values

    def gather(self, rows: Tensor) -> Tensor:
        """The rows of all processes one after another, however many each has."""
        if self.world == 1:
            return rows
        sizes = torch.zeros(self.world, dtype=torch.long, device=rows.device)
        sizes[self.rank] = len(rows)
        sizes = self.add(sizes)
        own = rows.new_zeros(int(sizes.max()), *rows.shape[1:])
        own[: len(rows)] = rows
        parts = [torch.empty_like(own) for _ in range(self.world)]
        distributed.all_gather(parts, own)
        return torch.cat([part[:size] for part, size in zip(parts, sizes.tolist(), strict=True)])

    def add_gradients(self, module: nn.Module) -> None:
        """Sum the gradients of all processes, for a loop that divides by whole-batch counts itself."""
        for value in trained(module).values():
            if self.world > 1:
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad
                distributed.all_reduce(value.grad)

    def wait(self) -> None:
        if self.world > 1:
            distributed.barrier()

    def wrap(self, student: Any, *, shard: bool, dtype: torch.dtype) -> Any:
        """The student, its gradients averaged over processes: DDP, or FSDP2 where one device cannot hold it all.

        It computes in `dtype`: by itself, or in the copies that FSDP2 gathers.
        """
        if self.world > 1 and shard:
            from torch.distributed.fsdp import fully_shard

            core, policy = student.policy, gathered_in(dtype)
            for block in (*core.vision.blocks, *core.language.layers):
                fully_shard(block, mp_policy=policy)
            return fully_shard(student, mp_policy=policy)
        student.dtype = dtype
        if self.world == 1:
            return student
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(student, find_unused_parameters=True)  # a share may hold no picture


@contextmanager
def crew(device: str) -> Iterator[Crew]:
    """The processes that torchrun started; one where it did not."""
    if "LOCAL_RANK" not in os.environ:
        yield Crew()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # counts and statistics are added up on the CPU, gradients where they are
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=LONGEST_WAIT)
    try:
        yield Crew(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece, also where FSDP has spread it. All processes must ask."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def lay(read: Callable[[], Tensor], into: Tensor, us: Crew) -> None:
    """Copy a whole tensor into one that may be spread over processes: then the first one reads it and deals it out."""
    if hasattr(into, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        given = (read() if us.first else torch.empty(into.shape)).to(into.device, into.dtype)
        into.copy_(distribute_tensor(given, into.device_mesh, into.placements))  # type: ignore[attr-defined]
    else:
        into.copy_(read())


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """What an optimizer changes, by name; a tied matrix once."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def reshard(module: nn.Module) -> None:
    """Let go of what a forward pass gathered: a change of it would be lost, and hooks would lay shards over it."""
    for part in module.modules():
        if callable(own := getattr(part, "reshard", None)):
            own()


def unshard(module: nn.Module, us: Crew) -> None:
    """Lay whole tensors in place of spread ones, for good: what is saved is in one piece. All processes must ask.

    They come one at a time and stay with the first process, on its CPU; the others keep their shards.
    """
    reshard(module)
    for part in module.modules():
        for name, value in list(part.named_parameters(recurse=False)):
            if hasattr(value, "full_tensor"):
                full = whole(value.detach())
                if us.first:
                    setattr(part, name, nn.Parameter(full.cpu(), requires_grad=value.requires_grad))
