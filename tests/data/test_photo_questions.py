"""Questions as people put them: nouns that SEG knows, colours people agree on, and the oracle's way to the answer."""

from __future__ import annotations

import numpy as np
import pytest

from pixelis.core.geometry import Mask, TextSpan
from pixelis.data.importers import get_case
from pixelis.data.importers.named_colours import name_colour
from pixelis.data.importers.nouns import EXCLUDED_CLASSES, draw_absent_class, is_understood, noun_variants, pluralise
from pixelis.data.importers.photo_questions import NONE_ANSWER, PhotoQuestions, accepted_positions
from pixelis.data.importers.text_questions import TEMPLATES as TEXTS
from pixelis.data.importers.text_questions import lines_in_reading_order
from pixelis.data.teachers.oracle.oracle import SOLVERS, solve_item
from pixelis.items import Item, Reference
from pixelis.media import Image
from pixelis.tools.backends.nanodet import COCO_NAMES
from pixelis.tools.toolbox import Toolbox, ToolboxConfig
from pixelis.weights import is_available
from pixelis.world import RenderedItem
from pixelis.world.tool_necessity import compute_necessities

WIDTH, HEIGHT = 320, 240


@pytest.mark.parametrize("name", [name for name in COCO_NAMES if name not in EXCLUDED_CLASSES])
def test_seg_takes_every_way_to_say_a_class_for_that_class(name):
    for noun in noun_variants(name):
        assert is_understood(noun.singular, name), noun
        assert is_understood(noun.plural, name), noun
        assert is_understood(f"largest {noun.singular}", name), noun


def test_plurals_are_as_people_say_them():
    said = [pluralise(word) for word in ("person", "bus", "bench", "knife", "traffic light", "sheep", "wine glass")]
    assert said == ["people", "buses", "benches", "knives", "traffic lights", "sheep", "wine glasses"]


def test_what_is_called_absent_is_no_relation_of_what_is_there():
    rng = np.random.default_rng(0)
    drawn = {draw_absent_class({"car", "wine glass"}, rng) for _ in range(600)}
    assert not drawn & {"car", "truck", "bus", "wine glass"}
    assert len(drawn) > 60


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((205, 30, 40), "red"), ((250, 250, 250), "white"), ((10, 10, 12), "black"), ((40, 80, 185), "blue"),
        ((52, 142, 61), "green"), ((242, 216, 48), "yellow"), ((128, 128, 130), "grey"),
        ((178, 179, 181), None), ((70, 71, 73), None),
    ],
)  # fmt: skip
def test_a_colour_is_named_where_people_agree(rgb, name):
    noise = np.random.default_rng(0).integers(-4, 5, (400, 3))
    assert name_colour(np.clip(np.array(rgb) + noise, 0, 255).astype(np.uint8)) == name


def test_half_red_and_half_blue_has_no_colour():
    half = np.array([[200, 30, 35]] * 200 + [[40, 80, 180]] * 200, np.uint8)
    assert name_colour(half) is None


# --- what is asked


def thing(place: int, name: str, box: tuple[int, int, int, int], crowd: int = 0) -> Reference:
    grid = np.zeros((HEIGHT, WIDTH), bool)
    grid[box[1] : box[3], box[0] : box[2]] = True
    label = f"crowd of {name}" if crowd else name
    mask = Mask.from_array(grid, label=label, score=1.0)
    return Reference(name=f"thing_{place}", footprint=mask, properties={"class": name, "crowd": crowd})


def questions(*things: Reference, complete: bool = True) -> dict[str, list[Item]]:
    pixels = np.full((HEIGHT, WIDTH, 3), (205, 30, 40), np.uint8)
    asking = PhotoQuestions("7", Image.from_array(pixels), things, {}, complete=complete)
    found: dict[str, list[Item]] = {}
    for item in asking.questions():
        assert isinstance(item, Item)
        found.setdefault(item.template, []).append(item)
    return found


def test_a_dog_at_the_top_left_is_asked_for_in_every_way():
    found = questions(thing(0, "dog", (10, 10, 70, 60)), thing(1, "bus", (120, 90, 310, 230)))
    where = {i.parameters["target"]: i for i in found["photo.where"]}
    assert where["dog"].answer == "top left"
    assert where["dog"].score("upper left") == 1.0
    assert {i.answer for i in found["photo.colour"]} == {"red"}
    assert {i.answer for i in found["photo.count"] if i.evidence} == {"1"}
    assert found["photo.larger"][0].answer == "bus"
    assert {i.answer for i in found["photo.there"] if i.evidence} == {"yes"}
    for items in found.values():
        for item in items:
            assert compute_necessities(get_case(item)) == item.necessity
            assert item.score(item.answer) == 1.0
            assert "{" not in item.question


def test_what_is_not_there_is_counted_as_none_and_denied():
    found = questions(thing(0, "dog", (10, 10, 70, 60)))
    absent_ones = [i for items in found.values() for i in items if not i.evidence]
    assert all(i.answer in ("0", "no", NONE_ANSWER) for i in absent_ones)
    assert not any(
        not i.evidence for items in questions(thing(0, "dog", (1, 1, 90, 90)), complete=False).values() for i in items
    )


