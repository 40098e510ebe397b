"""What a plain teacher keeps count of: by hand, in the order in which the calls are made."""

from typing import Any

import numpy as np
import pytest

from pixelis.core.geometry import Mask, TextSpan, Track
from pixelis.data.teachers.oracle.rationales import write_rationale
from pixelis.data.teachers.oracle.running_notes import write_recap
from pixelis.tools.results import ToolCall, ToolResult
from pixelis.trace.schema import StepDraft
from pixelis.world import Item, Reference


def outlined(phrase: str, *box: int, area: float = 0.1, **args: Any) -> StepDraft:
    """SEG found one region; the box is in hundredths."""
    cells = np.zeros((100, 100), dtype=bool)
    cells[box[1] : box[3], box[0] : box[2]] = True
    mask = Mask.from_array(cells, media="Image_0", label=phrase)
    result = ToolResult(
        tool="SEG", status="ok", footprints=(mask,),
        output={"regions": [{"box": [v / 100 for v in box], "area": area, "score": 1.0}]},
    )  # fmt: skip
    return StepDraft(call=ToolCall(tool="SEG", args={"target": phrase, **args}), result=result)


def missed(phrase: str) -> StepDraft:
    return StepDraft(call=ToolCall(tool="SEG", args={"target": phrase}), result=ToolResult.failed("SEG", "nothing"))


def followed(phrase: str, last_frame: int, to_x: float = 0.1, **args: float) -> StepDraft:
    boxes = (0.1, 0.1, 0.2, 0.2), (to_x, 0.1, to_x + 0.1, 0.2)
    seen = Track(media="Video_0", label=phrase, track_id=0, frames=(0, last_frame), boxes=boxes)
    output = {"tracks": [{"last_s": last_frame / 4, "direction": "left", "way": abs(to_x - 0.1)}]}
    result = ToolResult(tool="TRK", status="ok", output=output, footprints=(seen,))
    return StepDraft(call=ToolCall(tool="TRK", args={"box": [0.1, 0.1, 0.2, 0.2], **args}), result=result)


def appearing(phrase: str, start_s: float) -> StepDraft:
    """TEMP found when a thing appears."""
    output = {"segments": [{"start_s": start_s, "end_s": start_s + 1.0}], "frames": []}
    call = ToolCall(tool="TEMP", args={"query": f"the {phrase} appears", "top_k": 1})
    return StepDraft(call=call, result=ToolResult(tool="TEMP", status="ok", output=output))


def read(*lines: str, **args: Any) -> StepDraft:
    result = ToolResult(tool="OCR", status="ok", output={"text": "\n".join(lines)})
    return StepDraft(call=ToolCall(tool="OCR", args=args), result=result)


def concluded(item: Item, words: str, drafts: list[StepDraft]) -> str:
    """As a plain teacher ends, with everything noted that was found."""
    notes = [
        Reference(name=f"seen_{k}", footprint=seen)
        for k, seen in enumerate(f for draft in drafts for f in draft.result.footprints)
    ]
    return write_rationale(item, notes, drafts, words, rng=np.random.default_rng(0), canonical_wording=True)


def test_the_first_so_far_is_the_smallest_or_the_largest_edge_that_is_asked_for(question):
    names = ("red star", "blue ring", "pink square")
    drafts = [
        outlined(names[0], 40, 30, 60, 50),
        outlined(names[1], 10, 20, 30, 90),
        outlined(names[2], 70, 25, 80, 35),
    ]
    item = question("choice.extreme", names, most="topmost")
    assert [write_recap(item, drafts[:k]) for k in (1, 2, 3)] == [
        "Y (0.30, now), so far (0.30, red star).",
        "Y (0.20, now), so far (0.20, blue ring).",
        "Y (0.25, now), so far (0.20, blue ring).",
    ]
    assert concluded(item, "blue ring", drafts) == "Y (0.25, now); topmost is (0.20, blue ring): blue ring."
    item = question("choice.extreme", names, most="rightmost")
    assert write_recap(item, drafts) == "X (0.70, now), so far (0.70, pink square)."


def test_sizes_are_the_areas_that_were_printed(question):
    names = ("red star", "blue ring")
    drafts = [outlined(names[0], 40, 30, 52, 50, area=0.024), outlined(names[1], 10, 20, 18, 90, area=0.011)]
    item = question("choice.size", names, most="smallest")
    assert write_recap(item, drafts) == "Area now 0.01, so far blue ring 0.01."
    assert concluded(item, "blue ring", drafts) == "Area now 0.01; smallest is blue ring 0.01: blue ring."


def test_how_far_each_came_says_who_is_slowest(question):
    names = ("red star", "blue ring")
    drafts = [
        *(outlined(names[0], 10, 10, 20, 20), followed(names[0], 43, to_x=0.74)),
        *(outlined(names[1], 10, 10, 20, 20), followed(names[1], 43, to_x=0.3)),
    ]
    item = question("motion.fastest", things=names, most="slowest")
    assert write_recap(item, drafts[:2]) == "Way now 0.64, so far red star 0.64."
    assert write_recap(item, drafts[:3]) == ""  # found, not yet followed
    assert concluded(item, "blue ring", drafts) == "Way now 0.20; slowest is blue ring 0.20: blue ring."


