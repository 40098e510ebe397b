"""What the keys of a memory are: one small file, written when the memory is made."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from pixelis.core.atomic import atomic_write, make_directory
from pixelis.core.errors import MemoryFileError
from pixelis.core.geometry import Value
from pixelis.trace.schema import Sha256, canonical_json

MEMORY_HEAD_FILE = "memory.json"


MASK_FILE = "mask.zip"
"""The evaluation mask that a memory was made under, beside its items."""


class MemoryHead(Value):
    """What the keys of a memory are; written once."""

    version: Literal[1] = 1
    text_dimensions: int = Field(gt=0)
    visual_dimensions: int = Field(gt=0)
    encoders: str
    """Fingerprints of the encoders: keys of others mean nothing here."""
    mask: Sha256 | None = None
    """The evaluation mask that the memory was made under; None where it was made without."""

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
        first = error.errors(include_url=False)[0]
        field_path = ".".join(map(str, first["loc"])) or "the whole"
        raise MemoryFileError(f"{path} is no memory of this build: {field_path}: {first['msg']}") from error


def write_memory_head(folder: Path, head: MemoryHead) -> None:
    """Makes the folder a memory; MemoryFileError where it holds anything already."""
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
