"""Exhibits to draw: a picture with a chain of steps, a clip with spans and tracks, and hostile text everywhere."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track
from pixelis.media import Clip, Image, MediaSet, ViewRecipe
from pixelis.media.sources import ArraySource
from pixelis.tools.results import Artifact, ToolCall, ToolIdentity, ToolResult
from pixelis.tools.toolbox import builtin_thresholds
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import StepDraft, seal_trace
from pixelis.view import Exhibit

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">' onload='x' {{ 7*7 }}"


def make_exhibit(media, steps, *, query="What does it say?", answer=None, origin="plan", **fields):
    opened = MediaSet(tuple(media))
    trace = seal_trace(
        query=query, media=record_media(opened), origin=origin, created_at=datetime(2026, 1, 1, tzinfo=UTC),
        steps=steps, answer=answer, pixelis="0.1.0",
    )  # fmt: skip
    given = dict(zip(opened.names, opened.sources, strict=True))
    return Exhibit(trace=trace, **({"media": given, "decisions": decisive_steps(trace, builtin_thresholds())} | fields))


def step(tool, args=None, *footprints, status="ok", **fields):
    known = ToolIdentity(tool=tool, version="1", backend="test", weights="ab" * 32)
    if status != "ok":
        return StepDraft(
            call=ToolCall(tool=tool, args=args or {}), result=ToolResult.failed(tool, fields["error"], status)
        )
    fields = {"confidence": 0.9, "text": "seen", "identity": known, "seconds": 0.25} | fields
    result = ToolResult(tool=tool, status="ok", footprints=footprints, **fields)
    return StepDraft(thought=f"I call {tool}.", call=ToolCall(tool=tool, args=args or {}), result=result)


@pytest.fixture
def photograph() -> Image:
    pixels = np.random.default_rng(0).integers(0, 80, (600, 900, 3), dtype=np.uint8)
    pixels[150:300, 225:675] = 255
    return Image.from_array(pixels)


@pytest.fixture
def clip() -> Clip:
    frames = []
    for i in range(40):
        frame = np.full((90, 160, 3), 90, dtype=np.uint8)
        frame[30:60, 3 * i : 3 * i + 30] = (220, 60, 40)
        frames.append(frame)
    return Clip(ArraySource(tuple(frames), fps=10.0), sha256="c" * 64)


@pytest.fixture
def chain(photograph) -> Exhibit:
    """SEG, ZOOM, OCR, and a call that failed."""
    inside = np.zeros((60, 90), dtype=bool)
    inside[15:30, 22:67] = True
    box = (0.25, 0.25, 0.75, 0.5)
    quad = ((0.3, 0.3), (0.7, 0.3), (0.7, 0.45), (0.3, 0.45))
    artifact = Artifact(name="view.png", media_type="image/png", sha256="d" * 64, size_bytes=10)
    view = ViewRecipe(media="Image_0", frame=0, box=box, width=450, height=150)
    steps = [
        step("SEG", {"target": "white sign"}, Mask.from_array(inside, label="sign", score=0.8)),
        step("ZOOM", {"box": list(box)}, Box(x0=0.25, y0=0.25, x1=0.75, y1=0.5), view=view, artifacts=(artifact,)),
        step("OCR", {"media": "View_0"}, TextSpan(text="EXIT", quad=quad), text='"EXIT"'),
        step("TRK", {"box": [0, 0, 1, 1]}, status="failed", error="TRK needs a clip"),
    ]
    return make_exhibit([photograph], steps, query="What does the sign say?", answer="It says EXIT.")


@pytest.fixture
def film(clip) -> Exhibit:
    frames = tuple(range(0, 40, 2))
    boxes = tuple((3 * f / 160, 1 / 3, min((3 * f + 30) / 160, 1.0), 2 / 3) for f in frames)
    spans = [Span(media="Video_0", start_s=0.5, end_s=1.5, label="red block", score=0.9)]
    spans.append(Span(media="Video_0", start_s=3.0, end_s=3.5, label="red block", score=0.4))
    track = Track(media="Video_0", track_id=3, label="block", frames=frames, boxes=boxes, score=0.7)
    steps = [
        step("TEMP", {"query": "red block"}, *spans),
        step("TRK", {"frame": 10, "box": list(boxes[5])}, track),
    ]
    return make_exhibit([clip], steps)


@pytest.fixture
def hostile(photograph) -> Exhibit:
    quad = ((0.1, 0.1), (0.9, 0.1), (0.9, 0.3), (0.1, 0.3))
    shapes = [TextSpan(text=HOSTILE, quad=quad, label=HOSTILE), Box(x0=0.1, y0=0.5, x1=0.4, y1=0.9, label=HOSTILE)]
    steps = [
        step("OCR", {HOSTILE: HOSTILE, "box": [HOSTILE]}, *shapes, text=HOSTILE, output={"text": HOSTILE}),
        step(HOSTILE, {"media": HOSTILE}, status="invalid", error=HOSTILE),
    ]
    return make_exhibit([photograph], steps, query=HOSTILE, answer=HOSTILE, origin=f"imported:{HOSTILE}", file=HOSTILE)


def ballot(answer, weight, **changes):
    return {
        "answer": answer.casefold() if answer else None, "spelt": answer, "tools": ["SEG", "OCR"], "entropy": 0.0,
        "raw": 0.9, "calibrated": 0.8, "fidelity": 0.5, "reliability": 1.0, "group": 0, "weight": weight, **changes,
    }  # fmt: skip


@pytest.fixture
def row():
    """Weights 0.4 and 0.2 for Red, 0.3 for Blue, 0 for a near-duplicate: shares 2/3 and 1/3, margin 1/3."""
    vote = {
        "answer": "Red", "share": 2 / 3, "total": 0.9, "margin": 1 / 3, "reason": "", "majority": "red",
        "scores": {"red": 2 / 3, "blue": 1 / 3}, "conformal_set": ["red"], "exemplar": 0, "reliability_by": "agreement",
        "ballots": [
            ballot("Red", 0.4), ballot("Red", 0.2, entropy=math.log(2), group=1), ballot("Blue", 0.3, group=2),
            ballot("Red", 0.0),
        ],
        # Red has 0.6 and Blue 0.3: the first falling under 0.1, or the third rising over 0.6, turns it
        "flips": [
            {"rollout": 0, "weight": 0.4, "flips_at": 0.1, "answer": "blue"},
            {"rollout": 2, "weight": 0.3, "flips_at": 0.6, "answer": "blue"},
        ],
    }  # fmt: skip
    return {
        "query": 3, "item": "search-1", "question": "Which colour?", "answer": "Red", "answered": True, "learnt": True,
        "why": "", "weights": "ab" * 32, "vote": vote,
    }  # fmt: skip
