"""A checkpoint describes itself: weights, tokenizer, manner of speaking, statistics, where it comes from, its scores.

Later verbs need its path and nothing else. Weights are safetensors; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, ValidationError
from torch import Tensor, nn

from pixelis.config import Config
from pixelis.errors import ConfigError
from pixelis.policy.chat_server import PREFIX
from pixelis.policy.model import Policy
from pixelis.policy.pictures import Optics
from pixelis.policy.script import Style
from pixelis.policy.tokens import Tokens

CARD = "pixelis.json"
HUB_SECONDS = 5.0
HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
HEADS = "heads.safetensors"
SHIPPED = "pixelis.policy.shipped"
"""The package that holds the checkpoints that come with this one."""


class Card(Config):
    """What a checkpoint says about itself beside its weights."""

    name: str = "unnamed"
    style: Style = Style()
    tap: int = -3
    """The layer whose features are tapped, from the top (supp:et_dynamics)."""
    tools: dict[str, str] = Field(default_factory=dict)
    """Version of each tool that it learnt with."""
    corpus: str = ""
    """Hash of the corpus that it was trained on."""
    training: dict[str, Any] = Field(default_factory=dict)
    """Command, commit, configuration, seed, seconds, machine."""
    scores: dict[str, Any] = Field(default_factory=dict)
    """What it scored, with the command that measured it."""
    statistics: dict[str, Any] = Field(default_factory=dict)
    """Token normalisers, per-tool scalers, per-family coherence (subsec:sft), in plain numbers."""


class Loaded(NamedTuple):
    """A checkpoint, opened."""

    policy: Policy
    card: Card
    heads: Mapping[str, Tensor]
    """Tensors of the heads by name; empty where it has none."""


def save_checkpoint(folder: Path, policy: Policy, card: Card, heads: Mapping[str, nn.Module] | None = None) -> None:
    """Write a checkpoint whole or not at all: into a folder beside it, then into its place."""
    from safetensors.torch import save_file

    without_bars()
    fresh = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    policy.model.save_pretrained(fresh, safe_serialization=True)
    policy.tokens.tokenizer.save_pretrained(fresh)
    optics = policy.optics
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": optics.patch,
        "merge_size": optics.merge,
        "temporal_patch_size": optics.temporal,
        "image_mean": list(optics.mean),
        "image_std": list(optics.std),
        "size": {"shortest_edge": optics.least_pixels, "longest_edge": policy.style.image_pixels},
    }
    (fresh / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")
    if heads:
        tensors = {f"{name}.{key}": value for name, head in heads.items() for key, value in head.state_dict().items()}
        save_file({key: value.contiguous() for key, value in tensors.items()}, fresh / HEADS)
    own = card.model_copy(update={"style": policy.style, "tap": policy.tap})
    (fresh / CARD).write_text(json.dumps(own.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():  # where it does not, a save was killed here, and `old` is all there is until the next line
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def without_bars() -> None:
    """Transformers shows none of its own progress bars: ours are enough."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def find_checkpoint(name: str) -> str:
    """A folder, the name of a checkpoint that is shipped, or else a name for the hub."""
    if name.startswith(PREFIX):
        raise ConfigError(f"{name}: a model behind a server has no weights here; want a folder or a hub id")
    if Path(name).is_dir():
        return name
    shipped = resources.files(SHIPPED) / name
    if "/" not in name and shipped.is_dir():
        return str(shipped)
    if "/" not in name or name.startswith((".", "/", "~")):
        known = sorted(p.name for p in resources.files(SHIPPED).iterdir() if p.is_dir() and not p.name.startswith("_"))
        also = f", or one of {', '.join(known)}" if known else ""
        raise ConfigError(f"no model {name!r}: want a folder, a hub id such as Qwen/Qwen3-VL-8B-Instruct{also}")
    return name


def weights_of(policy: str) -> str:
    """SHA-256 of a checkpoint's weights; of its name where they lie on the hub."""
    folder = Path(find_checkpoint(policy))
    digest = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest() if files else f"hub:{policy}"


