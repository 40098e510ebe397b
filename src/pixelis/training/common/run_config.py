"""Settings that the configurations of the three phases share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from pixelis.core.config import Config
from pixelis.rollout.episode import Limits
from pixelis.tools.toolbox import ToolboxConfig
from pixelis.training.common.kl_controller import KlSettings


class LoraSettings(Config):
    """LoRA through PEFT, for a policy that is too large to train whole."""

    rank: int = 64
    alpha: int = 128
    dropout: float = 0.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class DeviceSettings(Config):
    """The hardware that `--dry-run` assumes."""

    name: str = "CPU, 2 cores"
    count: int = Field(default=1, ge=1)
    memory_gb: float = 8.0
    tflops: float = 0.13
    """Peak, in the training precision."""
    used: float = Field(default=0.4, gt=0.0, le=1.0)
    """Share of the peak that training reaches."""
    per_hour: float = 0.0
    """Price of one device, in dollars."""


class RunConfig(Config):
    """A training run: its optimizer, precision and resources."""

    name: str
    """Name of the exported policy."""
    lora: LoraSettings | None = None
    """Adapters to train; all weights if left out."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Tokens of one forward pass."""
    lr: float = Field(default=1e-6, gt=0.0)
    """Ours; the paper gives none."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0.0)
    """Of AdamW. With a larger ε a weight whose gradient is only rounding stays where it is."""
    grad_norm: float = Field(default=1.0, gt=0.0)
    """Cap on the norm of the gradient."""

    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the arithmetic and of the exported policy; trained weights are kept in float32."""
    threads: int | None = None
    """Threads of each process; torch's default if left out. One thread gives the same bits every time."""
    workers: int = Field(default=2, ge=1)
    """Processes that prepare examples, or tools that run at once."""
    loggers: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ("tensorboard",)
    """Where metrics go besides metrics.jsonl."""


class CorpusRunConfig(RunConfig):
    """A run of phase 1 or 2, which learns from a corpus."""

    corpus: Path
    """Folder of a finished corpus; its training split is used."""
    checkpoint_activations: bool = False
    """Keep only the input of each layer and recompute the rest in the backward pass: slower, far less memory."""
    log_every: int = Field(default=1, ge=1)
    save_minutes: float = 2.0
    device_facts: DeviceSettings = DeviceSettings()
    architecture: dict[str, Any] | None = None
    """Text and vision configuration for `--dry-run`, where the model itself cannot be reached."""


class RolloutRunConfig(RunConfig):
    """A run of phase 2 or 3, which learns from the policy's own rollouts."""

    old_names: ClassVar = {"samples": "group_size", "ledger_tolerance": "logprob_tolerance"}

    policy: str
    """The checkpoint to start from, with its heads and statistics."""
    group_size: int = Field(default=8, ge=1)
    """Rollouts per question: N."""
    limits: Limits = Limits()
    kl: KlSettings = KlSettings()
    logprob_tolerance: float = Field(default=1e-3, gt=0.0)
    """Largest difference allowed between a sampled and a recomputed log-probability. Rounding reached 2.0e-4 in 10,000
    rollouts of nano; a policy other than the sampler differs by whole nats."""
    cache_path: Path | None = None
    """Cache of tool results; the machine's own if left out."""
    seg: Literal["auto", "classical", "sam2", "sam2-transformers"] = "classical"
    """Backend of SEG. `classical` takes milliseconds per image, the encoder of SAM 2 seconds."""
    plugins: tuple[str, ...] = ()
    """Additional tools as `module:Class`."""
    disabled: tuple[str, ...] = ()
    """Tools that are switched off."""
    deadline_s: float | None = Field(default=None, gt=0.0)
    """Seconds after which a tool call is stopped; tools then run in processes of their own."""

    def toolbox_config(self) -> ToolboxConfig:
        return ToolboxConfig(
            seg=self.seg, plugins=self.plugins, disabled=self.disabled, deadline_s=self.deadline_s,
            isolate=self.deadline_s is not None, workers=self.workers, cache_path=self.cache_path,
        )  # fmt: skip
