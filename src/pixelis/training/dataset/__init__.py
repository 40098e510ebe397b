"""Corpus records as training examples."""
