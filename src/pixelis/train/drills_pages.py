"""Drills on pages: lines as OCR lists them, the one that is asked for, then a strip of the page through it.

A page has names with numbers beside them or over them. To read along a row or down a column, its box is quoted and two
of its numbers go into the next call; what comes back holds little but the answer.
"""

from __future__ import annotations

from numpy.random import Generator

from pixelis.data.sums import worked
from pixelis.geometry import UnitBox
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall
from pixelis.train.drills_words import Drill, Talk, several, word

Line = tuple[str, UnitBox]


def listed(lines: list[Line]) -> str:
    """Lines as OCR prints them."""
    told = "; ".join(quoted(line) for line in lines)
    return told if len(lines) == 1 else f"{len(lines)} lines: {told}"


def quoted(line: Line) -> str:
    return f'"{line[0]}" at {coordinates(line[1])}'


def line_at(text: str, x: float, y: float, rng: Generator) -> Line:
    """A line whose middle is about here."""
    wide, high = 0.012 * len(text) + rng.uniform(0.01, 0.05), rng.uniform(0.03, 0.06)
    x0, y0 = min(max(x - wide / 2, 0.0), 0.9), min(max(y - high / 2, 0.0), 0.9)
    return text, (round(x0, 2), round(y0, 2), round(min(x0 + wide, 1.0), 2), round(min(y0 + high, 1.0), 2))


def read(lines: list[Line]) -> tuple[str, ToolCall, str]:
    return "Read everything first.", ToolCall(tool="OCR", args={}), listed(lines)


def strip(thought: str, box: tuple[float, ...], lines: list[Line]) -> tuple[str, ToolCall, str]:
    return thought, ToolCall(tool="OCR", args={"box": list(box)}), listed(lines)


def different(rng: Generator, count: int) -> list[str]:
    """Numbers of one page, of which no two are alike; some with a sign."""
    sign = "%" if rng.random() < 0.4 else ""
    top = 10 ** int(rng.integers(2, 4))
    return [f"{10 + int(v)}{sign}" for v in rng.choice(top - 10, size=count, replace=False)]


def along_a_row(rng: Generator) -> Drill:
    """Names with something beside each."""
    count = int(rng.integers(3, 8))
    names, values = several(rng, count, count, word), different(rng, count)
    top, step = rng.uniform(0.15, 0.35), rng.uniform(0.06, 0.1)
    rows = [
        (line_at(n, 0.3, top + k * step, rng), line_at(v, 0.85, top + k * step, rng))
        for k, (n, v) in enumerate(zip(names, values, strict=True))
    ]
    name, value = rows[int(rng.integers(count))]
    page = [line_at(word(rng), 0.2, 0.06, rng), *(line for row in rows for line in row)]
    _, y0, _, y1 = name[1]
    talk: Talk = [
        read(page),
        strip(f"Along the row of {quoted(name)}.", (0.0, y0, 1.0, y1), [name, value]),
    ]
    return f"What share does {name[0]} have?", talk, f"Beside {name[0]} stands {value[0]}.", value[0]


def down_a_column(rng: Generator) -> Drill:
    """A number over each of several names: the number of a name, or the name of the number that stands highest."""
    count = int(rng.integers(3, 9))
    names, values = several(rng, count, count, word), different(rng, count)
    places = [0.08 + 0.84 * (k + 0.5) / count for k in range(count)]
    over = [line_at(v, x, rng.uniform(0.15, 0.8), rng) for v, x in zip(values, places, strict=True)]
    under = [line_at(n, x, 0.92, rng) for n, x in zip(names, places, strict=True)]
    page = [line_at(word(rng), 0.2, 0.06, rng), *sorted(over, key=lambda line: line[1][1]), *under]
    highest = rng.random() < 0.4
    k = min(range(count), key=lambda k: over[k][1][1]) if highest else int(rng.integers(count))
    known, wanted = (over[k], under[k]) if highest else (under[k], over[k])
    x0, _, x1, _ = known[1]
    talk: Talk = [
        read(page),
        strip(f"Down the column of {quoted(known)}.", (x0, 0.0, x1, 1.0), [over[k], under[k]]),
    ]
    if highest:
        return "Which name stands under the topmost?", talk, f"Under {known[0]} stands {wanted[0]}.", wanted[0]
    return f"How much is it for {known[0]}?", talk, f"Over {known[0]} stands {wanted[0]}.", wanted[0]


