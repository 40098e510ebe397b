"""Synthetic warm-up tasks for a policy with random weights."""
