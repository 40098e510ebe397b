"""Sums written out digit by digit, as on paper: a small policy knows the sums of two digits, and no more."""

from __future__ import annotations


def write_column_arithmetic(a: int, sign: str, b: int) -> str:
    """`36 + 58: 6 + 8 = 14, 3 + 5 + 1 = 9, so 94`. Raises ValueError if a number is negative."""
    if min(a, b) < 0 or (sign == "-" and a < b):
        raise ValueError(f"{a} {sign} {b}: negative numbers are not written out by digits")
    steps = list[str]()
    carry = 0
    left, right = aligned_digits(a, b)
    for x, y in zip(left, right, strict=True):
        carry_text = f" {sign} 1" if carry else ""
        if sign == "+":
            total = x + y + carry
            steps.append(f"{x} + {y}{carry_text} = {total}")
            carry = total // 10
        else:
            borrows = x - y - carry < 0
            top = x + 10 * borrows
            steps.append(f"{top} - {y}{carry_text} = {top - y - carry}")
            carry = int(borrows)
    result = a + b if sign == "+" else a - b
    return f"{a} {sign} {b}: {', '.join(steps)}, so {result}"


def aligned_digits(a: int, b: int) -> tuple[list[int], list[int]]:
    """The digits of both numbers from the last one on, padded to equal length."""
    width = max(len(str(a)), len(str(b)))
    left, right = ([int(d) for d in reversed(str(n).rjust(width, "0"))] for n in (a, b))
    return left, right