def test_a_crowd_a_speck_and_a_border_are_not_asked_about():
    assert "photo.count" not in questions(thing(0, "dog", (0, 0, 99, 99), crowd=1), complete=False)
    assert not questions(thing(0, "dog", (0, 0, 9, 9)), complete=False)
    on_a_border = questions(thing(0, "dog", (77, 10, 137, 70)), complete=False)  # its middle is at x 0.334
    assert "photo.where" not in on_a_border


def test_one_of_several_is_asked_for_only_where_it_stands_out():
    alike = questions(thing(0, "cat", (5, 5, 75, 75)), thing(1, "cat", (200, 150, 275, 225)), complete=False)
    assert "photo.where" not in alike
    large = questions(thing(0, "cat", (5, 5, 45, 45)), thing(1, "cat", (220, 130, 310, 230)), complete=False)
    assert large["photo.where"][0].parameters["thing"] == "largest cat"
    assert large["photo.where"][0].answer == "bottom right"


def test_nine_fields_are_accepted_in_other_words():
    assert "center" in accepted_positions("centre")
    assert "lower right" in accepted_positions("bottom right")
    assert "at the top" in accepted_positions("top")


# --- text


def line(place: int, text: str, box: tuple[float, float, float, float]) -> Reference:
    x0, y0, x1, y1 = box
    span = TextSpan.model_validate({"text": text, "quad": [(x0, y0), (x1, y0), (x1, y1), (x0, y1)]})
    return Reference(name=f"text_{place}", footprint=span)


def test_lines_are_read_downwards_and_a_row_from_left_to_right():
    lines = [
        line(0, "right", (0.6, 0.1, 0.9, 0.2)),
        line(1, "left", (0.1, 0.11, 0.4, 0.21)),
        line(2, "below", (0.1, 0.4, 0.5, 0.5)),
    ]
    assert lines_in_reading_order(lines) == ["left", "right", "below"]
    assert TEXTS["text.all"].solve(lines, {}) == "left right below"


def test_what_stands_after_a_label_is_found_whatever_its_case():
    lines = [line(0, "Notice", (0.1, 0.1, 0.9, 0.2)), line(1, "PHONE: 555 0142", (0.1, 0.3, 0.9, 0.4))]
    assert TEXTS["text.after"].solve(lines, {"label": "Phone"}) == "555 0142"
    assert TEXTS["text.title"].solve(lines, {}) == "Notice"


# --- the oracle, with real tools on a real photograph


def test_the_oracle_has_a_way_for_every_natural_question():
    from pixelis.data.importers.photo_questions import TEMPLATES as PHOTOS
    from pixelis.data.teachers.oracle.rationale_context import WORDINGS
    from pixelis.data.teachers.oracle.rationales import RATIONALE_WRITERS

    assert SOLVERS.keys() >= {*PHOTOS, *TEXTS, "coco.count", "coco.side", "coco.largest", "ocr.at", "ocr.largest"}
    assert {*RATIONALE_WRITERS, *WORDINGS} >= {*PHOTOS, *TEXTS}


@pytest.fixture(scope="module")
def astronaut():
    data = pytest.importorskip("skimage.data")
    if not is_available("nanodet"):
        pytest.skip("needs the detector")
    return Image.from_array(np.ascontiguousarray(data.astronaut()))


@pytest.mark.parametrize(
    ("template", "target", "answer"),
    [("photo.count", "person", "1"), ("photo.there", "person", "yes"), ("photo.there", "zebra", "no"),
     ("photo.count", "zebra", "0"), ("photo.missing", "zebra", NONE_ANSWER), ("photo.where", "person", "centre")],
)  # fmt: skip
def test_the_oracle_asks_seg_in_the_words_of_the_question(astronaut, template, target, answer):
    from pixelis.core.geometry import Box
    from pixelis.data.importers.dataset_questions import make_question_item
    from pixelis.data.importers.photo_questions import TEMPLATES as PHOTOS
    from pixelis.world.template import ItemDraft

    box = Box(x0=0.04, y0=0.03, x1=0.72, y1=1.0, label="person")
    person = Reference(name="thing_0", footprint=box, properties={"class": "person", "crowd": 0})
    noun = noun_variants(target)[0]
    parameters = {"target": target, "thing": noun.singular, "things": noun.plural}
    draft = ItemDraft((astronaut,), [person], ["thing_0"] if target == "person" else [], parameters)
    item = make_question_item(template, draft, id="x", seed=1, templates=PHOTOS)
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as toolbox:
        solved = solve_item(RenderedItem(item, (astronaut,)), toolbox, rng=np.random.default_rng(0), detour_rate=False)
    first = solved.trace.steps[0].call
    assert first.tool == "SEG"
    assert first.args["target"] == (noun.plural if template == "photo.count" else noun.singular)
    assert first.args["target"] in item.question
    assert solved.trace.answer_thought
    if template != "photo.where":  # the cut-out of this picture leaves out her head
        assert solved.answer == answer
