"""bfloat16 is for arithmetic, float32 for what is learnt.

A number in bfloat16 has eight bits: next to a weight of 0.02 lie others 1e-4 away, and a step of 1e-5 would round back
to where it began. So weights that are trained, their gradients and their moments are float32 whatever `dtype` says;
matrices are multiplied in bfloat16, under autocast or, where FSDP2 gathers them, as copies that it makes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    from pixelis.training.grpo.rft_config import RftConfig
    from pixelis.training.sft.sft_config import SftConfig
    from pixelis.training.ttrl.ttrl_config import TtrlConfig


def compute_dtype(config: SftConfig | RftConfig | TtrlConfig) -> torch.dtype:
    """What matrices are multiplied in."""
    return torch.bfloat16 if config.dtype == "bfloat16" else torch.float32


def weights_dtype(config: SftConfig | RftConfig | TtrlConfig) -> torch.dtype:
    """What a checkpoint is opened in: beside LoRA it is frozen, and need not be finer than the arithmetic."""
    return compute_dtype(config) if config.lora is not None else torch.float32


def autocast_context(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Around a forward pass, and never around a step: autocast remembers the copies of the weights until it ends."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def cast_parameters(module: nn.Module, dtype: torch.dtype) -> None:
    """Weights as they were computed with, for a file. One by one: where FSDP2 was, `Module.to` asks for its shards."""
    for value in module.parameters():
        value.data = value.data.to(dtype)


def mixed_precision_policy(dtype: torch.dtype) -> MixedPrecisionPolicy:
    """How FSDP2 gathers float32 weights. Its sums of gradients stay float32, and so do the targets it is given."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    if dtype == torch.float32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
