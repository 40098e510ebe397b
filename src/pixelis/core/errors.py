"""The error vocabulary. Whatever a person can cause ends in one of these, with one line that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class PixelisError(Exception):
    """A promise was broken: the message says what came, what was wanted, and what to do."""


class MediaError(PixelisError):
    """A picture or clip cannot be opened, is too large, or is no longer the file that was opened."""


class ToolError(PixelisError):
    """A tool cannot do what it was asked. The toolbox turns it into a failed result; no caller sees it."""


class TraceError(PixelisError):
    """A trace cannot be written, read, or trusted."""


class ConfigError(PixelisError):
    """A configuration or a command line does not mean what it must."""


class WeightsError(PixelisError):
    """A model file is missing, cannot be fetched, or is not the file that it should be."""


class MissingExtraError(PixelisError, ImportError):
    """An optional dependency is not installed."""


class LeakageError(PixelisError):
    """Evaluation media would reach a place that learns."""


class MemoryFileError(PixelisError):
    """A retrieval memory or its index cannot be written, read, or trusted."""


class RetryLaterError(PixelisError):
    """Something could not be done now, through no fault of its own: another run may do it. Nothing is recorded."""

    def __init__(self, outcome: str, detail: str, *, stop_run: bool = False) -> None:
        super().__init__(detail)
        self.outcome = outcome
        """`server` (it failed or hung, every time) or `cap` (the spending cap is reached)."""
        self.stop_run = stop_run
        """Nothing else can be done either."""


def validation_problem(error: ValidationError) -> str:
    """The first problem of a validation as `key.sub: message`."""
    first = error.errors(include_url=False)[0]
    return ": ".join(part for part in (".".join(map(str, first["loc"])), first["msg"]) if part)
