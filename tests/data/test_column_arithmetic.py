"""Sums on paper: a few by hand, then all of two digits by Python's own arithmetic."""

import re

import pytest

from pixelis.data.teachers.oracle.column_arithmetic import write_column_arithmetic


@pytest.mark.parametrize(
    ("a", "sign", "b", "said"),
    [
        (36, "+", 58, "36 + 58: 6 + 8 = 14, 3 + 5 + 1 = 9, so 94"),
        (55, "+", 95, "55 + 95: 5 + 5 = 10, 5 + 9 + 1 = 15, so 150"),
        (73, "-", 68, "73 - 68: 13 - 8 = 5, 7 - 6 - 1 = 0, so 5"),
        (100, "-", 7, "100 - 7: 10 - 7 = 3, 10 - 0 - 1 = 9, 1 - 0 - 1 = 0, so 93"),
        (12, "-", 12, "12 - 12: 2 - 2 = 0, 1 - 1 = 0, so 0"),
    ],
)
def test_sums_by_hand(a, sign, b, said):
    assert write_column_arithmetic(a, sign, b) == said


@pytest.mark.parametrize(("a", "sign", "b"), [(3, "-", 5), (-1, "+", 5)])
def test_what_goes_below_zero_is_refused(a, sign, b):
    with pytest.raises(ValueError, match="negative numbers"):
        write_column_arithmetic(a, sign, b)


def test_every_line_of_every_sum_is_right():
    for a in range(10, 130, 7):
        for b in range(a + 1):
            for sign, result in (("+", a + b), ("-", a - b)):
                text = write_column_arithmetic(a, sign, b)
                assert text.endswith(f"so {result}")
                for left, right in re.findall(r"([\d +-]+) = (\d+)", text.partition(": ")[2]):
                    total = 0
                    for part in left.strip().replace("- ", "-").replace("+ ", "+").split():
                        total += int(part)
                    assert total == int(right) >= 0, text
