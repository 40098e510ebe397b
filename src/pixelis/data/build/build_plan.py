"""The plan of a build: everything that its content depends on, written before the first item and compared on resume."""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pixelis import __version__
from pixelis.core.config import with_current_names
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import write_json
from pixelis.data.corpus.corpus import MANIFEST, Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.item_files import ItemFiles
from pixelis.data.corpus.shard import read_json
from pixelis.tools.toolbox import build_tools
from pixelis.trace.schema import canonical_json

GENERATOR_VERSION = 1
"""Version of the code that makes items, demonstrations and verdicts: the world, the oracle and the acceptance checks.

Raise it whenever the same configuration, seed and tools give different records. A build then refuses to resume a corpus
of the previous version instead of mixing the two. Tools have versions of their own in the plan."""
VERSION_BY_DIGEST = {"1bd8a72d793c91fa79ec090f75b7b04ebc0a35f7e2ab1bedbd08f5ed18868c6e": 1}
"""Generator versions by the digest of source files that older plans record under `code`."""
KEY_DESCRIPTIONS = {"generator": "the version of the item generator"}
"""Parts of a plan that are not configuration keys."""


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """One build per folder. The kernel releases the lock when the process ends."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "another"
            raise ConfigError(f"{folder} is being built by process {owner}: wait for it, or choose a folder") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def prepare_plan(config: CorpusConfig, folder: Path, items: ItemFiles) -> dict[str, Any]:
    """The plan, written into the folder; ConfigError if the folder holds anything else."""
    tools = {name: tool.identity().model_dump() for name, tool in build_tools(config.toolbox).items()}
    content: dict[str, Any] = {
        "config": config.identity(), "pixelis": __version__, "generator": GENERATOR_VERSION, "tools": tools,
    }  # fmt: skip
    if config.items:
        content["items"] = items.facts(folder)
    plan = json.loads(canonical_json(content))
    plan_path = folder / ".building" / "plan.json"
    if (folder / MANIFEST).exists():
        require_same_plan(Corpus(folder).manifest.plan, plan, folder)
    elif plan_path.exists():
        require_same_plan(read_json(plan_path, "plan"), plan, folder)
    else:
        unexpected = sorted(p.name for p in folder.iterdir() if p.name not in (".lock", ".building"))
        if unexpected:
            raise ConfigError(f"{folder} holds {unexpected[0]!r} and is not a corpus: choose an empty folder")
        write_json(plan_path, plan)
    return plan


def upgrade_plan(plan: Any) -> dict[str, Any]:
    """A recorded plan in the current form; one that names unknown generator code equals no current plan."""
    current = dict(plan) if isinstance(plan, dict) else {}
    if isinstance(current.get("config"), dict):
        current["config"] = with_current_names(CorpusConfig, current["config"])
    if "code" in current:
        digest = current.pop("code")
        current["generator"] = VERSION_BY_DIGEST.get(digest, digest)
    return current


def require_known_templates(items: ItemFiles) -> None:
    """ConfigError with every template that the oracle cannot solve."""
    from pixelis.data.teachers.oracle.oracle import can_solve

    unknown = Counter(entry.template for entry in items.entries if not can_solve(entry.template))
    if unknown:
        listing = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        raise ConfigError(
            f"the oracle does not know the templates {listing}: leave these items out, or use a VLM (teacher.kind: vlm)"
            " or their answers alone (teacher.kind: answers, or auto to keep the oracle for the others)"
        )


def require_same_plan(recorded: Any, current: dict[str, Any], folder: Path) -> None:
    """ConfigError, naming the keys that differ, unless both plans are equal."""
    keys = [KEY_DESCRIPTIONS.get(key, key) for key in sorted(differing_keys(upgrade_plan(recorded), current))]
    if keys:
        listing = ", ".join(keys[:5]) + (" …" if len(keys) > 5 else "")
        raise ConfigError(f"{folder} holds a corpus with another plan ({listing} differ): choose another folder")


def differing_keys(a: Any, b: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from differing_keys(a.get(key), b.get(key), f"{prefix}.{key}" if prefix else str(key))
    elif a != b:
        yield prefix
