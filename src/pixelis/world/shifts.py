"""Distribution shifts: effects of light, cameras and codecs on media, in five severities, reproducible by seed.

Pixels change, answers do not. References keep their unit coordinates under all shifts but two: frame jitter moves the
boxes of a track by one frame, and occlusion removes the hidden part from masks.
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

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Mask, Size, Track
from pixelis.items import Item, Reference, ShiftFacts
from pixelis.media import Clip, Image, MediaSet, Medium
from pixelis.media.medium import Frame
from pixelis.world.generate import RenderedItem, medium_facts, template
from pixelis.world.programs import Unanswerable
from pixelis.world.textures import fractal_noise

Pixels = NDArray[np.uint8]
FrameTransform = Callable[[Pixels], Pixels]
"""Transforms one frame."""
TransformFactory = Callable[[int, Generator, Size], FrameTransform]
"""Draws the transform of all frames of a medium from severity, random numbers and frame size."""


def _lighting(severity: int, rng: Generator, size: Size) -> FrameTransform:
    """A gradient of light from one side to the other, and a tint."""
    depth = 14 * severity
    side = int(rng.integers(4))
    ramp = np.linspace(256 - 2 * depth, 256 + depth, size.width if side % 2 else size.height).astype(np.int32)
    ramp = ramp[::-1] if side > 1 else ramp
    gain = ramp[None, :, None] if side % 2 else ramp[:, None, None]
    tint = 256 + rng.integers(-5 * severity, 5 * severity + 1, 3)
    return lambda pixels: np.clip(pixels * gain * tint >> 16, 0, 255).astype(np.uint8)


def _contrast(severity: int, rng: Generator, size: Size) -> FrameTransform:
    """Low contrast as in haze, or (one in three) high contrast."""
    hard = rng.integers(3) == 0
    gain = 256 + 26 * severity if hard else 256 - 36 * severity
    table = np.clip(128 + ((np.arange(256) - 128) * gain >> 8), 0, 255).astype(np.uint8)
    return lambda pixels: np.asarray(cv2.LUT(pixels, table), dtype=np.uint8)


def _motion_blur(severity: int, rng: Generator, size: Size) -> FrameTransform:
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


def _noise(severity: int, rng: Generator, size: Size) -> FrameTransform:
    sigma = 6.0 * severity

    def add(pixels: Pixels) -> Pixels:
        grain = np.rint(rng.standard_normal(pixels.shape, dtype=np.float32) * sigma).astype(np.int16)
        return np.clip(pixels + grain, 0, 255).astype(np.uint8)

    return add


def _jpeg(severity: int, rng: Generator, size: Size) -> FrameTransform:
    quality = 35 - 5 * severity  # 30 down to 10

    def compress(pixels: Pixels) -> Pixels:
        _, content = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
        return np.asarray(cv2.imdecode(content, cv2.IMREAD_COLOR), dtype=np.uint8)[:, :, ::-1]

    return compress


def _resize(severity: int, rng: Generator, size: Size) -> FrameTransform:
    """Scale by up to 2 % up or down, in proportion to the severity."""
    sign = 1 if rng.integers(2) else -1
    factor = 1000 + sign * 4 * severity
    target = (max(round(size.width * factor / 1000), 1), max(round(size.height * factor / 1000), 1))
    if target == tuple(size):  # a small picture still changes
        target = (size.width + sign, size.height + sign)
    return lambda pixels: np.asarray(cv2.resize(pixels, target, interpolation=cv2.INTER_LINEAR_EXACT), dtype=np.uint8)


def occlusion_mask(severity: int, rng: Generator, size: Size) -> NDArray[np.bool_]:
    """A few blots that cover one to six percent of the frame in all."""
    hidden = np.zeros((size.height, size.width), dtype=np.uint8)
    for _ in range(2 + severity):
        x, y = int(rng.integers(size.width)), int(rng.integers(size.height))
        radius = max(round(min(size) * (0.02 + 0.008 * severity)), 3)
        axes = (radius + int(rng.integers(radius)), radius)
        cv2.ellipse(hidden, (x, y), axes, int(rng.integers(180)), 0, 360, 1, -1)
    return hidden.astype(bool)


def _occlusion(severity: int, rng: Generator, size: Size) -> FrameTransform:
    hidden = occlusion_mask(severity, rng, size)
    blot = 40 + fractal_noise(rng, size, cell=32, grain=2)[hidden] // 4

    def hide(pixels: Pixels) -> Pixels:
        covered = pixels.copy()
        covered[hidden] = blot[:, None]
        return covered

    return hide


TRANSFORM_FACTORIES: dict[str, TransformFactory] = {
    "lighting": _lighting,
    "contrast": _contrast,
    "motion_blur": _motion_blur,
    "noise": _noise,
    "jpeg": _jpeg,
    "resize": _resize,
    "occlusion": _occlusion,
}
SHIFTS = (*TRANSFORM_FACTORIES, "frame_jitter", "video_compression")
"""The last two are meant for clips: jitter leaves a picture unchanged, and compression codes it as one frame."""


def apply_shift(shift: str, severity: int, seed: int, media: Sequence[Medium]) -> tuple[Medium, ...]:
    """The media after a shift. Raises ConfigError for an unknown shift or severity."""
    check_shift(shift, severity)
    return tuple(_shift_medium(shift, severity, _make_rng(shift, severity, seed, k), m) for k, m in enumerate(media))


def shift_item(rendered: RenderedItem, shift: str, severity: int, seed: int = 0) -> RenderedItem:
    """The item under a shift: new pixels, the same question, and references that follow the pixels.

    If the new references would change the answer (the larger thing is half hidden), the old ones are kept. Spans keep
    their edges, since jitter moves them by one frame at most.
    """
    media = apply_shift(shift, severity, seed, rendered.media)
    names = MediaSet(media).names
    references = rendered.item.references
    for k, (name, medium) in enumerate(zip(names, rendered.media, strict=True)):
        rng = _make_rng(shift, severity, seed, k)
        if shift == "frame_jitter" and medium.kind == "clip":
            order = sample_frame_order(severity, rng, medium.frame_count)
            references = tuple(_retime_track(r, name, order) for r in references)
        if shift == "occlusion":
            hidden = occlusion_mask(severity, rng, medium.size)
            references = tuple(_subtract_hidden(r, name, hidden) for r in references)
    if not _gives_same_answer(rendered.item, references):
        references = rendered.item.references
    update: dict[str, Any] = {
        "id": f"{rendered.item.id}+{shift}{severity}",
        "media": tuple(medium_facts(name, medium) for name, medium in zip(names, media, strict=True)),
        "references": references,
        "shift": ShiftFacts(name=shift, severity=severity, seed=seed),
    }
    return RenderedItem(rendered.item.model_copy(update=update), media)


def _gives_same_answer(item: Item, references: Sequence[Reference]) -> bool:
    """Whether the item's own program finds its answer in these references."""
    if references == item.references:
        return True
    try:
        return template(item.template).solve(references, item.parameters) == item.answer_text
    except (ConfigError, Unanswerable, KeyError, ZeroDivisionError, ValueError):
        return False  # ConfigError: an imported question has no program


