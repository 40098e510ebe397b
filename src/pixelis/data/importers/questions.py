"""The questions that are put about real data: wordings, reference programs and the tool calls that lead to the answer.

They are templates as the world's are, except that annotations compose them, not a seed; so necessity labels come from
the same perturbation tests (supp:tool_necessity), by running these programs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from pixelis.errors import ConfigError
from pixelis.geometry import Mask, Span, TextSpan, Track
from pixelis.metrics.temporal import temporal_iou
from pixelis.world.generate import finished
from pixelis.world.item import Item, MediumFacts, Reference
from pixelis.world.necessity import shorter_side_px
from pixelis.world.programs import (
    Parameters,
    References,
    Unanswerable,
    area,
    aspect,
    box_of,
    centre,
    heading,
    moved,
    nearest,
    number,
    on_grid,
    region,
    regions,
    says,
    spans,
    stretch,
    stretches,
    text_of,
    track,
    words_of,
)
from pixelis.world.template import Brief, ChainStep, Dial, Draft, Template

SAME = 0.5
"""Two regions of a class are one thing where they share this much of the smaller one."""
HEADINGS = ("left", "right", "up", "down", "up left", "up right", "down left", "down right")


def annotated(brief: Brief) -> Draft:
    """What composes a question over annotations: nothing does, it is made by an import."""
    raise ConfigError("this question is composed from annotations (pixelis data import), not from a seed")


# --- programs


def distinct(references: References, phrase: str) -> int:
    """How many things of a class there are; regions that lie over each other are one."""
    found = [r.footprint for r in regions(references, phrase)]
    grids = [on_grid(f).astype(bool) for f in found if isinstance(f, Mask)]
    kept: list[np.ndarray] = []
    for grid in sorted(grids, key=lambda g: -int(g.sum())):
        least = SAME * max(int(grid.sum()), 1)
        if not any(g.shape == grid.shape and int((g & grid).sum()) > least for g in kept):
            kept.append(grid)
    return len(kept) + sum(not isinstance(f, Mask) for f in found)


def count(references: References, parameters: Parameters) -> str:
    """How many things of the asked class there are."""
    return str(distinct(references, text_of(parameters, "target")))


def _side(references: References, parameters: Parameters) -> str:
    a, b = (centre(box_of(region(references, text_of(parameters, key)))) for key in ("a", "b"))
    return "left" if a[0] < b[0] else "right"


def _largest(references: References, parameters: Parameters) -> str:
    return max(words_of(parameters, "names"), key=lambda name: area(region(references, name)))


def _tracks(references: References, label: str) -> list[Track]:
    found = [r.footprint for r in references if r.properties.get("class") == label]
    return [f for f in found if isinstance(f, Track)]


def _people(references: References, parameters: Parameters) -> str:
    return str(len(_tracks(references, text_of(parameters, "target"))))


def _crossing(references: References, parameters: Parameters) -> str:
    ends = [(centre(t.boxes[0])[0], centre(t.boxes[-1])[0]) for t in _tracks(references, text_of(parameters, "target"))]
    return str(sum(first < 0.5 <= last for first, last in ends))


def _heading(references: References, parameters: Parameters) -> str:
    followed = track(references, text_of(parameters, "target"))
    return heading(*moved(followed, aspect(parameters)))


def _at(references: References, parameters: Parameters) -> str:
    x, y = (float(str(v)) for v in _tuple(parameters, "point"))
    inside = [r for r in spans(references) if _covers(r, x, y)]
    return says(nearest(inside, lambda r: lettering(r, aspect(parameters))))


def _covers(reference: Reference, x: float, y: float) -> bool:
    x0, y0, x1, y1 = box_of(reference)
    return x0 <= x <= x1 and y0 <= y <= y1


def lettering(reference: Reference, ratio: float) -> float:
    """Height of the letters in frame widths: the shorter way across the quadrilateral, whichever way the text runs."""
    footprint = reference.footprint
    if not isinstance(footprint, TextSpan):
        return 0.0
    quad = np.array(footprint.quad) * (1.0, ratio)
    sides = np.linalg.norm(quad - np.roll(quad, -1, axis=0), axis=1)  # (4,)
    return float(min(sides[0] + sides[2], sides[1] + sides[3])) / 2


def _largest_word(references: References, parameters: Parameters) -> str:
    return says(nearest(spans(references), lambda r: -lettering(r, aspect(parameters))))


def _window(references: References, parameters: Parameters) -> str:
    """The offered window that shares most with when it happens."""
    found = stretches(references, text_of(parameters, "query"))
    starts, ends = (tuple(float(str(v)) for v in _tuple(parameters, key)) for key in ("starts", "ends"))
    shared = [
        max((temporal_iou((a, b), (f.start_s, f.end_s)) for f in found), default=0.0)
        for a, b in zip(starts, ends, strict=True)
    ]
    if max(shared) <= 0.0:
        raise Unanswerable("it happens in none of the windows")
    return words_of(parameters, "windows")[int(np.argmax(shared))]


def _tuple(parameters: Parameters, key: str) -> Sequence[object]:
    value = parameters[key]
    return value if isinstance(value, tuple) else (value,)


def _start(references: References, parameters: Parameters) -> str:
    return number(round(stretch(references, text_of(parameters, "query")).start_s, 1))


def _first(references: References, parameters: Parameters) -> str:
    return min(words_of(parameters, "events"), key=lambda event: stretch(references, event).start_s)


# --- templates

FIND = ChainStep(tool="SEG", args={"target": "{target}", "limit": 64})
TEMPLATES: dict[str, Template] = {
    template.id: template
    for template in (
        Template(
            "coco.count", "space",
            (
                "How many objects of the class “{target}” are in the picture?",
                "Count the objects of kind “{target}”. How many do you find?",
                "What is the number of “{target}” objects here?",
            ),
            annotated, count, "mra", (FIND,), doc="the number of regions",
        ),
        Template(
            "coco.side", "search",
            (
                "Is the {a} to the left or to the right of the {b}?",
                "On which side of the {b} is the {a}, left or right?",
                "Seen from the camera: does the {a} stand left or right of the {b}?",
            ),
            annotated, _side, "exact",
            (ChainStep(tool="SEG", args={"target": "{a}"}), ChainStep(tool="SEG", args={"target": "{b}"})),
            doc="the order of the two boxes' centres",
        ),
        Template(
            "coco.largest", "choice",
            (
                "Which of these takes up most of the picture?",
                "Which of these covers the largest area in the image?",
                "Which object is the largest as seen here?",
            ),
            annotated, _largest, "choice",
            (ChainStep(tool="SEG", args={"target": "{names}"}, note="once for each of the names"),),
            doc="the name whose region has the largest area",
        ),
        Template(
            "mot.count", "space",
            (
                "How many different objects of the class “{target}” appear in the clip?",
                "Count every “{target}” that comes into view, each one once.",
            ),
            annotated, _people, "mra", (ChainStep(tool="TRK", args={"label": "{coco}"}),),
            doc="the number of tracks",
        ),
        Template(
            "mot.crossing", "space",
            (
                "How many objects of the class “{target}” go from the left half of the view to the right half?",
                "Count the “{target}” tracks that begin in the left half of the picture and end in the right half.",
            ),
            annotated, _crossing, "mra", (ChainStep(tool="TRK", args={"label": "{coco}"}),),
            doc="tracks whose first box lies left of the middle and whose last does not",
        ),
        Template(
            "mot.heading", "motion",
            (
                "The {class} at [{box}] on frame {frame}: which way does it move until it is last seen?",
                "Follow the {class} that is at [{box}] on frame {frame}. In which direction does it go over the clip?",
            ),
            annotated, _heading, "choice", (ChainStep(tool="TRK", args={"box": "{box}", "start_frame": "{frame}"}),),
            doc="from the centre of the track's first box to that of its last",
        ),
        Template(
            "ocr.at", "document",
            (
                "What does the text at ({point}) say?",
                "Which word stands at the point ({point}), x and y from 0 to 1?",
                "Read what is written at ({point}).",
            ),
            annotated, _at, "anls",
            (ChainStep(tool="ZOOM", args={"box": "{box}"}), ChainStep(tool="OCR", args={"media": "$1.view"})),
            doc="the line that OCR read",
        ),
        Template(
            "ocr.largest", "document",
            (
                "What does the largest lettering in the picture say?",
                "Which word is written in the largest letters?",
                "Read the biggest text.",
            ),
            annotated, _largest_word, "anls", (ChainStep(tool="OCR"),), doc="the line with the highest box",
        ),
        Template(
            "spans.when", "motion",
            (
                "When does this happen: “{query}”?",
                "In which part of the clip can this be seen: “{query}”?",
                "Which stretch of the video shows this: “{query}”?",
            ),
            annotated, _window, "choice", (ChainStep(tool="TEMP", args={"query": "{query}"}),),
            doc="the offered window that overlaps the best segment most",
        ),
        Template(
            "spans.start", "space",
            (
                "At what second does this begin: “{query}”?",
                "How many seconds into the clip does this start: “{query}”?",
            ),
            annotated, _start, "mra", (ChainStep(tool="TEMP", args={"query": "{query}"}),),
            doc="where the best segment begins",
        ),
        Template(
            "spans.first", "motion",
            ("Which of these comes first in the clip?", "Two things happen in the video. Which one happens first?"),
            annotated, _first, "choice",
            (ChainStep(tool="TEMP", args={"query": "{events}"}, note="once for each of the events"),),
            doc="the event whose segment begins first",
        ),
    )
}  # fmt: skip


def asked(name: str, draft: Draft, *, id: str, seed: int, templates: Mapping[str, Template] = TEMPLATES) -> Item:
    """The item of a template over annotations; Unanswerable where its program finds no answer."""
    chosen = templates[name]
    wording = chosen.wordings[seed % len(chosen.wordings)]
    item = finished(chosen, draft, wording, seed=seed, dial=Dial(1))
    return item.model_copy(update={"id": id, "difficulty": difficulty(item)})


def difficulty(item: Item) -> int:
    """An estimate, 1 to 5: how small the evidence is at the policy's input size, and how much lies around it."""
    media: dict[str, MediumFacts] = {m.name: m for m in item.media}
    evidence = [item.reference(name) for name in item.evidence]
    times = [r.footprint for r in evidence if isinstance(r.footprint, Span)]
    if times:
        whole = max(item.media[0].duration_s, 1e-9)
        share = max(min(min(t.seconds for t in times) / whole, 1.0), 1e-9)
        return 1 + sum(share < bound for bound in (0.5, 0.25, 0.1, 0.05))
    smallest = min((shorter_side_px(r, media) for r in evidence), default=0.0)
    small = sum(smallest < bound for bound in (64, 32, 16))
    return min(1 + small + ceil(max(len(item.references) - 8, 0) / 24), 5)
