"""The built wheel, installed alone, beside nothing but the base's dependencies. About 20 seconds."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pixelis.core.extras import EXTRAS_BY_MODULE

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "src" / "pixelis" / "demo"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def console_script(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pixelis` of an environment that sees this one's packages, but neither its pixelis nor what an extra brings."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=120)
    packages = next(folder.glob("lib/python3.*/site-packages"))
    (packages / "here.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    absent = dict.fromkeys(EXTRAS_BY_MODULE)
    (packages / "no_extras.pth").write_text(f"import sys; sys.modules.update({absent!r})\n")
    return folder / "bin" / "pixelis"


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [str(script), *arguments],
        cwd=script.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_wheel_holds_nano_rft_alone_and_stays_under_20_mb(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.stat().st_size < 20e6
    assert {n.split("/")[3] for n in names if n.startswith("pixelis/nano/checkpoints/") and n.count("/") > 3} == {
        "nano-rft"
    }
    assert "pixelis/py.typed" in names
    assert not [n for n in names if n.startswith(("benchmarks/", "experiments/", "tests/"))]


def test_the_base_alone_reads_a_page(console_script: Path) -> None:
    done = run(console_script, "tools", "run", "OCR", "--media", str(DEMO / "page.jpg"), "--json")
    assert done.returncode == 0, done.stderr
    assert "Chapter" in json.loads(done.stdout)["text"]


def test_what_the_base_cannot_do_names_its_extra(console_script: Path) -> None:
    clip = run(
        console_script,
        "tools",
        "run",
        "ZOOM",
        "--media",
        str(DEMO / "cockatoo.mp4"),
        "--args",
        json.dumps({"box": [0, 0, 1, 1]}),
    )
    assert clip.returncode == 2
    assert clip.stderr.endswith("reading one needs av: pip install 'pixelis[video]'\n")
    training = run(console_script, "train", "sft", "configs/nano/sft.yaml")
    assert training.stderr == "error: `pixelis train` needs torch: pip install 'pixelis[train]'\n"
