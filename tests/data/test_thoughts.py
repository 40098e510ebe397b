"""What the oracle says to itself."""

from __future__ import annotations

import numpy as np

from pixelis.data.thoughts import PLANS, Voice, reaction
from pixelis.tools.results import ToolResult
from pixelis.world.programs import field_of
from pixelis.world.vocabulary import with_article


def test_an_orange_ring_gets_its_article():
    assert with_article("Is there a orange ring?") == "Is there an orange ring?"
    assert with_article("a red ring") == "a red ring"


def test_a_place_is_named_in_nine_parts():
    assert field_of((0.0, 0.0, 0.2, 0.2)) == "top left"
    assert field_of((0.4, 0.4, 0.6, 0.6)) == "centre"
    assert field_of((0.4, 0.8, 0.6, 1.0)) == "bottom"


def test_a_look_back_says_what_the_last_call_gave():
    read = ToolResult(tool="OCR", status="ok", output={"text": "Krogeand"})
    assert reaction(read) == ("text", {"said": "Krogeand"})
    assert reaction(ToolResult.failed("SEG", "nothing fits")) == ("none", {})
    assert reaction(ToolResult.failed("ZOOM", "no box", "invalid")) == ("refused", {})


def test_a_hundred_thoughts_about_the_same_step_have_many_wordings():
    voice = Voice(np.random.default_rng(3))
    read = ToolResult(tool="OCR", status="ok", output={"text": "Krogeand"})
    assert len({voice.plan("find", "red star", read) for _ in range(100)}) > 25


def test_every_plan_has_at_least_five_wordings():
    assert min(len(lines) for lines in PLANS.values()) >= 5