def where_they_cross(rng: Generator) -> Drill:
    """A cell by its row and its column."""
    wide, high = int(rng.integers(2, 4)), int(rng.integers(3, 7))
    heads = [line_at(n, 0.42 + 0.22 * j, 0.16, rng) for j, n in enumerate(several(rng, wide, wide, word))]
    names = [line_at(n, 0.12, 0.26 + 0.66 * k / high, rng) for k, n in enumerate(several(rng, high, high, word))]
    values = different(rng, wide * high)
    cells = [
        [line_at(values[k * wide + j], 0.42 + 0.22 * j, 0.26 + 0.66 * k / high, rng) for j in range(wide)]
        for k in range(high)
    ]
    k, j = int(rng.integers(high)), int(rng.integers(wide))
    row, column, cell = names[k], heads[j], cells[k][j]
    page = [*heads, *(line for n, own in zip(names, cells, strict=True) for line in (n, *own))]
    box = (column[1][0], row[1][1], column[1][2], row[1][3])
    talk: Talk = [read(page), strip(f"Where they cross: {quoted(row)} and {quoted(column)}.", box, [cell])]
    return f"What is the {column[0]} of {row[0]}?", talk, f"There stands {cell[0]}.", cell[0]


def lines_down(texts: list[str], rng: Generator) -> list[Line]:
    """Lines of a page from top to bottom."""
    return [line_at(text, 0.4, 0.06 + 0.88 * k / len(texts), rng) for k, text in enumerate(texts)]


def drawn_task(rng: Generator) -> tuple[int, str, int]:
    """Two numbers and a sign, whose result is not below zero."""
    a, b = (int(v) for v in rng.integers(10, 100 if rng.random() < 0.8 else 400, 2))
    return (a, "+", b) if rng.random() < 0.5 else (max(a, b), "-", min(a, b))


def one_sum(rng: Generator) -> Drill:
    """A task among other lines, with or without spaces."""
    a, sign, b = own = drawn_task(rng)
    others = several(rng, 1, 4, lambda r: " ".join(several(r, 1, 3, word)))
    space = "" if rng.random() < 0.4 else " "
    others.insert(int(rng.integers(1, len(others) + 1)), f"{a}{space}{sign}{space}{b}")
    result = a + b if sign == "+" else a - b
    return "What is the result of the task?", [read(lines_down(others, rng))], f"{worked(*own)}.", str(result)


def two_values(rng: Generator) -> Drill:
    """Two entries of a page, put together."""
    names = several(rng, 2, 5, word)
    values = [int(v) for v in rng.integers(10, 100, len(names))]
    i, k = (int(v) for v in rng.choice(len(names), size=2, replace=False))
    page = lines_down([f"{n} = {v}" for n, v in zip(names, values, strict=True)], rng)
    worked_out = f"{names[i]} {values[i]}, {names[k]} {values[k]}; {worked(values[i], '+', values[k])}."
    return f"What is {names[i]} plus {names[k]}?", [read(page)], worked_out, str(values[i] + values[k])


def sums(rng: Generator) -> Drill:
    """Tasks on a page, worked out one after another."""
    tasks = [drawn_task(rng) for _ in range(int(rng.integers(1, 6)))]
    page = lines_down([f"{a} {sign} {b}" for a, sign, b in tasks], rng)
    results = [str(a + b if sign == "+" else a - b) for a, sign, b in tasks]
    written = "; ".join(worked(*task) for task in tasks)
    return "Solve what is written.", [read(page)], f"{written}.", ", ".join(results)


def digits(rng: Generator) -> Drill:
    """What two digits give, many at once."""
    tasks = list[str]()
    for _ in range(int(rng.integers(8, 16))):
        a, b = (int(v) for v in rng.integers(0, 10, 2))
        tasks.append(f"{a} + {b} = {a + b}" if rng.random() < 0.5 else f"{a + b} - {b} = {a}")
    asked = ", ".join(task.partition(" = ")[0] for task in tasks)
    page = lines_down([asked], rng)
    return "Solve what is written.", [read(page)], f"{', '.join(tasks)}.", tasks[-1].rpartition(" ")[2]


DRILLS = (
    along_a_row, along_a_row, down_a_column, where_they_cross, one_sum, two_values, sums, digits, digits,
)  # fmt: skip
