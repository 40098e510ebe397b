"""The PID controller that keeps token KL in its corridor by moving β (supp:pid_kl), and plants to try gains on.

The rule multiplies: β ← β·[1 + K_p·e + K_i·I + K_d·Δe]. So log β already integrates K_p·e, and K_d·Δe, summed over
steps, is a proportional term. On log β the published rule is therefore a doubly integrating controller: with
K_i = 0.05 it limit-cycles on every plant tried here, at lags from 1 to 30 steps (docs/figures/pid.svg). `DEFAULT` keeps
the rule and changes what makes it cycle:

- K_i = 0 removes the second integrator; no offset remains, since β integrates by itself.
- K_p = 0.026 is about 0.7/(g·θ), for the steepest slope g = 0.67 of the plant and θ = 40 steps (a lag of 30 and the
  smoothing's 10); K_d = 0.3 is the proportional part, which reacts before the lagged KL does. It acts from
  the first pair of readings on (no warm-up): the kick that a warm-up prevents cannot occur, because the first
  reading has no slope and the smoothing passes a tenth of any jump.
- Through K_p and K_i, β falls by at most 0.8 % a step (`fall_limit`). Out of SFT the KL lies under its target because
  the policy has not moved yet; without the limit β falls to its floor meanwhile, and KL overshoots once the policy
  moves. K_d is not limited: its falls and rises cancel, so that limiting one side would bias KL under noise.
- A reading counts as at most six targets (`reading_limit`), so that one broken batch does not ruin β.

Start β near its equilibrium: `Pid()` starts at 0.2, which on the reference plant gives a KL of 0.133.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.equations.ema import ema

READING_LIMIT = 1e6
"""Limit of a reading in targets for every preset; larger numbers would overflow the arithmetic."""


@dataclass(frozen=True)
class Gains:
    """Gains on the error in units of the target, and a preset's limits."""

    kp: float
    ki: float
    kd: float
    warmup_steps: int = 0
    """Number of first readings for which K_d counts as 0."""
    fall_limit: float = math.inf
    """Largest share by which K_p and K_i together may reduce β in one step."""
    reading_limit: float = math.inf
    """A reading counts as at most this many targets."""


PAPER = Gains(kp=0.30, ki=0.05, kd=0.10, warmup_steps=100)
"""The published gains (supp:pid_kl). They limit-cycle on all three plants."""

DEFAULT = Gains(kp=0.026, ki=0.0, kd=0.3, fall_limit=0.008, reading_limit=6.0)
"""Ours: settles on lags of 1, 10 and 30 steps. The module's docstring says why each value."""


@dataclass(frozen=True)
class Pid:
    """State of the controller between two optimizer steps."""

    beta: float = 0.2
    """Weight of the KL term. The paper gives no start; 0.2 holds KL near its target on the reference plant."""
    integral: float = 0.0
    kl: float | None = None
    """Smoothed token KL in nats per token; None before the first reading."""
    error: float | None = None
    """(kl − target) / target."""
    steps: int = 0
    """Number of finite readings."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.beta) and self.beta > 0.0 and math.isfinite(self.integral)):
            raise ValueError(f"Pid has beta {self.beta} and integral {self.integral}: expected finite, beta > 0")


def pid_step(
    pid: Pid,
    kl: float,
    *,
    target: float = 0.15,
    gains: Gains = DEFAULT,
    one_sided: bool = False,
    smoothing: float = 0.9,
    beta_min: float = 1e-3,
    beta_max: float = 1e2,
    integral_max: float = 5.0,
) -> Pid:
    """Next state of the KL-corridor controller (supp:pid_kl). `kl` is nats per token, one reading an optimizer step.

    A NaN or infinite reading changes nothing except that β and the integral are clipped to their bounds. With
    `one_sided`, β never falls: it is constant while KL is at or below the target and rises above it, and the integral
    stays in [0, integral_max], so that a long time below the target does not delay the reaction. To lower β again,
    start a new `Pid`.
    """
    if not (math.isfinite(target) and target > 0.0):
        raise ValueError(f"the KL target is {target}, expected a finite number over 0")
    if not 0.0 < beta_min <= beta_max:
        raise ValueError(f"beta bounds are [{beta_min}, {beta_max}], expected 0 < beta_min <= beta_max")
    integral_min = 0.0 if one_sided else -integral_max
    if not math.isfinite(kl):
        return replace(
            pid, beta=_clip(pid.beta, beta_min, beta_max), integral=_clip(pid.integral, integral_min, integral_max)
        )
    limit = target * min(gains.reading_limit, READING_LIMIT)
    smoothed = ema(pid.kl, _clip(kl, -limit, limit), rho=smoothing)
    assert smoothed is not None  # noqa: S101  the reading is finite
    error = (smoothed - target) / target  # in targets, so that gains carry over to other backbones
    integral = _clip(pid.integral + error, integral_min, integral_max)  # anti-windup
    warm = pid.error is not None and pid.steps >= gains.warmup_steps
    slope = error - pid.error if warm and pid.error is not None else 0.0
    push = max(gains.kp * error + gains.ki * integral, -gains.fall_limit)
    factor = 1.0 + push + gains.kd * slope
    if one_sided:
        factor = max(factor, 1.0) if error > 0.0 else 1.0
    beta = _clip(pid.beta * factor, beta_min, beta_max)
    return Pid(beta=beta, integral=integral, kl=smoothed, error=error, steps=pid.steps + 1)


CORRIDOR = (0.10, 0.20)
"""Target of the token KL in nats (supp:pid_kl)."""


def corridor(target: float = 0.15) -> tuple[float, float]:
    """The corridor around a target, as wide as the paper's around 0.15 (supp:pid_kl)."""
    half = (CORRIDOR[1] - CORRIDOR[0]) / 2.0
    return target - half, target + half


