"""What a build will depend on, written down before it begins, and held against what a folder holds already."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pixelis import __version__
from pixelis.core.errors import ConfigError
from pixelis.core.provenance import write_json
from pixelis.data.corpus.corpus import MANIFEST, Corpus
from pixelis.data.corpus.corpus_config import CorpusConfig
from pixelis.data.corpus.item_files import ItemFiles
from pixelis.data.corpus.shard import read_json
from pixelis.tools.toolbox import build_tools
from pixelis.trace.schema import canonical_json

PACKAGE = Path(__file__).parents[1]
SOURCE_PATTERNS = (
    "world/**/*.py", "data/splits.py", "data/solver.py", "data/teaching.py", "data/oracle*.py", "data/conclusions*.py",
    "data/tallies.py", "data/sums.py", "data/thoughts.py", "data/goals.py", "data/detours.py", "data/acceptance.py",
    "data/rights.py", "scoring/verify.py", "equations/acceptance.py", "trace/decisive.py",
)  # fmt: skip
"""The code that decides what a record holds: items, traces and verdicts. Tools have versions of their own."""
KEY_DESCRIPTIONS = {"code": "the code that makes items"}
"""Parts of a plan that are no key of a configuration."""


@contextmanager
def build_lock(folder: Path) -> Iterator[None]:
    """One build a folder. The kernel lets go of the lock when the process ends, however it ends."""
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
    """What the content will depend on, written down; ConfigError where the folder holds anything else."""
    tools = {name: tool.identity().model_dump() for name, tool in build_tools(config.toolbox).items()}
    content: dict[str, Any] = {
        "config": config.identity(), "pixelis": __version__, "code": code_digest(), "tools": tools,
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
            raise ConfigError(f"{folder} holds {unexpected[0]!r} and is no corpus: choose an empty folder")
        write_json(plan_path, plan)
    return plan


@cache
def code_digest(package: Path = PACKAGE) -> str:
    """One name for the code that makes items: other code would go on with another corpus in the same folder."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in SOURCE_PATTERNS for path in package.glob(pattern)}):
        digest.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def require_known_templates(items: ItemFiles) -> None:
    """ConfigError with every template that the oracle cannot solve, before the first item is made."""
    from pixelis.data.teachers.oracle.oracle import can_solve

    unknown = Counter(entry.template for entry in items.entries if not can_solve(entry.template))
    if unknown:
        listing = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        raise ConfigError(
            f"the oracle does not know the templates {listing}: leave these items out, or have a VLM teach them "
            "(teacher.kind: vlm), or their answers alone (teacher.kind: answers; auto, where it knows others)"
        )


def require_same_plan(recorded: Any, current: dict[str, Any], folder: Path) -> None:
    """A corpus has one plan from its first item to its last."""
    if recorded == current:
        return
    keys = [
        KEY_DESCRIPTIONS.get(key, key)
        for key in sorted(differing_keys(recorded if isinstance(recorded, dict) else {}, current))
    ]
    listing = ", ".join(keys[:5]) + (" …" if len(keys) > 5 else "")
    raise ConfigError(f"{folder} holds a corpus with another plan ({listing} differ): choose another folder")


def differing_keys(a: Any, b: Any, prefix: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from differing_keys(a.get(key), b.get(key), f"{prefix}.{key}" if prefix else str(key))
    elif a != b:
        yield prefix
