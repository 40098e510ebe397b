"""Questions about annotated datasets: wordings, reference programs and the tool calls that lead to the answer.

They are templates like the world's, composed from annotations instead of a seed, so that necessity labels come from the
same perturbation tests (supp:tool_necessity).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Mask, Span, TextSpan, Track
from pixelis.data.importers.import_options import stable_seed
from pixelis.items import Item, MediumFacts, Reference
from pixelis.media import Medium
from pixelis.metrics.temporal import temporal_iou
from pixelis.world.generate import build_item
from pixelis.world.package_data import read_package_yaml
from pixelis.world.programs import (
    Facts,
    Program,
    Unanswerable,
    area,
    centre,
    displacement,
    format_number,
    get_box,
    heading,
    line_text,
    mask_to_grid,
    nearest,
)
from pixelis.world.template import Brief, DifficultySettings, ItemDraft, Template, make_template
from pixelis.world.tool_necessity import shorter_side_px

SAME_OVERLAP = 0.5
"""Two regions of a class are one thing if they share this part of the smaller one."""
HEADINGS = ("left", "right", "up", "down", "up left", "up right", "down left", "down right")


def refuse_to_compose(brief: Brief) -> ItemDraft:
    """`compose` of the templates below, which only an import can fill."""
    raise ConfigError("this question is composed from annotations (pixelis data import), not from a seed")


# --- programs


def count_distinct(references: Sequence[Reference], phrase: str) -> int:
    """How many things of a class there are; overlapping regions count once."""
    footprints = [r.footprint for r in Facts(references).regions(phrase)]
    grids = [mask_to_grid(f).astype(bool) for f in footprints if isinstance(f, Mask)]
    unique_masks: list[np.ndarray] = []
    for grid in sorted(grids, key=lambda g: -int(g.sum())):
        min_overlap = SAME_OVERLAP * max(int(grid.sum()), 1)
        if not any(g.shape == grid.shape and int((g & grid).sum()) > min_overlap for g in unique_masks):
            unique_masks.append(grid)
    return len(unique_masks) + sum(not isinstance(f, Mask) for f in footprints)


def count_target(facts: Facts) -> str:
    """How many things of the target class there are."""
    return str(count_distinct(facts.references, facts.text("target")))


def _side(facts: Facts) -> str:
    a, b = (centre(facts.box(key)) for key in ("a", "b"))
    return "left" if a[0] < b[0] else "right"


def _largest(facts: Facts) -> str:
    return max(facts.words("names"), key=lambda name: area(facts.region(name)))


def _tracks(facts: Facts, label: str) -> list[Track]:
    footprints = [r.footprint for r in facts.references if r.properties.get("class") == label]
    return [f for f in footprints if isinstance(f, Track)]


def _count_tracks(facts: Facts) -> str:
    return str(len(_tracks(facts, facts.text("target"))))


def _count_crossings(facts: Facts) -> str:
    ends = [(centre(t.boxes[0])[0], centre(t.boxes[-1])[0]) for t in _tracks(facts, facts.text("target"))]
    return str(sum(first < 0.5 <= last for first, last in ends))


def _heading(facts: Facts) -> str:
    target_track = facts.track(facts.text("target"))
    return heading(*displacement(target_track, facts.aspect))


def _text_at(facts: Facts) -> str:
    x, y = (float(str(v)) for v in _as_tuple(facts, "point"))
    covering = [r for r in facts.lines() if _covers(r, x, y)]
    return line_text(nearest(covering, lambda r: letter_height(r, facts.aspect)))


def _covers(reference: Reference, x: float, y: float) -> bool:
    x0, y0, x1, y1 = get_box(reference)
    return x0 <= x <= x1 and y0 <= y <= y1


def letter_height(reference: Reference, aspect_ratio: float) -> float:
    """Height of the letters in frame widths: the shorter side of the quadrilateral, whichever way the text runs."""
    footprint = reference.footprint
    if not isinstance(footprint, TextSpan):
        return 0.0
    quad = np.array(footprint.quad) * (1.0, aspect_ratio)
    sides = np.linalg.norm(quad - np.roll(quad, -1, axis=0), axis=1)  # (4,)
    return float(min(sides[0] + sides[2], sides[1] + sides[3])) / 2


def _largest_word(facts: Facts) -> str:
    return line_text(nearest(facts.lines(), lambda r: -letter_height(r, facts.aspect)))


def _best_window(facts: Facts) -> str:
    """The candidate window with the largest overlap."""
    segments = facts.spans(facts.text("query"))
    starts, ends = (tuple(float(str(v)) for v in _as_tuple(facts, key)) for key in ("starts", "ends"))
    overlaps = [
        max((temporal_iou((a, b), (f.start_s, f.end_s)) for f in segments), default=0.0)
        for a, b in zip(starts, ends, strict=True)
    ]
    if max(overlaps) <= 0.0:
        raise Unanswerable("it happens in none of the windows")
    return facts.words("windows")[int(np.argmax(overlaps))]


def _as_tuple(facts: Facts, key: str) -> Sequence[object]:
    value = facts.parameters[key]
    return value if isinstance(value, tuple) else (value,)


def _start_second(facts: Facts) -> str:
    return format_number(round(facts.span(facts.text("query")).start_s, 1))


def _first_event(facts: Facts) -> str:
    return min(facts.words("events"), key=lambda event: facts.span(event).start_s)


# --- templates


def load_question_templates(programs: Mapping[str, Program]) -> dict[str, Template]:
    """Templates by id, from their programs and `questions.yaml`; only an import can compose them."""
    questions = read_package_yaml("pixelis.data.importers", "questions.yaml")
    return {
        name: make_template(name, questions[name]["family"], questions[name], refuse_to_compose, solve)
        for name, solve in programs.items()
    }


TEMPLATES = load_question_templates(
    {
        "coco.count": count_target,
        "coco.side": _side,
        "coco.largest": _largest,
        "mot.count": _count_tracks,
        "mot.crossing": _count_crossings,
        "mot.heading": _heading,
        "ocr.at": _text_at,
        "ocr.largest": _largest_word,
        "spans.when": _best_window,
        "spans.start": _start_second,
        "spans.first": _first_event,
    }
)


def make_question_item(
    name: str, draft: ItemDraft, *, id: str, seed: int, templates: Mapping[str, Template] = TEMPLATES
) -> Item:
    """The item of a template over annotations; raises Unanswerable if its program finds no answer."""
    template = templates[name]
    wording = template.wordings[seed % len(template.wordings)]
    item = build_item(template, draft, wording, seed=seed, settings=DifficultySettings(1))
    return item.model_copy(update={"id": id, "difficulty": estimate_difficulty(item)})


@dataclass(frozen=True)
class QuestionMaker:
    """Makes the questions about one medium; holds what they share."""

    medium: Medium
    references: list[Reference]
    facts: Mapping[str, Any]
    key: tuple[object, ...]
    """Names the medium in ids and seeds."""
    trait: str = "photograph"
    templates: Mapping[str, Template] = field(default_factory=lambda: TEMPLATES)

    def ask(
        self,
        kind: str,
        evidence: Sequence[Reference],
        parameters: Mapping[str, Any],
        *,
        key: tuple[object, ...] | None = None,
        references: list[Reference] | None = None,
        **draft_fields: Any,
    ) -> Item:
        """The item of template `kind`; `key` and `references` replace those of the medium."""
        draft = ItemDraft(
            (self.medium,),
            self.references if references is None else references,
            [r.name for r in evidence],
            {**self.facts, **parameters},
            traits={self.trait},
            **draft_fields,
        )
        names = (kind, *(key or self.key))
        return make_question_item(
            kind, draft, id="/".join(map(str, names)), seed=stable_seed(*names), templates=self.templates
        )


def estimate_difficulty(item: Item) -> int:
    """Estimated difficulty, 1 to 5: how small the evidence is at the policy's input size, and how much surrounds it."""
    media: dict[str, MediumFacts] = {m.name: m for m in item.media}
    evidence = [item.reference(name) for name in item.evidence]
    time_spans = [r.footprint for r in evidence if isinstance(r.footprint, Span)]
    if time_spans:
        duration_s = max(item.media[0].duration_s, 1e-9)
        share = max(min(min(t.seconds for t in time_spans) / duration_s, 1.0), 1e-9)
        return 1 + sum(share < bound for bound in (0.5, 0.25, 0.1, 0.05))
    smallest = min((shorter_side_px(r, media) for r in evidence), default=0.0)
    size_levels = sum(smallest < bound for bound in (64, 32, 16))
    return min(1 + size_levels + ceil(max(len(item.references) - 8, 0) / 24), 5)
