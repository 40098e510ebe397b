"""A small random nano with a tokenizer of its own: the real class, at the smallest size that has every part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from pixelis.media import Image, MediaSet
from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy.model import Policy
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.tools.toolbox import Toolbox, ToolboxConfig

TEXTS = [
    "Read the red panel.", "What does the blue panel say?", "Find the red panel first.", "It says Zorvan.",
    'red panel [0.31, 0.20, 0.45, 0.29] area 0.01 score 0.97', '"Zorvan" at [0.10, 0.20, 0.90, 0.80]',
    '{"name": "SEG", "arguments": {"target": "red panel"}}',
] * 40  # fmt: skip


@pytest.fixture(scope="session")
def schemas() -> list[dict[str, object]]:
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        return box.schemas()


@pytest.fixture(scope="session")
def tokens(schemas: list[dict[str, object]]) -> PolicyTokenizer:
    return PolicyTokenizer(train_tokenizer(TEXTS, schemas, vocabulary=400))


@pytest.fixture(scope="session")
def policy(tokens: PolicyTokenizer) -> Iterator[Policy]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield build_nano(
        NanoConfig(hidden=32, layers=5, heads=2, kv_heads=1, head_dim=16, mlp=64, vision_hidden=32), tokens, seed=1
    ).eval()
    torch.set_num_threads(before)


@pytest.fixture
def media() -> MediaSet:
    rng = np.random.default_rng(3)
    return MediaSet(
        tuple(Image.from_array(rng.integers(0, 256, size, dtype=np.uint8)) for size in ((60, 90, 3), (64, 64, 3)))
    )
