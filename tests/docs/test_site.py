"""README, architecture picture and the paper map agree with the code; scripts that write them say when they do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("script", ["architecture_figure.py", "paper_map_usage.py"])
def test_what_a_script_writes_is_up_to_date(script):
    command = [sys.executable, str(ROOT / "scripts" / script)]
    process = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_row_of_the_paper_map_names_a_user():
    text = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
    tables = [line for line in text.splitlines() if line.startswith("| ") and line.endswith("|")]
    headed = [line for line in tables if line.endswith("| used by |")]
    assert headed
    assert not [line for line in tables if line.endswith("|  |")]


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
