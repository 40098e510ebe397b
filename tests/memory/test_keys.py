"""Hybrid keys with the real encoders: what was asked and what was looked at decide, each by its share."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from pixelis.core.geometry import Box, Mask, Span, TextSpan, Track
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.memory.keys import (
    GREY,
    KeyMaker,
    crops_for,
    decisive_footprints,
    join_thoughts,
    normalise_rows,
    sample_evenly,
    tool_signature,
)
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.tools.toolbox import builtin_thresholds
from pixelis.trace.media_records import record_media
from pixelis.trace.schema import StepDraft, Trace, seal_trace
from pixelis.weights import is_available
from pixelis.weights.encoders.text_encoder import TextEncoder

WHOLE = ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))


@pytest.fixture(scope="module")
def maker(encoder) -> KeyMaker:
    if not (is_available("minilm") and is_available("minilm-tokenizer")):
        pytest.skip("run `pixelis models pull minilm`")
    return KeyMaker(TextEncoder(), encoder)


def traced(media: MediaSet, *results: ToolResult, answer: str = "EXIT", thoughts: tuple[str, ...] = ()) -> Trace:
    steps = [
        StepDraft(thought=thoughts[k] if k < len(thoughts) else "", call=ToolCall(tool=r.tool, args={}), result=r)
        for k, r in enumerate(results)
    ]
    return seal_trace(
        query="What does the sign say?", media=record_media(media), origin="policy:x", pixelis="0.1.0", steps=steps,
        created_at=datetime(2026, 1, 1, tzinfo=UTC), answer=answer, answer_thought="so it says exit",
    )  # fmt: skip


def read(line: str, corners: tuple[float, float, float, float]) -> ToolResult:
    x0, y0, x1, y1 = corners
    span = TextSpan(text=line, quad=((x0, y0), (x1, y0), (x1, y1), (x0, y1)))
    return ToolResult(tool="OCR", status="ok", footprints=(span,), confidence=0.9)


@pytest.mark.weights
def test_the_visual_half_is_of_the_decisive_crop_and_not_of_the_rest(maker, encoder, pictures):
    cat, cup = pictures["chelsea"], pictures["coffee"]
    height, width = min(cat.shape[0], cup.shape[0]), min(cat.shape[1], cup.shape[1])
    media = MediaSet((Image.from_array(np.concatenate([cat[:height, :width], cup[:height, :width]], axis=1)),))
    trace = traced(media, read("EXIT", (0.0, 0.0, 0.5, 1.0)), read("OTHER", (0.5, 0.0, 1.0, 1.0)))
    assert decisive_footprints(trace, builtin_thresholds()) == list(
        trace.steps[0].result.footprints
    )  # the answer says EXIT alone
    key = maker.key_for_trace(trace, media)
    alone = encoder.embed([np.ascontiguousarray(cat[:height, :width])])[0]
    assert key.visual @ alone == pytest.approx(1.0, abs=1e-4)
    both = maker.visual_descriptor([f for s in trace.steps for f in s.result.footprints], media)
    right = encoder.embed([np.ascontiguousarray(cup[:height, :width])])[0]
    assert both == pytest.approx(normalise_rows((alone + right) / 2), abs=1e-4)  # the mean over footprints
    nothing = maker.visual_descriptor([], media)  # the whole frame
    assert nothing == pytest.approx(encoder.embed([media.sources[0].frame(0)])[0], abs=1e-4)
    assert tool_signature(trace) == ("OCR", "OCR")


@pytest.mark.weights
def test_rollouts_that_look_at_one_place_share_its_embedding(maker, pictures, monkeypatch):
    media = MediaSet((Image.from_array(pictures["chelsea"]),))
    traces = [traced(media, read("EXIT", (0.1, 0.1, 0.6, 0.7))) for _ in range(8)]
    looked = []
    monkeypatch.setattr(maker, "visual", Counting(maker.visual, looked))
    first = maker.key_for_rollouts(traces, media)
    assert len(looked) == 1
    again = maker.key_for_rollouts(traces, media)
    assert len(looked) == 1
    assert (first.visual == again.visual).all()


class Counting:
    def __init__(self, encoder, looked) -> None:
        self._encoder, self._looked, self.fingerprint = encoder, looked, encoder.fingerprint

    def embed(self, images):
        self._looked.extend(images)
        return self._encoder.embed(images)


@pytest.mark.weights
def test_the_text_is_the_prompt_and_the_last_32_tokens_of_thought(maker):
    words = [f"w{k}" for k in range(100)]  # two tokens each: w, then the number's
    cut = maker.text.cut(" ".join(words), last=32)
    assert cut.endswith("w98 w99")
    tokens = maker.text._untruncated_tokenizer.encode(cut, add_special_tokens=False).ids
    assert len(tokens) == 32
    assert maker.text.cut("one two three", first=2) == "one two"
    assert maker.text.cut("one two three", last=9) == "one two three"
    assert maker.text.cut("", last=3) == ""
    text = maker.key_text("Where is it? " * 200, "because of the sign")
    assert text.endswith("\nbecause of the sign")
    assert (
        len(maker.text._untruncated_tokenizer.encode(text, add_special_tokens=False).ids) <= 254
    )  # what MiniLM reads of it: all
    media = MediaSet(())
    trace = traced(media, read("EXIT", (0.0, 0.0, 1.0, 1.0)), thoughts=("I look.",))
    assert join_thoughts(trace) == "I look. so it says exit"
    empty = maker.key("", [], media)
    assert not empty.text.any()
    assert not empty.visual.any()


@pytest.mark.weights
def test_a_question_is_nearer_to_its_paraphrase_than_to_another(maker):
    asked, same, other = (
        maker.key(t, [], MediaSet(())).text
        for t in ("How many red cups are there?", "Count the red mugs.", "When does the train leave?")
    )
    assert asked @ same > asked @ other + 0.3


def test_of_a_mask_only_its_region_is_looked_at():
    frame = np.zeros((40, 40, 3), np.uint8)
    frame[10:30, 10:30] = 200
    array = np.zeros((20, 20), bool)
    array[5:15, 5:10] = True  # the left half of the square, at half the resolution
    media = MediaSet((Image.from_array(frame),))
    (crop,) = crops_for(Mask.from_array(array, media="Image_0"), media)
    assert crop.pixels().shape == (20, 10, 3)
    assert (crop.pixels() == 200).all()
    array[5, 14] = True  # one cell far to the right widens the box, and what lies between is grey
    (crop,) = crops_for(Mask.from_array(array, media="Image_0"), media)
    pixels = crop.pixels()
    assert pixels.shape == (20, 20, 3)
    assert (pixels[5:, 12:] == GREY).all()
    assert (pixels[:2, 18:] == 200).all()
    array[8] = array[9, 0] = True  # over the whole width: the cut is made of whole rows of the frame
    (crop,) = crops_for(Mask.from_array(array, media="Image_0"), media)
    pixels = crop.pixels()
    assert pixels.shape == (20, 40, 3)
    assert (pixels[0, :10] == GREY).all()
    assert (media.source("Image_0").frame(0) == frame).all()


def test_tracks_and_spans_are_looked_at_on_a_few_frames_and_strangers_on_none():
    media = MediaSet((Filmed(),))
    track = Track(media="Video_0", track_id=1, frames=tuple(range(9)), boxes=((0.0, 0.0, 0.5, 0.5),) * 9)
    assert [crop.frame for crop in crops_for(track, media)] == [0, 4, 8]
    span = Span(media="Video_0", start_s=2.0, end_s=4.0)
    assert [crop.frame for crop in crops_for(span, media)] == [25, 30, 35]  # 2.5, 3.0, 3.5 s at ten a second
    late = Span(media="Video_0", start_s=9.0, end_s=99.0)
    assert [crop.frame for crop in crops_for(late, media)] == [99, 99, 99]
    assert list(crops_for(Box(media="Image_7", x0=0, y0=0, x1=1, y1=1), media)) == []
    assert list(crops_for(Box(media="Video_0", frame=100, x0=0, y0=0, x1=1, y1=1), media)) == []
    assert sample_evenly(list(range(101)), 3) == [0, 50, 100]


class Filmed:
    """A clip of a hundred frames, ten a second."""

    kind, sha256, frame_count = "clip", "0" * 64, 100

    def time_of(self, index: int) -> float:
        return index / 10

    def index_at(self, seconds: float) -> int:
        return min(99, int(seconds * 10 + 1e-6))
