"""Which encoders made the keys of a memory: one small file, written when the memory is created."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pixelis.core.atomic import atomic_write, make_directory
from pixelis.core.errors import MemoryFileError, validation_problem
from pixelis.core.geometry import Value
from pixelis.trace.schema import Sha256, canonical_json

MEMORY_HEAD_FILE = "memory.json"


MASK_FILE = "mask.zip"
"""The evaluation mask of a memory, beside its items."""


class MemoryHead(Value):
    """Sizes and encoders of a memory's keys; written once."""

    version: Literal[1] = 1
    text_dimensions: int = Field(gt=0)
    visual_dimensions: int = Field(gt=0)
    encoders: str
    """Fingerprints of the encoders; keys of other encoders cannot be compared."""
    mask: Sha256 | None = None
    """Digest of the evaluation mask that guards the memory; None without one."""

    @property
    def dimensions(self) -> int:
        return self.text_dimensions + self.visual_dimensions


def read_memory_head(folder: Path) -> MemoryHead:
    path = folder / MEMORY_HEAD_FILE
    try:
        return MemoryHead.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise MemoryFileError(
            f"{folder} holds no memory (there is no {MEMORY_HEAD_FILE}); `pixelis index build` makes one"
        ) from error
    except OSError as error:
        raise MemoryFileError(f"{path} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise MemoryFileError(f"{path} is not a memory of this build: {validation_problem(error)}") from error


def write_memory_head(folder: Path, head: MemoryHead) -> None:
    """Make the folder a memory; MemoryFileError unless it is empty."""
    if (folder / MEMORY_HEAD_FILE).exists():
        raise MemoryFileError(f"{folder} holds a memory already; `pixelis index add` appends to it")
    try:
        make_directory(folder)
        if any(folder.iterdir()):
            raise MemoryFileError(f"{folder} is not empty and holds no memory; name another folder")
        with atomic_write(folder / MEMORY_HEAD_FILE) as file:
            file.write(canonical_json(head.model_dump(mode="json")) + b"\n")
    except OSError as error:
        raise MemoryFileError(f"{folder} cannot be written ({error.strerror})") from error
