"""docs/how-to/own_tool.md, run as it is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pixelis.media import MediaSet, open_media
from pixelis.tools.results import ToolCall
from pixelis.tools.toolbox import Toolbox, ToolboxConfig

ROOT = Path(__file__).parents[2]
PHOTOGRAPH = ROOT / "src" / "pixelis" / "demo" / "astronaut_sign.jpg"


@pytest.fixture
def module(tmp_path, monkeypatch) -> Path:
    """The first and the last block of the page as edges.py."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "how-to" / "own_tool.md").read_text(), flags=re.DOTALL)
    (tmp_path / "edges.py").write_text(blocks[0] + "\n\n" + blocks[-1])
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("edges", None)


def test_the_example_is_about_thirty_lines(module):
    example = (module / "edges.py").read_text().split("class EdgesArgs")[1].split("from pixelis.tools.ocr")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 30


def test_the_seventh_tool_runs_in_the_worker_and_fails_as_data(module):
    media = MediaSet((open_media(PHOTOGRAPH),))
    with Toolbox(ToolboxConfig(plugins=("edges:Edges",), cache=False)) as toolbox:
        busy = toolbox.run(ToolCall(tool="edges", args={"box": [0.5, 0.5, 1.0, 1.0]}), media).result
        tiny = toolbox.run(ToolCall(tool="EDGES", args={"box": [0, 0, 0.001, 0.001]}), media).result
    assert busy.ok
    assert 0.02 < busy.output["density"] < 0.6
    assert busy.footprints[0].box_unit == (0.5, 0.5, 1.0, 1.0)
    assert tiny.status == "failed"
    assert "too small" in tiny.error


def test_another_backend_takes_the_place_of_the_built_in_one(module):
    with Toolbox(ToolboxConfig(plugins=("edges:ShoutingOcr",), isolate=False, cache=False)) as toolbox:
        result = toolbox.run(ToolCall(tool="READ"), MediaSet((open_media(PHOTOGRAPH),))).result
    assert result.identity.backend == "shouting"
    assert "SALE" in result.text


def test_the_command_of_the_page(module):
    words = ["tools", "run", "EDGES", "--plugin", "edges:Edges", "--media", str(PHOTOGRAPH), "--no-cache", "--json"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("pixelis")), *words, "--args", '{"box": [0, 0, 0.5, 0.5]}'],
        cwd=module,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["output"]["density"] > 0
