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

from pixelis.errors import ConfigError
from pixelis.rundir import write_whole
from pixelis.trace.artifacts import DAMAGED_ZIP, add_member, read_member

MADE_OF = "made_of.json"
TABLE = "table.json"
UNKNOWN = "unknown here"
"""In place of what cannot be told, such as the questions of a corpus that is not here: whatever a part has is right."""
MOST_BYTES = 2**26
"""Of one file of an archive."""


def keep_part(
    folder: Path,
    archive: Path,
    files: Sequence[str],
    made_of: Mapping[str, Any],
    *,
    shorten: Mapping[str, Callable[[bytes], bytes]] = MappingProxyType({}),
) -> None:
    """These files of a part's folder, those that it has, some of them shortened, in one archive; equal content gives
    equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        add_member(packed, MADE_OF, canonical(made_of), zipfile.ZIP_DEFLATED)
        for name in files:
            if (folder / name).exists():
                content = (folder / name).read_bytes()
                add_member(packed, name, shorten[name](content) if name in shorten else content, zipfile.ZIP_DEFLATED)
    write_whole(archive, out.getvalue())


def restore_part(folder: Path, archive: Path, files: Sequence[str], made_of: Mapping[str, Any]) -> bool:
    """Lay a part's files into its folder again; whether there was an archive that was made of the same."""
    if not archive.exists():
        return False
    try:
        with zipfile.ZipFile(archive) as packed:
            signature = read_member(packed, MADE_OF, most=MOST_BYTES)
            if not made_of_this(signature, made_of):
                return False
            held = set(packed.namelist())
            found = {name: read_member(packed, name, most=MOST_BYTES) for name in files if name in held}
    except (OSError, *DAMAGED_ZIP) as error:
        raise ConfigError(f"{archive} is damaged ({error}): delete it, and its part is run again") from None
    for name, content in found.items():
        write_whole(folder / name, content)
    write_whole(folder / MADE_OF, signature)
    return True


def place_of_table(results: Path, work: Path, table: Mapping[str, Any], say: Callable[[str], None]) -> Path | None:
    """Where a table and its figures go: `results`, None where it says what is there already, and the folder of the runs
    where it would take the place of one with more variants or seeds."""
    try:
        old = json.loads((results / TABLE).read_bytes())
        seeds = counts_of(old["rows"])
        same = all(old[key] == json.loads(json.dumps(table[key])) for key in ("config", "rows", "pairs"))
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or none of ours
        return results
    if same:
        say(f"{results} says the same already")
        return None
    own = counts_of(table["rows"])
    lost = [
        name for name, counts in seeds.items()
        if any(now < then for now, then in zip(own.get(name, (0, 0)), counts, strict=True))
    ]  # fmt: skip
    if not lost:
        return results
    say(f"{results} has more of {', '.join(lost)} than is here: it stays, and this table goes to {work}")
    return work


def counts_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Of each variant its seeds, and those that were asked held-out questions, where that is told apart."""
    return {row["variant"]: (row["seeds"], (row.get("held_out") or {}).get("seeds", 0)) for row in rows}


def sign_part(folder: Path, made_of: Mapping[str, Any]) -> None:
    """Say what a part is made of: where it ends by this, the last file that is written."""
    write_whole(folder / MADE_OF, canonical(made_of))


def has_ended(folder: Path, made_of: Mapping[str, Any]) -> bool:
    """Whether a part has ended here; ConfigError where it was made of something else."""
    if not (folder / MADE_OF).exists():
        return False
    if not made_of_this((folder / MADE_OF).read_bytes(), made_of):
        raise ConfigError(f"{folder} is of other weights, settings or questions: delete it, or give another folder")
    return True


def made_of_this(signature: bytes, made_of: Mapping[str, Any]) -> bool:
    """Whether a part's signature is that of these things, as far as they are known."""
    try:
        found = json.loads(signature)
    except ValueError:
        return False
    if not isinstance(found, dict):
        return False
    known = {key: found.get(key) if value == UNKNOWN else value for key, value in made_of.items()}
    return canonical(known) == canonical(found)


def canonical(made_of: Mapping[str, Any]) -> bytes:
    return json.dumps(made_of, sort_keys=True, indent=1).encode()
