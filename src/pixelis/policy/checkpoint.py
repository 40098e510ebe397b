"""A checkpoint describes itself: weights, tokenizer, prompt style, statistics, origin and scores.

Verbs need only its name. Weights are safetensors; nothing is unpickled.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from pixelis.core.config import Config
from pixelis.core.errors import ConfigError
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.images import ImageProcessorConfig
from pixelis.policy.model import Policy
from pixelis.policy.model_names import find_checkpoint, require_hub_access
from pixelis.policy.tokenizer import PolicyTokenizer

CARD_FILE = "pixelis.json"
HEADS_FILE = "heads.safetensors"


class ModelCard(Config):
    """What a checkpoint says about itself."""

    name: str = "unnamed"
    style: PromptStyle = PromptStyle()
    tap: int = -3
    """The layer whose output gives features, counted from the top (supp:et_dynamics)."""
    tools: dict[str, str] = Field(default_factory=dict)
    """Version of each tool in training."""
    corpus: str = ""
    """Hash of the training corpus."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Command, commit, configuration, seed, seconds, machine."""
    scores: dict[str, Any] = Field(default_factory=dict)
    """Scores, with the command that measured them."""
    statistics: dict[str, Any] = Field(default_factory=dict)
    """Token normalisers, per-tool scalers, per-family coherence (subsec:sft), in plain numbers."""


class LoadedCheckpoint(NamedTuple):
    policy: Policy
    card: ModelCard
    heads: Mapping[str, Tensor]
    """Tensors of the heads by name."""


def save_checkpoint(folder: Path, policy: Policy, card: ModelCard, heads: dict[str, nn.Module] | None = None) -> None:
    """Write a checkpoint atomically: into a staging folder, which is then renamed."""
    from safetensors.torch import save_file

    hide_progress_bars()
    staging = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    policy.model.save_pretrained(staging, safe_serialization=True)
    policy.tokenizer.hf_tokenizer.save_pretrained(staging)
    images = policy.image_config
    patches = {"patch_size": images.patch, "merge_size": images.merge, "temporal_patch_size": images.temporal}
    colours = {"image_mean": list(images.mean), "image_std": list(images.std)}
    size = {"shortest_edge": images.least_pixels, "longest_edge": policy.style.image_pixels}
    preprocessor = {"image_processor_type": "Qwen2VLImageProcessor", **patches, **colours, "size": size}
    (staging / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")
    if heads:
        tensors = {f"{name}.{key}": value for name, head in heads.items() for key, value in head.state_dict().items()}
        save_file({key: value.contiguous() for key, value in tensors.items()}, staging / HEADS_FILE)
    facts = card.model_copy(update={"style": policy.style, "tap": policy.tap}).model_dump(mode="json")
    (staging / CARD_FILE).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():  # if not, a save may have been killed here, and `old` is the only copy
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def hide_progress_bars() -> None:
    """Disable transformers' own progress bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def load_checkpoint(
    name: str, *, device: str = "cpu", dtype: torch.dtype | Literal["auto"] = torch.float32
) -> LoadedCheckpoint:
    """Open a checkpoint by folder, embedded name or hub id; ConfigError in one line if anything is wrong with it.

    `auto` keeps the precision in which it was saved.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    hide_progress_bars()
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no GPU that torch can use here: want device=cpu, or a build of torch with CUDA")
    location = find_checkpoint(name)
    folder = Path(location)
    card = read_card(folder) if folder.is_dir() else ModelCard(name=name)
    if not folder.is_dir():
        require_hub_access(name)
    try:
        tokenizer = PolicyTokenizer.open(location)
        load_result: Any = AutoModelForImageTextToText.from_pretrained(
            location, dtype=dtype, use_safetensors=True, trust_remote_code=False, attn_implementation="sdpa",
            output_loading_info=True,
        )  # fmt: skip
        model, loading_info = load_result
        heads = load_file(folder / HEADS_FILE) if (folder / HEADS_FILE).is_file() else {}
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{name}: the model cannot be opened ({describe_load_error(error, folder)})") from error
    if folder.is_dir() and tokenizer.tags_are_tokens and not (folder / CARD_FILE).exists():
        raise ConfigError(f"{name}: {CARD_FILE} is missing, which holds the prompt style of this policy")
    if missing := sorted(loading_info["missing_keys"]):  # transformers would initialise them at random
        raise ConfigError(f"{name}: {len(missing)} tensors are missing, the first {missing[0]}")
    if model.config.model_type != "qwen3_vl":
        raise ConfigError(f"{name} is a {model.config.model_type}: want the Qwen3-VL architecture (qwen3_vl)")
    policy = Policy(model, tokenizer, card.style, read_image_config(folder, model), tap=card.tap)
    return LoadedCheckpoint(policy.to(torch.device(device)).eval(), card, heads)


def describe_load_error(error: Exception, folder: Path) -> str:
    """Why a model cannot be opened, naming the damaged file, which libraries seldom do."""
    if folder.is_dir():
        for required in ("config.json", "tokenizer.json"):
            if not (folder / required).is_file():
                return f"it has no {required}"
        for path in sorted(folder.glob("*.json")):
            try:
                json.loads(path.read_bytes())
            except ValueError as json_error:
                return f"{path.name} is damaged: {json_error}"
        weights = sorted(folder.glob("*.safetensors"))
        if not weights:
            return "it has no weights (*.safetensors)"
        for path in weights:
            if problem := find_tensor_damage(path):
                return f"{path.name} is damaged: {problem}"
    return " ".join(str(error).split())[:300]


def find_tensor_damage(path: Path) -> str:
    """What is wrong with a file of tensors; empty if it can be opened."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            return ""
    except (SafetensorError, OSError) as error:
        return " ".join(str(error).split())[:200]


def read_card(folder: Path) -> ModelCard:
    """The card of a folder; a third-party model has none and gets the defaults."""
    path = folder / CARD_FILE
    if not path.exists():
        return ModelCard(name=folder.name)
    try:
        return ModelCard.model_validate_json(path.read_bytes())
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: not the card of a checkpoint ({first_problem(error)})") from error


def first_problem(error: ValueError) -> str:
    """The first problem, in a few words."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first_error = error.errors(include_url=False, include_input=False)[0]
    location = ".".join(map(str, first_error["loc"]))
    return f"{location}: {first_error['msg']}" if location else first_error["msg"]


def read_image_config(folder: Path, model: Any) -> ImageProcessorConfig:
    """Sizes from the model's config, colour statistics from the preprocessor's, if there is one."""
    vision = model.config.vision_config
    image_config = ImageProcessorConfig(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return image_config
    try:
        content = json.loads(path.read_bytes())
        mean, std = (tuple(float(v) for v in content.get(f"image_{key}", (0.5,) * 3)) for key in ("mean", "std"))
        min_pixels = int(content.get("size", {}).get("shortest_edge", 1))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a preprocessor's configuration ({error})") from error
    return image_config._replace(mean=mean, std=std, least_pixels=min_pixels)  # type: ignore[arg-type]
