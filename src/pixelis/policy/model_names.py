"""From the name of a model to its weights: a folder, an embedded checkpoint, or a Hugging Face hub id."""

from __future__ import annotations

import difflib
import hashlib
import re
from importlib import resources
from pathlib import Path

from pixelis.core.errors import ConfigError

DEFAULT_MODEL = "nano-rft"
"""The checkpoint that the wheel holds."""
SERVER_PREFIX = "openai:"
"""Prefix of the names of models behind a server: openai:URL#name."""
HUB_TIMEOUT_S = 5.0
HUB_ID = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
EMBEDDED_PACKAGE = "pixelis.nano.checkpoints"
"""The package that holds the checkpoints of the wheel."""
CLONE_CHECKPOINTS = Path(__file__).resolve().parents[3] / "checkpoints"
"""Checkpoints for experiments, which only a clone has."""
FORMER_NAMES = {"nano-winding": "nano-sft-verbose"}
"""Names of earlier releases, which configurations and archives still hold."""


def find_checkpoint(name: str) -> str:
    """The folder of a checkpoint, or the name itself if it can only be a hub id."""
    if name.startswith(SERVER_PREFIX):
        raise ConfigError(f"{name}: a model behind a server has no weights here; want a folder or a hub id")
    if Path(name).is_dir():
        return name
    embedded = embedded_checkpoints()
    if (current := FORMER_NAMES.get(name, name)) in embedded:
        return str(embedded[current])
    if "/" not in name or name.startswith((".", "/", "~")):
        similar = difflib.get_close_matches(name, embedded, n=1)
        hint = f" (did you mean {similar[0]!r}?)" if similar else ""
        known = ", ".join(embedded)
        raise ConfigError(
            f"no model {name!r}{hint}: want a folder, a hub id such as Qwen/Qwen3-VL-8B-Instruct, or one of {known}"
        )
    return name


def embedded_checkpoints() -> dict[str, Path]:
    """Folders of the checkpoints in the package, and in a clone of those for experiments, by name."""
    roots = [Path(str(resources.files(EMBEDDED_PACKAGE))), CLONE_CHECKPOINTS]
    folders = [folder for root in roots if root.is_dir() for folder in root.iterdir()]
    return {path.name: path for path in sorted(folders, key=lambda path: path.name) if (path / "config.json").is_file()}


def hash_weights(name: str) -> str:
    """SHA-256 of a checkpoint's weights; of a hub model only its name."""
    folder = Path(find_checkpoint(name))
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest() if files else f"hub:{name}"


def require_hub_access(name: str) -> None:
    """ConfigError at once if a model is not cached here and the hub does not answer: libraries would retry for a
    minute."""
    import httpx2
    from huggingface_hub import constants, get_session, try_to_load_from_cache

    if HUB_ID.fullmatch(name) is None:
        raise ConfigError(
            f"no folder {name!r} here (has its training ended?), and it does not have the form of a hub id"
        )
    if isinstance(try_to_load_from_cache(name, "config.json"), str):
        return
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_TIMEOUT_S)
    except (httpx2.HTTPError, OSError) as error:
        raise ConfigError(f"{name}: not on this machine, and the hub does not answer ({error})") from error
