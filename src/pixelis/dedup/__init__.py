"""Near-duplicates, and evaluation media in training media."""
