"""Limits on media files. A file is hostile until it is decoded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MediaLimits:
    """Bounds on work, checked from headers before any pixel is decoded."""

    image_bytes: int = 256 * 2**20
    image_pixels: int = 120_000_000
    """A 108-megapixel phone picture passes; a 30,000 x 30,000 bomb does not."""
    animation_pixels: int = 4_000_000_000
    """Over all frames of a GIF, WebP or PNG: each frame builds on the one before, so all are decoded."""
    clip_bytes: int = 8 * 2**30
    frame_pixels: int = 36_000_000
    """One frame of an 8K clip."""
    clip_frames: int = 500_000
    clip_seconds: float = 6 * 3600.0
