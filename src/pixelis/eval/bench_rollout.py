"""Bench row of rollouts: 8 queries x 8 with two tool turns, beside the same thing written with `generate` per turn.

Tools take no time on either side: results are ready at once, and always the same: the first call shows a view, the
second gives a line of text. Turns are given but for their first words, which are drawn, so that no two rollouts are
decoded as one; the other side puts as many tokens down, so that both read and write equally much.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pixelis.eval.bench import BenchRow, cpu_seconds_beside
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.media.query import ViewRecipe
from pixelis.policy import script, tokens
from pixelis.policy.ledger import Ledger
from pixelis.policy.model import Policy
from pixelis.policy.nano import NanoConfig, build_nano
from pixelis.policy.pictures import patches
from pixelis.policy.tokens import OFTEN, Tokens, train_tokenizer
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox, ToolboxConfig

QUERIES, SAMPLES, TOOL_TURNS = 8, 8, 2
QUESTION = "What does the sign on the left say?"
THOUGHT = "The sign stands on the left, so I read it there."
CALL = ToolCall(tool="ZOOM", args={"media": "Image_0", "box": [0.12, 0.3, 0.44, 0.58]})
READ = ToolResult(tool="OCR", status="ok", text='OCR: 1 line: "GATE 12" [0.14, 0.33, 0.41, 0.52] confidence 0.97')
VIEW = ViewRecipe(media="Image_0", frame=0, box=(0.12, 0.3, 0.44, 0.58), width=80, height=80)
LOOK = ToolResult(tool="ZOOM", status="ok", text="ZOOM: View_0 shows [0.12, 0.30, 0.44, 0.58]", view=VIEW)


class Instantly:
    """A toolbox whose results are there at once."""

    def __init__(self, schemas: list[dict[str, Any]]) -> None:
        self._schemas = schemas

    def schemas(self) -> list[dict[str, Any]]:
        return self._schemas

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        return Execution(READ if media.views else LOOK, {})


FREE = 4
"""Words of a turn that a rollout draws from those of `THOUGHT`: two of eight alike come once in a thousand groups."""


class Forced:
    """A grammar of turns of one length: a few words of the thought in any order, then always the same."""

    def __init__(self, known: Tokens) -> None:
        self.ids = [token for piece in script.called(THOUGHT, CALL, step=1) for token in encoded(piece, known)]
        self._masks = list(torch.nn.functional.one_hot(torch.tensor(self.ids), len(known)).bool())
        words = torch.zeros(len(known), dtype=torch.bool)
        words[known.encode(THOUGHT)] = True
        self._masks[:FREE] = [words] * FREE

    def __len__(self) -> int:
        return len(self.ids)

    def begin(self) -> int:
        return 0

    def after(self, state: int, token: int) -> int:
        return state + 1

    def allowed(self, state: int, left: int) -> Tensor:
        return self._masks[state]


def rows() -> list[BenchRow]:
    """One thread, CPU seconds of the same run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_rollouts()]
    finally:
        torch.set_num_threads(threads)


def random_nano(config: NanoConfig = NanoConfig()) -> tuple[Policy, list[dict[str, Any]]]:
    """nano with random weights, whose tokenizer has seen what is said here, and the schemas of the tools."""
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as toolbox:
        schemas = toolbox.schemas()
    texts = [json.dumps(schema) for schema in schemas] + inspect.getsource(script).splitlines()
    texts += [THOUGHT, READ.text, LOOK.text, QUESTION] * OFTEN  # nano knows the words that it often writes
    known = Tokens(train_tokenizer([*texts, *inspect.getsource(tokens).splitlines()], schemas))
    return build_nano(config, known, seed=0), schemas


def _rollouts() -> BenchRow:
    policy, schemas = random_nano()
    known = policy.eval().tokens
    rng = np.random.default_rng(0)
    queries = [Query(f"q{k}", QUESTION, MediaSet((picture(rng),)), k) for k in range(QUERIES)]
    forced = Forced(known)
    limits = Limits(steps=TOOL_TURNS, turn_tokens=len(forced) + 8, total_tokens=1024)
    fast = Instantly(schemas)
    ours, peer = cpu_seconds_beside(
        lambda: rollout(policy, fast, queries, n=SAMPLES, seed=0, limits=limits, grammar=forced),
        lambda: by_generate(policy, queries, len(forced)),
    )
    said = (1 + TOOL_TURNS) * len(forced)
    return BenchRow(
        f"rollouts, {QUERIES} queries x {SAMPLES}, {TOOL_TURNS} tool turns, {said} tokens each",
        ours,
        "transformers generate, once per turn",
        peer,
        "at least 4 times",
        f"{peer / ours:.1f} times; {QUERIES * SAMPLES * said / ours:.0f} tokens a CPU-second",
    )


def picture(rng: np.random.Generator) -> Image:
    return Image.from_array(rng.integers(0, 255, (96, 96, 3), dtype=np.uint8))


def encoded(piece: script.Piece, known: Tokens) -> list[int]:
    return known.encode(piece.text, control=piece.control) if isinstance(piece, script.Words) else []


def by_generate(policy: Policy, queries: list[Query], turn_tokens: int) -> None:
    """The plain way: every turn encodes the pictures and reads the conversation again, a row for each trajectory."""
    known, m = policy.tokens, policy.optics.merge
    ledgers = []
    for query in queries:
        for _ in range(SAMPLES):
            ledger = Ledger()
            ledger.give(script.opening(query.question, query.media, policy.style, []), known, policy.optics)
            ledgers.append(ledger)
    for step in range(1, TOOL_TURNS + 2):
        longest = max(len(ledger) for ledger in ledgers)
        ids = torch.full((len(ledgers), longest), known.pad)
        for row, ledger in enumerate(ledgers):
            ids[row, longest - len(ledger) :] = torch.tensor(ledger.ids)
        pictures = [place.picture for ledger in ledgers for place in ledger.places]
        with torch.inference_mode():
            policy.model.generate(
                input_ids=ids,
                attention_mask=(ids != known.pad).long(),
                mm_token_type_ids=(ids == known.image).long(),
                pixel_values=torch.from_numpy(np.concatenate([patches(p, policy.optics) for p in pictures])),
                image_grid_thw=torch.tensor([[1, p.rows * m, p.columns * m] for p in pictures]),
                do_sample=True,
                top_k=0,
                min_new_tokens=turn_tokens,
                max_new_tokens=turn_tokens,
                pad_token_id=known.pad,
                eos_token_id=known.end,
            )
        for ledger, query in zip(ledgers, [q for q in queries for _ in range(SAMPLES)], strict=True):
            media = query.media if step > 1 else query.media.with_view(VIEW)
            heard = script.observed(
                READ if step > 1 else LOOK, None if step > 1 else "View_0", media, policy.style, step=step
            )
            ledger.give([*script.called(THOUGHT, CALL, step=step), *heard], known, policy.optics)
