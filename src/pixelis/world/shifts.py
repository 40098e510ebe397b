"""Shifts of distribution: what light, cameras and codecs do to media, in five severities, the same for the same seed.

Pixels change, answers do not. References are in unit coordinates and stand where they stood; only two shifts move or
hide something, and `shifted` says so in the references: frame jitter shows a track one frame early or late, and
occlusion takes what it hides out of a mask.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import cv2
import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pixelis.errors import ConfigError
from pixelis.geometry import Mask, Size, Track
from pixelis.media import Clip, Image, MediaSet, Medium
from pixelis.media.medium import Frame
from pixelis.world.generate import Rendered, facts_of, template
from pixelis.world.item import Item, Reference, ShiftFacts
from pixelis.world.programs import Unanswerable
from pixelis.world.textures import fractal

Pixels = NDArray[np.uint8]
Painter = Callable[[Pixels], Pixels]
"""What happens to one frame."""
Plan = Callable[[int, Generator, Size], Painter]
"""Severity, chance and frame size decide once for a medium what happens to all of its frames."""


def _lighting(severity: int, rng: Generator, size: Size) -> Painter:
    """A lamp in another place: brighter on one side, darker on the other, and a tint."""
    depth = 14 * severity
    side = int(rng.integers(4))
    ramp = np.linspace(256 - 2 * depth, 256 + depth, size.width if side % 2 else size.height).astype(np.int32)
    ramp = ramp[::-1] if side > 1 else ramp
    gain = ramp[None, :, None] if side % 2 else ramp[:, None, None]
    tint = 256 + rng.integers(-5 * severity, 5 * severity + 1, 3)
    return lambda pixels: np.clip(pixels * gain * tint >> 16, 0, 255).astype(np.uint8)


def _contrast(severity: int, rng: Generator, size: Size) -> Painter:
    """Flat as through haze, or (one in three) hard."""
    hard = rng.integers(3) == 0
    gain = 256 + 26 * severity if hard else 256 - 36 * severity
    table = np.clip(128 + ((np.arange(256) - 128) * gain >> 8), 0, 255).astype(np.uint8)
    return lambda pixels: np.asarray(cv2.LUT(pixels, table), dtype=np.uint8)


def _motion_blur(severity: int, rng: Generator, size: Size) -> Painter:
    length = 1 + max(round(severity * max(size) / 256), severity)
    dx, dy = ((1, 0), (0, 1), (1, 1), (1, -1))[int(rng.integers(4))]

    def blur(pixels: Pixels) -> Pixels:
        wide = cv2.copyMakeBorder(pixels, length, length, length, length, cv2.BORDER_REPLICATE)
        total = np.zeros(pixels.shape, dtype=np.uint16)
        for k in range(length):
            x, y = length + dx * (k - length // 2), length + dy * (k - length // 2)
            total += wide[y : y + pixels.shape[0], x : x + pixels.shape[1]]
        return (total // length).astype(np.uint8)

    return blur


def _noise(severity: int, rng: Generator, size: Size) -> Painter:
    sigma = 6.0 * severity

    def add(pixels: Pixels) -> Pixels:
        grain = np.rint(rng.standard_normal(pixels.shape, dtype=np.float32) * sigma).astype(np.int16)
        return np.clip(pixels + grain, 0, 255).astype(np.uint8)

    return add


def _jpeg(severity: int, rng: Generator, size: Size) -> Painter:
    quality = 35 - 5 * severity  # 30 down to 10

    def press(pixels: Pixels) -> Pixels:
        _, content = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
        return np.asarray(cv2.imdecode(content, cv2.IMREAD_COLOR), dtype=np.uint8)[:, :, ::-1]

    return press


def _resize(severity: int, rng: Generator, size: Size) -> Painter:
    """Up to two in a hundred larger or smaller; the severity is how near it goes to that."""
    sign = 1 if rng.integers(2) else -1
    factor = 1000 + sign * 4 * severity
    target = (max(round(size.width * factor / 1000), 1), max(round(size.height * factor / 1000), 1))
    if target == tuple(size):  # a small picture still changes
        target = (size.width + sign, size.height + sign)
    return lambda pixels: np.asarray(cv2.resize(pixels, target, interpolation=cv2.INTER_LINEAR_EXACT), dtype=np.uint8)


def occluders(severity: int, rng: Generator, size: Size) -> NDArray[np.bool_]:
    """Where something stands between: a few blots, from one to six hundredths of the frame in all."""
    hidden = np.zeros((size.height, size.width), dtype=np.uint8)
    for _ in range(2 + severity):
        x, y = int(rng.integers(size.width)), int(rng.integers(size.height))
        radius = max(round(min(size) * (0.02 + 0.008 * severity)), 3)
        axes = (radius + int(rng.integers(radius)), radius)
        cv2.ellipse(hidden, (x, y), axes, int(rng.integers(180)), 0, 360, 1, -1)
    return hidden.astype(bool)


def _occlusion(severity: int, rng: Generator, size: Size) -> Painter:
    hidden = occluders(severity, rng, size)
    blot = 40 + fractal(rng, size, cell=32, grain=2)[hidden] // 4

    def hide(pixels: Pixels) -> Pixels:
        covered = pixels.copy()
        covered[hidden] = blot[:, None]
        return covered

    return hide


PLANS: dict[str, Plan] = {
    "lighting": _lighting,
    "contrast": _contrast,
    "motion_blur": _motion_blur,
    "noise": _noise,
    "jpeg": _jpeg,
    "resize": _resize,
    "occlusion": _occlusion,
}
SHIFTS = (*PLANS, "frame_jitter", "video_compression")
"""By name; the last two need a clip: a still picture stays as it is under jitter and is coded as one frame."""


def apply(shift: str, severity: int, seed: int, media: Sequence[Medium]) -> tuple[Medium, ...]:
    """The media after a shift; ConfigError for a shift or a severity that does not exist."""
    check(shift, severity)
    return tuple(_shifted(shift, severity, _rng(shift, severity, seed, k), m) for k, m in enumerate(media))


def shifted(rendered: Rendered, shift: str, severity: int, seed: int = 0) -> Rendered:
    """The item under a shift: new pixels, the same question, references that follow them.

    Where those would give another answer (a thing half hidden is no longer the larger one), the old ones stay: the
    question is about what was there. Spans keep their edges; jitter moves them by a frame at most.
    """
    media = apply(shift, severity, seed, rendered.media)
    names = MediaSet(media).names
    references = rendered.item.references
    for k, (name, medium) in enumerate(zip(names, rendered.media, strict=True)):
        rng = _rng(shift, severity, seed, k)
        if shift == "frame_jitter" and medium.kind == "clip":
            order = jittered(severity, rng, medium.frame_count)
            references = tuple(_retimed(r, name, order) for r in references)
        if shift == "occlusion":
            hidden = occluders(severity, rng, medium.size)
            references = tuple(_uncovered(r, name, hidden) for r in references)
    if not _still_answers(rendered.item, references):
        references = rendered.item.references
    update: dict[str, Any] = {
        "id": f"{rendered.item.id}+{shift}{severity}",
        "media": tuple(facts_of(name, medium) for name, medium in zip(names, media, strict=True)),
        "references": references,
        "shift": ShiftFacts(name=shift, severity=severity, seed=seed),
    }
    return Rendered(rendered.item.model_copy(update=update), media)


def _still_answers(item: Item, references: Sequence[Reference]) -> bool:
    """Whether the item's own program finds its answer in these references."""
    if references == item.references:
        return True
    try:
        return template(item.template).solve(references, item.parameters) == item.answer_text
    except (ConfigError, Unanswerable, KeyError, ZeroDivisionError, ValueError):
        return False  # ConfigError: no program stands behind an imported question


