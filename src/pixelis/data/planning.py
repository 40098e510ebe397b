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
from pixelis.data.corpus_config import CorpusConfig
from pixelis.data.item_files import ItemFiles
from pixelis.data.shard import read_json
from pixelis.data.store import MANIFEST, Corpus
from pixelis.errors import ConfigError
from pixelis.rundir import write_json
from pixelis.tools.toolbox import build_tools
from pixelis.trace.schema import canonical_json

PACKAGE = Path(__file__).parents[1]
SOURCES = (
    "world/**/*.py", "data/splits.py", "data/solver.py", "data/teaching.py", "data/oracle*.py", "data/conclusions*.py",
    "data/tallies.py", "data/sums.py", "data/thoughts.py", "data/goals.py", "data/detours.py", "data/acceptance.py",
    "data/rights.py", "scoring/verify.py", "equations/acceptance.py", "trace/decisive.py",
)  # fmt: skip
"""The code that decides what a record holds: items, traces and verdicts. Tools have versions of their own."""
IN_WORDS = {"code": "the code that makes items"}
"""Parts of a plan that are no key of a configuration."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
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


def begin(config: CorpusConfig, folder: Path, items: ItemFiles) -> dict[str, Any]:
    """What the content will depend on, written down; ConfigError where the folder holds anything else."""
    tools = {name: tool.identity().model_dump() for name, tool in build_tools(config.toolbox).items()}
    content: dict[str, Any] = {
        "config": config.identity(), "pixelis": __version__, "code": code_digest(), "tools": tools,
    }  # fmt: skip
    if config.items:
        content["items"] = items.facts(folder)
    planned = json.loads(canonical_json(content))
    kept = folder / ".building" / "plan.json"
    if (folder / MANIFEST).exists():
        require_same(Corpus(folder).manifest.plan, planned, folder)
    elif kept.exists():
        require_same(read_json(kept, "plan"), planned, folder)
    else:
        strangers = sorted(p.name for p in folder.iterdir() if p.name not in (".lock", ".building"))
        if strangers:
            raise ConfigError(f"{folder} holds {strangers[0]!r} and is no corpus: choose an empty folder")
        write_json(kept, planned)
    return planned


@cache
def code_digest(package: Path = PACKAGE) -> str:
    """One name for the code that makes items: other code would go on with another corpus in the same folder."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in SOURCES for path in package.glob(pattern)}):
        digest.update(f"{path.relative_to(package).as_posix()} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def require_known(items: ItemFiles) -> None:
    """ConfigError with every template that the oracle cannot solve, before the first item is made."""
    from pixelis.data.oracle import knows

    unknown = Counter(entry.template for entry in items.entries if not knows(entry.template))
    if unknown:
        told = ", ".join(f"{name} ({count})" for name, count in sorted(unknown.items()))
        raise ConfigError(
            f"the oracle does not know the templates {told}: leave these items out, or have a VLM teach them "
            "(teacher.kind: vlm), or their answers alone (teacher.kind: answers; auto, where it knows others)"
        )


def require_same(before: Any, now: dict[str, Any], folder: Path) -> None:
    """A corpus has one plan from its first item to its last."""
    if before == now:
        return
    places = [IN_WORDS.get(at, at) for at in sorted(differences(before if isinstance(before, dict) else {}, now))]
    shown = ", ".join(places[:5]) + (" …" if len(places) > 5 else "")
    raise ConfigError(f"{folder} holds a corpus with another plan ({shown} differ): choose another folder")


def differences(a: Any, b: Any, at: str = "") -> Iterator[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from differences(a.get(key), b.get(key), f"{at}.{key}" if at else str(key))
    elif a != b:
        yield at
