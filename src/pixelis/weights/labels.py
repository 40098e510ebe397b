"""The names of ImageNet's thousand classes, from the JavaScript file that publishes them."""

from __future__ import annotations

import re
from pathlib import Path

from pixelis.core.errors import WeightsError

_ENTRY = re.compile(r"^\s+(\d+): ((?:(?:'(?:[^'\\]|\\.)*'|\"[^\"]*\")(?:\s*\+\s*)?)+),?$", re.MULTILINE)
_PIECE = re.compile(r"'((?:[^'\\]|\\.)*)'|\"([^\"]*)\"")


def from_js(script: Path) -> bytes:
    """One line per class, in order; synonyms are separated by commas."""
    names = {
        int(number): "".join(single.replace("\\'", "'") or double for single, double in _PIECE.findall(text))
        for number, text in _ENTRY.findall(script.read_text(encoding="utf-8"))
    }
    if sorted(names) != list(range(1000)):
        raise WeightsError(f"{script.name}: holds {len(names)} classes, wanted 1000")
    return "".join(f"{names[i]}\n" for i in range(1000)).encode()