def parse_shift(text: str) -> tuple[str, int]:
    """`noise:3` as a name and a severity, 3 if only the name is given; ConfigError where there is none such."""
    name, _, severity = text.partition(":")
    if severity and not (severity.isascii() and severity.isdigit()):
        raise ConfigError(f"no shift {text!r}: want a name and a severity from 1 to 5, such as noise:3")
    check(name, found := int(severity or 3))
    return name, found


def check(shift: str, severity: int) -> None:
    if shift not in SHIFTS:
        raise ConfigError(f"there is no shift {shift!r}: the shifts are {', '.join(SHIFTS)}")
    if not 1 <= severity <= 5:
        raise ConfigError(f"severity {severity} is not one of 1 to 5")


def _rng(shift: str, severity: int, seed: int, position: int) -> Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, SHIFTS.index(shift), severity, position]))


def _shifted(shift: str, severity: int, rng: Generator, medium: Medium) -> Medium:
    frames = [medium.frame(i) for i in range(medium.frame_count)]
    if shift == "frame_jitter":
        frames = [frames[i] for i in jittered(severity, rng, len(frames))]
    elif shift == "video_compression":
        frames = coded(frames, severity)
    else:
        change = PLANS[shift](severity, rng, medium.size)
        frames = [change(np.asarray(frame)) for frame in frames]
    return Clip.from_frames(frames, fps=medium.fps) if isinstance(medium, Clip) else Image.from_array(frames[0])


