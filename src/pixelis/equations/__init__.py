"""The paper's equations as pure functions: one file per group of formulas, each function citing its LaTeX label.

Nothing here reads a file, a clock or a global random state. Files that need a gradient import torch (`sft`,
`curiosity`, `grpo`, `kl`); the others are numpy only and open without it.
"""