def require_hub(name: str) -> None:
    """ConfigError at once where a model is not kept here and the hub is silent: libraries would try for a minute."""
    import httpx2
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    if HUB_ID.fullmatch(name) is None:
        raise ConfigError(f"no folder {name!r} here (has its training ended?), and no hub id has this form")
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except (httpx2.HTTPError, OSError) as error:
        raise ConfigError(f"{name}: not on this machine, and the hub does not answer ({error})") from error


def load_checkpoint(name: str, *, device: str = "cpu", dtype: torch.dtype | Literal["auto"] = torch.float32) -> Loaded:
    """Open a checkpoint by folder, shipped name or hub id; ConfigError in one line for whatever is wrong with it.

    `auto` is the precision in which it was saved.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText

    without_bars()
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("no GPU that torch can use here: want device=cpu, or a build of torch with CUDA")
    where = find_checkpoint(name)
    folder = Path(where)
    card = read_card(folder) if folder.is_dir() else Card(name=name)
    if not folder.is_dir():
        require_hub(name)
    try:
        tokens = Tokens.open(where)
        opened: Any = AutoModelForImageTextToText.from_pretrained(
            where,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            output_loading_info=True,
        )
        model, loading = opened
        heads = load_file(folder / HEADS) if (folder / HEADS).is_file() else {}
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{name}: the model cannot be opened ({reason_of(error, folder)})") from error
    if folder.is_dir() and tokens.tags_are_tokens and not (folder / CARD).exists():
        raise ConfigError(f"{name}: {CARD} is missing, without which nobody knows how this policy was taught to look")
    if lost := sorted(loading["missing_keys"]):  # transformers fills them at random and goes on
        raise ConfigError(f"{name}: {len(lost)} tensors are missing, the first {lost[0]}")
    if model.config.model_type != "qwen3_vl":
        raise ConfigError(f"{name} is a {model.config.model_type}: want the Qwen3-VL architecture (qwen3_vl)")
    policy = Policy(model, tokens, card.style, optics_of(folder, model), tap=card.tap).to(torch.device(device))
    return Loaded(policy.eval(), card, heads)


def reason_of(error: Exception, folder: Path) -> str:
    """Why a model cannot be opened, with the file to blame where a folder shows one; libraries seldom name it."""
    if folder.is_dir():
        for wanted in ("config.json", "tokenizer.json"):
            if not (folder / wanted).is_file():
                return f"it has no {wanted}"
        for path in sorted(folder.glob("*.json")):
            try:
                json.loads(path.read_bytes())
            except ValueError as broken:
                return f"{path.name} is damaged: {broken}"
        weights = sorted(folder.glob("*.safetensors"))
        if not weights:
            return "it has no weights (*.safetensors)"
        for path in weights:
            if problem := damage_of(path):
                return f"{path.name} is damaged: {problem}"
    return " ".join(str(error).split())[:300]


def damage_of(path: Path) -> str:
    """What is wrong with a file of tensors; empty where it can be opened."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            return ""
    except (SafetensorError, OSError) as error:
        return " ".join(str(error).split())[:200]


def read_card(folder: Path) -> Card:
    """The card of a folder; a model of somebody else has none and gets the defaults."""
    path = folder / CARD
    if not path.exists():
        return Card(name=folder.name)
    try:
        return Card.model_validate_json(path.read_bytes())
    except (ValidationError, ValueError) as error:
        raise ConfigError(f"{path}: not the card of a checkpoint ({first_problem(error)})") from error


def first_problem(error: ValueError) -> str:
    """What is wrong first, in a few words."""
    if not isinstance(error, ValidationError):
        return str(error).splitlines()[0]
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def optics_of(folder: Path, model: Any) -> Optics:
    """What the vision tower expects: sizes from the model itself, colours from the preprocessor where there is one."""
    vision = model.config.vision_config
    optics = Optics(vision.patch_size, vision.spatial_merge_size, vision.temporal_patch_size)
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return optics
    try:
        content = json.loads(path.read_bytes())
        mean, std = (tuple(float(v) for v in content.get(f"image_{key}", (0.5,) * 3)) for key in ("mean", "std"))
        least = int(content.get("size", {}).get("shortest_edge", 1))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: not a preprocessor's configuration ({error})") from error
    return optics._replace(mean=mean, std=std, least_pixels=least)  # type: ignore[arg-type]
