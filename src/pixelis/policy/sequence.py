"""The tokens and images of one trajectory, kept from sampling to update: nothing is tokenised twice.

Every token has an id, a kind, the step that it belongs to, and, if the policy sampled it, its log-probability at that
moment. `check_sequence` refuses a sequence whose parts disagree.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.core.errors import TraceError
from pixelis.policy.chat_format import SAMPLED, ImagePiece, Kind, Piece, TextPiece
from pixelis.policy.images import ImageProcessorConfig, ProcessedImage, preprocess
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.trace.schema import TokenRecord

KINDS: tuple[Kind, ...] = ("prompt", "thought", "action", "answer", "observation")


class ImageSpan(NamedTuple):
    """The position of an image among the tokens."""

    start: int
    image: ProcessedImage


@dataclass
class TokenSequence:
    """The tokens of one trajectory, from the prompt to the answer."""

    ids: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """Nats, under the policy that sampled; None for context."""
    image_spans: list[ImageSpan] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self) -> TokenSequence:
        """A copy that grows separately; images are shared."""
        parts = (self.ids, self.kinds, self.steps, self.logprobs, self.image_spans)
        return TokenSequence(*map(list, parts))  # type: ignore[arg-type]

    def append_context(
        self, pieces: Sequence[Piece], tokenizer: PolicyTokenizer, image_config: ImageProcessorConfig
    ) -> int:
        """Append tokens that were not sampled; returns their start."""
        start = len(self)
        for piece in pieces:
            if isinstance(piece, TextPiece):
                self._append(tokenizer.encode(piece.text, control=piece.control), piece.kind, piece.step)
            else:
                self._append_image(piece, tokenizer, image_config)
        return start

    def _append_image(self, piece: ImagePiece, tokenizer: PolicyTokenizer, image_config: ImageProcessorConfig) -> None:
        image = preprocess(piece.name, piece.pixels, piece.max_pixels, image_config)
        self._append([tokenizer.control_ids["<|vision_start|>"]], piece.kind, piece.step)
        self.image_spans.append(ImageSpan(len(self), image))
        self._append([tokenizer.image_id] * image.token_count, piece.kind, piece.step)
        self._append([tokenizer.control_ids["<|vision_end|>"]], piece.kind, piece.step)

    def _append(self, ids: Sequence[int], kind: Kind, step: int) -> None:
        self.ids += ids
        self.kinds += [kind] * len(ids)
        self.steps += [step] * len(ids)
        self.logprobs += [None] * len(ids)

    def append_sampled(self, token: int, logprob: float, kind: Kind, step: int) -> None:
        """Append one sampled token."""
        self.extend_sampled([token], [logprob], [kind], step)

    def extend_sampled(self, ids: Sequence[int], logprobs: Sequence[float], kinds: Sequence[Kind], step: int) -> None:
        """Append the sampled tokens of a turn."""
        self.ids += ids
        self.kinds += kinds
        self.steps += [step] * len(ids)
        self.logprobs += logprobs

    def kind_mask(self, *kinds: Kind) -> NDArray[np.bool_]:
        """(n,) which tokens are of these kinds."""
        return np.array([kind in kinds for kind in self.kinds], dtype=bool)

    @property
    def sampled_mask(self) -> NDArray[np.bool_]:
        return np.array([logprob is not None for logprob in self.logprobs], dtype=bool)

    def token_record(self, step: int) -> TokenRecord:
        """The tokens of one step, as traces store them."""
        span = slice(bisect_left(self.steps, step), bisect_right(self.steps, step))  # steps never decrease
        rows = zip(self.ids[span], self.logprobs[span], self.kinds[span], strict=True)
        entries = [(token, None if kind == "observation" else p, kind) for token, p, kind in rows if kind != "prompt"]
        ids, logprobs, kinds = zip(*entries, strict=True) if entries else ((), (), ())
        return TokenRecord(ids=ids, logprobs=logprobs, kinds=kinds)


def check_sequence(sequence: TokenSequence, tokenizer: PolicyTokenizer) -> None:
    """Raise TraceError unless kinds, log-probabilities, images and image tokens agree with each other."""
    lengths = {len(part) for part in (sequence.ids, sequence.kinds, sequence.steps, sequence.logprobs)}
    if len(lengths) > 1:
        raise TraceError(f"the sequence has {len(sequence.ids)} ids, but other parts have {sorted(lengths)} entries")
    image_positions = [k for k, token in enumerate(sequence.ids) if token == tokenizer.image_id]
    expected = [span.start + j for span in sequence.image_spans for j in range(span.image.token_count)]
    if image_positions != expected:
        raise TraceError(f"the sequence has {len(image_positions)} image tokens, but its images need {len(expected)}")
    banned_ids = set(tokenizer.banned_ids)
    for k, (token, kind, logprob) in enumerate(zip(sequence.ids, sequence.kinds, sequence.logprobs, strict=True)):
        if logprob is not None and kind not in SAMPLED:
            raise TraceError(f"token {k} ({kind}) has a log-probability, but was not sampled")
        if logprob is not None and token in banned_ids:
            raise TraceError(f"token {k} ({kind}) was sampled, but {tokenizer.decode([token])!r} is banned")
        if logprob is not None and not logprob <= 0.0:
            raise TraceError(f"token {k} ({kind}) has the log-probability {logprob}: want 0 or less")
    if any(later < earlier for earlier, later in zip(sequence.steps, sequence.steps[1:], strict=False)):
        raise TraceError("the steps of the sequence are not in order")


def check_recomputed(sequence: TokenSequence, recomputed: Sequence[float], *, tolerance: float = 1e-4) -> float:
    """The largest difference between sampled and recomputed log-probabilities; TraceError if it is too large.

    `recomputed` (n,) is aligned with the tokens; entries of context tokens are ignored.
    """
    worst, worst_index = 0.0, -1
    for k, (sampled, new) in enumerate(zip(sequence.logprobs, recomputed, strict=True)):
        difference = 0.0 if sampled is None else abs(sampled - new)
        if not difference <= worst:
            worst, worst_index = difference, k
        if math.isnan(difference):
            break
    if not worst <= tolerance:
        raise TraceError(
            f"token {worst_index} ({sequence.kinds[worst_index]}) was sampled at {sequence.logprobs[worst_index]:.6f} "
            f"nats and recomputed at {recomputed[worst_index]:.6f}: the masks or images of the update differ from the "
            "rollout's"
        )
    return worst


def compute_positions(ids: Sequence[int], image_spans: Sequence[ImageSpan], start: int = 0) -> NDArray[np.int64]:
    """(3, n) positions in time, height and width (M-RoPE): text advances all three by one, an image keeps one time and
    spreads over rows and columns, and what follows starts after its longer side."""
    out = np.empty((3, len(ids)), dtype=np.int64)
    at, next_position = 0, start
    for span in image_spans:
        text_length = span.start - at
        out[:, at : span.start] = next_position + np.arange(text_length)
        next_position += text_length
        rows, columns = span.image.rows, span.image.columns
        grid = slice(span.start, span.start + rows * columns)
        out[0, grid] = next_position
        out[1, grid] = next_position + np.repeat(np.arange(rows), columns)
        out[2, grid] = next_position + np.tile(np.arange(columns), rows)
        next_position += max(rows, columns)
        at = grid.stop
    out[:, at:] = next_position + np.arange(len(ids) - at)
    return out
