"""`pixelis bench` prints what was measured as a table or as JSON, and writes it with its provenance."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks import bench_world
from benchmarks.bench_rows import BenchRow
from pixelis.cli import app

ROWS = [BenchRow("a picture", 0.25, "its peer", None, "≤ 1 s", "noted")]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_group_is_printed_and_written(as_json, tmp_path, monkeypatch):
    monkeypatch.setattr(bench_world, "rows", lambda: ROWS)
    out = tmp_path / "rows.json"
    result = CliRunner().invoke(app, ["bench", "world", "-o", str(out), *(["--json"] if as_json else [])])
    assert result.exit_code == 0, result.output
    written = json.loads(out.read_text(encoding="utf-8"))
    assert written["rows"]["world"][0] | {"ours_cpu_s": 0.25, "peer_cpu_s": None} == written["rows"]["world"][0]
    if as_json:
        assert json.loads(result.stdout)["rows"] == written["rows"]
    else:
        assert "0.25 s" in result.stdout
        assert "not run" in result.stdout
