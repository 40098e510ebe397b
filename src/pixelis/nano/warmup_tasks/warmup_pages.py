"""Warm-up tasks on pages: list all lines, pick one, then read a strip of the page through it.

A page has names with numbers beside or above them. To read along a row or down a column, the box of a line is quoted
and two of its numbers go into the next call, whose result holds little but the answer.
"""

from __future__ import annotations

from numpy.random import Generator

from pixelis.core.geometry import UnitBox
from pixelis.data.teachers.oracle.column_arithmetic import write_column_arithmetic
from pixelis.nano.warmup_tasks.warmup_vocabulary import Turn, WarmupTask, random_word, sample_distinct
from pixelis.tools.base import coordinates
from pixelis.tools.results import ToolCall

PageLine = tuple[str, UnitBox]


def format_lines(lines: list[PageLine]) -> str:
    """Lines as OCR prints them."""
    text = "; ".join(quote_line(line) for line in lines)
    return text if len(lines) == 1 else f"{len(lines)} lines: {text}"


def quote_line(line: PageLine) -> str:
    return f'"{line[0]}" at {coordinates(line[1])}'


def make_line(text: str, x: float, y: float, rng: Generator) -> PageLine:
    """A line centred near a point."""
    width, height = 0.012 * len(text) + rng.uniform(0.01, 0.05), rng.uniform(0.03, 0.06)
    x0, y0 = min(max(x - width / 2, 0.0), 0.9), min(max(y - height / 2, 0.0), 0.9)
    return text, (round(x0, 2), round(y0, 2), round(min(x0 + width, 1.0), 2), round(min(y0 + height, 1.0), 2))


def read_page_turn(lines: list[PageLine]) -> Turn:
    return "Read everything first.", ToolCall(tool="OCR", args={}), format_lines(lines)


def read_strip_turn(thought: str, box: tuple[float, ...], lines: list[PageLine]) -> Turn:
    return thought, ToolCall(tool="OCR", args={"box": list(box)}), format_lines(lines)


def sample_distinct_numbers(rng: Generator, count: int) -> list[str]:
    """Different numbers of one page, some with a percent sign."""
    sign = "%" if rng.random() < 0.4 else ""
    top = 10 ** int(rng.integers(2, 4))
    return [f"{10 + int(v)}{sign}" for v in rng.choice(top - 10, size=count, replace=False)]


def read_row(rng: Generator) -> WarmupTask:
    """Names with a value beside each."""
    count = int(rng.integers(3, 8))
    names, values = sample_distinct(rng, count, count, random_word), sample_distinct_numbers(rng, count)
    top, step = rng.uniform(0.15, 0.35), rng.uniform(0.06, 0.1)
    pairs = zip(names, values, [top + k * step for k in range(count)], strict=True)
    rows = [(make_line(n, 0.3, y, rng), make_line(v, 0.85, y, rng)) for n, v, y in pairs]
    name, value = rows[int(rng.integers(count))]
    page = [make_line(random_word(rng), 0.2, 0.06, rng), *(line for row in rows for line in row)]
    _, y0, _, y1 = name[1]
    strip = read_strip_turn(f"Along the row of {quote_line(name)}.", (0.0, y0, 1.0, y1), [name, value])
    turns = [read_page_turn(page), strip]
    return f"What share does {name[0]} have?", turns, f"Beside {name[0]} stands {value[0]}.", value[0]


def read_column(rng: Generator) -> WarmupTask:
    """A number above each of several names: the number of a name, or the name under the topmost number."""
    count = int(rng.integers(3, 9))
    names, values = sample_distinct(rng, count, count, random_word), sample_distinct_numbers(rng, count)
    centres = [0.08 + 0.84 * (k + 0.5) / count for k in range(count)]
    over = [make_line(v, x, rng.uniform(0.15, 0.8), rng) for v, x in zip(values, centres, strict=True)]
    under = [make_line(n, x, 0.92, rng) for n, x in zip(names, centres, strict=True)]
    page = [make_line(random_word(rng), 0.2, 0.06, rng), *sorted(over, key=lambda line: line[1][1]), *under]
    highest = rng.random() < 0.4
    k = min(range(count), key=lambda k: over[k][1][1]) if highest else int(rng.integers(count))
    key_line, answer_line = (over[k], under[k]) if highest else (under[k], over[k])
    x0, _, x1, _ = key_line[1]
    strip = read_strip_turn(f"Down the column of {quote_line(key_line)}.", (x0, 0.0, x1, 1.0), [over[k], under[k]])
    turns = [read_page_turn(page), strip]
    if highest:
        final_thought = f"Under {key_line[0]} stands {answer_line[0]}."
        return "Which name stands under the topmost?", turns, final_thought, answer_line[0]
    return f"How much is it for {key_line[0]}?", turns, f"Over {key_line[0]} stands {answer_line[0]}.", answer_line[0]


