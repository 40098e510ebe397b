"""Traces on disk: one JSON line for each, and beside the file a folder of artifacts named by their content.

`runs/a.jsonl` has its artifacts in `runs/a.artifacts/ab/ab12….png`. Artifacts are written first, then the line, under
one lock, so that a line never names a missing file. A failed write (full disk, crash) leaves the earlier lines intact.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pydantic import ValidationError

from pixelis.core.atomic import atomic_write
from pixelis.core.errors import TraceError, validation_problem
from pixelis.tools.results import Artifact
from pixelis.trace.artifacts import artifact_path, describe_artifact_problem, write_artifacts
from pixelis.trace.schema import VERSION, Trace, canonical_json, verify, verify_record

MAX_LINE_BYTES = 64 * 2**20
"""Longer lines are neither read nor written: a trace holds hashes of large data, not the data."""
FIRST_BYTES = b'{"answer"'
"""Every trace file begins so, since keys are sorted."""


class ArtifactProblem(NamedTuple):
    """An artifact that differs from its record."""

    step: int
    artifact: Artifact
    reason: str


def append(trace: Trace, path: Path | str, blobs: Mapping[str, bytes]) -> None:
    """Append one trace to a file, which is created if missing.

    A last line that a crash truncated is removed first; one that only lacks its newline gets it.
    """
    path = Path(path)
    line = encode(trace)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(path) as (descriptor, created):
            try:
                repair_tail(descriptor, path)
                with write_artifacts(trace, path, blobs):
                    write_at_end(descriptor, line)
            except BaseException:
                if created:
                    path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise TraceError(f"{path}: the trace could not be written ({error.strerror}); nothing was added") from error


def write(traces: Iterable[Trace], path: Path | str, blobs: Mapping[str, bytes]) -> None:
    """Write a whole file: it holds all of the traces, or stays as it was."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            if path.exists():
                descriptor, _ = stack.enter_context(lock_file(path))
                require_trace_file(descriptor, path)
            lines = []
            for trace in traces:
                stack.enter_context(write_artifacts(trace, path, blobs))
                lines.append(encode(trace))
            with atomic_write(path) as file:
                file.writelines(lines)
    except OSError as error:
        raise TraceError(f"{path}: the traces could not be written ({error.strerror}); nothing was changed") from error


def check_target(path: Path) -> None:
    """TraceError if a trace cannot be written here, before the work that would be lost."""
    if path.is_dir() or (path.exists() and not path.is_file()):
        raise TraceError(f"{path} is not a file")
    try:
        if path.exists():
            with path.open("r+b") as file:
                require_trace_file(file.fileno(), path)
        elif not os.access(next(p for p in path.absolute().parents if p.exists()), os.W_OK):
            raise TraceError(f"{path} cannot be written: its folder is not writable")
    except OSError as error:
        raise TraceError(f"{path} cannot be written ({error.strerror})") from error


