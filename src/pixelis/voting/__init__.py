"""Scoring of trajectories: external verifiers, intrinsic reward, fidelity, vote."""
