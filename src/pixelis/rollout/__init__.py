"""Rollouts: many queries, n trajectories each, sampled from a policy that looks with tools."""
