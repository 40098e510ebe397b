"""What the oracle says to itself: a glance back at the last result, then what to do next, in many wordings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from pixelis.data.teachers.oracle.question_goals import prefix_goal
from pixelis.tools.results import ToolResult
from pixelis.world.programs import locate_field
from pixelis.world.vocabulary import fix_articles

RECAP_RATE = 0.65
"""How often a thought begins with what the last call gave."""

PLAN_TEMPLATES: dict[str, tuple[str, ...]] = {
    "find": (
        "Let me find the {what}.", "I look for the {what}.", "Where is the {what}?", "First the {what}.",
        "Outline the {what}.", "I need the {what}.", "Now the {what}.", "Segment the {what}.",
        "Is there a {what}?", "Let me see whether there is a {what}.", "Next: the {what}.",
    ),
    "count": (
        "Let me outline every {what}.", "All of the {what} kind, please.", "I count each {what}.",
        "Find every single {what}.", "How many fit {what}?", "Every {what} gets a region.",
    ),
    "broad": (
        "Roughly first: anything {what}.", "Start with {what}.", "What is {what} here?", "I try {what}.",
        "Everything {what}, to begin with.", "Let me see what is {what}.",
    ),
    "narrow": (
        "Too broad; I say {what}.", "More exactly: {what}.", "Narrow it down to {what}.", "I mean the {what}.",
        "Not all of these: only {what}.", "Be precise: {what}.",
    ),
    "closer": (
        "Closer to the {what}.", "Zoom in on the {what}.", "I want to see the {what} larger.", "Enlarge the {what}.",
        "Let me look at the {what} from near.", "A closer look at the {what}.", "It is small; zoom in on the {what}.",
    ),
    "back": (
        "Step back a little around the {what}.", "The {what} with its surroundings.", "What stands around the {what}?",
        "A wider view around the {what}.", "I want to see what is next to the {what}.",
    ),
    "miss": (
        "Perhaps it is over here.", "I try this corner.", "Let me look there first.", "It may be in this part.",
        "Something is here; zoom in.", "A guess: this area.",
    ),
    "again": (
        "Not there. Look where it really is.", "Wrong place; go to the {what}.",
        "That shows something else; the {what} now.",
        "Missed it. Over to the {what}.", "This is not it; zoom to the {what}.",
    ),
    "read": (
        "Read the {what}.", "What does the {what} say?", "Let me read the {what}.", "Now the text of the {what}.",
        "Read it.", "The letters of the {what}, please.", "OCR on the {what}.", "What is written on the {what}?",
    ),
    "skim": (
        "Read everything first.", "What text is there at all?", "Let me skim all of the text.", "Read the whole frame.",
        "Start with all that is written.", "All lines, to get an overview.",
    ),
    "reread": (
        "Read it once more to be sure.", "Check the spelling.", "Read that part again, alone.",
        "One more reading of this spot.", "Is that right? Read again.", "Confirm the {what}.",
    ),
    "along": (
        "Along the row of {what}.", "What stands in the row of {what}?", "Read the row of {what}.",
        "Only the row of {what}.", "To the right of {what}.", "The row of {what}, alone.",
    ),
    "down": (
        "Down the column of {what}.", "What stands over {what}?", "Read the column of {what}.",
        "Only the column of {what}.", "Straight up from {what}.", "The column of {what}, alone.",
    ),
    "cross": (
        "Where they cross: {what}.", "Read where {what} meet.", "The cell of {what}.", "At the crossing of {what}.",
        "Read the cell of {what}.",
    ),
    "measure": (
        "What is the {what}?", "Measure the {what}.", "Let me check the {what}.", "I need its {what}.",
        "Now its {what}.", "Ask for the {what}.",
    ),
    "check": (
        "Check that this is right.", "Let me make sure.", "What is this like?", "Quick check of the region.",
        "Verify it.", "Does it fit?",
    ),
    "follow": (
        "Follow the {what}.", "Track the {what}.", "Where does the {what} go?",
        "Let me follow the {what} through the clip.",
        "I follow the {what} from here.", "Now track the {what}.", "How does the {what} move?",
    ),
    "refollow": (
        "Follow the {what} over another stretch.", "Confirm with a second track of the {what}.",
        "Once more, from another moment.", "The {what} again, from here on.", "Track it from a better frame.",
        "Make sure about the {what}.",
    ),
    "when": (
        "When is it: {what}?", "Find the moment: {what}.", "At which time: {what}?", "Look for when {what}.",
        "I need the time of: {what}.", "When does this happen: {what}?",
    ),
    "sample": (
        "A few frames to see what happens.", "Let me look over the clip.", "What does the clip show?",
        "Some frames, evenly.", "First an overview of the clip.", "How does it go on over time?",
    ),
    "show": (
        "Show the frame at {what}.", "Look at {what}.", "Let me see the picture at {what}.", "Go to {what}.",
        "The frame at {what}, please.", "Stop the clip at {what}.",
    ),
    "correct": (
        "My arguments were wrong; again.", "Fix the call.", "Corrected.", "I gave it wrongly. Once more.",
        "Let me write that properly.", "Same call, right arguments.",
    ),
    "instead": (
        "Another way: {what}.", "Try {what} instead.", "That did not work; {what}.", "Then {what}.",
        "Go about it differently: {what}.",
    ),
}  # fmt: skip

RECAP_TEMPLATES: dict[str, tuple[str, ...]] = {
    "one": ("Found.", "Found at the {where}.", "There it is, {where}.", "It is at the {where}.", "Got it: {where}."),
    "many": ("{n} regions fit.", "There are {n}.", "{n} found.", "I see {n} of them."),
    "none": ("Nothing fits.", "Not found.", "None here.", "No such region.", "SEG finds none."),
    "view": ("Now it is larger.", "Good view.", "That is closer.", "I see it better.", "Nice and large."),
    "text": ('It reads "{said}".', '"{said}", it says.', 'There is "{said}".', 'I read "{said}".'),
    "lines": ("{n} lines.", "Several lines of text.", "{n} lines are there.", "Some text, {n} lines."),
    "silent": ("No text there.", "Nothing to read.", "I cannot read anything.", "Blank."),
    "value": ("{said}.", "So it is {said}.", "That is {said}.", "It says {said}."),
    "track": ("It goes {said}.", "{said}, so far.", "The track goes {said}.", "It moves {said}."),
    "rest": ("It stays where it is.", "Hardly any movement.", "It does not move much.", "That one rests."),
    "span": ("At {said} s.", "Best match at {said} s.", "That is {said} s.", "Around {said} s."),
    "frames": ("I have the frames.", "So that is how it goes.", "Seen.", "The frames are here."),
    "refused": ("The call was refused.", "That was no valid call.", "My mistake.", "Invalid."),
    "failed": ("That failed.", "It did not work.", "No result.", "Nothing came back."),
}  # fmt: skip


class ThoughtWriter:
    """Thoughts drawn from one stream of chance; or `plain`: one wording for each, a look back, and the goal."""

    def __init__(self, rng: Generator, *, canonical_wording: bool = False, goal: str = "") -> None:
        self.rng = rng
        self.canonical_wording = canonical_wording
        self.goal = goal if canonical_wording else ""

    def write(
        self, kind: str, subject: str = "", last_result: ToolResult | None = None, *, running_note: str = ""
    ) -> str:
        """A thought before a call: perhaps a look back (`noted`, where there is something to note), then the plan."""
        thought = fix_articles(self._choose_template(PLAN_TEMPLATES[kind]).format(what=subject.removeprefix("the ")))
        thought = prefix_goal(self.goal, thought)
        if last_result is None or (not self.canonical_wording and self.rng.random() > RECAP_RATE):
            return thought
        return f"{running_note or self.recap(last_result)} {thought}"

    def recap(self, last_result: ToolResult) -> str:
        """What the last call gave, in a few words."""
        kind, fields = classify_result(last_result)
        text = self._choose_template(RECAP_TEMPLATES[kind]).format(**fields)
        return text[0].upper() + text[1:]

    def _choose_template(self, templates: tuple[str, ...]) -> str:
        return templates[0] if self.canonical_wording else templates[int(self.rng.integers(len(templates)))]


def classify_result(result: ToolResult) -> tuple[str, dict[str, Any]]:
    """Which kind of look back a result calls for, and what it is about."""
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
