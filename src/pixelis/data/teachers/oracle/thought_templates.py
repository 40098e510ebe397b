"""The oracle's thoughts: a recap of the last result, then what to do next, in many wordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from pixelis.data.teachers.oracle.question_goals import prefix_goal
from pixelis.tools.results import ToolResult
from pixelis.world.package_data import read_package_yaml
from pixelis.world.programs import locate_field
from pixelis.world.vocabulary import fix_articles

RECAP_RATE = 0.65
"""The share of thoughts that begin with a recap."""

SENTENCES = read_package_yaml("pixelis.data.teachers.oracle", "thoughts.yaml")
PLAN_TEMPLATES: dict[str, list[str]] = SENTENCES["plans"]
RECAP_TEMPLATES: dict[str, list[str]] = SENTENCES["recaps"]


class ThoughtWriter:
    """Draws the wording of thoughts; with canonical wording it takes the first, adds the goal, and always recaps."""

    def __init__(self, rng: Generator, *, canonical_wording: bool = False, goal: str = "") -> None:
        self.rng = rng
        self.canonical_wording = canonical_wording
        self.goal = goal if canonical_wording else ""

    def write(
        self, kind: str, subject: str = "", last_result: ToolResult | None = None, *, running_note: str = ""
    ) -> str:
        """A thought before a call: perhaps a recap or the running note, then the plan."""
        thought = fix_articles(self._choose_template(PLAN_TEMPLATES[kind]).format(what=subject.removeprefix("the ")))
        thought = prefix_goal(self.goal, thought)
        if last_result is None or (not self.canonical_wording and self.rng.random() > RECAP_RATE):
            return thought
        return f"{running_note or self.recap(last_result)} {thought}"

    def recap(self, last_result: ToolResult) -> str:
        """The last result in a few words."""
        kind, fields = classify_result(last_result)
        text = self._choose_template(RECAP_TEMPLATES[kind]).format(**fields)
        return text[0].upper() + text[1:]

    def _choose_template(self, templates: list[str]) -> str:
        return templates[0] if self.canonical_wording else templates[int(self.rng.integers(len(templates)))]


def classify_result(result: ToolResult) -> tuple[str, dict[str, Any]]:
    """The kind of recap that a result calls for, and its fields."""
    if result.status == "invalid":
        return "refused", {}
    if not result.ok:
        return ("none" if result.tool == "SEG" else "failed"), {}
    return RESULT_CLASSIFIERS[result.tool](result.output)


def _classify_regions(output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    regions = output["regions"]
    return ("one", {"where": locate_field(regions[0]["box"])}) if len(regions) == 1 else ("many", {"n": len(regions)})


def _classify_lines(output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    lines = str(output["text"]).splitlines()
    if len(lines) == 1:
        return "text", {"said": lines[0][:32]}
    return ("lines", {"n": len(lines)}) if lines else ("silent", {})


def _classify_properties(output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return "value", {"said": ", ".join(str(p["value"]) for p in output["properties"].values())[:40]}


def _classify_track(output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if not output["tracks"]:
        return "failed", {}
    way = output["tracks"][0]["direction"]
    return ("rest", {}) if way == "still" else ("track", {"said": way})


def _classify_segments(output: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    best = output["segments"][0]
    span_text = f"{best['start_s']:.2f}-{best['end_s']:.2f}"
    return ("frames", {}) if output["frames"] else ("span", {"said": span_text})


RESULT_CLASSIFIERS: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "SEG": _classify_regions,
    "ZOOM": lambda output: ("view", {}),
    "OCR": _classify_lines,
    "PROP": _classify_properties,
    "TRK": _classify_track,
    "TEMP": _classify_segments,
}
