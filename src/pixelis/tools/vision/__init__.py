"""Pixel operations that several tools share: colours, shapes, regions and the grounding of phrases."""
