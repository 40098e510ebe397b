"""Streams: whose turn it is, and which shift a query is under, by hand."""

import pytest

from pixelis.core.errors import ConfigError
from pixelis.evaluation.streams import make_stream


def shifts(course, total=6, **changes):
    own = make_stream(["search"], split="test", limit=total, **{"shifts": ["lighting:2"], "course": course, **changes})
    return [own.shift_at(k, total) for k in range(total)]


def test_shifts_stay_come_grow_or_go_again():
    two = "lighting:2"
    assert shifts("steady") == [two] * 6
    assert shifts("abrupt") == ["", "", "", two, two, two]
    assert shifts("returning") == ["", "", two, two, "", ""]
    # shares 0, 1/6 … 5/6 of three severities 0, 1, 2
    assert shifts("gradual") == ["", "", "lighting:1", "lighting:1", two, two]


def test_several_shifts_take_turns():
    assert shifts("steady", 3, shifts=["lighting:2", "noise:1"]) == ["lighting:2", "noise:1", "lighting:2"]
    assert shifts("steady", 2, shifts=[]) == ["", ""]


def test_every_family_sees_every_shift():
    two = {"split": "test", "limit": 2, "shifts": ["lighting:2", "noise:1"]}
    own = [(m.item.family, m.item.shift.name) for m in make_stream(["search", "space"], **two).items()]
    assert own == [("search", "lighting"), ("space", "noise"), ("search", "noise"), ("space", "lighting")]
    three = make_stream(["search", "space", "choice"], **two)
    assert [three.shift_at(k, 6) for k in (0, 3)] == ["lighting:2", "noise:1"]


def test_tasks_take_turns_and_skipped_items_belong_to_somebody_else():
    both = make_stream(["search", "space"], split="test", limit=2)
    names = [made.item.family for made in both.items()]
    assert names == ["search", "space", "search", "space"]
    assert len(both) == 4
    rest = list(make_stream(["search", "space"], split="test", limit=1, skip=1).items())
    assert [made.item.id for made in rest] == [made.item.id for made in both.items()][2:]


def test_a_query_of_a_stream_is_shown_under_its_shift():
    (made,) = make_stream(["search"], split="test", limit=1, shifts=["lighting:3"]).items()
    assert (made.item.shift.name, made.item.shift.severity) == ("lighting", 3)


def test_a_shift_that_is_only_named_has_the_severity_that_world_show_gives_it():
    (made,) = make_stream(["search"], split="test", limit=1, shifts=["lighting"]).items()
    assert (made.item.shift.name, made.item.shift.severity) == ("lighting", 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"shifts": ["fog:1"]}, "fog"),
        ({"shifts": ["noise:x"]}, "a severity from 1 to 5"),
        ({"course": "zigzag"}, "zigzag"),
    ],
)
def test_what_does_not_exist_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        make_stream(["search"], split="test", limit=1, **given)
