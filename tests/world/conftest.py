"""Items that several tests look at, made once."""

from __future__ import annotations

import pytest

from pixelis.world import FAMILIES, Item, generate

A_FAMILY = 100


@pytest.fixture(scope="session")
def many() -> list[Item]:
    """Six hundred items of the default mix: every family alike, difficulty and template drawn from the seed."""
    return [generate(family, seed=seed).item for family in FAMILIES for seed in range(A_FAMILY)]
