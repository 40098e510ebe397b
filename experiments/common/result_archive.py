"""Finished parts of a comparison as small archives beside its table, so that another machine can continue from them.

A part is hours of work and a few kilobytes of scores. Its archive holds a fingerprint of what the scores depend on; if
that differs (other weights, settings or questions), the archive is ignored and the part is run again.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic import ValidationError

from pixelis.core.atomic import write_atomic
from pixelis.core.config import Config
from pixelis.core.errors import ConfigError
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member

FINGERPRINT = "made_of.json"
TABLE = "table.json"
UNKNOWN = "unknown here"
"""Stands for a fact that is not available, such as the questions of a missing corpus; it matches any value."""
MAX_BYTES = 2**26
"""Of one file of an archive."""
Fingerprint = Mapping[str, Any]
"""Facts that scores depend on: JSON values and `ConfigFact`s."""


class ConfigFact(NamedTuple):
    """A configuration in a fingerprint. It is compared by validation, so that archives from before a key was renamed or
    added still match."""

    config: Config
    exclude: frozenset[str]
    """Keys that do not affect the scores."""

    def dump(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json", exclude=set(self.exclude))

    def matches(self, stored: Any) -> bool:
        excluded = self.config.model_dump(mode="json", include=set(self.exclude))
        try:
            config = type(self.config).model_validate({**excluded, **stored})
        except (TypeError, ValidationError):
            return False
        return ConfigFact(config, self.exclude).dump() == self.dump()


def archive_part(
    folder: Path,
    archive: Path,
    files: Sequence[str],
    fingerprint: Fingerprint,
    *,
    shorten: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({}),
) -> None:
    """Write the given files of a part's folder, if present, into an archive; equal content gives equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as zip_file:
        add_member(zip_file, FINGERPRINT, canonical_json(fingerprint), zipfile.ZIP_DEFLATED)
        for name in files:
            if (folder / name).exists():
                content = (folder / name).read_bytes()
                add_member(zip_file, name, shorten[name](content) if name in shorten else content, zipfile.ZIP_DEFLATED)
    write_atomic(archive, buffer.getvalue())


def read_fingerprint(archive: Path) -> bytes:
    with zipfile.ZipFile(archive) as zip_file:
        return read_member(zip_file, FINGERPRINT, max_bytes=MAX_BYTES)


def restore_part(folder: Path, archive: Path, files: Sequence[str], fingerprint: Fingerprint) -> bool:
    """Restore a part's files from its archive; False if there is none with this fingerprint."""
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
        raise ConfigError(f"{archive} is damaged ({error}); delete it to run its part again") from None
    for name, content in contents.items():
        write_atomic(folder / name, content)
    write_atomic(folder / FINGERPRINT, stored_fingerprint)
    return True


def choose_table_folder(results: Path, work: Path, table: Mapping[str, Any], log: Callable[[str], None]) -> Path | None:
    """The folder for a table and its figures: `results`, or None if it has the same table, or `work` if the table there
    has more variants or seeds."""
    try:
        old = json.loads((results / TABLE).read_bytes())
        old_counts = count_seeds(old["rows"])
        unchanged = all(old[key] == json.loads(json.dumps(table[key])) for key in ("config", "rows", "pairs"))
    except (OSError, ValueError, KeyError, TypeError):  # no table yet, or another format
        return results
    if unchanged:
        log(f"{results} has the same table already")
        return None
    new_counts = count_seeds(table["rows"])
    lost = [
        name for name, counts in old_counts.items()
        if any(new_count < old_count for new_count, old_count in zip(new_counts.get(name, (0, 0)), counts, strict=True))
    ]  # fmt: skip
    if not lost:
        return results
    log(f"{results} has more of {', '.join(lost)} than is here: it is kept, and this table goes to {work}")
    return work


def count_seeds(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Seeds of each variant, and how many of them were asked the held-out questions."""
    return {row["variant"]: (row["seeds"], (row.get("held_out") or {}).get("seeds", 0)) for row in rows}


def write_fingerprint(folder: Path, fingerprint: Fingerprint) -> None:
    """Write a part's fingerprint: the last file of a finished part."""
    write_atomic(folder / FINGERPRINT, canonical_json(fingerprint))


def is_finished(folder: Path, fingerprint: Fingerprint) -> bool:
    """Whether a part is finished here; ConfigError if its fingerprint differs."""
    if not (folder / FINGERPRINT).exists():
        return False
    if not matches_fingerprint((folder / FINGERPRINT).read_bytes(), fingerprint):
        raise ConfigError(f"{folder} is of other weights, settings or questions; delete it, or give another folder")
    return True


def matches_fingerprint(stored_fingerprint: bytes, fingerprint: Fingerprint) -> bool:
    """Whether a stored fingerprint agrees with this one in every fact that is known."""
    try:
        stored = json.loads(stored_fingerprint)
    except ValueError:
        return False
    if not isinstance(stored, dict) or stored.keys() != fingerprint.keys():
        return False
    plain = {key: value for key, value in fingerprint.items() if value != UNKNOWN and not isinstance(value, ConfigFact)}
    configs = {key: value for key, value in fingerprint.items() if isinstance(value, ConfigFact)}
    return canonical_json(plain) == canonical_json({key: stored[key] for key in plain}) and all(
        fact.matches(stored[key]) for key, fact in configs.items()
    )


def canonical_json(fingerprint: Fingerprint) -> bytes:
    values = {key: value.dump() if isinstance(value, ConfigFact) else value for key, value in fingerprint.items()}
    return json.dumps(values, sort_keys=True, indent=1).encode()
