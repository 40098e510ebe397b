"""COCO's run lengths of masks: columns from left to right, background first, as numbers and as compressed text.

The text is byte for byte that of `pycocotools`: five bits a character, from the fourth run on as the difference to the
run before the last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Runs = NDArray[np.int64]
MAX_RUN = 2**32
MAX_CHARACTERS = 12
"""Of one number: more would not fit into 64 bits."""


def encode_mask(mask: NDArray[np.bool_]) -> Runs:
    """The runs of a (height, width) mask."""
    cells = np.asarray(mask, dtype=bool).ravel(order="F")
    edges = np.flatnonzero(np.diff(cells)) + 1
    starts_set = [0] if cells.size and cells[0] else []
    bounds: Runs = np.concatenate([[0], starts_set, edges, [cells.size]]).astype(np.int64)
    return bounds[1:] - bounds[:-1]


def decode_mask(runs: Runs, *, width: int, height: int) -> NDArray[np.bool_]:
    """The (height, width) mask that these runs fill."""
    return np.repeat(np.arange(len(runs)) % 2 == 1, runs).reshape(width, height).T


def bounding_box(runs: Runs, height: int) -> tuple[int, int, int, int] | None:
    """Left, top, right and bottom of the set cells, right and bottom outside; None where none is set."""
    ends = np.cumsum(runs)
    first, last = (ends - runs)[1::2], ends[1::2] - 1
    first, last = first[last >= first], last[last >= first]
    if not len(first):
        return None
    left, right = int(first[0] // height), int(last[-1] // height) + 1
    if np.any(first // height != last // height):  # a run that goes on in the next column touches foot and head
        return left, 0, right, height
    return left, int((first % height).min()), right, int((last % height).max()) + 1


def to_text(runs: Runs) -> str:
    """The compressed text of these runs."""
    rest = np.array(runs, dtype=np.int64)
    rest[3:] -= np.asarray(runs, dtype=np.int64)[1:-2]
    characters, is_used = [], []
    pending = np.ones(len(rest), dtype=bool)
    while pending.any():
        bits = rest & 0x1F
        rest >>= 5
        more = rest != np.where(bits & 0x10, -1, 0)
        characters.append(bits + 48 + 0x20 * more)
        is_used.append(pending)
        pending = pending & more
    if not characters:
        return ""
    return np.stack(characters, axis=1)[np.stack(is_used, axis=1)].astype(np.uint8).tobytes().decode("ascii")


def from_text(text: str) -> Runs:
    """The runs in a compressed text; ValueError on anything that COCO's own decoder would read past its end."""
    strange = next((c for c in text if not 48 <= ord(c) < 112), None)
    if strange is not None:
        raise ValueError(f"mask counts hold {strange!r}: not COCO run lengths")
    if not text:
        return np.zeros(0, dtype=np.int64)
    bits = np.frombuffer(text.encode("ascii"), dtype=np.uint8).astype(np.int64) - 48
    ends = np.flatnonzero(bits < 0x20)
    if not len(ends) or ends[-1] != len(bits) - 1:
        raise ValueError("mask counts end in the middle of a number")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > MAX_CHARACTERS:
        raise ValueError(f"mask counts hold a number of over {MAX_CHARACTERS} characters: not COCO run lengths")
    shifts = 5 * (np.arange(len(bits)) - np.repeat(starts, lengths))
    numbers = np.add.reduceat((bits & 0x1F) << shifts, starts)
    numbers -= np.where(bits[ends] & 0x10, np.int64(1) << 5 * lengths, 0)
    if np.abs(numbers).max() > MAX_RUN:
        raise ValueError("mask counts hold a run that no mask has")
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    if numbers.min() < 0:
        raise ValueError("mask counts hold a negative run length")
    return numbers
