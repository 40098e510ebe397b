"""What all tests share."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray

from pixelis.dedup.synthetic_duplicates import bundled_images
from pixelis.items import MediumFacts
from pixelis.weights import is_available
from pixelis.weights.encoders.visual_encoder import VisualEncoder
from pixelis.world import FAMILIES, Item

hypothesis.settings.register_profile("pixelis", deadline=None)  # a deadline would assert a wall-clock time
hypothesis.settings.load_profile("pixelis")

REALDATA = Path(__file__).resolve().parent / "realdata"


@pytest.fixture(scope="session")
def realdata() -> Path:
    """The folder of public pictures, clips and texts; its README says where each is from."""
    return REALDATA


@pytest.fixture(scope="session")
def encoder() -> VisualEncoder:
    """The visual encoder, with its real weights."""
    if not is_available("efficientnet-lite0"):
        pytest.skip("run `pixelis models pull efficientnet-lite0`")
    return VisualEncoder()


@pytest.fixture(scope="session")
def pictures() -> dict[str, NDArray[np.uint8]]:
    """The photographs that scikit-image carries in its wheel."""
    return bundled_images()


class Server:
    """A chat server as a process of its own, and what it wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        program = Path(__file__).with_name("chat_server.py")
        self.process = subprocess.Popen([sys.executable, str(program), str(folder)])
        while not (folder / "port").exists():
            assert self.process.poll() is None
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{(folder / 'port').read_text()}/v1"

    def log(self, event: str, model: str) -> list[dict]:
        path = self.folder / "log.jsonl"
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [entry for entry in entries if (entry["event"], entry["model"]) == (event, model)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("server"))
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server of one test, which it may break."""
    running = Server(tmp_path)
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture
def question() -> Callable[..., Item]:
    """An item of a template with these options and parameters."""

    def make(template: str, options: tuple[str, ...] = (), **parameters: Any) -> Item:
        own = template.partition(".")[0]
        family = own if own in FAMILIES else "search"
        return Item(
            id="x/1", family=family, template=template, difficulty=1, seed=1, stem="?",  # type: ignore[arg-type]
            options=options, answer="A", answers=("A",), scoring="choice" if options else "exact",
            media=(MediumFacts(name="Image_0", sha256="0" * 64, width=100, height=100),), parameters=parameters,
        )  # fmt: skip

    return make
