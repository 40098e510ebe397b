"""A random nano, its tokens, the real tools, and queries over small pictures."""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy.model import Policy
from pixelis.policy.tokenizer import PolicyTokenizer, train_tokenizer
from pixelis.rollout.constrained import OUTSIDE, CallGrammar
from pixelis.rollout.episode import Query
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox, ToolboxConfig


class Starts:
    """A grammar whose turns begin with given tokens, one turn after the other, and go on with another grammar.

    Made for one row at a time where turns differ; a random nano would hardly ever call.
    """

    def __init__(self, inner: CallGrammar, *first: int) -> None:
        self.inner = inner
        self.mask = torch.zeros(len(inner.tokenizer), dtype=torch.bool)
        self.mask[list(first)] = True

    def initial_state(self) -> Any:
        return "first"

    def advance(self, state: Any, token: int) -> Any:
        return self.inner.advance(OUTSIDE if state == "first" else state, token)

    def allowed_tokens(self, state: Any, remaining: int) -> Any:
        return self.mask if state == "first" else self.inner.allowed_tokens(state, remaining)


class Says:
    """A grammar of one text for every turn."""

    def __init__(self, tokens: PolicyTokenizer, text: str) -> None:
        self.ids = tokens.encode(text, control=True)
        self.size = len(tokens)

    def initial_state(self) -> int:
        return 0

    def advance(self, state: int, token: int) -> int:
        return state + 1

    def allowed_tokens(self, state: int, remaining: int) -> Any:
        mask = torch.zeros(self.size, dtype=torch.bool)
        mask[self.ids[min(state, len(self.ids) - 1)]] = True
        return mask


class Answering:
    """A toolbox that gives one text, or raises."""

    def __init__(self, text: str = "OCR: nothing", error: Exception | None = None) -> None:
        self.text, self.error = text, error
        self.calls: list[ToolCall] = []

    def schemas(self) -> list[dict[str, Any]]:
        return []

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        self.calls.append(call)
        if self.error:
            raise self.error
        return Execution(ToolResult(tool=call.tool, status="ok", text=self.text), {})


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def toolbox() -> Iterator[Toolbox]:
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as box:
        yield box


@pytest.fixture(scope="session")
def tokens(toolbox: Toolbox) -> PolicyTokenizer:
    schemas = toolbox.schemas()
    texts = ["Where is the red bus? What does the sign say?"] * 40 + [json.dumps(schema) for schema in schemas]
    return PolicyTokenizer(train_tokenizer(texts, schemas, vocabulary=500))


@pytest.fixture(scope="session")
def policy(tokens: PolicyTokenizer) -> Policy:
    small = NanoConfig(hidden=64, layers=5, heads=2, mlp=128, vision_hidden=32)
    made = build_nano(small, tokens, seed=1)
    with torch.no_grad():  # norms that are not all one, and sharper choices
        generator = torch.Generator().manual_seed(0)
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return made.eval()


@pytest.fixture(scope="session")
def grammar(tokens: PolicyTokenizer, toolbox: Toolbox) -> CallGrammar:
    return CallGrammar(tokens, toolbox.schemas())


@pytest.fixture(scope="session")
def queries() -> list[Query]:
    rng = np.random.default_rng(0)
    sizes = [(90, 120), (64, 64), (150, 100)]
    pictures = [Image.from_array(rng.integers(0, 255, (*size, 3), dtype=np.uint8)) for size in sizes]
    return [
        Query(f"q{k}", "Where is the red bus?" + " Really?" * k, MediaSet((picture,)), seed=k)
        for k, picture in enumerate(pictures)
    ]


@pytest.fixture(scope="session")
def helpers() -> Any:
    class Helpers:
        starts, says, answering = Starts, Says, Answering

    return Helpers
