"""Finished parts of a comparison as small archives beside its table, so that another machine goes on from them.

A part is hours of work and a few kilobytes of scores. Its archive says what it was made of; one that was made of
something else (other weights, settings or questions) is left alone, and the part is run again.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pixelis.core.errors import ConfigError
from pixelis.core.provenance import write_atomic
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member

FINGERPRINT = "made_of.json"
TABLE = "table.json"
UNKNOWN = "unknown here"
"""In place of what cannot be told, such as the questions of a corpus that is not here: whatever a part has is right."""
MAX_BYTES = 2**26
"""Of one file of an archive."""


def archive_part(
    folder: Path,
    archive: Path,
    files: Sequence[str],
    fingerprint: Mapping[str, Any],
    *,
    shorten: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({}),
) -> None:
    """These files of a part's folder, those that it has, some of them shortened, in one archive; equal content gives
    equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zip_file:
        add_member(zip_file, FINGERPRINT, canonical_json(fingerprint), zipfile.ZIP_DEFLATED)
        for name in files:
            if (folder / name).exists():
                content = (folder / name).read_bytes()
                add_member(zip_file, name, shorten[name](content) if name in shorten else content, zipfile.ZIP_DEFLATED)
    write_atomic(archive, buffer.getvalue())


def restore_part(folder: Path, archive: Path, files: Sequence[str], fingerprint: Mapping[str, Any]) -> bool:
    """Lay a part's files into its folder again; whether there was an archive that was made of the same."""
    if not archive.exists():
        return False
    try:
        with zipfile.ZipFile(archive) as zip_file:
            stored_fingerprint = read_member(zip_file, FINGERPRINT, max_bytes=MAX_BYTES)
            if not matches_fingerprint(stored_fingerprint, fingerprint):
                return False
            members = set(zip_file.namelist())
            contents = {name: read_member(zip_file, name, max_bytes=MAX_BYTES) for name in files if name in members}
    except (OSError, *DAMAGED_ZIP) as error:
        raise ConfigError(f"{archive} is damaged ({error}): delete it, and its part is run again") from None
    for name, content in contents.items():
        write_atomic(folder / name, content)
    write_atomic(folder / FINGERPRINT, stored_fingerprint)
    return True


def choose_table_folder(results: Path, work: Path, table: Mapping[str, Any], log: Callable[[str], None]) -> Path | None:
    """Where a table and its figures go: `results`, None where it says what is there already, and the folder of the runs
    where it would take the place of one with more variants or seeds."""
    try:
        old = json.loads((results / TABLE).read_bytes())
        old_counts = count_seeds(old["rows"])
        unchanged = all(old[key] == json.loads(json.dumps(table[key])) for key in ("config", "rows", "pairs"))
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or none of ours
        return results
    if unchanged:
        log(f"{results} says the same already")
        return None
    new_counts = count_seeds(table["rows"])
    lost = [
        name for name, counts in old_counts.items()
        if any(new_count < old_count for new_count, old_count in zip(new_counts.get(name, (0, 0)), counts, strict=True))
    ]  # fmt: skip
    if not lost:
        return results
    log(f"{results} has more of {', '.join(lost)} than is here: it stays, and this table goes to {work}")
    return work


def count_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each variant its seeds, and those that were asked held-out questions, where that is told apart."""
    return {row["variant"]: (row["seeds"], (row.get("held_out") or {}).get("seeds", 0)) for row in rows}


def write_fingerprint(folder: Path, fingerprint: Mapping[str, Any]) -> None:
    """Say what a part is made of: where it ends by this, the last file that is written."""
    write_atomic(folder / FINGERPRINT, canonical_json(fingerprint))


def is_finished(folder: Path, fingerprint: Mapping[str, Any]) -> bool:
    """Whether a part has ended here; ConfigError where it was made of something else."""
    if not (folder / FINGERPRINT).exists():
        return False
    if not matches_fingerprint((folder / FINGERPRINT).read_bytes(), fingerprint):
        raise ConfigError(f"{folder} is of other weights, settings or questions: delete it, or give another folder")
    return True


def matches_fingerprint(stored_fingerprint: bytes, fingerprint: Mapping[str, Any]) -> bool:
    """Whether a part's signature is that of these things, as far as they are known."""
    try:
        stored = json.loads(stored_fingerprint)
    except ValueError:
        return False
    if not isinstance(stored, dict):
        return False
    expected = {key: stored.get(key) if value == UNKNOWN else value for key, value in fingerprint.items()}
    return canonical_json(expected) == canonical_json(stored)


def canonical_json(fingerprint: Mapping[str, Any]) -> bytes:
    return json.dumps(fingerprint, sort_keys=True, indent=1).encode()
