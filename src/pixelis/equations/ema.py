"""Exponential moving averages: of a scalar, and of a policy's weights (the anchor π_EMA of subsec:ttrl)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def ema(average: float | None, value: float, *, rho: float = 0.99) -> float | None:
    """ρ·average + (1−ρ)·value, the scalar form of the rule in (subsec:ttrl).

    The first value starts the average (`average` is None). NaN and infinity are held, not spread: the average stays.
    """
    _check_rho(rho)
    if not math.isfinite(value):
        return average
    return value if average is None else rho * average + (1.0 - rho) * value


def ema_parameters(anchor: Mapping[str, Any], theta: Mapping[str, Any], *, rho: float = 0.99) -> dict[str, Any]:
    """π_EMA ← ρ·π_EMA + (1−ρ)·π_θ, parameter by parameter (subsec:ttrl), for numpy arrays and torch tensors alike.

    Names that differ, shapes that differ, and a weight that is NaN or infinite raise ValueError: a broken policy never
    reaches its own anchor. No parameters at all give an empty anchor.
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
            raise ValueError(f"{name!r} of the policy holds NaN or infinity: the anchor does not follow it")
    return {name: rho * anchor[name] + (1.0 - rho) * weight for name, weight in theta.items()}


def _check_rho(rho: float) -> None:
    if not 0.0 <= rho < 1.0:
        raise ValueError(f"rho is {rho}, want 0 <= rho < 1")
