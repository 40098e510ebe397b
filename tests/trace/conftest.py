"""A small deterministic runner of calls, and traces made with it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

from pixelis.core.geometry import Box, Mask, TextSpan
from pixelis.media import MediaSet, ViewRecipe, open_media
from pixelis.media.query import resample
from pixelis.tools.results import Blob, Execution, ToolCall, ToolIdentity, ToolResult
from pixelis.trace.plan import CallPlan, Recording, run_plan

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SIGN = (0.25, 0.25, 0.75, 0.5)


def identity(tool: str, weights: str = "") -> ToolIdentity:
    return ToolIdentity(tool=tool, version="1", backend="test", weights=weights)


@dataclass
class Runner:
    """SEG finds the white sign, ZOOM cuts, OCR reads `word`; anything else is an unknown tool."""

    word: str = "EXIT"
    weights: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    answer: Callable[[ToolCall], Execution] | None = None

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        self.calls.append(call)
        if self.answer is not None:
            return self.answer(call)
        known = {"SEG": self.seg, "ZOOM": self.zoom, "OCR": self.ocr}
        if call.tool not in known:
            return Execution(ToolResult.failed(call.tool, f"there is no tool {call.tool!r}", "invalid"), {})
        return known[call.tool](call, media)

    def seg(self, call: ToolCall, media: MediaSet) -> Execution:
        if call.args.get("target") == "nothing":
            return Execution(ToolResult.failed("SEG", "no region", identity=identity("SEG")), {})
        white = media.sources[0].frame(0).min(axis=2) > 200
        mask = Mask.from_array(white, media=media.names[0], label="sign", score=0.9)
        result = ToolResult(
            tool="SEG", status="ok", text="1 region", output={"regions": [{"label": "sign"}]}, footprints=(mask,),
            confidence=0.9, identity=identity("SEG"), seconds=0.01,
        )  # fmt: skip
        return Execution(result, {})

    def zoom(self, call: ToolCall, media: MediaSet) -> Execution:
        box = tuple(call.args["box"])
        view = ViewRecipe(media=media.names[0], frame=0, box=box, width=100, height=50)
        stream = io.BytesIO()
        Pil.fromarray(resample(media.sources[0].frame(0), box, (100, 50))).save(stream, format="PNG")
        blob = Blob("view.png", "image/png", stream.getvalue())
        frame = Box(media=media.names[0], x0=box[0], y0=box[1], x1=box[2], y1=box[3])
        result = ToolResult(
            tool="ZOOM", status="ok", text="view", output={"width": 100}, footprints=(frame,), confidence=1.0,
            artifacts=(blob.artifact(),), view=view, identity=identity("ZOOM"), seconds=0.02,
        )  # fmt: skip
        return Execution(result, {blob.artifact().sha256: blob.content})

    def ocr(self, call: ToolCall, media: MediaSet) -> Execution:
        media.canonical_name(call.args.get("media"))
        x0, y0, x1, y1 = SIGN
        quad = ((x0, y0), (x1, y0), (x1, y1), (x0, y1))
        span = TextSpan(media=media.names[0], text=self.word, quad=quad, score=0.97)
        result = ToolResult(
            tool="OCR", status="ok", text=f'"{self.word}"', output={"text": self.word}, footprints=(span,),
            confidence=0.97, identity=identity("OCR", self.weights), seconds=0.03,
        )  # fmt: skip
        return Execution(result, {})


CHAIN = CallPlan.model_validate(
    {
        "question": "What does the sign say?",
        "answer": "It says EXIT.",
        "steps": [
            {"thought": "Find the sign.", "tool": "SEG", "args": {"target": "white sign"}},
            {"thought": "Look closer.", "tool": "CROP", "args": {"box": "$1.box"}},
            {"thought": "Read it.", "tool": "READ", "args": {"media": "$2.view"}},
        ],
    }
)


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    """A white sign on green."""
    pixels = np.full((80, 120, 3), (20, 120, 60), dtype=np.uint8)
    pixels[20:40, 30:90] = 255
    path = tmp_path / "sign.png"
    Pil.fromarray(pixels).save(path)
    return path


@pytest.fixture
def media(photograph: Path) -> MediaSet:
    return MediaSet((open_media(photograph),))


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def chain() -> CallPlan:
    return CHAIN


@pytest.fixture
def recording(media: MediaSet, runner: Runner, tmp_path: Path) -> Recording:
    return run_plan(CHAIN, media, runner, beside=tmp_path / "trace.jsonl", created_at=WHEN)
