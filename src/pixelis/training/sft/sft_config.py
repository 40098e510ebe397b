"""What phase 1 can be told (subsec:sft)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pixelis.core.config import Config
from pixelis.nano.nano_model import NanoConfig
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.model_names import SERVER_PREFIX


class LoraSettings(Config):
    """LoRA through PEFT, for a policy that is too large to train whole."""

    rank: int = 64
    alpha: int = 128
    dropout: float = 0.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class DeviceSettings(Config):
    """What `--dry-run` reckons with."""

    name: str = "CPU, 2 cores"
    count: int = Field(default=1, ge=1)
    memory_gb: float = 8.0
    tflops: float = 0.13
    """Peak, in the training precision."""
    used: float = Field(default=0.4, gt=0.0, le=1.0)
    """Share of the peak that training reaches."""
    per_hour: float = 0.0
    """Price of one device, in dollars."""


class SftConfig(Config):
    """Phase 1. Defaults are the paper's where it has a value (subsec:sft)."""

    corpus: Path
    """Folder of a finished corpus."""
    name: str = "sft"
    """What the exported policy is called."""
    init: str = "nano"
    """`nano` for random weights, else a checkpoint: folder, shipped name or hub id."""
    nano: NanoConfig = NanoConfig()
    style: PromptStyle | None = None
    """How queries are put; the checkpoint's own where it is not given."""
    lora: LoraSettings | None = None
    answers_only: bool = False
    """Learn to answer at once, from all records (nano-base)."""
    format_traces: int = Field(default=0, ge=0)
    """With `answers_only`: so many whole traces beside the answers, for the form."""

    w_act: float = 2.0
    """Weight of tokens of tool names and arguments."""
    feedback_dropout: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of tool outputs that are hidden."""
    early_action_dropout: float = Field(default=0.02, ge=0.0, le=1.0)
    """Share of the first three actions that are hidden."""
    alpha_tool: float = Field(default=0.2, ge=0.0)
    """Weight of the argument heads' loss."""
    label_smoothing: float = Field(default=0.05, ge=0.0, lt=1.0)
    temper: bool = True
    """Whether the exported policy's logits are divided by a temperature that undoes label smoothing (`tempering`)."""
    grad_norm: float = Field(default=1.0, gt=0.0)
    """Cap on the norm of the gradient."""
    drill_steps: int = Field(default=0, ge=0)
    """Batches of conversations made by rule, without pictures, before the first epoch: for random weights (drills)."""
    drill_every: int = Field(default=0, ge=0)
    """A batch of drills after every so many steps: what the corpus seldom has is not forgotten. 0: none."""
    warmup_epochs: float = 1.0
    """Epochs on the full pool before the curriculum."""
    curriculum: bool = True
    """After the warm-up: medium to hard at 2:1 by tertiles of predicted error."""
    medium_to_hard: float = Field(default=2.0, gt=0.0)
    advance_tolerance: float = 1.05
    """The curriculum advances while the smoothed dev loss has L_{k+1} ≤ 1.05·L_k."""

    epochs: float = Field(default=3.0, gt=0.0)
    minutes: float | None = Field(default=None, gt=0.0)
    """A budget: after the first steps the number of epochs is cut to what fits. A resumed run keeps that number."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens of a batch over all processes, filling included."""
    lr: float = Field(default=1e-5, gt=0.0)
    """Ours; the paper gives none for SFT."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: for the matrices of a policy that begins from random weights; it needs them whole, not sharded."""
    lr_matrices: float = Field(default=0.02, gt=0.0)
    """Of Muon."""
    lr_heads: float = Field(default=1e-3, gt=0.0)
    """Of the argument heads."""
    lr_warmup: float = 0.03
    """Share of the run over which the learning rate rises."""
    lr_floor: float = 0.1
    """Share of it that is left at the end of the cosine."""
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0.0)
    """Of AdamW. Larger, a weight whose gradient is nothing but rounding stays where it is."""
    dynamics_epochs: int = Field(default=30, ge=1)
    """Passes over the corpus steps that train g_φ and h_ψ at the end."""
    least_spread: float = Field(default=0.02, ge=0.0)
    """Adjacent cosines of E_t must spread by this much in every family: less is a collapse, and fails."""

    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the arithmetic, and of the exported policy; what is trained is held in float32."""
    threads: int | None = None
    """Of each process; torch's own choice where it is not given. One thread gives the same bits every time."""
    checkpoint_activations: bool = False
    """Keep only what enters each layer and run it again in the backward pass: slower, far less memory."""
    shard: bool = False
    """Under torchrun: spread the weights over the processes (FSDP2) instead of copying them (DDP)."""
    workers: int = Field(default=2, ge=1)
    """Processes that prepare the examples."""
    examples: Path | None = None
    """Where prepared examples lie; a folder of the cache, named by their content, where it is not given."""
    log_every: int = Field(default=10, ge=1)
    save_minutes: float = 2.0
    device_facts: DeviceSettings = DeviceSettings()
    architecture: dict[str, Any] | None = None
    """Text and vision configuration for `--dry-run`, where the model itself cannot be reached."""

    @model_validator(mode="after")
    def _require_whole_matrices(self) -> Self:
        if self.shard and self.optimizer == "muon":
            raise ValueError("optimizer muon needs whole matrices: leave shard off, or take adamw")
        return self

    @field_validator("init")
    @classmethod
    def _require_local_weights(cls, init: str) -> str:
        if init.startswith(SERVER_PREFIX):
            raise ValueError("a model behind a server has no weights that could be trained; it can teach a corpus")
        return init
