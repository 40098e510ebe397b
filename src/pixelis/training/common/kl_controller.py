"""The corridor of token KL around a reference policy: its settings, and one step of its controller (supp:pid_kl)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from pixelis.core.config import Config
from pixelis.equations.ema import ema
from pixelis.equations.pid import DEFAULT, PAPER, Pid, pid_step

KL_SMOOTHING_RHO = 0.9


class KlSettings(Config):
    """The KL penalty to the reference policy and its controller (supp:pid_kl)."""

    old_names: ClassVar = {"most": "max", "control": "adaptive"}

    target: float = Field(default=0.15, gt=0.0)
    """Centre of the corridor, nats per token (supp:pid_kl)."""
    beta: float = Field(default=0.2, gt=0.0)
    """Initial β."""
    adaptive: bool = True
    """Whether the controller moves β; if not, β is constant."""
    gains: Literal["default", "paper"] = "default"
    """Gains of the controller. The paper's make it cycle (docs/results/kl_corridor.md), hence ours."""
    one_sided: bool = False
    """Never lower β: the controller reduces drift and never asks for more."""
    max: float = Field(default=2.0, gt=0.0)
    """An update is skipped if its mean token KL exceeds this or is NaN. In phase 2 the next update then uses only the
    KL term; in phase 3 every update without an accepted query does."""


def step_controller(settings: KlSettings, pid: Pid, kl: float) -> Pid:
    """The controller after an update that measured `kl`. A NaN leaves it as it is; without control only KL is
    smoothed."""
    if settings.adaptive:
        gains = PAPER if settings.gains == "paper" else DEFAULT
        return pid_step(pid, kl, target=settings.target, gains=gains, one_sided=settings.one_sided)
    return replace(pid, kl=ema(pid.kl, kl, rho=KL_SMOOTHING_RHO)) if math.isfinite(kl) else pid
