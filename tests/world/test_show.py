"""`pixelis world show` writes a picture that people can look at."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pil
from typer.testing import CliRunner

from pixelis.cli.world import app
from pixelis.core.errors import ConfigError
from pixelis.world import FAMILIES, generate
from pixelis.world.show import EVIDENCE_RGB, render_item


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_can_be_looked_at(family: str, tmp_path: Path) -> None:
    out = tmp_path / f"{family}.png"
    result = CliRunner().invoke(app, ["show", "--family", family, "--seed", "7", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert "answer:" in result.output
    assert np.asarray(Pil.open(out)).std() > 20


def test_the_evidence_is_outlined() -> None:
    made = generate("choice", seed=1, difficulty=1, template_id="choice.present")
    marked, bare = render_item(made, width=512), render_item(made, width=512, marks=False)
    red = (marked == EVIDENCE_RGB).all(axis=2).sum() - (bare == EVIDENCE_RGB).all(axis=2).sum()
    assert red > 50


def test_a_shift_and_json_on_the_command_line(tmp_path: Path) -> None:
    args = ["show", "--family", "space", "--seed", "3", "--shift", "noise:2", "--json", "-o", str(tmp_path / "a.png")]
    result = CliRunner().invoke(app, args)
    record = json.loads(result.output)
    assert record["shift"] == {"name": "noise", "severity": 2, "seed": 3}
    assert record["question"]


def test_a_mistyped_shift_or_family_is_refused_with_a_sentence(tmp_path: Path) -> None:
    out = str(tmp_path / "a.png")
    wrong = CliRunner().invoke(app, ["show", "--shift", "noise:much", "-o", out])
    assert isinstance(wrong.exception, ConfigError)
    unknown = CliRunner().invoke(app, ["show", "--family", "chess", "-o", out])
    assert isinstance(unknown.exception, ConfigError)
