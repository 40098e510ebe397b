"""Training in one process or several: under `torchrun` each process takes its share of every batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn

from pixelis.training.common.precision import mixed_precision_policy

T = TypeVar("T")
PROCESS_GROUP_TIMEOUT = timedelta(hours=6)
"""Long, since the other processes wait while the first one prepares the examples."""


class DistributedContext(NamedTuple):
    """The rank of this process and the number of processes."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def shard(self, batch: Sequence[T]) -> Sequence[T]:
        """This process's share of a batch; may be empty."""
        return batch[self.rank :: self.world_size]

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.world_size > 1:
            distributed.all_reduce(values)
        return values

    def all_gather_rows(self, rows: Tensor) -> Tensor:
        """The rows of all processes, concatenated; each may have another number of them."""
        if self.world_size == 1:
            return rows
        sizes = torch.zeros(self.world_size, dtype=torch.long, device=rows.device)
        sizes[self.rank] = len(rows)
        sizes = self.all_reduce_sum(sizes)
        padded = rows.new_zeros(int(sizes.max()), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        distributed.all_gather(parts, padded)
        return torch.cat([part[:size] for part, size in zip(parts, sizes.tolist(), strict=True)])

    def all_reduce_gradients(self, module: nn.Module) -> None:
        """Sum gradients over processes, for losses that are divided by counts of the whole batch."""
        for value in trainable_parameters(module).values():
            if self.world_size > 1:
                value.grad = torch.zeros_like(value) if value.grad is None else value.grad
                distributed.all_reduce(value.grad)

    def barrier(self) -> None:
        if self.world_size > 1:
            distributed.barrier()

    def wrap(self, model: Any, *, shard: bool, dtype: torch.dtype) -> Any:
        """The model with gradients averaged over processes: DDP, or with `shard` FSDP2. It computes in `dtype`."""
        if self.world_size > 1 and shard:
            from torch.distributed.fsdp import fully_shard

            core, mp_policy = model.policy, mixed_precision_policy(dtype)
            for block in (*core.vision.blocks, *core.language.layers):
                fully_shard(block, mp_policy=mp_policy)
            return fully_shard(model, mp_policy=mp_policy)
        model.dtype = dtype
        if self.world_size == 1:
            return model
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(model, find_unused_parameters=True)  # a share may hold no image


@contextmanager
def init_distributed(device: str) -> Iterator[DistributedContext]:
    """The processes that torchrun started; one without it."""
    if "LOCAL_RANK" not in os.environ:
        yield DistributedContext()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    # counts and statistics are summed on the CPU, gradients on their device
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PROCESS_GROUP_TIMEOUT)
    try:
        yield DistributedContext(distributed.get_rank(), distributed.get_world_size())
    finally:
        distributed.destroy_process_group()


def full_tensor(tensor: Tensor) -> Tensor:
    """A whole tensor, gathered if FSDP has sharded it. All processes must call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def copy_into_shard(read_tensor: Callable[[], Tensor], target: Tensor, dist: DistributedContext) -> None:
    """Copy a whole tensor into one that may be sharded: then the first process reads it and distributes it."""
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        source = (read_tensor() if dist.is_main else torch.empty(target.shape)).to(target.device, target.dtype)
        target.copy_(distribute_tensor(source, target.device_mesh, target.placements))  # type: ignore[attr-defined]
    else:
        target.copy_(read_tensor())


def trainable_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters by name; a tied matrix once."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def reshard(module: nn.Module) -> None:
    """Free what a forward pass gathered: changes to it would be lost."""
    for submodule in module.modules():
        if callable(reshard_submodule := getattr(submodule, "reshard", None)):
            reshard_submodule()


def unshard(module: nn.Module, dist: DistributedContext) -> None:
    """Replace sharded tensors by whole ones, to be saved. All processes must call this.

    They are gathered one at a time onto the CPU of the first process; the others keep their shards.
    """
    reshard(module)
    for submodule in module.modules():
        for name, value in list(submodule.named_parameters(recurse=False)):
            if hasattr(value, "full_tensor"):
                full = full_tensor(value.detach())
                if dist.is_main:
                    setattr(submodule, name, nn.Parameter(full.cpu(), requires_grad=value.requires_grad))
