"""Signals of TEMP and PROP on frames: detections, thumbnails, motion, colour, light, text and ImageNet labels.

Anything that costs over a millisecond per frame goes through the scene's perception cache, by a key that names the
weights, the medium and the frame, so that tools, rollouts and replays share it.
"""

from __future__ import annotations

import io
import json
from functools import cache, cached_property
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import ToolError
from pixelis.core.geometry import PixelBox, Track, UnitBox, to_pixels
from pixelis.media.medium import Frame
from pixelis.tools.backends.flow import downscale
from pixelis.tools.backends.nanodet import Detection, NanoDet
from pixelis.tools.base import Scene
from pixelis.tools.vision import colours
from pixelis.weights import fingerprint, is_available

if TYPE_CHECKING:
    from pixelis.tools.ocr import Ocr
    from pixelis.weights.encoders.text_encoder import TextEncoder
    from pixelis.weights.encoders.visual_encoder import VisualEncoder

PERCEPTION_VERSION = "1"
"""Part of the cache keys: increase it, and the tools' versions, when this code changes its results."""
DETECTION_FLOOR = 0.15
"""Minimum score of a cached detection; callers may set their own threshold above it."""

THUMB_SIDE = 160
MIN_SPEED = 0.04
"""In frame widths per second: anything slower is still."""

Curve = NDArray[np.float64]
"""One value from 0 to 1 for each sampled frame, (T,)."""


class PerceptionModels:
    """The models of TEMP and PROP. Each loads on first use; one whose weights are absent is None."""

    WEIGHTS = ("nanodet", "minilm", "efficientnet-lite0", "ocr-detection", "ocr-recognition")

    @staticmethod
    def available_weights(names: tuple[str, ...] = WEIGHTS) -> tuple[str, ...]:
        """The weights that are on this machine; checks file sizes and loads nothing."""
        return tuple(name for name in names if is_available(name) and (name != "minilm" or find_spec("tokenizers")))

    @staticmethod
    def fingerprints(names: tuple[str, ...] = WEIGHTS) -> str:
        return "+".join(fingerprint(name) for name in PerceptionModels.available_weights(names))

    @cached_property
    def detector(self) -> NanoDet | None:
        return load_detector() if is_available("nanodet") else None

    @cached_property
    def text(self) -> TextEncoder | None:
        if not (self.available_weights(("minilm",)) and is_available("minilm-tokenizer")):
            return None
        from pixelis.weights.encoders.text_encoder import TextEncoder

        return TextEncoder()

    @cached_property
    def visual(self) -> VisualEncoder | None:
        if not (is_available("efficientnet-lite0") and is_available("imagenet-labels")):
            return None
        from pixelis.weights.encoders.visual_encoder import VisualEncoder

        return VisualEncoder()

    @cached_property
    def reader(self) -> Ocr | None:
        if not (is_available("ocr-detection") and is_available("ocr-recognition")):
            return None
        from pixelis.tools.ocr import Ocr

        return Ocr()

    @cached_property
    def _vectors(self) -> dict[str, NDArray[np.float32]]:
        return {}

    def text_similarity(self, first: str, second: str) -> float:
        """Cosine of two short texts in MiniLM's space; 0 without the encoder."""
        if self.text is None:
            return 0.0
        for text in (first, second):
            if text not in self._vectors:
                self._vectors[text] = self.text.embed([text])[0]
        return float(self._vectors[first] @ self._vectors[second])


@cache
def load_detector() -> NanoDet:
    """The detector, loaded once per process; WeightsError if its file has not been pulled."""
    return NanoDet()


def detections(
    scene: Scene, index: int, detector: NanoDet | None = None, *, threshold: float = DETECTION_FLOOR
) -> list[Detection]:
    """Detections on a frame with at least this score (not below DETECTION_FLOOR), best first."""
    active = detector or load_detector()

    def compute() -> bytes:
        results = active.detect(scene.frame(index), threshold=DETECTION_FLOOR)
        rows = [
            {"label": d.label, "score": round(d.score, 4), "box_px": [round(float(v), 2) for v in d.box_px]}
            for d in results
            if d.box_px.right - d.box_px.left >= 1.0 and d.box_px.bottom - d.box_px.top >= 1.0
        ]
        return json.dumps(rows).encode()

    key = f"nanodet {PERCEPTION_VERSION}/{active.fingerprint}/{scene.medium.sha256}/{index}"
    rows = json.loads(scene.perceive(key, compute))
    return [Detection(d["label"], d["score"], PixelBox(*d["box_px"])) for d in rows if d["score"] >= threshold]


