"""Which media may enter a corpus, by the licence and watermark that their dataset states (sec:data)."""

from __future__ import annotations

import re

from pixelis.items import Item

REFUSED_LICENCES = ("-all-rights-reserved-", "-proprietary-", "-no-deriv", "-noderiv", "-nd-", "-noai-", "-no-ai-")
"""Parts of the licence names that forbid it, with words joined by hyphens: `CC BY-ND 4.0` is `-cc-by-nd-4-0-`. COCO
writes `Attribution-NoDerivs License`. An unknown licence is the user's decision."""
WATERMARK_VALUES = ("visible", "yes", "true", "1")


def rights_reasons(item: Item) -> list[str]:
    """Why the media of an item may not enter; empty if they may."""
    licence = str(item.parameters.get("licence", item.parameters.get("license", ""))).lower()
    watermark = str(item.parameters.get("watermark", "")).lower()
    normalised = f"-{re.sub('[^a-z0-9]+', '-', licence).strip('-')}-"
    reasons = [f"licence {licence!r} does not allow it" for part in REFUSED_LICENCES if part in normalised][:1]
    return reasons + (["its media carry a visible watermark"] if watermark in WATERMARK_VALUES else [])
