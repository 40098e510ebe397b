"""What the oracle says to itself."""

from __future__ import annotations

import numpy as np

from pixelis.data.teachers.oracle.thought_templates import PLAN_TEMPLATES, ThoughtWriter, classify_result
from pixelis.tools.results import ToolResult
from pixelis.world.programs import locate_field
from pixelis.world.vocabulary import fix_articles


def test_an_orange_ring_gets_its_article():
    assert fix_articles("Is there a orange ring?") == "Is there an orange ring?"
    assert fix_articles("a red ring") == "a red ring"


def test_a_place_is_named_in_nine_parts():
    assert locate_field((0.0, 0.0, 0.2, 0.2)) == "top left"
    assert locate_field((0.4, 0.4, 0.6, 0.6)) == "centre"
    assert locate_field((0.4, 0.8, 0.6, 1.0)) == "bottom"


def test_a_look_back_says_what_the_last_call_gave():
    read = ToolResult(tool="OCR", status="ok", output={"text": "Krogeand"})
    assert classify_result(read) == ("text", {"said": "Krogeand"})
    assert classify_result(ToolResult.failed("SEG", "nothing fits")) == ("none", {})
    assert classify_result(ToolResult.failed("ZOOM", "no box", "invalid")) == ("refused", {})


def test_a_hundred_thoughts_about_the_same_step_have_many_wordings():
    voice = ThoughtWriter(np.random.default_rng(3))
    read = ToolResult(tool="OCR", status="ok", output={"text": "Krogeand"})
    assert len({voice.write("find", "red star", read) for _ in range(100)}) > 25


def test_every_plan_has_at_least_five_wordings():
    assert min(len(lines) for lines in PLAN_TEMPLATES.values()) >= 5