def thumbnail(scene: Scene, index: int) -> Frame:
    """The frame with its longer side at THUMB_SIDE pixels."""

    def compute() -> bytes:
        frame = scene.frame(index)
        out = io.BytesIO()
        np.save(out, downscale(frame, THUMB_SIDE / max(frame.shape[:2])), allow_pickle=False)
        return out.getvalue()

    cached = scene.perceive(f"thumb{THUMB_SIDE} {PERCEPTION_VERSION}/{scene.medium.sha256}/{index}", compute)
    return np.asarray(np.load(io.BytesIO(cached), allow_pickle=False))


def is_same_object(box: UnitBox, other: UnitBox) -> bool:
    """Whether over two thirds of the smaller of two boxes lie in the other: some objects are detected twice."""
    width, height = min(box[2], other[2]) - max(box[0], other[0]), min(box[3], other[3]) - max(box[1], other[1])
    smaller = min((b[2] - b[0]) * (b[3] - b[1]) for b in (box, other))
    return width > 0 and height > 0 and width * height > 0.66 * smaller


def certainty(score: float) -> float:
    """Probability that a detection of this score is correct: half at 0.32, nearly 1 at 0.5, on the tests' clips."""
    return float(1.0 / (1.0 + np.exp(-(score - 0.32) / 0.05)))


def imagenet_labels(scene: Scene, index: int, visual: VisualEncoder) -> list[tuple[str, float]]:
    """The five most probable ImageNet labels of a frame."""

    def compute() -> bytes:
        class_labels = visual.labels([np.asarray(scene.frame(index))])[0]
        return json.dumps([[label.name, round(label.score, 4)] for label in class_labels]).encode()

    key = f"imagenet {PERCEPTION_VERSION}/{visual.fingerprint}/{scene.medium.sha256}/{index}"
    return [(name, score) for name, score in json.loads(scene.perceive(key, compute))]


def text_match_score(text: str, quotes: tuple[str, ...]) -> float:
    """Match of a frame's text with all quotations; without a quotation, whether there is text at all."""
    text = " ".join(text.lower().split())
    if not quotes:
        return min(len(text) / 8.0, 1.0)
    scores = [partial_similarity(q.lower(), text) if len(text) >= 0.7 * len(q) else 0.0 for q in quotes]
    return float(np.clip((min(scores) - 0.6) / 0.35, 0.0, 1.0))


def partial_similarity(first: str, second: str) -> float:
    """Similarity of the shorter text to the part of the longer one that is most like it, from 0 to 1.

    The similarity of two texts is twice their longest common subsequence over their lengths (RapidFuzz's
    `partial_ratio`).
    """
    if len(first) == len(second):
        return max(_best_window(first, second), _best_window(second, first))
    return _best_window(*sorted((first, second), key=len))


def _best_window(short: str, long: str) -> float:
    if not short:
        return float(not long)
    width, masks = len(short), {char: 0 for char in short}
    for position, char in enumerate(short):
        masks[char] |= 1 << position
    full, best = (1 << width) - 1, 0.0
    for end in range(1, len(long) + width):
        window = long[max(end - width, 0) : end]
        free = full  # bit-parallel: a cleared bit is a matched character of `short` (Hyyrö 2004)
        for char in window:
            matched = free & masks.get(char, 0)
            free = ((free + matched) | (free - matched)) & full
        best = max(best, 2 * (width - free.bit_count()) / (width + len(window)))
    return best


def colour_share(thumb: Frame, name: str, boxes_unit: list[UnitBox]) -> float:
    """Share of the pixels of this colour, in the boxes if there are any, else in the whole picture."""
    members = colours.colour_mask(thumb, name, loose=True)
    if not boxes_unit:
        return float(members.mean())
    return max(float(_box_interior(members, box).mean()) for box in boxes_unit)


