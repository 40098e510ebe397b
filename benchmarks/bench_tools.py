"""Bench rows of tool calls: CPU seconds of one thread without cache, and the paper's latencies (runlatency)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pil

from benchmarks.bench_rows import BenchRow, cpu_seconds
from pixelis.media import Image, MediaSet, open_media
from pixelis.tools.results import ToolCall
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.weights import is_available

DEMO = Path(__file__).parents[1] / "src" / "pixelis" / "demo"
PAPER = {"SEG": 1.17, "ZOOM": 1.17, "TRK": 1.42, "OCR": 0.39, "TEMP": 1.57, "PROP": 0.16}
"""Median latency of a call in seconds, model forward excluded (runlatency)."""


def photograph(width: int, height: int) -> Image:
    """The bundled photograph at another resolution."""
    with Pil.open(DEMO / "astronaut_sign.jpg") as picture:
        return Image.from_array(np.asarray(picture.convert("RGB").resize((width, height), Pil.Resampling.BICUBIC)))


def sign_region(width: int, height: int) -> Image:
    """A crop of the sign on the bundled photograph."""
    with Pil.open(DEMO / "astronaut_sign.jpg") as picture:
        sign = picture.convert("RGB").crop((280, 175, 580, 325))
        return Image.from_array(np.asarray(sign.resize((width, height), Pil.Resampling.BICUBIC)))


def page_region(width: int, height: int) -> Image:
    """Lines of running text from the bundled page."""
    with Pil.open(DEMO / "page.jpg") as picture:
        left, top = (picture.width - width) // 2, int(picture.height * 0.55)
        return Image.from_array(np.asarray(picture.convert("RGB").crop((left, top, left + width, top + height))))


def rows() -> Iterator[BenchRow]:
    """The rows, each as soon as it is measured."""
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        megapixel, twelve_megapixels = photograph(1230, 813), photograph(4242, 2828)
        yield call_row(box, "OCR, 512x256, a sign of two lines", "OCR", {}, sign_region(512, 256), target="≤ 0.30 s")
        yield call_row(box, "OCR, 512x256, a page of ten lines", "OCR", {}, page_region(512, 256))
        yield call_row(box, "ZOOM into 12 megapixels", "ZOOM", {"box": [0.4, 0.3, 0.7, 0.7]}, twelve_megapixels)
        yield call_row(box, "PROP of a box", "PROP", {"box": [0.4, 0.35, 0.68, 0.68]}, megapixel)
        name, args = "SEG classical, 1 megapixel, a phrase", {"target": "the red thing"}
        yield call_row(box, name, "SEG", args, megapixel, target="≤ 0.03 s")
        yield call_row(box, "SEG classical, 1 megapixel, a click", "SEG", {"target": [0.53, 0.52]}, megapixel)
        clip = open_media(DEMO / "cockatoo.mp4")
        note = f"{clip.duration_s:.0f} s clip, {clip.size.width}x{clip.size.height}"
        yield clip_row(box, "TRK from a first box", "TRK", {"box": [0.33, 0.03, 0.65, 0.97]}, note)
        yield clip_row(box, "TRK of what the detector sees", "TRK", {}, note)
        yield clip_row(box, "TEMP for a phrase", "TEMP", {"query": "the bird comes close to the camera"}, note)
    yield from sam2_rows(megapixel)
    yield startup_row()


def startup_row() -> BenchRow:
    """`pixelis --help`, process start and imports included."""
    import resource
    import subprocess
    import sys

    def children_cpu_seconds() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times = []
    for _ in range(5):
        before = children_cpu_seconds()
        subprocess.run([sys.executable, "-m", "pixelis", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(children_cpu_seconds() - before)
    return BenchRow("pixelis --help", sorted(times)[2], target="< 0.5 s")


def call_row(box: Toolbox, name: str, tool: str, args: dict[str, Any], image: Image, *, target: str = "") -> BenchRow:
    """Median of several calls on one image, with the models loaded before."""
    media = MediaSet((image,))

    def work() -> None:
        box.reset_perception()
        run_checked(box, tool, args, media)

    seconds = cpu_seconds(work, repeats=7)
    return BenchRow(name, seconds, "the paper, latency", PAPER[tool], target or f"< {PAPER[tool]} s")


def clip_row(box: Toolbox, name: str, tool: str, args: dict[str, Any], note: str) -> BenchRow:
    """Median of several calls, decoding included: each call opens the clip again."""

    def work() -> None:
        box.reset_perception()
        run_checked(box, tool, args, MediaSet((open_media(DEMO / "cockatoo.mp4"),)))

    seconds = cpu_seconds(work, repeats=3)
    duration = open_media(DEMO / "cockatoo.mp4").duration_s
    output = run_checked(box, tool, args, MediaSet((open_media(DEMO / "cockatoo.mp4"),)))
    rate = output.get("frames_looked_at") or output.get("frames") or "?"
    note = f"{note}; {rate} frames used; {seconds / duration:.2f} s per second of video"
    return BenchRow(name, seconds, "the paper, latency", PAPER[tool], f"near {PAPER[tool]} s", note)


def sam2_rows(image: Image) -> Iterator[BenchRow]:
    """The first prompt runs the image encoder; later ones on the same image reuse its output."""
    if not (is_available("sam2-tiny-encoder") and is_available("sam2-tiny-decoder")):
        yield BenchRow("SEG, SAM 2 tiny", float("nan"), note="not run: `pixelis models pull` downloads the weights")
        return
    import time

    with Toolbox(ToolboxConfig(seg="sam2", isolate=False, cache=False)) as box:
        run_checked(box, "SEG", {"target": [0.5, 0.5]}, MediaSet((photograph(640, 480),)))  # loads the models
        start = time.process_time()
        run_checked(box, "SEG", {"target": [0.53, 0.52]}, MediaSet((image,)))
        first_s = time.process_time() - start
        prompts = iter(np.linspace(0.2, 0.8, 16).tolist())
        later_s = cpu_seconds(
            lambda: run_checked(box, "SEG", {"target": [next(prompts), 0.5]}, MediaSet((image,))), repeats=9
        )
    note = "the image encoder runs once per image"
    yield BenchRow("SEG, SAM 2 tiny, first prompt", first_s, "the paper, latency", PAPER["SEG"], "", note)
    yield BenchRow("SEG, SAM 2 tiny, later prompts", later_s, "the paper, latency", PAPER["SEG"], "≤ 0.15 s")


def run_checked(box: Toolbox, tool: str, args: dict[str, Any], media: MediaSet) -> dict[str, Any]:
    """The output of a call; RuntimeError if it failed."""
    result = box.run(ToolCall(tool=tool, args=args), media).result
    if not result.ok:
        raise RuntimeError(f"{tool} {args}: {result.error}")
    return result.output
