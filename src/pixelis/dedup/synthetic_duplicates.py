"""Synthetic duplicates, and look-alikes that are not duplicates, for calibration, canaries and the self-check."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from PIL import Image as Pil
from PIL import ImageDraw, ImageFont

from pixelis.core.errors import MediaError
from pixelis.media import Frame, Medium, open_media
from pixelis.media.image import to_upright_rgb

WORDS = """river table quarter margin vector signal kernel market yield copper forest planet engine garden silver window
bridge orbit lattice cycle fabric metal ocean harbour summer winter method theory sample budget growth energy policy
report review target output input model layer weight token frame pixel trace second letter number""".split()  # noqa: SIM905


def resize_half(frame: Frame) -> Frame:
    """Half the width and height."""
    size = max(1, frame.shape[1] // 2), max(1, frame.shape[0] // 2)
    return np.asarray(Pil.fromarray(frame).resize(size, Pil.Resampling.BICUBIC))


def to_grey(frame: Frame) -> Frame:
    return np.asarray(Pil.fromarray(frame).convert("L").convert("RGB"))


def jpeg_quality_10(frame: Frame) -> Frame:
    file = io.BytesIO()
    Pil.fromarray(frame).save(file, "JPEG", quality=10)
    return to_upright_rgb(Pil.open(file), "the copy")


def crop_border(frame: Frame, share: float) -> Frame:
    """Cut `share` off each of the four sides."""
    height, width = frame.shape[:2]
    top, left = round(height * share), round(width * share)
    return np.ascontiguousarray(frame[top : height - top, left : width - left])


crop_border_5 = partial(crop_border, share=0.05)
crop_border_10 = partial(crop_border, share=0.10)


def brighten(frame: Frame) -> Frame:
    return np.clip(frame.astype(np.float32) * 1.4, 0, 255).astype(np.uint8)


def darken(frame: Frame) -> Frame:
    return (frame.astype(np.float32) * 0.6).astype(np.uint8)


def flip_horizontal(frame: Frame) -> Frame:
    return np.ascontiguousarray(frame[:, ::-1])


VARIANTS: dict[str, Callable[[Frame], Frame]] = {
    "resize": resize_half,
    "gray": to_grey,
    "jpeg10": jpeg_quality_10,
    "crop5": crop_border_5,
    "crop10": crop_border_10,
    "brighter": brighten,
    "darker": darken,
}
"""Changes that leave a picture a duplicate. A crop of 10 % per side removes 36 % of the area."""


def save_png(frame: Frame, path: Path) -> Path:
    """Write the pixels to a PNG file, so that copies do not fill memory."""
    Pil.fromarray(frame).save(path, compress_level=1)
    return path


CLIP_VARIANTS: dict[str, dict[str, float]] = {
    "reencoded": {"crf": 34, "scale": 0.5},
    "trimmed": {"start": 0.27, "end": 0.81},
    "trimmed+reencoded": {"start": 0.137, "end": 0.9, "crf": 30, "scale": 0.75},
    "clip-crop5": {"crop": 0.05},
}
"""Keyword arguments of `reencode_clip`."""


def reencode_clip(
    clip: Medium,
    path: Path,
    *,
    start: float = 0.0,
    end: float = 1.0,
    crf: float = 20,
    scale: float = 1.0,
    crop: float = 0,
) -> Medium:
    """Encode a part of a clip, from `start` to `end` (shares of its frames), as H.264 into `path`, and open it."""
    import av

    first, last = int(clip.frame_count * start), max(1, int(clip.frame_count * end))
    rate = Fraction(clip.frame_count / max(clip.duration_s, 1e-3)).limit_denominator(1001)
    even_size = [max(16, int(side * scale * (1 - 2 * crop)) // 2 * 2) for side in (clip.size.width, clip.size.height)]
    try:
        with av.open(str(path), "w", format="mp4") as file:
            stream = file.add_stream("libx264", rate=rate, options={"crf": f"{crf:g}", "preset": "veryfast"})
            stream.width, stream.height, stream.pix_fmt = even_size[0], even_size[1], "yuv420p"
            stream.thread_count = 1  # the same bytes on every machine
            for index in range(first, last):
                frame = crop_border(clip.frame(index), crop) if crop else clip.frame(index)
                scaled = cv2.resize(frame, (even_size[0], even_size[1]), interpolation=cv2.INTER_AREA)
                file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(scaled), format="rgb24")))
            file.mux(stream.encode())
    except (OSError, ValueError) as error:  # PyAV's errors are both
        raise MediaError(f"{path} cannot be written as a clip ({error})") from error
    return open_media(path)


def write_variants(
    medium: Medium, stem: Path, image_variants: Mapping[str, Callable[[Frame], Frame]] = VARIANTS
) -> Iterator[tuple[str, Path]]:
    """Write every variant of a medium to a file whose name starts with `stem`; yields (variant, file)."""
    if medium.kind == "image":
        for variant, transform in image_variants.items():
            yield variant, save_png(transform(medium.frame(0)), stem.with_name(f"{stem.name}-{variant}.png"))
        return
    for variant, settings in CLIP_VARIANTS.items():
        path = stem.with_name(f"{stem.name}-{variant}.mp4")
        reencode_clip(medium, path, **settings)
        yield variant, path


def render_slide(seed: int, *, template: int = 0) -> Frame:
    """A lecture slide, 960 x 540: `template` sets bars and colours, `seed` the title and bullets."""
    content_rng, style_rng = np.random.default_rng([1, seed, template]), np.random.default_rng([2, template])
    width, height = 960, 540
    background, bar = random_colour(style_rng, 225, 256), random_colour(style_rng, 20, 140)
    picture = Pil.new("RGB", (width, height), background)
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, 76), fill=bar)
    draw.rectangle((0, height - 27, width, height), fill=bar)
    draw.text((32, 18), " ".join(content_rng.choice(WORDS, 4)).title(), font=ImageFont.load_default(38), fill="white")
    for line in range(int(content_rng.integers(4, 7))):
        y = 110 + 60 * line
        draw.ellipse((48, y + 8, 58, y + 18), fill=bar)
        text = " ".join(content_rng.choice(WORDS, int(content_rng.integers(5, 9))))
        draw.text((72, y), text, font=ImageFont.load_default(24), fill=(30, 30, 30))
    draw.text((width - 60, height - 25), str(seed % 97), font=ImageFont.load_default(19), fill="white")
    return np.asarray(picture)


def render_table(seed: int, *, template: int = 0) -> Frame:
    """A table, 800 x 600: `template` sets head, labels and grid, `seed` the numbers."""
    content_rng, style_rng = np.random.default_rng([3, seed, template]), np.random.default_rng([4, template])
    width, height = 800, 600
    rows, columns = int(style_rng.integers(7, 13)), int(style_rng.integers(4, 7))
    cell_height, cell_width = height // (rows + 1), width // columns
    font = ImageFont.load_default(cell_height // 2)
    picture = Pil.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(picture)
    draw.rectangle((0, 0, width, cell_height), fill=random_colour(style_rng, 30, 160))
    headers, labels = style_rng.choice(WORDS, columns), style_rng.choice(WORDS, rows)
    for column in range(columns):
        draw.text((column * cell_width + 8, cell_height // 4), str(headers[column]), font=font, fill="white")
        draw.line((column * cell_width, 0, column * cell_width, height), fill=(180, 180, 180))
        for row in range(rows):
            value = str(labels[row]) if column == 0 else f"{content_rng.integers(0, 1000) / 10:.1f}"
            draw.text(
                (column * cell_width + 8, (row + 1) * cell_height + cell_height // 4), value, font=font, fill="black"
            )
    for row in range(rows + 1):
        draw.line((0, row * cell_height, width, row * cell_height), fill=(180, 180, 180))
    return np.asarray(picture)


def render_chart(seed: int, *, template: int = 0) -> Frame:
    """A bar chart, 640 x 480: `template` sets title, names and colour, `seed` the heights."""
    content_rng, style_rng = np.random.default_rng([5, seed, template]), np.random.default_rng([6, template])
    picture = Pil.new("RGB", (640, 480), "white")
    draw = ImageDraw.Draw(picture)
    colour = random_colour(style_rng, 20, 200)
    draw.text((160, 8), " ".join(style_rng.choice(WORDS, 3)).title(), font=ImageFont.load_default(24), fill="black")
    for bar, name in enumerate(style_rng.choice(WORDS, 6)):
        x, bar_height = 60 + bar * 90, int(content_rng.integers(20, 320))
        draw.rectangle((x, 430 - bar_height, x + 60, 430), fill=colour)
        draw.text((x, 440), str(name), font=ImageFont.load_default(16), fill="black")
        draw.text((x + 10, 410 - bar_height), str(bar_height), font=ImageFont.load_default(14), fill="black")
    draw.line((50, 40, 50, 430, 620, 430), fill="black", width=2)
    return np.asarray(picture)


LOOKALIKES: dict[str, Callable[..., Frame]] = {"slide": render_slide, "table": render_table, "chart": render_chart}
"""Renderers, called with a seed and a template."""


def random_colour(rng: np.random.Generator, low: int, high: int) -> tuple[int, int, int]:
    red, green, blue = (int(v) for v in rng.integers(low, high, 3))
    return red, green, blue


def bundled_images() -> dict[str, Frame]:
    """The photographs in scikit-image's wheel, which are available wherever this runs."""
    import skimage.data

    names = ("astronaut", "brick", "camera", "chelsea", "clock_motion", "coffee", "coins", "color", "grass", "gravel")
    more_names = ("horse", "hubble_deep_field", "ihc", "logo", "moon", "motorcycle_left", "page", "retina", "rocket")
    folder = Path(str(skimage.data.data_dir))
    files = [next(folder.glob(f"{name}.*g"), None) for name in (*names, *more_names, "text")]
    return {file.stem: open_media(file).frame(0) for file in files if file is not None}
