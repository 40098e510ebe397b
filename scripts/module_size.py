"""Fails when a module passes 400 lines: it has two subjects, part them."""

import sys
from pathlib import Path

LIMIT = 400

long = [
    (lines, path)
    for path in sorted(Path("src").rglob("*.py"))
    if (lines := len(path.read_text(encoding="utf-8").splitlines())) > LIMIT
]
for lines, path in long:
    print(f"{path}: {lines} lines, at most {LIMIT}")
sys.exit(bool(long))
