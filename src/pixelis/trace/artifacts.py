"""The folder of artifacts beside a trace file. Files are named by the hash of their content and by nothing else."""

from __future__ import annotations

import hashlib
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pixelis.core.atomic import write_atomic
from pixelis.core.errors import TraceError
from pixelis.tools.results import Artifact
from pixelis.trace.schema import Trace

IMAGE_EXTENSIONS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp"}
EXTENSIONS = {**IMAGE_EXTENSIONS, "application/json": "json", "text/plain": "txt"}
DAMAGED_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError, RuntimeError, KeyError)
"""What the standard library raises for a damaged archive."""


def artifact_folder(trace_path: Path) -> Path:
    return trace_path.parent / f"{trace_path.stem}.artifacts"


def artifact_path(trace_path: Path, artifact: Artifact) -> Path:
    """The path of an artifact. Its name, which may be hostile, is not part of it."""
    if not re.fullmatch(r"[0-9a-f]{64}", artifact.sha256):
        raise TraceError(f"artifact {artifact.name!r} has an identity that is not a SHA-256: {artifact.sha256[:80]!r}")
    extension = EXTENSIONS.get(artifact.media_type, "bin")
    return artifact_folder(trace_path) / artifact.sha256[:2] / f"{artifact.sha256}.{extension}"


def read_artifact(trace_path: Path, artifact: Artifact) -> bytes | None:
    """The artifact's bytes; None if they are missing or differ from the recorded ones."""
    file = artifact_path(trace_path, artifact)
    return None if describe_artifact_problem(artifact, file) else file.read_bytes()


def describe_artifact_problem(artifact: Artifact, file: Path) -> str | None:
    """What is wrong with an artifact's file, as the end of a sentence."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a pipe would block for ever
            return f"is not a plain file ({file})"
        if status.st_size != artifact.size_bytes:
            return f"was changed: it has {status.st_size} bytes, not {artifact.size_bytes} ({file})"
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return f"is missing ({file})"
    except OSError as error:
        return f"cannot be read ({error.strerror}: {file})"
    return None if digest == artifact.sha256 else f"was changed: its content no longer has the recorded hash ({file})"


@contextmanager
def write_artifacts(trace: Trace, trace_path: Path, blobs: Mapping[str, bytes]) -> Iterator[None]:
    """Write the artifacts that are missing; remove them again if the body fails."""
    written: list[Path] = []
    try:
        for number, artifact in trace.artifacts:
            file = artifact_path(trace_path, artifact)
            if describe_artifact_problem(artifact, file) is None:
                continue
            content = blobs.get(artifact.sha256)
            if content is None:
                raise TraceError(f"step {number}: the bytes of artifact {artifact.name} are missing")
            if hashlib.sha256(content).hexdigest() != artifact.sha256 or len(content) != artifact.size_bytes:
                raise TraceError(f"step {number}: the bytes of artifact {artifact.name} are not the recorded ones")
            written.append(file)
            write_atomic(file, content)
        yield
    except BaseException:
        for file in written:
            remove_with_empty_folders(file)
        raise


def add_member(archive: zipfile.ZipFile, name: str, content: bytes, compression: int) -> None:
    """Add a member without time or machine, so that equal content gives equal archives."""
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system, info.external_attr, info.compress_type = 3, 0o644 << 16, compression
    archive.writestr(info, content, compresslevel=6 if compression == zipfile.ZIP_DEFLATED else None)


def read_member(archive: zipfile.ZipFile, name: str, *, max_bytes: int) -> bytes:
    """A member's bytes; ValueError, before anything is read, if it states more than `max_bytes`."""
    info = archive.getinfo(name)
    if info.file_size > max_bytes:
        raise ValueError(f"{name} states {info.file_size} bytes; at most {max_bytes} are read")
    with archive.open(info) as stream:
        content = stream.read(info.file_size + 1)
    if len(content) != info.file_size:
        raise ValueError(f"{name} does not have the length that it states")
    return content


def remove_with_empty_folders(file: Path) -> None:
    with suppress(OSError):
        file.unlink(missing_ok=True)
        file.parent.rmdir()
        file.parent.parent.rmdir()
