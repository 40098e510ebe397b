"""The shipped policy on real photographs and pages that it was not trained on, with questions written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pixelis.api import Answer, ask

QUESTIONS = Path(__file__).with_name("real_questions.json")
DEMO = Path(__file__).parents[2] / "src" / "pixelis" / "demo"


def names_it(phrase: str, thing: str) -> bool:
    """Whether a call names what was asked about."""
    words = ("person", "people") if thing in ("person", "people") else (thing,)
    return any(word in phrase.casefold() for word in words)


def looked_as_expected(found: Answer, tool: str, thing: str) -> bool:
    """The tool is called at all, and where a thing is asked about, some call names it."""
    steps = found.trace.steps
    used = {step.call.tool for step in steps}
    named = [str(step.call.args.get(key, "")) for step in steps for key in ("target", "of")]
    fits = tool in used or (tool == "PROP" and "SEG" in used)
    return fits and (not thing or any(names_it(phrase, thing) for phrase in named))


def test_photographs_and_pages_are_looked_at_with_the_right_tools_and_mostly_read_right(realdata: Path):
    rows: list[tuple[Any, ...]] = []
    for file, question, tool, thing, right in json.loads(QUESTIONS.read_bytes()):
        path = DEMO / Path(file).name if file.startswith("../demo/") else realdata / file
        found = ask(path, question)
        good = (found.answer or "").casefold() in {text.casefold() for text in right}
        rows.append((looked_as_expected(found, tool, thing), good, file, question, found.answer, right[0]))
    told = "\n".join(map(str, rows))
    looked, answered = (sum(row[k] for row in rows) / len(rows) for k in (0, 1))
    assert looked >= 0.8, told
    assert answered >= 0.6, told