def read_cell(rng: Generator) -> WarmupTask:
    """A cell of a table, by its row and column."""
    column_count, row_count = int(rng.integers(2, 4)), int(rng.integers(3, 7))
    xs = [0.42 + 0.22 * j for j in range(column_count)]
    ys = [0.26 + 0.66 * k / row_count for k in range(row_count)]
    words = sample_distinct(rng, column_count, column_count, random_word)
    heads = [make_line(word, x, 0.16, rng) for word, x in zip(words, xs, strict=True)]
    words = sample_distinct(rng, row_count, row_count, random_word)
    names = [make_line(word, 0.12, y, rng) for word, y in zip(words, ys, strict=True)]
    values = iter(sample_distinct_numbers(rng, column_count * row_count))
    cells = [[make_line(next(values), x, y, rng) for x in xs] for y in ys]
    k, j = int(rng.integers(row_count)), int(rng.integers(column_count))
    row, column, cell = names[k], heads[j], cells[k][j]
    page = [*heads, *(line for n, row_cells in zip(names, cells, strict=True) for line in (n, *row_cells))]
    box = (column[1][0], row[1][1], column[1][2], row[1][3])
    strip = read_strip_turn(f"Where they cross: {quote_line(row)} and {quote_line(column)}.", box, [cell])
    turns = [read_page_turn(page), strip]
    return f"What is the {column[0]} of {row[0]}?", turns, f"There stands {cell[0]}.", cell[0]


def stack_lines(texts: list[str], rng: Generator) -> list[PageLine]:
    """Lines of a page from top to bottom."""
    return [make_line(text, 0.4, 0.06 + 0.88 * k / len(texts), rng) for k, text in enumerate(texts)]


def sample_sum(rng: Generator) -> tuple[int, str, int]:
    """Two numbers and a sign; the result is not negative."""
    a, b = (int(v) for v in rng.integers(10, 100 if rng.random() < 0.8 else 400, 2))
    return (a, "+", b) if rng.random() < 0.5 else (max(a, b), "-", min(a, b))


def find_and_solve_sum(rng: Generator) -> WarmupTask:
    """A sum among other lines, with or without spaces."""
    a, sign, b = task = sample_sum(rng)
    others = sample_distinct(rng, 1, 4, lambda r: " ".join(sample_distinct(r, 1, 3, random_word)))
    space = "" if rng.random() < 0.4 else " "
    others.insert(int(rng.integers(1, len(others) + 1)), f"{a}{space}{sign}{space}{b}")
    result = str(a + b if sign == "+" else a - b)
    turns = [read_page_turn(stack_lines(others, rng))]
    return "What is the result of the task?", turns, f"{write_column_arithmetic(*task)}.", result


def add_two_values(rng: Generator) -> WarmupTask:
    """The sum of two entries of a page."""
    names = sample_distinct(rng, 2, 5, random_word)
    values = [int(v) for v in rng.integers(10, 100, len(names))]
    i, k = (int(v) for v in rng.choice(len(names), size=2, replace=False))
    page = stack_lines([f"{n} = {v}" for n, v in zip(names, values, strict=True)], rng)
    arithmetic = write_column_arithmetic(values[i], "+", values[k])
    final_thought = f"{names[i]} {values[i]}, {names[k]} {values[k]}; {arithmetic}."
    return f"What is {names[i]} plus {names[k]}?", [read_page_turn(page)], final_thought, str(values[i] + values[k])


def solve_sums(rng: Generator) -> WarmupTask:
    """Sums on a page, worked out one after another."""
    tasks = [sample_sum(rng) for _ in range(int(rng.integers(1, 6)))]
    page = stack_lines([f"{a} {sign} {b}" for a, sign, b in tasks], rng)
    results = [str(a + b if sign == "+" else a - b) for a, sign, b in tasks]
    final_thought = "; ".join(write_column_arithmetic(*task) for task in tasks)
    return "Solve what is written.", [read_page_turn(page)], f"{final_thought}.", ", ".join(results)


def add_digits(rng: Generator) -> WarmupTask:
    """Many sums of two digits."""
    tasks = list[str]()
    for _ in range(int(rng.integers(8, 16))):
        a, b = (int(v) for v in rng.integers(0, 10, 2))
        tasks.append(f"{a} + {b} = {a + b}" if rng.random() < 0.5 else f"{a + b} - {b} = {a}")
    task_text = ", ".join(task.partition(" = ")[0] for task in tasks)
    page = stack_lines([task_text], rng)
    return "Solve what is written.", [read_page_turn(page)], f"{', '.join(tasks)}.", tasks[-1].rpartition(" ")[2]


PAGE_TASKS = (
    read_row, read_row, read_column, read_cell, find_and_solve_sum, add_two_values, solve_sums, add_digits, add_digits,
)  # fmt: skip
