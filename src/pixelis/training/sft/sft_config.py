"""The configuration of phase 1 (subsec:sft)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from pixelis.nano.nano_model import NanoConfig
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.model_names import SERVER_PREFIX
from pixelis.training.common.run_config import CorpusRunConfig


class SftConfig(CorpusRunConfig):
    """Phase 1. Defaults are the paper's where it has a value (subsec:sft)."""

    old_names: ClassVar = {
        **CorpusRunConfig.old_names, "temper": "fit_temperature", "drill_steps": "warmup_task_steps",
        "drill_every": "warmup_task_interval", "least_spread": "min_cosine_std", "examples": "examples_folder",
        "shard": "fsdp",
    }  # fmt: skip

    name: str = "sft"
    init: str = "nano"
    """`nano` for random weights, else a checkpoint: folder, shipped name or hub id."""
    nano: NanoConfig = NanoConfig()
    style: PromptStyle | None = None
    """The prompt style; the checkpoint's own if left out."""
    answers_only: bool = False
    """Train on the answers of all records, without tools (nano-base)."""
    format_traces: int = Field(default=0, ge=0)
    """With `answers_only`: number of whole traces to add, for the format."""

    w_act: float = 2.0
    """Weight of tokens of tool names and arguments."""
    feedback_dropout: float = Field(default=0.05, ge=0.0, le=1.0)
    """Share of tool outputs that are hidden."""
    early_action_dropout: float = Field(default=0.02, ge=0.0, le=1.0)
    """Share of the first three actions that are hidden."""
    alpha_tool: float = Field(default=0.2, ge=0.0)
    """Weight of the argument heads' loss."""
    label_smoothing: float = Field(default=0.05, ge=0.0, lt=1.0)
    fit_temperature: bool = True
    """Divide the exported policy's logits by a temperature, fitted on dev, that undoes label smoothing."""
    warmup_task_steps: int = Field(default=0, ge=0)
    """Steps on synthetic warm-up tasks before the first epoch, for random weights."""
    warmup_task_interval: int = Field(default=0, ge=0)
    """One warm-up batch after every so many steps, so that what is rare in the corpus is not forgotten. 0: none."""
    warmup_epochs: float = 1.0
    """Epochs on all examples before the curriculum."""
    curriculum: bool = True
    """After the warm-up: medium to hard at 2:1 by tertiles of predicted error."""
    medium_to_hard: float = Field(default=2.0, gt=0.0)
    advance_tolerance: float = 1.05
    """The curriculum advances while the smoothed dev loss has L_{k+1} ≤ 1.05·L_k."""

    epochs: float = Field(default=3.0, gt=0.0)
    minutes: float | None = Field(default=None, gt=0.0)
    """A budget: after the first steps the number of epochs is cut to what fits. A resumed run keeps that number."""
    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens of a batch over all processes, padding included."""
    lr: float = Field(default=1e-5, gt=0.0)
    """Ours; the paper gives none for SFT."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: for the matrices of a policy with random weights; it needs whole matrices, without `fsdp`."""
    lr_matrices: float = Field(default=0.02, gt=0.0)
    """Of Muon."""
    lr_heads: float = Field(default=1e-3, gt=0.0)
    """Of the argument heads."""
    lr_warmup: float = 0.03
    """Share of the run over which the learning rate rises."""
    lr_floor: float = 0.1
    """Share of the peak learning rate at the end of the cosine."""
    weight_decay: float = 0.01
    dynamics_epochs: int = Field(default=30, ge=1)
    """Passes over the corpus steps that train g_φ and h_ψ at the end."""
    min_cosine_std: float = Field(default=0.02, ge=0.0)
    """Least standard deviation of adjacent cosines of E_t in every family; below it E_t has collapsed."""

    fsdp: bool = False
    """Under torchrun: shard the weights over the processes (FSDP2) instead of copying them (DDP)."""
    examples_folder: Path | None = None
    """Folder of prepared examples; a folder of the cache, named by their content, if left out."""
    log_every: int = Field(default=10, ge=1)

    @model_validator(mode="after")
    def _require_whole_matrices(self) -> Self:
        if self.fsdp and self.optimizer == "muon":
            raise ValueError("optimizer muon needs whole matrices: turn fsdp off, or use adamw")
        return self

    @field_validator("init")
    @classmethod
    def _require_local_weights(cls, init: str) -> str:
        if init.startswith(SERVER_PREFIX):
            raise ValueError("a model behind a server has no weights to train; it can be the teacher of a corpus")
        return init
