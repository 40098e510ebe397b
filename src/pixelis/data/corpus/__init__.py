"""The corpus on disk: records, shards, splits, statistics."""
