"""Checkpoints that come with the package, one folder each."""
