"""The retrieval memory: accepted trajectories, found by question and by what was looked at (supp:retrieval_index)."""
