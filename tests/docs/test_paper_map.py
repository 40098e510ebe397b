"""docs/paper_map.md against the paper's labels, the package, the command line and the tests.

The paper is not part of the repository: its labels are kept in docs/paper_labels.txt, which is compared with the paper
wherever that lies beside the clone.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
MAP = ROOT / "docs" / "paper_map.md"
LABELS = (ROOT / "docs" / "paper_labels.txt").read_text(encoding="utf-8").split()
PAPER = ROOT.parent / "shared" / "paper" / "pixelis.tex"
UNSERVED = "Not here yet"
SERVED_COLUMNS = {"paper", "what", "function or verb", "test"}


class Row(NamedTuple):
    """One line of a table of the map, its cells by the heading of their column."""

    number: int
    section: str
    cells: dict[str, str]

    def quoted(self, column: str) -> list[str]:
        """What stands between backticks in a cell."""
        return re.findall(r"`([^`]+)`", self.cells[column])

    def __str__(self) -> str:
        return f"docs/paper_map.md:{self.number} ({self.cells.get('what', '')})"


def rows_of(text: str) -> list[Row]:
    """The rows of every table; a table is a header line, a line of dashes, and what follows without a gap."""
    rows: list[Row] = []
    section, header = "", list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("## "):
            section = line.removeprefix("## ").strip()
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not header:
            header = cells
        elif not set("".join(cells)) <= set("-: "):
            assert len(cells) == len(header), f"docs/paper_map.md:{number}: {len(cells)} cells under {len(header)}"
            rows.append(Row(number, section, dict(zip(header, cells, strict=True))))
    return rows


ROWS = rows_of(MAP.read_text(encoding="utf-8"))
SERVED = [row for row in ROWS if row.section != UNSERVED]


@cache
def object_at(path: str) -> Any:
    """What a dotted path names: a module's attribute, a method, or a field of a class; AttributeError for nothing."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        for part in parts[cut:]:
            # a field without a default is no attribute of its class
            fields = getattr(found, "__dataclass_fields__", getattr(found, "model_fields", {}))
            found = fields[part] if part in fields else getattr(found, part)
        return found
    raise AttributeError(path)


@cache
def commands(words: tuple[str, ...] = ()) -> Any:
    """The Click command that a verb names, from Typer's own tree; KeyError where it has none."""
    import typer.main

    from pixelis.cli import app

    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    return command


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the tests in a file, which is read and not run."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def test_every_label_of_the_paper_has_a_row():
    cited = {label for row in ROWS for label in row.quoted("paper")}
    missing = [label for label in LABELS if label not in cited]
    assert not missing, f"docs/paper_map.md says nothing about {', '.join(missing)}"


def test_the_map_cites_labels_that_exist_and_never_numbers():
    strange = [f"{row}: {label}" for row in ROWS for label in row.quoted("paper") if label not in LABELS]
    assert not strange
    assert [str(row) for row in ROWS if not row.quoted("paper")] == []
    numbered = re.findall(r"\b(?:Eq|Tab|Table|Fig|Figure|Sec|Section|Appx)\.?~? ?\(?S?\d+", MAP.read_text("utf-8"))
    assert not numbered


def test_the_kept_labels_are_those_of_the_paper():
    if not PAPER.is_file():
        pytest.skip(f"needs the paper in {PAPER}")
    source = re.sub(r"(?<!\\)%.*", "", PAPER.read_text(encoding="utf-8"))
    assert re.findall(r"\\label\{([^}]+)\}", source) == LABELS


def test_no_row_outside_of_what_is_not_here_yet_lacks_a_function_or_a_test():
    assert {row.section for row in ROWS} >= {"The map", UNSERVED}
    for row in SERVED:
        assert row.cells.keys() >= SERVED_COLUMNS, f"{row}: its table has the columns {', '.join(row.cells)}"
        for column in ("function or verb", "test"):
            assert row.quoted(column), f"{row}: nothing under {column!r}"
        empty = [column for column, cell in row.cells.items() if not cell]
        assert not empty, f"{row}: nothing under {', '.join(empty)}"