def parse_shift(text: str) -> tuple[str, int]:
    """Parse `noise:3` into name and severity (3 by default). Raises ConfigError if it is not a shift."""
    name, _, severity = text.partition(":")
    if severity and not (severity.isascii() and severity.isdigit()):
        raise ConfigError(f"no shift {text!r}: want a name and a severity from 1 to 5, such as noise:3")
    check_shift(name, parsed_severity := int(severity or 3))
    return name, parsed_severity


def check_shift(shift: str, severity: int) -> None:
    if shift not in SHIFTS:
        raise ConfigError(f"there is no shift {shift!r}: the shifts are {', '.join(SHIFTS)}")
    if not 1 <= severity <= 5:
        raise ConfigError(f"severity {severity} is not one of 1 to 5")


def _make_rng(shift: str, severity: int, seed: int, position: int) -> Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, SHIFTS.index(shift), severity, position]))


def _shift_medium(shift: str, severity: int, rng: Generator, medium: Medium) -> Medium:
    frames = [medium.frame(i) for i in range(medium.frame_count)]
    if shift == "frame_jitter":
        frames = [frames[i] for i in sample_frame_order(severity, rng, len(frames))]
    elif shift == "video_compression":
        frames = recompress_video(frames, severity)
    else:
        transform = TRANSFORM_FACTORIES[shift](severity, rng, medium.size)
        frames = [transform(np.asarray(frame)) for frame in frames]
    return Clip.from_frames(frames, fps=medium.fps) if isinstance(medium, Clip) else Image.from_array(frames[0])


