"""Every example runs as it is printed, with its smallest settings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXPECTED = {
    "01_ask.py": "FOR SALE",
    "02_own_tool.py": "edge density",
    "03_own_data.py": "What does the sign say? -> OPEN",
    "04_sft.py": "search, % correct:",
    "05_grpo.py": "trained",
    "06_ttrl.py": "pixelis adapt revert",
}
"""A piece of what each prints."""
ARGUMENTS = {
    "03_own_data.py": ["out"],
    "04_sft.py": ["out", "--tiny"],
    "05_grpo.py": ["out", "--tiny"],
    "06_ttrl.py": ["out", "--tiny"],
}


def test_every_script_has_an_expectation_and_sixty_lines_at_most():
    scripts = {path.name: path.read_text(encoding="utf-8") for path in EXAMPLES.glob("*.py")}
    assert set(scripts) == set(EXPECTED)
    assert max(len(text.splitlines()) for text in scripts.values()) <= 60


@pytest.mark.parametrize("script", sorted(EXPECTED))
def test_an_example_runs(script, tmp_path):
    command = [sys.executable, str(EXAMPLES / script), *ARGUMENTS.get(script, [])]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert process.returncode == 0, process.stderr[-2000:]
    assert EXPECTED[script] in process.stdout
