"""Evidence pages on disk: written whole, and never over something else."""

from __future__ import annotations

from pathlib import Path

from pixelis.core.atomic import write_atomic
from pixelis.core.errors import ConfigError, TraceError
from pixelis.trace import codec


def page_and_trace_paths(page_path: Path) -> tuple[Path, Path]:
    """Where a page and the trace beside it go; an error where either cannot be written."""
    trace_path = page_path.with_suffix(".jsonl")
    if trace_path == page_path:
        raise ConfigError(f"{page_path}: the trace is written there; want another ending for the page, such as .html")
    check_page(page_path)
    codec.check_target(trace_path)
    return page_path, trace_path


def write_page(page: str, out: Path) -> int:
    """Write the page whole; the number of its bytes. Only an older page is replaced."""
    content = page.encode()
    check_page(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, content)
    except OSError as error:
        raise TraceError(f"{out} cannot be written ({error.strerror})") from error
    return len(content)


def check_page(out: Path) -> None:
    """TraceError where a page may not be written: a folder, or a file that is not a page."""
    try:
        if out.is_dir():
            raise TraceError(f"{out} is a folder: give the name of a file in it, such as {out / 'evidence.html'}")
        if out.exists() and (not out.is_file() or not looks_like_page(out)):
            raise TraceError(f"{out} exists and is no evidence page: nothing was written")
    except OSError as error:
        raise TraceError(f"{out} cannot be written ({error.strerror})") from error


def looks_like_page(file: Path) -> bool:
    """Whether a file begins as a page does; an empty one may be overwritten too."""
    with file.open("rb") as stream:
        return b"<!doctype html>".startswith(stream.read(15))