def read(path: Path | str, *, check_artifacts: bool = True) -> Iterator[Trace]:
    """Iterate over the verified traces of a file; TraceError with `file:line` for one that is damaged."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            length = locked_length(file)
            number = 0
            while file.tell() < length:
                number += 1
                line = file.readline(min(MAX_LINE_BYTES + 1, length - file.tell()))
                if not line.strip():
                    continue
                try:
                    trace = decode(line)
                    if check_artifacts:
                        require_artifacts(trace, path)
                except TraceError as error:
                    raise TraceError(f"{path}:{number}: {error}") from error
                yield trace
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})") from error


def encode(trace: Trace) -> bytes:
    """The line of a trace, after a last verification."""
    verify(trace)
    line = canonical_json(trace.model_dump(mode="json")) + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise TraceError(f"trace {trace.id} takes {len(line)} bytes; a line holds at most {MAX_LINE_BYTES}")
    return line


def decode(line: bytes) -> Trace:
    """A trace from its line; chain and seal are checked on the record before it is validated."""
    if len(line) > MAX_LINE_BYTES:
        raise TraceError(f"the line has over {MAX_LINE_BYTES} bytes, more than any trace")
    record = parse(line)
    version = record.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise TraceError("not a trace: it has no version")
    if version > VERSION:
        raise TraceError(f"trace version {version}, this build reads up to {VERSION}; update pixelis")
    verify_record(record)
    if canonical_json(record) != line.rstrip(b"\n"):
        raise TraceError("the line is not in canonical form (spaces, key order or number format were changed)")
    try:
        return Trace.model_validate(record)
    except ValidationError as error:
        raise TraceError(f"not a trace: {validation_problem(error)}") from error


def parse(line: bytes) -> dict[str, Any]:
    cut_off = "" if line.endswith(b"\n") else "; the line is truncated, and the next append removes it"
    try:
        text = line.decode("utf-8")
        record = json.loads(text, object_pairs_hook=reject_duplicate_keys, parse_constant=reject_constant)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise TraceError(f"not JSON ({reason}){cut_off}") from error
    if not isinstance(record, dict):
        raise TraceError(f"not a trace: a {type(record).__name__}, not an object")
    return record


def reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key occurs twice")
    return record


def reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def artifact_problems(trace: Trace, path: Path | str) -> list[ArtifactProblem]:
    """The artifacts that are missing or changed, with their steps."""
    checked = ((k, a, describe_artifact_problem(a, artifact_path(Path(path), a))) for k, a in trace.artifacts)
    return [ArtifactProblem(k, a, reason) for k, a, reason in checked if reason is not None]


def require_artifacts(trace: Trace, path: Path) -> None:
    for problem in artifact_problems(trace, path):
        tool = trace.steps[problem.step - 1].call.tool
        raise TraceError(f"step {problem.step} ({tool}): artifact {problem.artifact.name} {problem.reason}")


@contextmanager
def lock_file(path: Path) -> Iterator[tuple[int, bool]]:
    """Open a file for appending and lock it; also whether it is new."""
    while True:
        created = not path.exists()
        if not created and not path.is_file():
            raise TraceError(f"{path} is not a file")
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # another writer may have replaced the file, or removed an empty one, while this one waited
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                yield descriptor, created and os.fstat(descriptor).st_size == 0
                return
        finally:
            os.close(descriptor)


def write_at_end(descriptor: int, line: bytes) -> None:
    """Write all of the line or nothing."""
    old_size = os.fstat(descriptor).st_size
    try:
        written = os.write(descriptor, line)
        if written != len(line):
            os.write(descriptor, line[written:])  # raises the reason: a full disk accepts a part first
            if os.fstat(descriptor).st_size != old_size + len(line):
                raise OSError(0, "the disk accepted only a part of it")
        os.fsync(descriptor)
    except BaseException:
        os.ftruncate(descriptor, old_size)
        raise


def repair_tail(descriptor: int, path: Path) -> None:
    """Make the file end with a newline: complete a whole trace, remove a truncated one."""
    require_trace_file(descriptor, path)
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return
    start = last_line_start(descriptor, size)
    try:
        decode(os.pread(descriptor, min(size - start, MAX_LINE_BYTES + 1), start))
    except TraceError:
        os.ftruncate(descriptor, start)
    else:
        write_at_end(descriptor, b"\n")


def require_trace_file(descriptor: int, path: Path) -> None:
    """TraceError for a file that holds something else, such as a photograph named by mistake."""
    start = os.pread(descriptor, len(FIRST_BYTES), 0)
    if start != FIRST_BYTES[: len(start)]:
        raise TraceError(f"{path} exists and is not a trace file: nothing was written")


def last_line_start(descriptor: int, size: int, block: int = 1 << 16) -> int:
    """The offset after the last newline."""
    end = size
    while end > 0:
        start = max(end - block, 0)
        newline = os.pread(descriptor, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def locked_length(file: BinaryIO) -> int:
    """Size of the file while no writer holds the lock, so that a reader never sees half of a line."""
    with suppress(OSError):  # some file systems have no locks
        fcntl.flock(file, fcntl.LOCK_SH)
    length = os.fstat(file.fileno()).st_size
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
    return length