def in_corridor(kl: float, *, low: float = CORRIDOR[0], high: float = CORRIDOR[1]) -> bool:
    """Whether a token KL lies in the corridor, ends included (supp:pid_kl). NaN does not."""
    return low <= kl <= high


class Plant(NamedTuple):
    """A policy as its controller sees it: token KL settles at ceiling / (1 + β/half), with a lag."""

    lag: int
    """`first_order`: time constant in steps; `dead_time`: steps during which nothing happens."""
    kind: Literal["first_order", "dead_time"] = "first_order"
    ceiling: float = 0.4
    half: float = 0.1
    noise: float = 0.01
    """Standard deviation of a reading, in nats per token."""
    disturbed_at: int = 1000
    disturbance: float = 1.5
    """Factor on the ceiling from step `disturbed_at` on: a shift of the data."""


class Response(NamedTuple):
    """The course of a simulated controller."""

    kl: NDArray[np.float64]
    """Token KL without the readings' noise, (steps,)."""
    beta: NDArray[np.float64]


def simulate(
    plant: Plant,
    *,
    rng: np.random.Generator,
    gains: Gains = DEFAULT,
    beta: float = 0.2,
    start_kl: float | None = 0.0,
    steps: int = 2000,
    target: float = 0.15,
    one_sided: bool = False,
) -> Response:
    """Simulate the controller on a plant, to try gains without a training run (supp:pid_kl, note iii).

    KL starts at `start_kl` (0: the policy equals its anchor) or, if that is None, at the equilibrium of β.
    """
    pid = Pid(beta=beta)
    betas, kls = [beta], [plant.ceiling / (1.0 + beta / plant.half) if start_kl is None else start_kl]
    for step in range(steps):
        ceiling = plant.ceiling * (plant.disturbance if step >= plant.disturbed_at else 1.0)
        if plant.kind == "first_order":
            pull = 1.0 - math.exp(-1.0 / plant.lag)
            kl = kls[-1] + pull * (ceiling / (1.0 + pid.beta / plant.half) - kls[-1])
        elif step < plant.lag:
            kl = kls[0]
        else:
            kl = ceiling / (1.0 + betas[step - plant.lag] / plant.half)
        pid = pid_step(pid, kl + plant.noise * rng.standard_normal(), gains=gains, target=target, one_sided=one_sided)
        kls.append(kl)
        betas.append(pid.beta)
    return Response(kl=np.array(kls[1:]), beta=np.array(betas[1:]))


class Settling(NamedTuple):
    """How a KL curve approaches its target."""

    rise: int
    """Steps until KL, having left the band of 10 % around the target, first returns into it."""
    overshoot: float
    """Largest excursion on the far side of the target, as a share of the target."""
    settled: int
    """Steps after which KL stays in the band; the length of the curve if it never does."""


def settling(kl: NDArray[np.float64], *, target: float = 0.15, band: float = 0.1) -> Settling:
    """Rise, overshoot and settling of a curve (supp:pid_kl, note iii: rise under 200 steps, overshoot under 10 %).

    The first deviation above half the band tells from which side KL comes. A curve that never deviates so far has rise
    0 and its largest deviation as overshoot; an empty one gives zeros.
    """
    deviation = np.asarray(kl, dtype=float) / target - 1.0
    if deviation.size == 0:
        return Settling(0, 0.0, 0)
    deviating = np.flatnonzero(np.abs(deviation) > band / 2)
    if deviating.size == 0:
        return Settling(0, float(np.abs(deviation).max()), 0)
    side = np.sign(deviation[deviating[0]])
    outside = np.flatnonzero(np.abs(deviation) > band)
    if outside.size == 0:
        return Settling(0, float(max(0.0, (-side * deviation).max())), 0)
    inside = np.flatnonzero(np.abs(deviation[outside[0] :]) <= band)
    rise = int(outside[0] + inside[0]) if inside.size else deviation.size
    return Settling(rise, float(max(0.0, (-side * deviation).max())), int(outside[-1]) + 1)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)
