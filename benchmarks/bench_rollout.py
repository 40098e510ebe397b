"""Bench row of rollouts: 8 queries x 8 with two tool turns, compared with one `generate` call per turn.

Tools take no time on either side: the first call returns a view, the second a line of text. Turns are forced except for
their first words, which are sampled, so that no two rollouts share their tokens; both sides read and write equally
many.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.bench_rows import BenchRow, cpu_seconds_interleaved
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.media.query import ViewRecipe
from pixelis.nano.nano_model import NanoConfig, build_nano
from pixelis.policy import chat_format, tokenizer
from pixelis.policy.images import extract_patches
from pixelis.policy.model import Policy
from pixelis.policy.sequence import TokenSequence
from pixelis.policy.tokenizer import MIN_WORD_COUNT, PolicyTokenizer, train_tokenizer
from pixelis.rollout.engine import rollout
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.results import Execution, ToolCall, ToolResult
from pixelis.tools.toolbox import Toolbox, ToolboxConfig

QUERIES, SAMPLES, TOOL_TURNS = 8, 8, 2
QUESTION = "What does the sign on the left say?"
THOUGHT = "The sign stands on the left, so I read it there."
ZOOM_CALL = ToolCall(tool="ZOOM", args={"media": "Image_0", "box": [0.12, 0.3, 0.44, 0.58]})
OCR_RESULT = ToolResult(tool="OCR", status="ok", text='OCR: 1 line: "GATE 12" [0.14, 0.33, 0.41, 0.52] confidence 0.97')
VIEW = ViewRecipe(media="Image_0", frame=0, box=(0.12, 0.3, 0.44, 0.58), width=80, height=80)
ZOOM_RESULT = ToolResult(tool="ZOOM", status="ok", text="ZOOM: View_0 shows [0.12, 0.30, 0.44, 0.58]", view=VIEW)


class InstantToolbox:
    """A toolbox with immediate, fixed results."""

    def __init__(self, schemas: list[dict[str, Any]]) -> None:
        self._schemas = schemas

    def schemas(self) -> list[dict[str, Any]]:
        return self._schemas

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        return Execution(OCR_RESULT if media.views else ZOOM_RESULT, {})


FREE_WORDS = 4
"""Sampled words per turn, from those of `THOUGHT`: two of eight rollouts agree in one of a thousand groups."""


class ForcedGrammar:
    """A grammar of turns of one length: a few words of the thought in any order, then fixed tokens."""

    def __init__(self, tokenizer: PolicyTokenizer) -> None:
        self.ids = [
            token
            for piece in chat_format.render_call(THOUGHT, ZOOM_CALL, step=1)
            for token in encode_piece(piece, tokenizer)
        ]
        self._masks = list(torch.nn.functional.one_hot(torch.tensor(self.ids), len(tokenizer)).bool())
        words = torch.zeros(len(tokenizer), dtype=torch.bool)
        words[tokenizer.encode(THOUGHT)] = True
        self._masks[:FREE_WORDS] = [words] * FREE_WORDS

    def __len__(self) -> int:
        return len(self.ids)

    def initial_state(self) -> int:
        return 0

    def advance(self, state: int, token: int) -> int:
        return state + 1

    def allowed_tokens(self, state: int, remaining: int) -> Tensor:
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
    """nano with random weights and a tokenizer trained on the texts used here, and the tool schemas."""
    with Toolbox(ToolboxConfig(seg="classical", isolate=False, cache=False)) as toolbox:
        schemas = toolbox.schemas()
    texts = [json.dumps(schema) for schema in schemas] + inspect.getsource(chat_format).splitlines()
    texts += [THOUGHT, OCR_RESULT.text, ZOOM_RESULT.text, QUESTION] * MIN_WORD_COUNT  # frequent words become tokens
    nano_tokenizer = PolicyTokenizer(train_tokenizer([*texts, *inspect.getsource(tokenizer).splitlines()], schemas))
    return build_nano(config, nano_tokenizer, seed=0), schemas


def _rollouts() -> BenchRow:
    policy, schemas = random_nano()
    tokenizer = policy.eval().tokenizer
    rng = np.random.default_rng(0)
    queries = [Query(f"q{k}", QUESTION, MediaSet((random_picture(rng),)), k) for k in range(QUERIES)]
    grammar = ForcedGrammar(tokenizer)
    limits = Limits(steps=TOOL_TURNS, turn_tokens=len(grammar) + 8, total_tokens=1024)
    toolbox = InstantToolbox(schemas)
    ours, peer = cpu_seconds_interleaved(
        lambda: rollout(policy, toolbox, queries, n=SAMPLES, seed=0, limits=limits, grammar=grammar),
        lambda: generate_per_turn(policy, queries, len(grammar)),
    )
    sampled_tokens = (1 + TOOL_TURNS) * len(grammar)
    return BenchRow(
        f"rollouts, {QUERIES} queries x {SAMPLES}, {TOOL_TURNS} tool turns, {sampled_tokens} tokens each",
        ours,
        "transformers generate, once per turn",
        peer,
        "at least 4 times",
        f"{peer / ours:.1f} times; {QUERIES * SAMPLES * sampled_tokens / ours:.0f} tokens a CPU-second",
    )


def random_picture(rng: np.random.Generator) -> Image:
    return Image.from_array(rng.integers(0, 255, (96, 96, 3), dtype=np.uint8))


def encode_piece(piece: chat_format.Piece, tokenizer: PolicyTokenizer) -> list[int]:
    return tokenizer.encode(piece.text, control=piece.control) if isinstance(piece, chat_format.TextPiece) else []


def generate_per_turn(policy: Policy, queries: list[Query], turn_tokens: int) -> None:
    """The baseline: every turn encodes the images and the whole conversation again, one row per trajectory."""
    tokenizer, merge = policy.tokenizer, policy.image_config.merge
    sequences = []
    for query in queries:
        for _ in range(SAMPLES):
            sequence = TokenSequence()
            sequence.append_context(
                chat_format.render_prompt(query.question, query.media, policy.style, []), tokenizer, policy.image_config
            )
            sequences.append(sequence)
    for step in range(1, TOOL_TURNS + 2):
        longest = max(len(sequence) for sequence in sequences)
        ids = torch.full((len(sequences), longest), tokenizer.pad_id)
        for row, sequence in enumerate(sequences):
            ids[row, longest - len(sequence) :] = torch.tensor(sequence.ids)
        pictures = [image_span.image for sequence in sequences for image_span in sequence.image_spans]
        with torch.inference_mode():
            policy.model.generate(
                input_ids=ids,
                attention_mask=(ids != tokenizer.pad_id).long(),
                mm_token_type_ids=(ids == tokenizer.image_id).long(),
                pixel_values=torch.from_numpy(
                    np.concatenate([extract_patches(p, policy.image_config) for p in pictures])
                ),
                image_grid_thw=torch.tensor([[1, p.rows * merge, p.columns * merge] for p in pictures]),
                do_sample=True,
                top_k=0,
                min_new_tokens=turn_tokens,
                max_new_tokens=turn_tokens,
                pad_token_id=tokenizer.pad_id,
                eos_token_id=tokenizer.end_id,
            )
        for sequence, query in zip(sequences, [q for q in queries for _ in range(SAMPLES)], strict=True):
            media = query.media if step > 1 else query.media.with_view(VIEW)
            observation = chat_format.render_observation(
                OCR_RESULT if step > 1 else ZOOM_RESULT, None if step > 1 else "View_0", media, policy.style, step=step
            )
            sequence.append_context(
                [*chat_format.render_call(THOUGHT, ZOOM_CALL, step=step), *observation], tokenizer, policy.image_config
            )
