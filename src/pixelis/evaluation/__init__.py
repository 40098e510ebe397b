"""Running and scoring: tasks, benchmarks, baselines, ablations, and the files that other people score with."""
