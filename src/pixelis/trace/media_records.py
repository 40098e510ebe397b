"""Media to records, and records back to the identical medium, or the reason why not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pixelis.core.errors import MediaError, TraceError
from pixelis.media import Clip, MediaSet, Medium, open_media
from pixelis.trace.schema import MediaRecord, Trace


def record_media(media: MediaSet, beside: Path | None = None) -> tuple[MediaRecord, ...]:
    """Records of the media of a query; paths are relative to the trace file `beside`."""
    return tuple(
        MediaRecord(
            name=name,
            kind=medium.kind,
            sha256=medium.sha256,
            width=medium.size.width,
            height=medium.size.height,
            frame_count=medium.frame_count,
            duration_s=medium.duration_s,
            fps=round(medium.fps, 9) if isinstance(medium, Clip) else None,
            path=path_hint(medium.path, beside) if medium.path else None,
        )
        for name, medium in zip(media.names, media.sources, strict=False)
    )


def path_hint(path: Path, beside: Path | None) -> str:
    path = path.resolve()
    folder = beside.resolve().parent if beside else None
    if folder is None or len(Path(os.path.commonpath([path, folder])).parts) < 2:
        return str(path)  # they share only the root
    return os.path.relpath(path, folder)


def resolve_media(record: MediaRecord, trace_path: Path | None, overrides: Sequence[Path] = ()) -> Medium:
    """The medium with a record's hash: one of the overrides, else at the recorded path."""
    failures: list[str] = []
    hint = Path(record.path) if record.path else None
    if hint is not None and not hint.is_absolute() and trace_path is not None:
        hint = trace_path.parent / hint
    for path in [*overrides, *([hint] if hint else [])]:
        try:
            medium = open_media(path, fps=record.fps or 25.0)
        except MediaError as error:
            failures.append(str(error))
            continue
        if medium.sha256 == record.sha256:
            return medium
        failures.append(f"{path} has other content (sha256 {medium.sha256[:12]}…)")
    reason = "; ".join(failures) or "the trace holds no path"
    raise TraceError(f"{record.name} (sha256 {record.sha256[:12]}…) is missing: {reason}; name its file with --media")


def reopen_media(trace: Trace, trace_path: Path | None, overrides: Sequence[Path] = ()) -> MediaSet:
    """The media of a trace's query, without views."""
    return MediaSet(tuple(resolve_media(record, trace_path, overrides) for record in trace.media))
