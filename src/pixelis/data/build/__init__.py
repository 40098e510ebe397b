"""Building a corpus from a configuration."""