def sample_frame_order(severity: int, rng: Generator, count: int) -> list[int]:
    """The frame shown in place of each one: a neighbour, for one in six frames up to five in six."""
    steps = rng.choice([-1, 1], count) * (rng.random(count) < severity / 6)
    order = np.clip(np.arange(count) + steps, 0, count - 1)
    return [int(v) for v in np.maximum.accumulate(order)]  # frames stay in order


def _retime_track(reference: Reference, media: str, order: list[int]) -> Reference:
    track = reference.footprint
    if not isinstance(track, Track) or track.media != media:
        return reference
    boxes_by_frame = dict(zip(track.frames, track.boxes, strict=True))
    visible_boxes = [(frame, boxes_by_frame[source]) for frame, source in enumerate(order) if source in boxes_by_frame]
    if not visible_boxes:
        return reference
    update = {"frames": tuple(frame for frame, _ in visible_boxes), "boxes": tuple(box for _, box in visible_boxes)}
    return reference.model_copy(update={"footprint": track.model_copy(update=update)})


def _subtract_hidden(reference: Reference, media: str, hidden: NDArray[np.bool_]) -> Reference:
    """A mask without its hidden part; a mask that is hidden entirely is kept, since the thing is still there."""
    mask = reference.footprint
    if not isinstance(mask, Mask) or mask.media != media or hidden.shape != mask.array.shape:
        return reference
    visible = mask.array & ~hidden
    if not visible.any() or visible.sum() == mask.array.sum():
        return reference
    mask_fields = {"media": mask.media, "label": mask.label, "frame": mask.frame, "score": mask.score}
    return reference.model_copy(update={"footprint": Mask.from_array(visible, **mask_fields)})


BIT_EXACT = 1 << 23
"""AV_CODEC_FLAG_BITEXACT of FFmpeg: the same bytes whatever the processor offers."""


def recompress_video(frames: Sequence[Frame], severity: int) -> list[Frame]:
    """Encode and decode frames as MPEG-4 part 2, on one thread and bit-exactly."""
    import av

    height, width = frames[0].shape[:2]
    even_size = (width + width % 2, height + height % 2)
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=Fraction(8))
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = *even_size, "yuv420p", 1
        quantiser = 3 + 5 * severity  # of 31
        stream.codec_context.qmin = stream.codec_context.qmax = quantiser
        stream.codec_context.flags |= BIT_EXACT
        for frame in frames:
            right, bottom = even_size[0] - width, even_size[1] - height
            padded = cv2.copyMakeBorder(np.asarray(frame), 0, bottom, 0, right, cv2.BORDER_REPLICATE)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(padded, format="rgb24")))
        container.mux(stream.encode())
    buffer.seek(0)
    with av.open(buffer, "r") as reader:
        reader.streams.video[0].thread_count = 1
        reader.streams.video[0].codec_context.flags |= BIT_EXACT
        decoded_frames = [
            np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8) for frame in reader.decode(video=0)
        ]
    return [frame[:height, :width] for frame in decoded_frames]
