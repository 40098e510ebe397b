"""Duplicates made on purpose, and look-alikes that are none: what calibration, canaries and the self-check plant."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import cv2
import numpy as np
from PIL import Image as Pil
from PIL import ImageDraw, ImageFont

from pixelis.errors import MediaError
from pixelis.media import Frame, Medium, open_media
from pixelis.media.image import upright_rgb

WORDS = """river table quarter margin vector signal kernel market yield copper forest planet engine garden silver window
bridge orbit lattice cycle fabric metal ocean harbour summer winter method theory sample budget growth energy policy
report review target output input model layer weight token frame pixel trace second letter number""".split()  # noqa: SIM905


def resized(frame: Frame) -> Frame:
    """Half as wide and high."""
    size = max(1, frame.shape[1] // 2), max(1, frame.shape[0] // 2)
    return np.asarray(Pil.fromarray(frame).resize(size, Pil.Resampling.BICUBIC))


def grey(frame: Frame) -> Frame:
    return np.asarray(Pil.fromarray(frame).convert("L").convert("RGB"))


def jpeg10(frame: Frame) -> Frame:
    file = io.BytesIO()
    Pil.fromarray(frame).save(file, "JPEG", quality=10)
    return upright_rgb(Pil.open(file), "the copy")


def cropped(frame: Frame, share: float) -> Frame:
    """`share` cut away from each of the four sides."""
    height, width = frame.shape[:2]
    top, left = round(height * share), round(width * share)
    return np.ascontiguousarray(frame[top : height - top, left : width - left])


def cropped5(frame: Frame) -> Frame:
    return cropped(frame, 0.05)


def cropped10(frame: Frame) -> Frame:
    return cropped(frame, 0.10)


def brighter(frame: Frame) -> Frame:
    return np.clip(frame.astype(np.float32) * 1.4, 0, 255).astype(np.uint8)


def darker(frame: Frame) -> Frame:
    return (frame.astype(np.float32) * 0.6).astype(np.uint8)


def flipped(frame: Frame) -> Frame:
    return np.ascontiguousarray(frame[:, ::-1])


VARIANTS: dict[str, Callable[[Frame], Frame]] = {
    "resize": resized,
    "gray": grey,
    "jpeg10": jpeg10,
    "crop5": cropped5,
    "crop10": cropped10,
    "brighter": brighter,
    "darker": darker,
}
"""Changes after which a picture is still the same one. A crop of 10 % a side takes away 36 % of the area."""


def stored(frame: Frame, path: Path) -> Path:
    """The pixels as they are in a PNG file: copies wait on disk and not in memory."""
    Pil.fromarray(frame).save(path, compress_level=1)
    return path


CLIP_VARIANTS: dict[str, dict[str, float]] = {
    "reencoded": {"crf": 34, "scale": 0.5},
    "trimmed": {"start": 0.27, "end": 0.81},
    "trimmed+reencoded": {"start": 0.137, "end": 0.9, "crf": 30, "scale": 0.75},
    "clip-crop5": {"crop": 0.05},
}
"""Keyword arguments of `rewritten`."""


def rewritten(
    clip: Medium,
    path: Path,
    *,
    start: float = 0.0,
    end: float = 1.0,
    crf: float = 20,
    scale: float = 1.0,
    crop: float = 0,
) -> Medium:
    """A clip's part from `start` to `end` (shares of its frames), encoded again as H.264 into `path` and opened."""
    import av

    first, last = int(clip.frame_count * start), max(1, int(clip.frame_count * end))
    rate = Fraction(clip.frame_count / max(clip.duration_s, 1e-3)).limit_denominator(1001)
    even = [max(16, int(side * scale * (1 - 2 * crop)) // 2 * 2) for side in (clip.size.width, clip.size.height)]
    try:
        with av.open(str(path), "w", format="mp4") as file:
            stream = file.add_stream("libx264", rate=rate, options={"crf": f"{crf:g}", "preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = even[0], even[1], "yuv420p"
            stream.thread_count = 1  # the same bytes on every machine
            for index in range(first, last):
                frame = cropped(clip.frame(index), crop) if crop else clip.frame(index)
                small = cv2.resize(frame, (even[0], even[1]), interpolation=cv2.INTER_AREA)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(small), format="rgb24")))
            file.mux(stream.encode())
    except (OSError, ValueError) as error:  # PyAV's errors are both
        raise MediaError(f"{path} cannot be written as a clip ({error})") from error
    return open_media(path)


def slide(seed: int, *, template: int = 0) -> Frame:
    """A lecture slide, 960 x 540: bars and colours of its template, a title and bullets of its own."""
    own, style = np.random.default_rng([1, seed, template]), np.random.default_rng([2, template])
    width, height = 960, 540
    ground, bar = rgb(style, 225, 256), rgb(style, 20, 140)
    picture = Pil.new("RGB", (width, height), ground)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, 76), fill=bar)
    draw.rectangle((0, height - 27, width, height), fill=bar)
    draw.text((32, 18), " ".join(own.choice(WORDS, 4)).title(), font=ImageFont.load_default(38), fill="white")
    for line in range(int(own.integers(4, 7))):
        y = 110 + 60 * line
        draw.ellipse((48, y + 8, 58, y + 18), fill=bar)
        text = " ".join(own.choice(WORDS, int(own.integers(5, 9))))
        draw.text((72, y), text, font=ImageFont.load_default(24), fill=(30, 30, 30))
    draw.text((width - 60, height - 25), str(seed % 97), font=ImageFont.load_default(19), fill="white")
    return np.asarray(picture)


