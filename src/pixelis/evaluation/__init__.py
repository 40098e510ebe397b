"""Evaluation: run a policy on tasks, score its answers and process, and score files of predictions."""
