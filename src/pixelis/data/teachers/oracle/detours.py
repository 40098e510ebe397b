"""Detours: what a strong model does beyond the shortest solution, and how often.

The paper's corpus has 5.8 steps per trajectory and a certain mix of tools (sec:data). The shortest solutions of the
world have about three steps and another mix. `RATES` holds for each family the probability of each possible detour,
tuned so that the six families, equally weighted, come near the paper's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle.oracle_session import (
    OracleCallOutcome,
    OracleRegion,
    OracleSession,
    box_centre,
    noun_from_phrase,
    snap_box,
)
from pixelis.world import Family

DetourKind = Literal[
    "refused", "broad", "unknown", "first_closer", "refine", "miss", "skim", "reread", "parts", "recount", "check",
    "sample", "show", "refollow", "point", "look",
]  # fmt: skip
"""refused: wrong arguments, then correct ones. broad: a phrase that matches too much. unknown: a phrase that SEG does
not know. first_closer: zoom to about the place, then search there. refine: zoom to what was found and search again.
miss: a wrong crop. skim: read everything. reread: read a part again, enlarged. parts: read a page in parts. recount:
count again. check: an unrelated property. sample, show: frames of a clip. refollow: a second track. point, look: not
detours but short cuts, a visual guess instead of a box from SEG or OCR."""

RATES: Mapping[Family, Mapping[DetourKind, float]] = {
    "search": {
        "refused": 0.07, "broad": 0.15, "unknown": 0.08, "first_closer": 0.55, "refine": 0.6, "miss": 0.35,
        "skim": 0.15, "reread": 0.95, "check": 0.2, "look": 1.0,
    },
    "choice": {
        "refused": 0.03, "broad": 0.05, "unknown": 0.02, "first_closer": 0.3, "refine": 0.15, "miss": 0.2, "skim": 0.5,
        "reread": 0.95, "recount": 0.5, "check": 0.06,
    },
    "motion": {
        "refused": 0.05, "broad": 0.05, "refine": 0.02, "miss": 0.1, "check": 0.05, "sample": 0.6, "show": 0.5,
        "refollow": 0.8, "point": 0.3,
    },
    "document": {"refused": 0.08, "miss": 0.12, "first_closer": 0.5, "reread": 0.75, "parts": 0.35, "check": 0.05},
    "lecture": {
        "refused": 0.05, "broad": 0.05, "refine": 0.6, "miss": 0.2, "reread": 0.6, "sample": 0.5, "show": 0.3,
        "refollow": 0.9, "point": 0.2,
    },
    "space": {
        "refused": 0.04, "broad": 0.05, "unknown": 0.03, "first_closer": 0.4, "refine": 0.25, "miss": 0.2, "skim": 0.4,
        "reread": 0.95, "recount": 0.5, "check": 0.15,
    },
}  # fmt: skip
VISUAL_GUESS_KINDS: tuple[DetourKind, ...] = ("first_closer", "point", "look")
STEP_LIMITS: Mapping[Family, int] = {"motion": 13, "lecture": 12}
"""No detour starts beyond this many steps; the limit of other families is 9."""


@dataclass
class Detours:
    """Decides whether to take a detour, for one item."""

    session: OracleSession
    enabled: bool = True
    visual_guess_rate: float = 1.0
    """Scales the rates of calls at a place that no tool has returned, as a model with good vision makes."""

    def should_take(self, kind: DetourKind, steps: int = 1, *, scale: float = 1.0) -> bool:
        """Draw with the family's rate; never true if the trace is too long already."""
        session = self.session
        scale *= self.visual_guess_rate if kind in VISUAL_GUESS_KINDS else 1.0
        is_drawn = session.chance(RATES[session.item.family].get(kind, 0.0) * scale)
        return is_drawn and self.enabled and len(session.drafts) + steps <= STEP_LIMITS.get(session.item.family, 9)


def call_with_wrong_arguments(session: OracleSession, tool: str, subject: str, plan: str, **args: Any) -> None:
    """Make a call with one wrong argument, as models do."""
    wrong_args = dict(args)
    target = wrong_args.get("box") or wrong_args.get("target")
    box = target if isinstance(target, list) and len(target) == 4 else []
    kinds = ["media", "extra"]
    if box:
        kinds += ["swapped", "pixels", "swapped"]
    if tool == "SEG":
        kinds += ["missing"]
    kind = session.choose(kinds)
    key = "box" if "box" in wrong_args else "target"
    if kind == "media":
        sources, views = len(session.media.sources), len(session.media.views)
        wrong_args["media"] = session.choose([f"Image_{sources + 1}", "image", f"View_{views + 1}"])
    elif kind == "extra":
        wrong_args[session.choose(["label", "name", "region", "object"])] = subject or "it"
    elif kind == "swapped":
        wrong_args[key] = [box[2], box[1], box[0], box[3]]
    elif kind == "pixels":
        wrong_args[key] = [round(v * 512) for v in box]
    else:
        wrong_args.pop("target", None)
        wrong_args["phrase"] = subject
    session.call(tool, plan, subject, **wrong_args)


def sample_wrong_crop(session: OracleSession, box_to_avoid: UnitBox) -> UnitBox:
    """Draw a crop that misses a place."""
    x, y = box_centre(box_to_avoid)
    for _ in range(8):
        width, height = session.rng.uniform(0.25, 0.4, size=2)
        left, top = session.rng.uniform(0.0, 1.0 - width), session.rng.uniform(0.0, 1.0 - height)
        if not (left - 0.05 <= x <= left + width + 0.05 and top - 0.05 <= y <= top + height + 0.05):
            break
    return snap_box((left, top, left + width, top + height))


def vague_phrase(session: OracleSession, phrase: str) -> str:
    """Draw a phrase that SEG does not know."""
    noun = noun_from_phrase(phrase) if noun_from_phrase(phrase) in VAGUE_NOUNS else "thing"
    return str(session.choose((f"the little {noun}", "the target", "the small object", "the asked object")))


VAGUE_NOUNS = ("panel", "thing", "key", "leaf", "bolt", "flag")
CHECKABLE_ATTRIBUTES = ("colour", "size", "position", "shape")


def check_property(session: OracleSession, region: OracleRegion) -> OracleCallOutcome:
    """Ask for an unrelated property of a region."""
    attributes = [session.choose(CHECKABLE_ATTRIBUTES)]
    return session.call("PROP", "check", box=list(region.box), attributes=attributes, **region.media_args)