def test_what_is_not_here_yet_says_what_will_serve_it():
    waiting = [row for row in ROWS if row.section == UNSERVED]
    assert waiting
    for row in waiting:
        assert row.cells.keys() == {"paper", "what", "will be served by"}
        assert all(row.cells.values()), f"{row}: an empty cell"


def test_every_function_of_the_map_exists():
    gone = []
    for row in SERVED:
        for path in row.quoted("function or verb"):
            if path.startswith("pixelis "):
                continue
            try:
                object_at(path)
            except (AttributeError, ImportError) as error:
                gone.append(f"{row}: {path} ({error})")
    assert not gone, "\n".join(gone)


def test_every_verb_of_the_map_exists():
    gone = []
    for row in SERVED:
        for verb in row.quoted("function or verb"):
            if not verb.startswith("pixelis "):
                continue
            try:
                command = commands(tuple(verb.split()[1:]))
            except (AttributeError, KeyError):
                gone.append(f"{row}: {verb}")
                continue
            if hasattr(command, "commands") and not command.invoke_without_command:
                gone.append(f"{row}: {verb} is a family of verbs, name one of {', '.join(command.commands)}")
    assert not gone, "\n".join(gone)


def test_every_test_of_the_map_exists():
    gone = []
    for row in SERVED:
        for test in row.quoted("test"):
            path, _, name = test.partition("::")
            if not (ROOT / path).is_file() or not name.startswith("test_") or name not in names_in(path):
                gone.append(f"{row}: {test}")
    assert not gone, "\n".join(gone)


def test_no_evaluator_is_a_tool_and_no_tool_imports_one():
    from pixelis.tools.base import ALIASES
    from pixelis.tools.toolbox import ToolboxConfig, build_tools

    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (c for c in contracts if "supp:tool-vs-eval" in c["name"])
    assert contract["source_modules"] == ["pixelis.tools"]
    assert {"trackeval", "pixelis.metrics.tracking", "pixelis.metrics.text"} <= set(contract["forbidden_modules"])
    tools = build_tools(ToolboxConfig(seg="classical"))
    assert list(tools) == ["SEG", "ZOOM", "TRK", "OCR", "TEMP", "PROP"]  # HOTA, ANLS and DINOv2 are not among them
    assert set(ALIASES.values()) <= tools.keys()
    for file in (ROOT / "src" / "pixelis" / "tools").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            named = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in named:
                inside = [f for f in contract["forbidden_modules"] if module == f or module.startswith(f"{f}.")]
                assert not inside, f"{file.relative_to(ROOT)}:{node.lineno} imports the evaluator {module}"


def test_the_bench_compares_with_the_papers_own_latencies():
    from benchmarks.bench_tools import PAPER as LATENCIES

    assert LATENCIES == {"SEG": 1.17, "ZOOM": 1.17, "TRK": 1.42, "OCR": 0.39, "TEMP": 1.57, "PROP": 0.16}


def test_a_vote_of_eight_rollouts_takes_less_than_the_papers_retrieval_and_voting():
    from benchmarks.bench_equations import example_group, run_vote
    from benchmarks.bench_rows import cpu_seconds

    chains, answers = example_group(np.random.default_rng(0))
    history = np.random.default_rng(1).integers(0, 4, (16, 8))
    assert cpu_seconds(lambda: run_vote(chains, answers, history, np.random.default_rng(2)), repeats=5) < 0.34


def test_a_row_that_lies_is_found():
    liar = (
        "## The map\n| paper | what | function or verb | test |\n|---|---|---|---|\n| `x` | a \\| b | `pixelis.no` | |"
    )
    (row,) = rows_of(liar)
    assert row.cells["what"] == "a \\| b"
    assert row.quoted("test") == []
    with pytest.raises(AttributeError):
        object_at("pixelis.equations.voting.consent")
    with pytest.raises(AttributeError):
        object_at("pixelis.no.such.module")
    with pytest.raises(KeyError):
        commands(("score", "nothing"))
    assert "test_no_such_test" not in names_in("tests/docs/test_paper_map.py")
