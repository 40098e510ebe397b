"""A trace with everything that its page shows: the media that could be found, the artifacts, and what was verified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pixelis.core.errors import TraceError
from pixelis.media import Medium
from pixelis.trace import Trace
from pixelis.trace.artifacts import read_artifact
from pixelis.trace.codec import ArtifactProblem, artifact_problems
from pixelis.trace.decisive import StepDecision, decisive_steps
from pixelis.trace.media_records import resolve_media
from pixelis.trace.schema import verify


@dataclass(frozen=True)
class Exhibit:
    """One trace, ready to be shown. What is not at hand is None, and the page says so."""

    trace: Trace
    media: Mapping[str, Medium]
    """By the query's names; a medium that was not found is absent."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a medium is absent, by its name."""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """Pictures among the artifacts, by their SHA-256."""
    artifact_problems: Sequence[ArtifactProblem] = ()
    chain_problem: str | None = None
    decisions: Sequence[StepDecision] = ()
    file: str = "trace.jsonl"
    withheld: str = ""
    """Why the answer was not given to whoever asked; empty where it was."""
    confidence: float | None = None
    """As it was told to whoever asked: of the words, the tools behind them, and the other samples."""
    vote: Mapping[str, Any] | None = None
    """Of several samples: every term of every weight, as `scoring.consensus` records it."""
    caveat: str = ""
    """What a reader must know about the evidence behind the answer."""


def make_exhibit(
    trace: Trace,
    trace_path: Path | None = None,
    media_paths: Sequence[Path] = (),
    *,
    thresholds: Mapping[str, float],
    opened: Sequence[Medium] = (),
    artifact_bytes: Mapping[str, bytes] | None = None,
    withheld: str = "",
    confidence: float | None = None,
    vote: Mapping[str, Any] | None = None,
    caveat: str = "",
) -> Exhibit:
    """Gather what belongs to a trace. A missing medium or artifact is shown as missing, not raised.

    `opened` are media at hand; the others are opened from `media_paths` or the paths in the trace. `artifact_bytes` are
    the artifacts, by their SHA-256; the others are read from the folder beside `trace_path`.
    """
    at_hand = {medium.sha256: medium for medium in opened}
    media: dict[str, Medium] = {}
    missing: dict[str, str] = {}
    for record in trace.media:
        try:
            media[record.name] = at_hand.get(record.sha256) or resolve_media(record, trace_path, media_paths)
        except TraceError as error:
            missing[record.name] = str(error)
    chain_problem = None
    try:
        verify(trace)
    except TraceError as error:
        chain_problem = str(error)
    pictures: dict[str, bytes] = {}
    for _, artifact in trace.artifacts:
        content = (artifact_bytes or {}).get(artifact.sha256)
        if content is None and trace_path is not None:
            content = read_artifact(trace_path, artifact)
        if content is not None and artifact.media_type.startswith("image/"):
            pictures[artifact.sha256] = content
    return Exhibit(
        trace=trace,
        media=media,
        missing=missing,
        pictures=pictures,
        artifact_problems=artifact_problems(trace, trace_path) if trace_path else (),
        chain_problem=chain_problem,
        decisions=decisive_steps(trace, thresholds),
        file=trace_path.name if trace_path else "trace.jsonl",
        withheld=withheld,
        confidence=confidence,
        vote=vote,
        caveat=caveat,
    )
