"""Hybrid keys: what was asked and thought, and what was looked at (supp:retrieval_index, subsec:ttrl).

A key has two halves of unit length. The text half embeds the prompt and the last 32 tokens of thought. The visual half
is the mean over decisive footprints: of a mask its region alone, of a track and of a span the mean over frames, of the
whole frame where there is no footprint. Similarity is the convex mix λ_pix · visual + (1 − λ_pix) · text, which is an
inner product: with both keys `mixed`, or with the bare stored key and a `weighted` query.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pixelis.core.geometry import Footprint, Mask, Size, Span, Track, UnitBox, to_pixels
from pixelis.dedup.media_features import ImageEncoder
from pixelis.media import Frame, MediaSet, Medium
from pixelis.tools.toolbox import builtin_thresholds
from pixelis.trace.decisive import decisive_steps
from pixelis.trace.schema import Trace

Floats = NDArray[np.float32]
T = TypeVar("T")
THOUGHT_TOKENS = 32
PROMPT_TOKENS = 220
"""MiniLM reads 256 tokens: a long prompt must not push the thoughts out."""
MAX_CROPS = 16
"""Footprints of one key at most; a page of OCR has a hundred lines."""
FRAMES_PER_FOOTPRINT = 3
"""Frames sampled evenly from a track or a span."""
MAX_CACHED_EMBEDDINGS = 4096
GREY = 127
"""Fills what a mask leaves out of a crop: 0 after the visual encoder's preprocessing."""


class SentenceEncoder(Protocol):
    """Encodes texts as unit vectors, and cuts texts by its own tokens."""

    fingerprint: str
    dimensions: int

    def embed(self, texts: Sequence[str]) -> Floats:
        """(N, dimensions), L2-normalised."""

    def cut(self, text: str, *, first: int | None = None, last: int | None = None) -> str:
        """The first or last tokens of a text, as text."""


class Key(NamedTuple):
    """Text half and visual half, each of unit length, or zero where there is nothing to compare."""

    text: Floats
    visual: Floats

    @property
    def vector(self) -> Floats:
        return np.concatenate([self.text, self.visual])


def normalise_rows(vectors: NDArray[np.floating]) -> Floats:
    """Rows of unit length; a zero row stays zero."""
    vectors = np.asarray(vectors, np.float32)
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 1e-12)


def normalise_halves(keys: Floats, text_dimensions: int) -> Floats:
    """Both halves of each key at unit length."""
    return np.concatenate(
        [normalise_rows(keys[:, :text_dimensions]), normalise_rows(keys[:, text_dimensions:])], axis=1
    )


def weight_query(keys: Floats, text_dimensions: int, lambda_pix: float) -> Floats:
    """(N, D) queries whose inner product with a bare key is the convex mix of the two cosines."""
    weights = np.full(keys.shape[1], lambda_pix, np.float32)
    weights[:text_dimensions] = 1.0 - lambda_pix
    return keys * weights


def mix_halves(keys: NDArray[np.floating], text_dimensions: int, lambda_pix: float) -> Floats:
    """(N, D) keys of unit length whose inner product with each other is the convex mix: what FAISS codes."""
    weights = np.full(keys.shape[1], np.sqrt(lambda_pix), np.float32)
    weights[:text_dimensions] = np.sqrt(1.0 - lambda_pix)
    return np.asarray(keys, np.float32) * weights


def tool_signature(trace: Trace) -> tuple[str, ...]:
    """The chain signature: which tools were called, in order."""
    return tuple(step.result.tool for step in trace.steps)


def join_thoughts(trace: Trace) -> str:
    """All thoughts of a trace, in order."""
    thoughts = [step.thought for step in trace.steps] + [trace.answer_thought]
    return " ".join(thought for thought in thoughts if thought)


def decisive_footprints(trace: Trace, thresholds: Mapping[str, float]) -> list[Footprint]:
    """Footprints of the decisive steps, without duplicates."""
    unique: dict[str, Footprint] = {}
    for step, decision in zip(trace.steps, decisive_steps(trace, thresholds), strict=True):
        if decision.decisive:
            unique.update({footprint.model_dump_json(): footprint for footprint in step.result.footprints})
    return list(unique.values())


class Crop(NamedTuple):
    """A region to embed: a frame of a medium, a box in it, and optionally a mask over the whole frame."""

    medium: Medium
    frame: int
    box: UnitBox | None = None
    mask: Mask | None = None

    @property
    def cache_key(self) -> tuple[str, int, UnitBox | None, str]:
        return self.medium.sha256, self.frame, self.box, self.mask.counts if self.mask else ""

    def pixels(self) -> Frame:
        frame = self.medium.frame(self.frame)
        if self.box is None:
            return frame
        size = Size(frame.shape[1], frame.shape[0])
        left, top, right, bottom = to_pixels(self.box, size).pixel_bounds(size)
        crop = frame[top:bottom, left:right].copy()  # whole rows would be a view of the frame itself
        if self.mask is not None:
            rows = (np.arange(top, bottom) + 0.5) * self.mask.height / size.height
            columns = (np.arange(left, right) + 0.5) * self.mask.width / size.width
            crop[~self.mask.array[np.ix_(rows.astype(int), columns.astype(int))]] = GREY
        return crop


