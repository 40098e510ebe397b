"""One name, one thing: classes and modules occur once, and the words of the old dialect name nothing new."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "pixelis"
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
SHARED_MODULE_NAMES = {"__init__", "train"}
"""Each phase has its `train.py`; files of `cli/` are named after their verb."""
DIALECT = {
    "told", "heard", "lived", "lay", "spelt", "worth", "own", "whole", "us", "hear", "reckon", "borne", "goes_on",
    "let_go", "in_vain", "asked", "said", "shown", "wanted", "seen_of", "gone_on",
}  # fmt: skip


def test_a_class_name_occurs_once():
    names = Counter(n.name for tree in TREES.values() for n in ast.walk(tree) if isinstance(n, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_module_name_occurs_once():
    places = defaultdict(list)
    for path in TREES:
        if path.parent.name != "cli" and path.stem not in SHARED_MODULE_NAMES:
            places[path.stem].append(str(path.relative_to(PACKAGE)))
    assert [found for found in places.values() if len(found) > 1] == []


def test_no_identifier_is_a_word_of_the_old_dialect():
    found = []
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            name = getattr(node, "name", None) or getattr(node, "id", None) or getattr(node, "arg", None)
            is_definition = not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store)
            if name in DIALECT and is_definition and not isinstance(node, ast.keyword | ast.alias):
                found.append(f"{path.relative_to(PACKAGE)}:{node.lineno} {name}")
    assert found == []
