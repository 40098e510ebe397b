"""All errors that a user can cause, each with one line that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class PixelisError(Exception):
    """Base class: the message says what came, what is expected, and what to do."""


class MediaError(PixelisError):
    """A picture or clip cannot be opened, is too large, or has changed since it was opened."""


class ToolError(PixelisError):
    """A tool cannot execute a call. The toolbox turns it into a failed result; no caller sees it."""


class TraceError(PixelisError):
    """A trace cannot be written, read, or trusted."""


class ConfigError(PixelisError):
    """A configuration or a command line is invalid."""


class WeightsError(PixelisError):
    """A model file is missing, cannot be fetched, or has the wrong hash."""


class MissingExtraError(PixelisError, ImportError):
    """An optional dependency is not installed."""


class LeakageError(PixelisError):
    """Evaluation media would reach training."""


class MemoryFileError(PixelisError):
    """A retrieval memory or its index cannot be written, read, or trusted."""


class RetryLaterError(PixelisError):
    """A temporary failure: another run may succeed. Nothing is recorded."""

    def __init__(self, outcome: str, detail: str, *, stop_run: bool = False) -> None:
        super().__init__(detail)
        self.outcome = outcome
        """`server` (every attempt failed or hung) or `cap` (the spending cap is reached)."""
        self.stop_run = stop_run
        """Whether the run must stop as well."""


def validation_problem(error: ValidationError) -> str:
    """The first problem of a validation as `key.sub: message`."""
    first = error.errors(include_url=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