def _box_interior(array: NDArray[np.bool_], box: UnitBox) -> NDArray[np.bool_]:
    """The middle of a box, a sixth in from each side: its border is mostly background."""
    height, width = array.shape[:2]
    x0, y0, x1, y1 = box
    dx, dy = (x1 - x0) / 6.0, (y1 - y0) / 6.0
    left, top = int((x0 + dx) * width), int((y0 + dy) * height)
    return array[top : max(int((y1 - dy) * height), top + 1), left : max(int((x1 - dx) * width), left + 1)]


def brightness(thumb: Frame) -> float:
    """Mean CIELAB lightness, 0 to 1."""
    return float(cv2.cvtColor(thumb, cv2.COLOR_RGB2LAB)[:, :, 0].mean()) / 255.0


def histogram_change(before: Frame, after: Frame) -> float:
    """Change of the colour histogram between two pictures, 0 to 1: near 1 at a cut."""
    first, second = (np.bincount(colours.index_map(t).ravel(), minlength=13) / t[:, :, 0].size for t in (before, after))
    lights = [np.bincount(_grey(t).ravel() >> 4, minlength=16) / t[:, :, 0].size for t in (before, after)]
    return float(max(np.abs(first - second).sum(), np.abs(lights[0] - lights[1]).sum()) / 2.0)


def relative_flow(before: Frame, after: Frame) -> NDArray[np.float64]:
    """Motion of each pixel between two thumbnails, minus the camera's, in frame widths: (H, W, 2)."""
    displacement = _dis().calc(_grey(before), _grey(after), None).astype(np.float64)
    return (displacement - np.median(displacement, axis=(0, 1))) / before.shape[1]


