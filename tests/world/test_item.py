"""Items: scored by the rule of their benchmark, turned for circular evaluation, refused where they contradict."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from pixelis.core.geometry import Box
from pixelis.items import MediumFacts
from pixelis.world import Item, Reference, rotations, score


def item(**changes: Any) -> Item:
    fields: dict[str, Any] = {
        "id": "choice.colour/1/0",
        "family": "choice",
        "template": "choice.colour",
        "difficulty": 1,
        "seed": 0,
        "stem": "What colour is the star?",
        "options": ("red", "blue", "green", "pink"),
        "answer": "B",
        "answers": ("B",),
        "scoring": "choice",
        "media": (MediumFacts(name="Image_0", sha256="0" * 64, width=512, height=512),),
    }
    return Item(**{**fields, **changes})


def test_the_question_lists_its_options_by_letter() -> None:
    assert item().question == "What colour is the star? Options: (A) red (B) blue (C) green (D) pink"


def test_the_letter_and_the_words_are_both_right() -> None:
    assert item().score("B") == item().score("blue") == 1.0
    assert item().score("A") == 0.0


def test_turning_the_options_keeps_the_answer_in_words() -> None:
    turned = rotations(item())
    assert [t.answer for t in turned] == ["B", "A", "D", "C"]
    assert {t.answer_text for t in turned} == {"blue"}
    assert turned[1].options == ("blue", "green", "pink", "red")


def test_an_item_without_options_has_one_rotation() -> None:
    plain = item(options=(), answer="blue", answers=("blue",), scoring="exact")
    assert rotations(plain) == (plain,)


def test_each_rule_scores_as_its_benchmark_does() -> None:
    assert score("Zorvan.", ("zorvan",), "exact") == 1.0
    assert score("Zorvam", ("Zorvan",), "anls") == pytest.approx(5 / 6)
    assert score("11", ("10",), "mra") == pytest.approx(0.9)  # off by a tenth: all thresholds but 0.95 pass
    assert score("", ("10",), "mra") == 0.0


def test_an_item_whose_parts_contradict_is_refused() -> None:
    box = Reference(name="a", footprint=Box(x0=0, y0=0, x1=1, y1=1))
    with pytest.raises(ValidationError, match="two references share a name"):
        item(references=(box, box))
    with pytest.raises(ValidationError, match="not among its references"):
        item(references=(box,), evidence=("b",))
    with pytest.raises(ValidationError, match="do not go together"):
        item(scoring="exact")
    with pytest.raises(ValidationError, match="not among the accepted"):
        item(answer="C")


def test_an_item_survives_json() -> None:
    assert Item.model_validate_json(item().model_dump_json()) == item()
