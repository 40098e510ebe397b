"""Which verbs, harnesses and experiments use each function of docs/paper_map.md; fills and checks the column "used by".

    python scripts/paper_map_usage.py            # lists rows whose column is out of date, exits 1 if there are any
    python scripts/paper_map_usage.py --write    # writes the column

A reference graph of top-level names is read from the source: a function uses what its body names, after imports. From a
row's functions the graph is walked upwards to whatever a person starts: a verb, a benchmark, an experiment.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "docs" / "paper_map.md"
COLUMN = "used by"
LIBRARY = "library API"
"""Of functions that nothing here calls: they are offered to readers of the paper (docs/reference/equations.md)."""
MAX_USERS = 3
DIAGNOSTIC_VERBS = {"`pixelis demo`", "`pixelis doctor`", "`pixelis bench`"}
"""Named last: they reach nearly everything."""
FUNCTION_COLUMN = "function or verb"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package, the benchmarks and the experiments, parsed."""
    found = {}
    for base, folder in ((ROOT / "src", "pixelis"), (ROOT, "benchmarks"), (ROOT, "experiments")):
        for path in sorted((base / folder).rglob("*.py")):
            name = ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported_names(tree: ast.AST) -> dict[str, str]:
    """Local name -> dotted path, of all imports anywhere in a module."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
    return names


@cache
def canonical(path: str) -> str:
    """Where a re-exported name is defined."""
    module, _, name = path.rpartition(".")
    if module not in modules() or path in modules():
        return path
    tree = modules()[module]
    if any(getattr(node, "name", None) == name for node in tree.body):
        return path
    target = imported_names(tree).get(name)
    return canonical(target) if target and target != path else path


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` as text."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else None
    return None


@cache
def users() -> dict[str, set[str]]:
    """Definition -> the definitions that name it. A method belongs to its class."""
    graph: dict[str, set[str]] = defaultdict(set)
    for module, tree in modules().items():
        imports = imported_names(tree)
        top = {name for node in tree.body for name in defined_names(node)}
        for node in tree.body:
            owners = [f"{module}.{name}" for name in defined_names(node)] or [module]
            for part in ast.walk(node):
                text = dotted(part) if isinstance(part, ast.Name | ast.Attribute) else None
                if text is None:
                    continue
                head, _, rest = text.partition(".")
                target = imports.get(head) or (f"{module}.{head}" if head in top else None)
                if target is None:
                    continue
                while target in modules() and rest:
                    head, _, rest = rest.partition(".")
                    target = f"{target}.{head}"
                for owner in owners:
                    graph[canonical(target)].add(owner)
        graph[module].update(f"{module}.{name}" for name in top)
    return graph


def defined_names(node: ast.stmt) -> list[str]:
    """What a top-level statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


@cache
def verbs() -> dict[str, str]:
    """Function behind each verb -> what a person types."""
    import typer.main

    from pixelis.cli import app

    found = {}

    def walk(command: object, words: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        for name, child in (children or {}).items():
            walk(child, (*words, name))
        callback = getattr(command, "callback", None)
        function = getattr(callback, "__wrapped__", callback)
        if function is not None and words and (not children or getattr(command, "invoke_without_command", False)):
            found.setdefault(f"{function.__module__}.{function.__name__}", f"`pixelis {' '.join(words)}`")

    walk(typer.main.get_command(app), ())
    return found


def entry_point(path: str) -> str | None:
    """What a person starts, in the words of the column."""
    if path in verbs():
        return verbs()[path]
    if path.startswith(("benchmarks.", "experiments.")):
        return f"`{path.rsplit('.', 1)[0].replace('.', '/')}.py`"
    return None


def used_by(path: str) -> list[str]:
    """The nearest things that a person starts and that lead to this function, at most three."""
    start = canonical(path)
    while start.rpartition(".")[0] not in modules() and start not in modules():
        start = canonical(start.rpartition(".")[0])  # a method or field: its class
    visited, layer, found = {start}, [start], dict[str, None]()
    while layer:
        found |= dict.fromkeys(e for p in layer if (e := entry_point(p)) and e not in found)
        layer = sorted({user for p in layer for user in users().get(p, ())} - visited)
        visited |= set(layer)
    return sorted(found, key=lambda entry: ("pixelis " not in entry, entry in DIAGNOSTIC_VERBS))[:MAX_USERS]


def cell(function_cell: str) -> str:
    """The column's text for the functions and verbs of a row."""
    found = dict[str, None]()
    for quoted in re.findall(r"`([^`]+)`", function_cell):
        if quoted.startswith("pixelis "):
            found[f"`{quoted}`"] = None
        elif quoted.startswith(("pixelis.", "benchmarks.", "experiments.")):
            found |= dict.fromkeys(used_by(quoted))
    return ", ".join(list(found)[:MAX_USERS]) or LIBRARY


def filled(text: str) -> str:
    """The map with its column written."""
    lines, position, columns = [], None, None
    for original in text.splitlines():
        line = original
        cells = [part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else None
        if cells is None:
            position = columns = None
        elif columns is None and FUNCTION_COLUMN in cells:
            columns = [name for name in cells if name != COLUMN]
            position = cells.index(COLUMN) if COLUMN in cells else None
            line = "| " + " | ".join([*columns, COLUMN]) + " |"
        elif columns is not None:
            kept = [part for k, part in enumerate(cells) if k != position]
            is_rule = set("".join(kept)) <= set("-: ")
            last = "---" if is_rule else cell(kept[columns.index(FUNCTION_COLUMN)])
            line = "|---" * (len(kept) + 1) + "|" if is_rule else "| " + " | ".join([*kept, last]) + " |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    text = MAP.read_text(encoding="utf-8")
    new = filled(text)
    if "--write" in sys.argv:
        MAP.write_text(new, encoding="utf-8")
        return 0
    stale = [k for k, (a, b) in enumerate(zip(text.splitlines(), new.splitlines(), strict=True), 1) if a != b]
    if stale:
        print(f"docs/paper_map.md: the column {COLUMN!r} is out of date in lines {', '.join(map(str, stale[:20]))}; ")
        print("run `python scripts/paper_map_usage.py --write`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