def jittered(severity: int, rng: Generator, count: int) -> list[int]:
    """Which frame is shown in place of each: its neighbour before or after, for one in six up to five in six."""
    steps = rng.choice([-1, 1], count) * (rng.random(count) < severity / 6)
    order = np.clip(np.arange(count) + steps, 0, count - 1)
    return [int(v) for v in np.maximum.accumulate(order)]  # time never runs back


def _retimed(reference: Reference, media: str, order: list[int]) -> Reference:
    track = reference.footprint
    if not isinstance(track, Track) or track.media != media:
        return reference
    known = dict(zip(track.frames, track.boxes, strict=True))
    shown = [(frame, known[source]) for frame, source in enumerate(order) if source in known]
    if not shown:
        return reference
    update = {"frames": tuple(frame for frame, _ in shown), "boxes": tuple(box for _, box in shown)}
    return reference.model_copy(update={"footprint": track.model_copy(update=update)})


def _uncovered(reference: Reference, media: str, hidden: NDArray[np.bool_]) -> Reference:
    """A mask without what is hidden now; one that is hidden entirely stays: the thing is still there."""
    mask = reference.footprint
    if not isinstance(mask, Mask) or mask.media != media or hidden.shape != mask.array.shape:
        return reference
    left = mask.array & ~hidden
    if not left.any() or left.sum() == mask.array.sum():
        return reference
    evidence = {"media": mask.media, "label": mask.label, "frame": mask.frame, "score": mask.score}
    return reference.model_copy(update={"footprint": Mask.from_array(left, **evidence)})


BIT_EXACT = 1 << 23
"""AV_CODEC_FLAG_BITEXACT of FFmpeg: the same bytes whatever the processor offers."""


def coded(frames: Sequence[Frame], severity: int) -> list[Frame]:
    """Frames through a video codec and back: MPEG-4 part 2 on one thread and without SIMD short cuts."""
    import av

    height, width = frames[0].shape[:2]
    even = (width + width % 2, height + height % 2)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=Fraction(8))
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = *even, "yuv420p", 1
        quantiser = 3 + 5 * severity  # of 31
        stream.codec_context.qmin = stream.codec_context.qmax = quantiser
        stream.codec_context.flags |= BIT_EXACT
        for frame in frames:
            right, bottom = even[0] - width, even[1] - height
            padded = cv2.copyMakeBorder(np.asarray(frame), 0, bottom, 0, right, cv2.BORDER_REPLICATE)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(padded, format="rgb24")))
        container.mux(stream.encode())
    out.seek(0)
    with av.open(out, "r") as opened:
        opened.streams.video[0].thread_count = 1
        opened.streams.video[0].codec_context.flags |= BIT_EXACT
        decoded = [np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8) for frame in opened.decode(video=0)]
    return [frame[:height, :width] for frame in decoded]
