"""A user's own questions in: what is taken over, how it is scored, and how every bad line is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pixelis.core.errors import ConfigError
from pixelis.core.geometry import Box, Mask, TextSpan
from pixelis.data.corpus.item_files import ItemFiles
from pixelis.data.importers import ImportOptions, Problem, open_item_media, user_items
from pixelis.items import Item


def outcomes(folder: Path, *rows: Any, without_answers: bool = False) -> list[Item | Problem]:
    for name in ("a.png", "b.png"):
        Image.fromarray(np.full((50, 100, 3), len(name), np.uint8)).save(folder / name)
    path = folder / "questions.jsonl"
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    wishes = ImportOptions(media=folder, allow_unanswered=without_answers, items_path=folder / "items.jsonl")
    return list(user_items(path, wishes))


def one(folder: Path, **row: Any) -> Item:
    found = outcomes(folder, {"media": "a.png", "question": "What?", "answer": "x", **row})
    assert isinstance(found[-1], Item), found
    return found[-1]


@pytest.mark.parametrize(
    ("row", "scoring", "answer", "family"),
    [
        ({"answer": "OPEN"}, "exact", "OPEN", "search"),
        ({"answer": 3}, "mra", "3", "space"),
        ({"answer": "2.5"}, "mra", "2.5", "space"),
        ({"answer": True}, "exact", "yes", "search"),
        ({"answer": "a dog runs over the street"}, "anls", "a dog runs over the street", "document"),
        ({"answer": "dog", "options": ["cat", "dog"]}, "choice", "B", "choice"),
        ({"answer": "b", "options": ["cat", "dog"]}, "choice", "B", "choice"),
        ({"answer": "3", "scoring": "exact", "family": "lecture"}, "exact", "3", "lecture"),
    ],
)
def test_the_rule_of_scoring_follows_from_the_answer(tmp_path, row, scoring, answer, family):
    item = one(tmp_path, **row)
    assert (item.scoring, item.answer, item.family) == (scoring, answer, family)
    assert item.score(item.answer) == 1.0


def test_variants_of_an_answer_count_and_the_first_is_the_answer(tmp_path):
    item = one(tmp_path, answer="grey", answers=["gray", "grey"])
    assert (item.answer, item.answers) == ("grey", ("grey", "gray"))
    assert item.score("Gray") == 1.0


def test_references_may_be_boxes_polygons_and_text_in_shares_or_pixels(tmp_path):
    item = one(
        tmp_path,
        references=[
            {"label": "dog", "box": [0.1, 0.2, 0.5, 0.6]},
            {"label": "cat", "polygon": [10, 10, 60, 10, 60, 40, 10, 40], "pixels": True},
            {"text": "OPEN", "box": [0, 0, 50, 10], "pixels": True},
        ],
    )
    box, mask, text = (r.footprint for r in item.references)
    assert isinstance(box, Box)
    assert isinstance(mask, Mask)
    assert mask.area == pytest.approx(50 * 30 / 5000)
    assert isinstance(text, TextSpan)
    assert text.box_unit == pytest.approx((0.0, 0.0, 0.5, 0.2))
    assert item.evidence == ("own_0", "own_1", "own_2")


def test_a_question_that_nobody_can_answer_is_taken_where_that_is_asked(tmp_path):
    plain = {"media": "a.png", "question": "What?"}
    blank = {**plain, "answer": "", "answers": [""], "scoring": "mra"}
    (empty,) = outcomes(tmp_path, blank, without_answers=True)
    assert (empty.answer, empty.scoring) == ("", "mra")
    found = outcomes(tmp_path, plain, {**plain, "options": ["cat", "dog"]}, without_answers=True)
    assert [(item.answer, item.answers) for item in found] == [("", ("",))] * 2
    assert [item.scoring for item in found] == ["exact", "choice"]
    assert found[1].question.endswith("(A) cat (B) dog")
    (tmp_path / "items.jsonl").write_text(found[0].model_dump_json() + "\n")
    with pytest.raises(ConfigError, match="it has no answer, and nothing to teach"):
        ItemFiles.read([tmp_path / "items.jsonl"])


def test_several_media_are_found_again_by_their_paths(tmp_path):
    item = one(tmp_path, media=["a.png", "b.png"], references=[{"box": [0, 0, 1, 1], "media": 1}])
    assert [m.name for m in item.media] == ["Image_0", "Image_1"]
    assert item.references[0].footprint.media == "Image_1"
    assert len(open_item_media(item, tmp_path / "items.jsonl").sources) == 2


BAD = [
    ({"media": "a.png", "question": "What?"}, "it has no answer"),
    ({"media": "a.png", "question": " ", "answer": "x"}, "question: want a text"),
    ({"media": "gone.png", "question": "What?", "answer": "x"}, "gone.png is not in"),
    ({"media": "../a.png", "question": "What?", "answer": "x"}, "is not in"),
    ({"media": [], "question": "What?", "answer": "x"}, "media: want a path"),
    ({"media": "a.png", "question": "W?", "answer": "x", "options": ["a", "b"]}, "is not one of the options"),
    ({"media": "a.png", "question": "W?", "answer": "x", "scoring": "bleu"}, "scoring: want one of"),
    ({"media": "a.png", "question": "W?", "answer": "x", "scoring": "mra"}, "wants numbers"),
    ({"media": "a.png", "question": "W?", "answer": "x", "references": [{"box": [0, 0, 9, 9]}]}, "leaves the picture"),
    ({"media": "a.png", "question": "W?", "answer": "x", "references": [{"polygon": [1, 2]}]}, "three corners"),
    ({"media": "a.png", "question": "W?", "answer": "x", "references": [7]}, "is not a JSON object"),
    ("[1, 2]", "not a JSON object"),
    ("{", "JSON"),
]


def test_every_bad_line_is_told_with_its_number_and_spoils_no_other(tmp_path):
    good = {"media": "a.png", "question": "What?", "answer": "x"}
    found = outcomes(tmp_path, *[row for row, _ in BAD], good)
    assert [isinstance(outcome, Item) for outcome in found] == [False] * len(BAD) + [True]
    for number, ((_, reason), problem) in enumerate(zip(BAD, found, strict=False), start=1):
        assert isinstance(problem, Problem)
        assert problem.where.endswith(f"questions.jsonl:{number}")
        assert reason in problem.reason
        assert problem.kind == "skipped"


def test_an_id_counts_once_and_unknown_keys_are_said(tmp_path):
    row = {"id": "q1", "media": "a.png", "question": "What?", "answer": "x", "colour": "red"}
    changed, item, doubled = outcomes(tmp_path, row, {key: row[key] for key in row if key != "colour"})
    assert isinstance(changed, Problem)
    assert changed.kind == "changed"
    assert "'colour'" in changed.reason
    assert isinstance(item, Item)
    assert isinstance(doubled, Problem)
    assert "already on line 1" in doubled.reason


def test_a_folder_is_no_file_of_questions(tmp_path):
    with pytest.raises(ConfigError, match="is a folder"):
        list(user_items(tmp_path, ImportOptions()))
