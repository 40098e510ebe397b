"""Ways round: what a strong model does besides the shortest chain, and how often, so that the mix of tools comes out.

The paper's corpus has 5.8 steps a trajectory and a usage by tool (sec:data). The shortest chains of the world have
about three, with a mix of their own; `RATES` says for each family how often a detour is taken where one is possible,
tuned so that the six families together, equally weighted, come near the paper's figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pixelis.data.oracle_session import Found, Seen, Session, as_read, centre, noun_of
from pixelis.geometry import UnitBox
from pixelis.world import Family

Kind = Literal[
    "refused", "broad", "unknown", "first_closer", "refine", "miss", "skim", "reread", "parts", "recount", "check",
    "sample", "show", "refollow", "point", "look",
]  # fmt: skip
"""refused: wrong arguments, then right ones. broad: a phrase that fits too much. unknown: a phrase that SEG does not
know. first_closer: zoom to about the place, then look there. refine: zoom to what was found and look again. miss: a
wrong crop. skim: read everything. reread: read a part again, larger. parts: read a
page part by part. recount: count again. check: a property nobody asked for. sample, show: frames
of a clip. refollow: a second track. point, look: no detours but
short cuts, a box by eye in place of SEG's or OCR's."""

RATES: Mapping[Family, Mapping[Kind, float]] = {
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
BY_EYE: tuple[Kind, ...] = ("first_closer", "point", "look")
LONGEST: Mapping[Family, int] = {"motion": 13, "lecture": 12}
"""Beyond this many steps no detour is begun; 9 for the families that are not named."""


@dataclass
class Detours:
    """Whether to take a way round, for one item."""

    session: Session
    enabled: bool = True
    by_eye: float = 1.0
    """How often, of 1, a look goes straight to a place that no tool has returned, as a model with good eyes would."""

    def take(self, kind: Kind, steps: int = 1, *, scale: float = 1.0) -> bool:
        """Draw: with the family's rate, as long as the chain has not grown too long."""
        s = self.session
        scale *= self.by_eye if kind in BY_EYE else 1.0
        drawn = s.chance(RATES[s.item.family].get(kind, 0.0) * scale)
        return drawn and self.enabled and len(s.drafts) + steps <= LONGEST.get(s.item.family, 9)


def refused(s: Session, tool: str, what: str, plan: str, **args: Any) -> None:
    """A call with an argument that is wrong, as it happens to a model."""
    wrong = dict(args)
    given = wrong.get("box") or wrong.get("target")
    box = given if isinstance(given, list) and len(given) == 4 else []
    ways = ["media", "extra"]
    if box:
        ways += ["swapped", "pixels", "swapped"]
    if tool == "SEG":
        ways += ["missing"]
    way = s.choose(ways)
    key = "box" if "box" in wrong else "target"
    if way == "media":
        wrong["media"] = s.choose([f"Image_{len(s.media.given) + 1}", "image", f"View_{len(s.media.views) + 1}"])
    elif way == "extra":
        wrong[s.choose(["label", "name", "region", "object"])] = what or "it"
    elif way == "swapped":
        wrong[key] = [box[2], box[1], box[0], box[3]]
    elif way == "pixels":
        wrong[key] = [round(v * 512) for v in box]
    else:
        wrong.pop("target", None)
        wrong["phrase"] = what
    s.call(tool, plan, what, **wrong)


def elsewhere(s: Session, avoid: UnitBox) -> UnitBox:
    """A crop that misses a place."""
    x, y = centre(avoid)
    for _ in range(8):
        wide, high = s.rng.uniform(0.25, 0.4, size=2)
        left, top = s.rng.uniform(0.0, 1.0 - wide), s.rng.uniform(0.0, 1.0 - high)
        if not (left - 0.05 <= x <= left + wide + 0.05 and top - 0.05 <= y <= top + high + 0.05):
            break
    return as_read((left, top, left + wide, top + high))


def vague(s: Session, phrase: str) -> str:
    """Words that SEG cannot place."""
    noun = noun_of(phrase) if noun_of(phrase) in NOT_KNOWN else "thing"
    return str(s.choose((f"the little {noun}", "the target", "the small object", "the asked object")))


NOT_KNOWN = ("panel", "thing", "key", "leaf", "bolt", "flag")
CHECKED = ("colour", "size", "position", "shape")


def check(s: Session, found: Found) -> Seen:
    """A property of a region that nobody asked for."""
    return s.call("PROP", "check", box=list(found.box), attributes=[s.choose(CHECKED)], **found.place)