def table(seed: int, *, template: int = 0) -> Frame:
    """A table, 800 x 600: head, labels and grid of its template, numbers of its own."""
    own, style = np.random.default_rng([3, seed, template]), np.random.default_rng([4, template])
    width, height = 800, 600
    rows, columns = int(style.integers(7, 13)), int(style.integers(4, 7))
    high, wide = height // (rows + 1), width // columns
    font = ImageFont.load_default(high // 2)
    picture = Pil.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, high), fill=rgb(style, 30, 160))
    heads, labels = style.choice(WORDS, columns), style.choice(WORDS, rows)
    for column in range(columns):
        draw.text((column * wide + 8, high // 4), str(heads[column]), font=font, fill="white")
        draw.line((column * wide, 0, column * wide, height), fill=(180, 180, 180))
        for row in range(rows):
            value = str(labels[row]) if column == 0 else f"{own.integers(0, 1000) / 10:.1f}"
            draw.text((column * wide + 8, (row + 1) * high + high // 4), value, font=font, fill="black")
    for row in range(rows + 1):
        draw.line((0, row * high, width, row * high), fill=(180, 180, 180))
    return np.asarray(picture)


def chart(seed: int, *, template: int = 0) -> Frame:
    """A bar chart, 640 x 480: title, names and colour of its template, heights of its own."""
    own, style = np.random.default_rng([5, seed, template]), np.random.default_rng([6, template])
    picture = Pil.new("RGB", (640, 480), "white")
    draw = ImageDraw.Draw(picture)
    colour = rgb(style, 20, 200)
    draw.text((160, 8), " ".join(style.choice(WORDS, 3)).title(), font=ImageFont.load_default(24), fill="black")
    for bar, name in enumerate(style.choice(WORDS, 6)):
        x, tall = 60 + bar * 90, int(own.integers(20, 320))
        draw.rectangle((x, 430 - tall, x + 60, 430), fill=colour)
        draw.text((x, 440), str(name), font=ImageFont.load_default(16), fill="black")
        draw.text((x + 10, 410 - tall), str(tall), font=ImageFont.load_default(14), fill="black")
    draw.line((50, 40, 50, 430, 620, 430), fill="black", width=2)
    return np.asarray(picture)


LOOKALIKES: dict[str, Callable[..., Frame]] = {"slide": slide, "table": table, "chart": chart}
"""Called with a seed and a template."""


def rgb(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = (int(v) for v in rng.integers(low, high, 3))
    return red, green, blue


def bundled_pictures() -> dict[str, Frame]:
    """The photographs that scikit-image carries in its wheel: at hand wherever this runs."""
    import skimage.data

    names = ("astronaut", "brick", "camera", "chelsea", "clock_motion", "coffee", "coins", "color", "grass", "gravel")
    more = ("horse", "hubble_deep_field", "ihc", "logo", "moon", "motorcycle_left", "page", "retina", "rocket", "text")
    folder = Path(str(skimage.data.data_dir))
    files = [next(folder.glob(f"{name}.*g"), None) for name in (*names, *more)]
    return {file.stem: open_media(file).frame(0) for file in files if file is not None}
