"""Exponential moving averages: of a scalar, and of a policy's weights (the anchor π_EMA of subsec:ttrl)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def ema(average: float | None, value: float, *, rho: float = 0.99) -> float | None:
    """ρ·average + (1−ρ)·value, the scalar form of the rule in (subsec:ttrl).

    The first value starts the average (`average` is None). NaN and infinity leave the average unchanged.
    """
    _check_rho(rho)
    if not math.isfinite(value):
        return average
    return value if average is None else rho * average + (1.0 - rho) * value


def ema_parameters(anchor: Mapping[str, Any], theta: Mapping[str, Any], *, rho: float = 0.99) -> dict[str, Any]:
    """π_EMA ← ρ·π_EMA + (1−ρ)·π_θ, parameter by parameter (subsec:ttrl), for numpy arrays and torch tensors alike.

    Raises ValueError if names or shapes differ, or if a weight is NaN or infinite, so that a broken policy does not
    reach its anchor.
    """
    _check_rho(rho)
    if anchor.keys() != theta.keys():
        mismatched = sorted(anchor.keys() ^ theta.keys())
        raise ValueError(
            f"anchor and policy differ in {len(mismatched)} parameter names, the first is {mismatched[0]!r}"
        )
    for name, weight in theta.items():
        if weight.shape != anchor[name].shape:
            raise ValueError(
                f"{name!r} is {tuple(anchor[name].shape)} in the anchor, {tuple(weight.shape)} in the policy"
            )
        if not bool((abs(weight) < math.inf).all()):  # false for NaN too, in numpy and in torch
            raise ValueError(f"{name!r} of the policy contains NaN or infinity: the anchor is not updated")
    return {name: rho * anchor[name] + (1.0 - rho) * weight for name, weight in theta.items()}


def _check_rho(rho: float) -> None:
    if not 0.0 <= rho < 1.0:
        raise ValueError(f"rho is {rho}, expected 0 <= rho < 1")
