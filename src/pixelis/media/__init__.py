"""Images and clips: opened under limits, decoded lazily, immutable, known by the SHA-256 of their content."""

from pixelis.media.clip import Clip
from pixelis.media.image import Image
from pixelis.media.limits import MediaLimits
from pixelis.media.medium import Frame, Medium
from pixelis.media.opening import open_media
from pixelis.media.query import MediaSet, ViewRecipe

__all__ = ["Clip", "Frame", "Image", "MediaLimits", "MediaSet", "Medium", "ViewRecipe", "open_media"]