def test_a_piece_of_a_track_says_nothing_about_speed(question):
    names = ("red star", "blue ring")
    pieces = followed(names[0], 20, 0.4, end_s=5.0), followed(names[0], 43, 0.74, start_s=5.0)
    drafts = [outlined(names[0], 10, 10, 20, 20), *pieces]
    item = question("motion.fastest", things=names, most="slowest")
    assert [write_recap(item, drafts[:k]) for k in (2, 3)] == ["", ""]


@pytest.mark.parametrize("template", ["motion.fastest", "motion.mover", "motion.leaver"])
def test_a_thing_that_was_sought_by_other_words_is_not_counted_under_another_name(question, template):
    names = ("red star", "blue ring")
    drafts = [
        *(outlined(names[0], 10, 10, 20, 20), followed(names[0], 43, to_x=0.3)),
        *(outlined("blue thing", 10, 10, 20, 20), followed("blue thing", 20, to_x=0.9)),
    ]
    assert write_recap(question(template, things=names, most="fastest", frames=44), drafts) == ""


def test_when_each_appears_says_who_is_last(question):
    names = ("red star", "blue ring")
    drafts = [appearing(names[0], 8.25), appearing(names[1], 1.5)]
    item = question("motion.order", things=names, which="last")
    assert write_recap(item, drafts) == "Start now 1.50, so far red star 8.25."
    assert concluded(item, "red star", drafts) == "Start now 1.50; last is red star 8.25: red star."


def test_the_nearest_so_far_is_the_one_with_the_smallest_larger_difference(question):
    names = ("blue ring", "pink square")
    drafts = [
        outlined("red star", 36, 46, 42, 51),
        outlined(names[0], 65, 46, 71, 51),
        outlined(names[1], 36, 63, 42, 69),
    ]
    item = question("choice.neighbour", names, target="red star")
    assert write_recap(item, drafts[:1]) == ""
    assert write_recap(item, drafts[:2]) == "Away now 0.29, so far blue ring 0.29."
    assert write_recap(item, drafts) == "Away now 0.17, so far pink square 0.17."
    assert concluded(item, "pink square", drafts) == "Away now 0.17; nearest is pink square 0.17: pink square."


def test_an_entry_is_said_again_when_it_has_been_read(question):
    item = question("lecture.change", key="Mass", a="Zorvan", b="Keld")
    assert write_recap(item, [read("Zorvan", "Mass = 62", "Massive = 1")]) == "Mass = 62."
    assert write_recap(item, [read("Zorvan", "Rate = 62")]) == ""


def test_two_notices_are_compared_before_the_title_is_read_again(question):
    item = question("document.pair_more", key="Seats")
    drafts = [read("A", "Seats: 33", media="Image_0"), read("B", "Seats: 544", media="Image_1")]
    assert write_recap(item, drafts[:1]) == "33 in Image_0."
    assert write_recap(item, drafts) == "33 in Image_0, 544 in Image_1: more in Image_1."
    assert write_recap(item, [*drafts, read("B", media="Image_1", box=[0.0, 0.0, 1.0, 0.2])]) == ""
    assert write_recap(item, [drafts[0], read("Seats: 33", media="View_0")]) == ""  # the same notice, larger
    assert write_recap(item, [drafts[0], read("B", "Seats：544", media="Image_1")]).endswith("more in Image_1.")
    again = [*drafts, read("B", "Theme: Fekau", media="Image_1", box=[0.0, 0.0, 1.0, 0.2])]
    lines = ((0.1, "Image_0", "line", "Seats: 33"), (0.1, "Image_1", "line", "Seats: 544"))
    notes = [
        Reference(
            name=f"seen_{k}", properties={"role": role},
            footprint=TextSpan(media=media, text=text, score=1.0, quad=((0, y), (1, y), (1, y + 0.1), (0, y + 0.1))),
        )
        for k, (y, media, role, text) in enumerate(lines)
    ]  # fmt: skip
    said = write_rationale(item, notes, again, "B", rng=np.random.default_rng(0), canonical_wording=True)
    assert said == "The title of Image_1 is B."
    other = write_rationale(
        item, notes, again, "C", rng=np.random.default_rng(0), canonical_wording=True
    )  # not what the strip says
    assert "title" not in other


def test_an_order_grows_by_one_with_every_call(question):
    names = ("red star", "blue ring", "pink square")
    drafts = [
        outlined(names[0], 40, 30, 60, 50),
        outlined(names[1], 10, 20, 30, 90),
        outlined(names[2], 30, 25, 38, 35),
    ]
    item = question("space.order", things=names, way="left to right")
    assert write_recap(item, drafts[:2]) == "X (0.10, now), so far (0.10, blue ring), (0.40, red star)."
    words = "blue ring, pink square, red star"
    in_order = "(0.10, blue ring), (0.30, pink square), (0.40, red star)"
    assert concluded(item, words, drafts) == f"X (0.30, now); in order {in_order}: {words}."


