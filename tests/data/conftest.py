"""Questions of the world without a picture behind them."""

from collections.abc import Callable
from typing import Any

import pytest

from pixelis.world import Item
from pixelis.world.item import MediumFacts


@pytest.fixture
def question() -> Callable[..., Item]:
    """An item of a template with these options and parameters."""

    def make(template: str, options: tuple[str, ...] = (), **parameters: Any) -> Item:
        return Item(
            id="x/1", family=template.partition(".")[0], template=template, difficulty=1, seed=1, stem="?",  # type: ignore[arg-type]
            options=options, answer="A", answers=("A",), scoring="choice" if options else "exact",
            media=(MediumFacts(name="Image_0", sha256="0" * 64, width=100, height=100),), parameters=parameters,
        )  # fmt: skip

    return make
