"""bfloat16 for arithmetic, float32 for trained weights.

A bfloat16 number has eight bits: the neighbours of a weight of 0.02 are 1e-4 away, and a step of 1e-5 would round back
to the old value. So trained weights, their gradients and their moments are float32 whatever `dtype` says; matrices are
multiplied in bfloat16, under autocast or, with FSDP2, in the copies that it gathers.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from pixelis.training.common.run_config import RunConfig

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy


class PrecisionSettings(Protocol):
    """A config with a dtype."""

    @property
    def dtype(self) -> str: ...


def compute_dtype(config: PrecisionSettings) -> torch.dtype:
    """The dtype of matrix products."""
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def weights_dtype(config: RunConfig) -> torch.dtype:
    """The dtype of a loaded checkpoint: with LoRA it is frozen, and needs no more precision than the arithmetic."""
    return compute_dtype(config) if config.lora is not None else torch.float32


def autocast_context(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """For a forward pass, never for an optimizer step: autocast caches its copies of the weights until it exits."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast weights to the dtype of the arithmetic. One by one: after FSDP2, `Module.to` asks for its shards."""
    for value in module.parameters():
        value.data = value.data.to(dtype)


def mixed_precision_policy(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """How FSDP2 gathers float32 weights. Its sums of gradients stay float32, and so do the targets."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if dtype == torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
