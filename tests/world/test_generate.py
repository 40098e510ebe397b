"""The generator: the same bytes for the same seed, right answers by its own rules, spread, and worth a tool."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil

from pixelis.core.errors import ConfigError
from pixelis.world import FAMILIES, Item, generate, template, templates
from pixelis.world.generate import necessity_case
from pixelis.world.package_data import read_package_yaml
from pixelis.world.tool_necessity import compute_necessities

HASHES = """
import cv2
from pixelis.world import FAMILIES, generate
cv2.setNumThreads({threads})
for family in FAMILIES:
    for seed in (3, 4):
        made = generate(family, seed=seed)
        print(made.item.model_dump_json(), *(m.sha256 for m in made.media))
"""


def test_the_same_seed_gives_the_same_bytes_in_another_process_and_with_other_threads() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", HASHES.format(threads=threads)],
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(threads)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in (1, 2)
    ]
    assert len(runs[0].splitlines()) == 12
    assert runs[0] == runs[1]


def test_another_seed_gives_another_picture() -> None:
    assert generate("search", seed=1).media[0].sha256 != generate("search", seed=2).media[0].sha256


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_many_templates_and_each_many_wordings_and_a_chain(family: str) -> None:
    own = templates(family)  # type: ignore[arg-type]
    assert len(own) >= 8
    assert len({t.id for t in own}) == len(own)
    for one in own:
        assert len(set(one.wordings)) >= 4, one.id
        assert one.chain, one.id
        assert one.doc, one.id


def test_questions_yaml_holds_the_sentences_of_every_template_and_of_nothing_else() -> None:
    assert set(read_package_yaml("pixelis.world", "questions.yaml")) == {t.id for t in templates()}


def test_every_template_works_at_the_ends_of_the_dial() -> None:
    for one in templates():
        for difficulty in (1, 5):
            made = generate(one.family, seed=11, difficulty=difficulty, template_id=one.id)
            assert made.item.template == one.id
            assert made.item.difficulty == difficulty


def test_answers_are_right_by_their_own_rule_and_by_the_program_again(many: list[Item]) -> None:
    for item in many:
        assert item.score(item.answer) == 1.0, item.id
        assert template(item.template).solve(item.references, item.parameters) == item.answer_text, item.id


def test_a_policy_that_says_the_most_frequent_answer_of_a_template_scores_under_35_percent(many: list[Item]) -> None:
    by_template: dict[str, list[Item]] = defaultdict(list)
    for item in many:
        by_template[item.template].append(item)
    scores = []
    for items in by_template.values():
        frequent = Counter(item.answer for item in items).most_common(1)[0][0]
        scores += [item.score(frequent) for item in items]
    assert np.mean(scores) < 0.35


def test_about_84_percent_need_a_tool(many: list[Item]) -> None:
    assert 0.80 <= np.mean([bool(item.required_tools) for item in many]) <= 0.88


def test_every_tool_is_needed_by_some_items(many: list[Item]) -> None:
    needed = Counter(tool for item in many for tool in item.required_tools)
    assert all(needed[tool] >= 0.04 * len(many) for tool in ("SEG", "TRK", "OCR", "TEMP", "ZOOM", "PROP")), needed


def test_labels_computed_anew_from_the_item_are_the_same(many: list[Item]) -> None:
    for item in many[::3]:
        kept = Item.model_validate_json(item.model_dump_json())  # as a dataset would keep it
        assert compute_necessities(necessity_case(kept)) == item.necessity, item.id


def test_half_of_the_items_and_more_do_not_look_like_toys(many: list[Item]) -> None:
    rich = [bool({"clutter", "occlusion", "shake", "pan"} & set(item.traits)) for item in many]
    assert np.mean(rich) > 0.5


def test_items_over_two_media_come_from_several_families(many: list[Item]) -> None:
    assert len({item.family for item in many if len(item.media) == 2}) >= 4


def test_questions_differ(many: list[Item]) -> None:
    assert len({item.question for item in many}) > 0.85 * len(many)


def test_pictures_of_search_are_large_and_clips_last_about_as_long_as_the_papers(many: list[Item]) -> None:
    single = [i for i in many if i.family == "search" and len(i.media) == 1]
    assert min(i.media[0].width for i in single) >= 768
    seconds = [m.duration_s for i in many for m in i.media if m.frames > 1]
    assert 9.0 < np.mean(seconds) < 14.0


def test_photographs_serve_as_grounds(tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(90, 120, (300, 400, 3), dtype=np.uint8)
    Pil.fromarray(photo).save(tmp_path / "a.png")
    for family in ("choice", "motion"):
        plain, made = (generate(family, seed=5, photographs=p) for p in (None, tmp_path))
        assert made.media[0].sha256 != plain.media[0].sha256
        assert abs(float(np.median(made.media[0].frame(0))) - 105) < 15


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"family": "chess", "seed": 0}, "there is no family 'chess'"),
        ({"family": "search", "seed": 0, "difficulty": 6}, "not one of 1 to 5"),
        ({"family": "search", "seed": -1}, "negative"),
        ({"family": "search", "seed": 0, "template_id": "search.nothing"}, "has no template"),
        ({"family": "search", "seed": 0, "photographs": Path("/nowhere")}, "cannot be read"),
    ],
)
def test_what_cannot_be_made_is_refused_with_a_sentence(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        generate(**wrong)  # type: ignore[arg-type]