class KeyMaker:
    """Makes keys from texts and footprints. Embeddings are cached: rollouts that look at one place share them."""

    def __init__(self, text: SentenceEncoder, visual: ImageEncoder, *, cache_size: int = MAX_CACHED_EMBEDDINGS) -> None:
        self.text, self.visual = text, visual
        self._cache_size = cache_size
        self._crops: OrderedDict[object, Floats] = OrderedDict()
        self._texts: OrderedDict[object, Floats] = OrderedDict()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of both encoders: keys of other encoders cannot be compared."""
        return f"text {self.text.fingerprint}, visual {self.visual.fingerprint}"

    def key_text(self, prompt: str, thoughts: str = "") -> str:
        """The prompt and the last 32 tokens of thought."""
        ending = self.text.cut(thoughts, last=THOUGHT_TOKENS) if thoughts else ""
        return f"{self.text.cut(prompt, first=PROMPT_TOKENS)}\n{ending}".strip()

    def key(self, text: str, footprints: Sequence[Footprint], media: MediaSet) -> Key:
        """The key of a query or of an item."""
        return Key(self._embed_text(text), self.visual_descriptor(footprints, media))

    def key_for_trace(self, trace: Trace, media: MediaSet) -> Key:
        return self.key_for_rollouts([trace], media)

    def key_for_rollouts(self, traces: Sequence[Trace], media: MediaSet) -> Key:
        """A query's key from its rollouts: the thoughts of the first, the decisive footprints of all, each once."""
        text = self.key_text(traces[0].query, join_thoughts(traces[0]))
        unique = {f.model_dump_json(): f for trace in traces for f in decisive_footprints(trace, builtin_thresholds())}
        return self.key(text, list(unique.values()), media)

    def visual_descriptor(self, footprints: Sequence[Footprint], media: MediaSet) -> Floats:
        """The unit mean over footprints, each the mean over its frames; of whole frames where there are none."""
        places = [list(crops_for(footprint, media)) for footprint in sample_evenly(footprints, MAX_CROPS)]
        places = [crops for crops in places if crops] or [whole_frames(medium) for medium in media.sources]
        if not places:
            return np.zeros(self._visual_dimensions(), np.float32)
        means = [np.mean([self._embed_crop(crop) for crop in crops], axis=0) for crops in places]
        return normalise_rows(np.mean(means, axis=0))

    def _visual_dimensions(self) -> int:
        return self.visual.embed([]).shape[1]

    def _embed_crop(self, crop: Crop) -> Floats:
        if crop.cache_key not in self._crops:
            self._crops[crop.cache_key] = self.visual.embed([crop.pixels()])[0]
        return self._get_cached(self._crops, crop.cache_key)

    def _embed_text(self, text: str) -> Floats:
        if text not in self._texts:
            embedding = self.text.embed([text])[0]
            self._texts[text] = embedding if text else np.zeros_like(embedding)
        return self._get_cached(self._texts, text)

    def _get_cached(self, cache: OrderedDict[object, Floats], cache_key: object) -> Floats:
        cache.move_to_end(cache_key)
        embedding = cache[cache_key]
        if len(cache) > self._cache_size:
            cache.popitem(last=False)
        return embedding


def crops_for(footprint: Footprint, media: MediaSet) -> Iterator[Crop]:
    """Regions of a footprint; none if it lies on a medium that the query does not have."""
    if footprint.media not in media.names or footprint.media.startswith("View_"):
        return
    medium = media.source(footprint.media)
    if isinstance(footprint, Span):
        for seconds in np.linspace(footprint.start_s, footprint.end_s, FRAMES_PER_FOOTPRINT + 2)[1:-1]:
            yield Crop(medium, medium.index_at(min(float(seconds), medium.time_of(medium.frame_count - 1))))
    elif isinstance(footprint, Track):
        for frame, box in sample_evenly(
            list(zip(footprint.frames, footprint.boxes, strict=True)), FRAMES_PER_FOOTPRINT
        ):
            if frame < medium.frame_count:
                yield Crop(medium, frame, box)
    elif footprint.box_unit is not None and footprint.frame < medium.frame_count:
        x0, y0, x1, y1 = footprint.box_unit
        if x0 < x1 and y0 < y1:
            yield Crop(medium, footprint.frame, footprint.box_unit, footprint if isinstance(footprint, Mask) else None)


def whole_frames(medium: Medium) -> list[Crop]:
    return [Crop(medium, int(index)) for index in sample_evenly(range(medium.frame_count), FRAMES_PER_FOOTPRINT)]


def sample_evenly(items: Sequence[T], max_items: int) -> list[T]:
    """At most `count` of them, spread evenly."""
    if len(items) <= max_items:
        return list(items)
    return [items[int(position)] for position in np.linspace(0, len(items) - 1, max_items).round()]
