"""Stretches of time in: QVHighlights and Charades-STA, over clips that the tests write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pixelis.data.importers import ImportOptions, Problem, get_case, span_items
from pixelis.items import Item
from pixelis.world.tool_necessity import compute_necessities


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips of 40 frames of a second each, as animations: their times are exact."""
    folder = tmp_path_factory.mktemp("videos")
    frames = [Image.fromarray(np.full((12, 16, 3), 5 * k, dtype=np.uint8)) for k in range(40)]
    for name in ("AO8RW.gif", "NUsG9BgSes0_210.0_360.0.gif"):
        frames[0].save(folder / name, save_all=True, append_images=frames[1:], duration=1000)
    return folder


def taken(path: Path, clips: Path, **wishes: Any) -> tuple[list[Item], list[Problem]]:
    outcomes = list(span_items(path, ImportOptions(media=clips, **wishes)))
    return [o for o in outcomes if isinstance(o, Item)], [o for o in outcomes if isinstance(o, Problem)]


def qvhighlights(path: Path, *records: dict[str, Any]) -> Path:
    whole = {"vid": "NUsG9BgSes0_210.0_360.0", "duration": 40, "query": "Chef makes pizza and cuts it up."}
    path.write_text("".join(json.dumps({**whole, "qid": k, **r}) + "\n" for k, r in enumerate(records)))
    return path


def test_a_moment_is_asked_for_among_windows_of_its_length(tmp_path: Path, clips: Path) -> None:
    path = qvhighlights(tmp_path / "val.jsonl", {"relevant_windows": [[12, 18]], "saliency_scores": [[4, 3, 4]]})
    items, problems = taken(path, clips)
    assert not problems
    when = next(i for i in items if i.template == "spans.when")
    assert when.answer_text == "12.0 s to 18.0 s"
    assert len(when.options) == 4
    assert when.media[0].duration_s == 40.0
    assert "Chef makes pizza and cuts it up”" in when.question


def test_a_moment_needs_temp_because_another_window_flips_the_choice(tmp_path: Path, clips: Path) -> None:
    items, _ = taken(qvhighlights(tmp_path / "val.jsonl", {"relevant_windows": [[12, 18]]}), clips)
    for item in items:
        need = item.necessity["TEMP"]
        assert need.required
        assert need.perturbed_answer != need.answer
        assert compute_necessities(get_case(item)) == item.necessity
    start = next(i for i in items if i.template == "spans.start")
    assert (start.answer, start.scoring) == ("12", "mra")


def test_no_offered_window_lies_on_another_true_one(tmp_path: Path, clips: Path) -> None:
    items, _ = taken(qvhighlights(tmp_path / "val.jsonl", {"relevant_windows": [[0, 6], [20, 26]]}), clips)
    (when,) = items
    assert when.answer_text == "0.0 s to 6.0 s"
    starts = [float(str(s)) for s in when.parameters["starts"] if float(str(s)) != 0.0]  # type: ignore[union-attr]
    assert all(abs(start - 20) > 4 for start in starts)
    assert len(when.references) == 2


def test_charades_sentences_of_one_clip_are_put_in_order(tmp_path: Path, clips: Path) -> None:
    path = tmp_path / "charades_sta_test.txt"
    path.write_text("AO8RW 20.0 30.5##a person sits down.\nAO8RW 2.0 6.9##a person is putting a book on a shelf.\n")
    items, problems = taken(path, clips, licence="non-commercial")
    assert not problems
    first = next(i for i in items if i.template == "spans.first")
    assert first.answer_text == "a person is putting a book on a shelf"
    assert first.parameters["licence"] == "non-commercial"


def test_every_bad_line_is_reported_with_its_number(tmp_path: Path, clips: Path) -> None:
    path = qvhighlights(
        tmp_path / "val.jsonl",
        {"relevant_windows": [[12, 18]]},
        {"relevant_windows": [[12, 18]], "qid": 0},
        {"relevant_windows": []},
        {"relevant_windows": [[18, 12]]},
        {"relevant_windows": [[1, 2]], "vid": "gone"},
        {"relevant_windows": [[90, 99]]},
        {"relevant_windows": [[30, 99]]},
        {"relevant_windows": [[1, 2]], "query": "."},
    )
    path.write_bytes(path.read_bytes() + b"{not json\nprose\nAO8RW 3 9##caf\xe9 closes\n")
    items, problems = taken(path, clips)
    told = [(int(p.where.rpartition(":")[2]), p.kind) for p in problems]
    assert told == [
        (2, "skipped"), (3, "skipped"), (4, "skipped"), (5, "skipped"), (6, "skipped"), (7, "changed"), (8, "skipped"),
        (9, "skipped"), (10, "skipped"), (11, "changed"),
    ]  # fmt: skip
    assert {str(i.parameters["source_id"]) for i in items} >= {"0", "6"}
    assert any("café closes" in i.question for i in items)


@pytest.mark.parametrize("wrong", [{"query": None}, {"query": ["a"]}, {"relevant_windows": [[True, 18]]}])
def test_what_is_no_sentence_or_no_second_is_skipped(tmp_path: Path, clips: Path, wrong: dict[str, Any]) -> None:
    items, problems = taken(qvhighlights(tmp_path / "val.jsonl", {"relevant_windows": [[12, 18]], **wrong}), clips)
    assert items == []
    assert [p.kind for p in problems] == ["skipped"]


def test_what_goes_on_all_the_time_cannot_be_asked_for(tmp_path: Path, clips: Path) -> None:
    items, problems = taken(qvhighlights(tmp_path / "val.jsonl", {"relevant_windows": [[0, 39]]}), clips)
    assert not items
    assert [p.kind for p in problems] == ["unasked"]