def test_two_things_are_held_against_each_other_along_both_axes(question):
    drafts = [outlined("red star", 39, 75, 42, 79), outlined("blue ring", 42, 20, 46, 25)]
    item = question("search.relation", a="red star", b="blue ring")
    assert write_recap(item, drafts[:1]) == "(0.39, 0.75, red star)."
    assert concluded(item, "below", drafts) == "X (0.39, 0.42, even), Y (0.75, 0.20, below): below."


def test_who_is_lost_before_the_end_is_kept_by_name(question):
    names = ("red star", "blue ring")
    drafts = [
        *(outlined(names[0], 10, 10, 20, 20), followed(names[0], 24)),
        *(outlined(names[1], 10, 10, 20, 20), followed(names[1], 43)),
    ]
    item = question("motion.leaver", things=names, frames=44)
    assert write_recap(item, drafts[:2]) == "To 6.00 s, lost so far: red star."
    assert write_recap(item, drafts) == "To the end, lost so far: red star."
    assert write_recap(item, drafts[2:]) == "To the end."
    assert concluded(item, "red star", drafts) == "To the end; lost is the red star."


def test_who_moves_is_kept_by_name(question):
    names = ("red star", "blue ring")
    still = followed(names[0], 43)
    still.result.output["tracks"][0]["direction"] = "still"
    drafts = [
        *(outlined(names[0], 10, 10, 20, 20), still),
        *(outlined(names[1], 10, 10, 20, 20), followed(names[1], 43)),
    ]
    item = question("motion.mover", things=names)
    assert write_recap(item, drafts[:2]) == "It stays where it is."
    assert write_recap(item, drafts[:3]) == ""  # found, not yet followed
    assert write_recap(item, drafts) == "It goes left, moving so far: blue ring."
    assert concluded(item, "blue ring", drafts) == "It goes left; moving is the blue ring."


def test_what_is_missing_is_kept_by_name(question):
    names = ("red star", "blue ring", "pink square")
    drafts = [outlined(names[0], 10, 10, 20, 20), missed(names[1]), outlined(names[2], 30, 30, 40, 40)]
    item = question("choice.absent", names)
    assert [write_recap(item, drafts[:k]) for k in (1, 2, 3)] == [
        "Found.", "Nothing fits, missing so far: blue ring.", "Found, missing so far: blue ring.",
    ]  # fmt: skip
    assert concluded(item, "blue ring", drafts) == "Found; missing is the blue ring."
    again = [*drafts, outlined(names[1], 1, 1, 2, 2)]  # found after all
    assert write_recap(item, again) == "Found."


def test_a_stretch_that_ends_before_the_clip_loses_nobody(question):
    item = question("motion.leaver", things=("red star", "blue ring"), frames=44)
    drafts = [outlined("red star", 10, 10, 20, 20), followed("red star", 22, end_s=5.5)]
    assert write_recap(item, drafts) == "To 5.50 s."
    assert write_recap(item, [*drafts, followed("red star", 43)]) == "To the end."
    assert write_recap(item, [*drafts, followed("red star", 30)]) == "To 7.50 s, lost so far: red star."


def test_a_tie_of_rounded_numbers_is_not_decided_by_them(question):
    names = ("red star", "blue ring")
    drafts = [outlined(names[0], 40, 30, 50, 50), outlined(names[1], 10, 20, 20, 90)]
    item = question("choice.size", names, most="largest")
    assert write_recap(item, drafts) == "Area now 0.10, so far red star 0.10, blue ring 0.10."
    assert concluded(item, "red star", drafts) == "The red star is the largest."


def test_names_that_nobody_asked_for_are_not_counted(question):
    drafts = [outlined("red thing", 10, 30, 20, 50), outlined("red star", 40, 30, 60, 50)]
    item = question("choice.extreme", ("red star", "blue ring"), most="leftmost")
    assert write_recap(item, drafts[:1]) == ""
    assert write_recap(item, drafts) == "X (0.40, now), so far (0.40, red star)."


@pytest.mark.parametrize(
    "last",
    [missed("blue ring"), outlined("blue ring", 1, 2, 3, 4, media="View_0")],
    ids=["nothing found", "found on a view, whose coordinates are others"],
)
def test_what_cannot_be_counted_is_not(last, question):
    item = question("choice.extreme", ("red star", "blue ring"), most="topmost")
    assert write_recap(item, [outlined("red star", 40, 30, 60, 50), last]) == ""


def test_other_questions_are_not_counted(question):
    assert write_recap(question("search.shape", target="red star"), [outlined("red star", 1, 2, 3, 4)]) == ""
    assert write_recap(question("choice.extreme", ("red star",), most="topmost"), []) == ""
