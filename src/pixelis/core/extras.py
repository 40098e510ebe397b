"""Optional dependencies: which extra of the package brings what, and the sentence for one that is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pixelis.core.errors import MissingExtraError

EXTRAS_BY_MODULE = {
    "av": ("video",),
    "huggingface_hub": ("models",),
    "onnx": ("models",),
    "tokenizers": ("models",),
    "pycocotools": ("policy", "data"),
    "rapidfuzz": ("policy", "data"),
    "scipy": ("policy", "data"),
    "httpx2": ("policy",),
    "llguidance": ("policy",),
    "safetensors": ("policy",),
    "torch": ("policy",),
    "transformers": ("policy",),
    "imagehash": ("data",),
    "pyarrow": ("data",),
    "skimage": ("data",),
    "faiss": ("memory",),
    "matplotlib": ("train",),
    "peft": ("train",),
    "trackeval": ("eval",),
}
"""The smallest extras that bring a module."""
INCLUDED = {
    "video": {"video"},
    "models": {"models"},
    "data": {"data", "video"},
    "policy": {"policy", "models", "video"},
    "memory": {"memory", "data", "policy", "models", "video"},
    "train": {"train", "memory", "data", "policy", "models", "video"},
    "eval": {"eval", "policy", "models", "video"},
}
"""The extras that each extra brings, itself among them."""
EXTRA_BY_VERB = {
    "adapt": "train",
    "ask": "policy",
    "data": "data",
    "demo": "policy",
    "eval": "eval",
    "index": "memory",
    "reproduce": "train",
    "score": "eval",
    "train": "train",
    "world": "policy",
}
"""The extra that brings all that a verb of the command line needs."""


def require(module: str, purpose: str) -> Any:
    """An optional module; MissingExtraError where it is not installed. `purpose` begins the sentence."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing_extra(error, purpose) or error from error


def missing_extra(error: ModuleNotFoundError, purpose: str, extra: str = "") -> MissingExtraError | None:
    """The sentence for a module that an extra brings, naming `extra` where that is one; None for any other module."""
    module = (error.name or "").partition(".")[0]
    extras = EXTRAS_BY_MODULE.get(module)
    if extras is None:
        return None
    best = extra if INCLUDED.get(extra, set()).intersection(extras) else extras[0]
    return MissingExtraError(f"{purpose} needs {module}: pip install 'pixelis[{best}]'")


def missing_for_verb(error: ModuleNotFoundError, arguments: list[str]) -> MissingExtraError | None:
    """The same, for the verb of a command line such as `["pixelis", "train", "sft"]`."""
    verb = next((a for a in arguments[1:] if not a.startswith("-")), "")
    return missing_extra(error, f"`pixelis {verb}`", EXTRA_BY_VERB.get(verb, ""))
