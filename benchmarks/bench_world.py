"""Bench rows of the world: images and videos per core and second, references and labels included."""

from __future__ import annotations

from itertools import count

import cv2

from benchmarks.bench_rows import BenchRow, cpu_seconds
from pixelis.world import generate

PICTURES = 24
"""Images per measurement; templates and backgrounds differ in cost."""
CLIPS = 8


def rows() -> list[BenchRow]:
    """CPU seconds of one 512x512 image, one clip and one lecture, in memory, on one thread."""
    cv2.setNumThreads(1)
    picture_s = _mean_s(
        "choice", PICTURES, template_ids=("choice.present", "choice.count", "choice.size", "choice.panel")
    )
    clip_s = _mean_s("motion", CLIPS, template_ids=("motion.direction", "motion.order", "motion.passing"))
    lecture_s = _mean_s("lecture", CLIPS, template_ids=("lecture.title_when", "lecture.sum"))
    return [
        BenchRow(
            "world: one picture of 512x512 with references",
            picture_s,
            target="0.025 s (40 a second)",
            note=f"{1 / picture_s:.0f} a second, difficulty 1 to 5",
        ),
        BenchRow(
            "world: one clip of 44 to 48 frames of 416x312 with tracks",
            clip_s,
            target="0.333 s (3 a second)",
            note=f"{1 / clip_s:.0f} a second; the target is for 32 frames",
        ),
        BenchRow(
            "world: one lecture of 30 to 56 frames of 448x336",
            lecture_s,
            target="0.333 s (3 a second)",
            note=f"{1 / lecture_s:.0f} a second",
        ),
    ]


def _mean_s(family: str, items: int, *, template_ids: tuple[str, ...]) -> float:
    """Mean CPU seconds per item, over templates and difficulties."""
    seeds = count()

    def work() -> None:
        for k in range(items):
            generate(
                family,  # type: ignore[arg-type]
                seed=next(seeds),
                difficulty=1 + k % 5,
                template_id=template_ids[k % len(template_ids)],
            )

    return cpu_seconds(work, repeats=5) / items
