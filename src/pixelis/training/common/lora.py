"""LoRA adapters around a policy."""

from __future__ import annotations

import torch

from pixelis.policy.model import Policy
from pixelis.training.common.run_config import LoraSettings


def wrap_lora(policy: Policy, lora: LoraSettings, seed: int) -> None:
    """Add adapters to the policy's model in place. Only they are trained, in float32 whatever the model's dtype."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    settings = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.targets)
    )
    policy.model = get_peft_model(policy.model, settings)
