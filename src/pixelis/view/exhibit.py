"""A trace with everything that its page shows: media, artifacts and the result of verification."""

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
    """One trace, ready to be shown. The page names what is missing."""

    trace: Trace
    media: Mapping[str, Medium]
    """The media that were found, by their names in the query."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Why a medium is absent, by its name."""
    pictures: Mapping[str, bytes] = field(default_factory=dict)
    """Pictures among the artifacts, by their SHA-256."""
    artifact_problems: Sequence[ArtifactProblem] = ()
    chain_problem: str | None = None
    decisions: Sequence[StepDecision] = ()
    file: str = "trace.jsonl"
    withheld: str = ""
    """Why the answer was withheld; empty if it was given."""
    confidence: float | None = None
    """The confidence that was stated with the answer: of its words, the tools and the other samples."""
    vote: Mapping[str, Any] | None = None
    """For several samples, the record of the vote (`voting.vote.to_vote_record`)."""
    caveat: str = ""
    """A warning about missing evidence."""


def make_exhibit(
    trace: Trace,
    trace_path: Path | None = None,
    media_paths: Sequence[Path] = (),
    *,
    thresholds: Mapping[str, float],
    opened: Sequence[Medium] = (),
    artifact_bytes: Mapping[str, bytes] | None = None,
) -> Exhibit:
    """Collect the media and artifacts of a trace. Missing ones are shown as missing, not raised.

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
    )