def _grey(thumb: NDArray[Any]) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(thumb, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


@cache
def _dis() -> Any:
    engine = cv2.DISOpticalFlow.create(cv2.DISOpticalFlow_PRESET_FAST)
    engine.setFinestScale(0)  # the pictures are small already
    return engine


def subject_motion(field: NDArray[np.float64], boxes_unit: list[UnitBox]) -> NDArray[np.float64]:
    """Motion of a subject: mean over the fastest quarter of the pixels in its boxes (or anywhere), (2,)."""
    height, width = field.shape[:2]
    parts = []
    for x0, y0, x1, y1 in boxes_unit:
        left, top = min(int(x0 * width), width - 1), min(int(y0 * height), height - 1)
        parts.append(field[top : max(int(y1 * height), top + 1), left : max(int(x1 * width), left + 1)].reshape(-1, 2))
    vectors = np.concatenate(parts) if parts else field.reshape(-1, 2)
    speeds = np.linalg.norm(vectors, axis=1)
    share = 0.25 if parts else 0.05  # without a subject, a small moving object must stand out from the background
    fastest = np.argsort(-speeds, kind="stable")[: max(int(share * len(speeds)), 1)]
    return np.asarray(vectors[fastest].mean(axis=0))


class Motion(NamedTuple):
    """Motion of a box on its frame, without the camera's."""

    velocity: NDArray[np.float64]
    """(2,) frame widths per second, x to the right and y down."""
    speed: float
    """Frame widths per second along the path, so that an oscillation is not still."""
    confidence: float


def box_motion(scene: Scene, index: int, box_unit: UnitBox) -> Motion:
    """Motion of the pixels in a box, over a fifth of a second from this frame (or up to it, at the end of the clip)."""
    fps = scene.medium.frame_count / max(scene.medium.duration_s, 1e-6)
    step = max(round(fps / 15.0), 1)
    steps = max(round(fps / 5.0 / step), 1)
    forward = index + step < scene.medium.frame_count
    last = min(index + steps * step, scene.medium.frame_count - 1) if forward else max(index - steps * step, 0)
    indices = range(index, last + 1, step) if forward else range(index, last - 1, -step)
    if len(indices) < 2:
        raise ToolError("a clip of one frame shows no motion")
    size = scene.medium.size
    box = np.array(to_pixels(box_unit, size))
    first, velocities = scene.frame(index), []
    for before, after in pairwise(indices):
        second = scene.frame(after)
        shift = _shift(first, second, box)
        seconds = scene.medium.time_of(after) - scene.medium.time_of(before)
        velocities.append((shift - _camera_shift(first, second, box)) / size.width / seconds)
        box += np.tile(shift, 2)
        first = second
    velocity = np.mean(velocities, axis=0)
    speed = float(np.linalg.norm(velocities, axis=1).mean())
    agreement = float(np.linalg.norm(velocity) / speed) if speed > MIN_SPEED else 1.0
    return Motion(velocity, speed, 0.4 + 0.5 * agreement)


def track_motion(scene: Scene, track: Track, near_frame: int | None) -> Motion:
    """Motion along a track: over all of it, or within half a second of `near_frame`."""
    times = np.array([scene.medium.time_of(frame) for frame in track.frames])
    boxes = np.array(track.boxes)
    size = scene.medium.size
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2.0 * [1.0, size.height / size.width]  # (F, 2) in widths
    if near_frame is not None:
        time_distances = np.abs(times - scene.medium.time_of(near_frame))
        chosen = np.sort(np.argsort(time_distances, kind="stable")[: max(int((time_distances <= 0.5).sum()), 2)])
        times, centres = times[chosen], centres[chosen]
    centred_times = times - times.mean()
    velocity = (centred_times[:, None] * centres).sum(axis=0) / float((centred_times**2).sum())
    stride = max(len(times) // 8, 1)  # the jitter of single boxes is not motion
    path = float(np.linalg.norm(np.diff(centres[::stride], axis=0), axis=1).sum())
    speed = max(path / float(times[::stride][-1] - times[0]), float(np.linalg.norm(velocity)))
    return Motion(velocity, speed, 0.9 if len(times) > 3 else 0.6)


def _shift(first: Frame, second: Frame, box: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many pixels the thing in a box moved from one frame to the next: (2,)."""
    centre, half = (box[:2] + box[2:]) / 2.0, np.maximum((box[2:] - box[:2]) / 2.0, 4.0)
    low = np.maximum(np.floor(centre - 2.0 * half), 0).astype(int)
    high = np.minimum(np.ceil(centre + 2.0 * half), [first.shape[1], first.shape[0]]).astype(int)
    if (high - low < 12).any():
        return np.zeros(2)  # it has left the frame
    scale = min(1.0, 1.2 * THUMB_SIDE / float((high - low).max()))
    size = [max(int(v), 12) for v in (high - low) * scale]
    window = np.s_[low[1] : high[1], low[0] : high[0]]
    parts = [cv2.resize(frame[window], size, interpolation=cv2.INTER_AREA) for frame in (first, second)]
    displacement = _dis().calc(_grey(parts[0]), _grey(parts[1]), None).astype(np.float64) / scale
    x0, y0 = (int(v) for v in np.maximum((centre - half - low) * scale, 0))
    x1, y1 = (int(v) for v in np.ceil((centre + half - low) * scale))
    inside = displacement[y0:y1, x0:x1].reshape(-1, 2)
    border = np.concatenate([displacement[0], displacement[-1], displacement[:, 0], displacement[:, -1]])
    background = np.median(border, axis=0)
    distances = np.linalg.norm(inside - background, axis=1)
    # the ground seen inside the box moves with the ground
    figure = inside[distances > max(1.0, 0.35 * float(distances.max()))]
    return np.median(figure, axis=0) if len(figure) > 0.05 * len(inside) else np.median(inside, axis=0)


def _camera_shift(first: Frame, second: Frame, box: NDArray[np.float64]) -> NDArray[np.float64]:
    """By how many pixels the ground around a box moved: the median over the frame outside it."""
    scale = min(1.0, THUMB_SIDE / max(first.shape[:2]))
    size = (max(round(first.shape[1] * scale), 12), max(round(first.shape[0] * scale), 12))
    small = [_grey(cv2.resize(f, size, interpolation=cv2.INTER_AREA)) for f in (first, second)]
    displacement = _dis().calc(small[0], small[1], None).astype(np.float64) / scale
    outside = np.ones(displacement.shape[:2], dtype=bool)
    left, top, right, bottom = (int(v * scale) for v in box)
    outside[max(top, 0) : max(bottom + 1, 0), max(left, 0) : max(right + 1, 0)] = False
    return np.median(displacement[outside], axis=0) if outside.mean() > 0.1 else np.zeros(2)
