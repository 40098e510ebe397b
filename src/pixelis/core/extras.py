"""Optional dependencies: which extra of the package brings what, and the sentence for one that is missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pixelis.core.errors import MissingExtraError

MODULES = {
    "video": "av",
    "models": "huggingface_hub onnx tokenizers",
    "policy": "httpx2 llguidance pycocotools rapidfuzz safetensors scipy torch transformers",
    "data": "imagehash pyarrow pycocotools rapidfuzz scipy skimage",
    "memory": "faiss",
    "train": "matplotlib peft",
    "eval": "trackeval",
}
EXTRAS_BY_MODULE = {
    module: tuple(extra for extra, modules in MODULES.items() if module in modules.split())
    for module in " ".join(MODULES.values()).split()
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
VERBS = {
    "data": "data",
    "policy": "ask demo world",
    "memory": "index",
    "train": "adapt reproduce train",
    "eval": "eval score",
}
EXTRA_BY_VERB = {verb: extra for extra, verbs in VERBS.items() for verb in verbs.split()}
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
