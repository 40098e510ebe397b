"""Weights and variants of the reward (eq:ccrft_reward)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from pixelis.core.config import Config

CoherenceKind = Literal["adjacency", "l2", "tv", "cpc"]


class RewardSettings(Config):
    """R(τ) = w₁·R_final + w₂·R_cur + w₃·R_coh − w₄·R_pen (eq:ccrft_reward). The paper prints no w_i: these are ours."""

    old_names: ClassVar = {"prior": "coherence_kind", "sums": "sum_over_steps", "gate": "uncertainty_gate"}

    final: float = 1.0
    """w₁"""
    curiosity: float = 0.2
    """w₂"""
    coherence: float = 0.2
    """w₃"""
    penalty: float = 1.0
    """w₄"""
    tool_use: float = 0.0
    """Weight of Pixel-Reasoner's terms: a bonus where tools are rarely used, a price for every call."""
    coherence_kind: CoherenceKind = "adjacency"
    """R_coh: adjacent cosines of E_t, or one of the alternatives of supp:structure_priors."""
    sum_over_steps: bool = False
    """Sum curiosity and adjacent cosines over a chain instead of averaging them; the alternatives always average."""
    mc_samples: int = Field(default=4, ge=1)
    """Dropout passes S of the uncertainty gate; 1 turns it off."""
    uncertainty_gate: float = Field(default=5.0, ge=0.0)
    """β of the uncertainty gate."""
    alpha_inv: float = 0.30
    """Price of an invalid or repeated call (tab:hp-rcpr)."""
    alpha_len: float = 0.02
    """Price of each call beyond `l_0` (tab:hp-rcpr)."""
    l_0: int = 6
    """L₀: calls without a price (tab:hp-rcpr)."""
    tool_scalers: bool = True
    """Whether the per-tool scalers of phase 1 scale curiosity and penalty."""
