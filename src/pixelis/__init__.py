"""Pixelis: a pixel-space vision-language agent with executable tools and replayable evidence."""

__version__ = "0.1.0"
