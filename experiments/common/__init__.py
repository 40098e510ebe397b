"""Paired tests and result archives, shared by the experiments."""
