"""One ledger of tokens and pictures for a trajectory, kept from sampling to update: nothing is ever tokenised again.

Every token has an id, a kind, the step that it belongs to, and, where the policy sampled it, its log-probability at
that moment. Pictures lie among the tokens with their grids. `check` refuses a ledger whose parts disagree.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pixelis.errors import TraceError
from pixelis.policy.pictures import Optics, Picture, seen
from pixelis.policy.script import SAMPLED, Kind, Look, Piece, Words
from pixelis.policy.tokens import Tokens
from pixelis.trace.schema import TokenLedger

KINDS: tuple[Kind, ...] = ("prompt", "thought", "action", "answer", "observation")


class Place(NamedTuple):
    """Where a picture lies among the tokens."""

    start: int
    picture: Picture


@dataclass
class Ledger:
    """The tokens of one trajectory, from the prompt to the answer."""

    ids: list[int] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """Nats, under the policy that sampled; None for what was given."""
    places: list[Place] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.ids)

    def copy(self) -> Ledger:
        """One that goes on by itself; pictures are shared."""
        return Ledger(list(self.ids), list(self.kinds), list(self.steps), list(self.logprobs), list(self.places))

    def give(self, pieces: Sequence[Piece], tokens: Tokens, optics: Optics) -> int:
        """Append what was not sampled; returns where it begins."""
        start = len(self)
        for piece in pieces:
            if isinstance(piece, Words):
                self._append(tokens.encode(piece.text, control=piece.control), piece.kind, piece.step)
            else:
                self._look(piece, tokens, optics)
        return start

    def _look(self, look: Look, tokens: Tokens, optics: Optics) -> None:
        picture = seen(look.name, look.pixels, look.most_pixels, optics)
        self._append([tokens.control["<|vision_start|>"]], look.kind, look.step)
        self.places.append(Place(len(self), picture))
        self._append([tokens.image] * picture.tokens, look.kind, look.step)
        self._append([tokens.control["<|vision_end|>"]], look.kind, look.step)

    def _append(self, ids: Sequence[int], kind: Kind, step: int) -> None:
        self.ids += ids
        self.kinds += [kind] * len(ids)
        self.steps += [step] * len(ids)
        self.logprobs += [None] * len(ids)

    def say(self, token: int, logprob: float, kind: Kind, step: int) -> None:
        """Append one sampled token."""
        self.ids.append(token)
        self.kinds.append(kind)
        self.steps.append(step)
        self.logprobs.append(logprob)

    def say_all(self, ids: Sequence[int], logprobs: Sequence[float], kinds: Sequence[Kind], step: int) -> None:
        """Append the sampled tokens of a turn."""
        self.ids += ids
        self.kinds += kinds
        self.steps += [step] * len(ids)
        self.logprobs += logprobs

    def mask(self, *kinds: Kind) -> NDArray[np.bool_]:
        """(n,) which tokens are of these kinds."""
        return np.array([kind in kinds for kind in self.kinds], dtype=bool)

    @property
    def sampled(self) -> NDArray[np.bool_]:
        return np.array([logprob is not None for logprob in self.logprobs], dtype=bool)

    def of_step(self, step: int) -> TokenLedger:
        """The tokens of one step as its trace keeps them."""
        own = slice(bisect_left(self.steps, step), bisect_right(self.steps, step))  # steps never go back
        rows = zip(self.ids[own], self.logprobs[own], self.kinds[own], strict=True)
        kept = [(token, None if kind == "observation" else p, kind) for token, p, kind in rows if kind != "prompt"]
        ids, logprobs, kinds = zip(*kept, strict=True) if kept else ((), (), ())
        return TokenLedger(ids=ids, logprobs=logprobs, kinds=kinds)


def check(ledger: Ledger, tokens: Tokens) -> None:
    """TraceError, saying where, unless kinds, log-probabilities, pictures and image tokens agree with each other."""
    lengths = {len(part) for part in (ledger.ids, ledger.kinds, ledger.steps, ledger.logprobs)}
    if len(lengths) > 1:
        raise TraceError(f"the ledger has {len(ledger.ids)} ids, but other parts have {sorted(lengths)} entries")
    image_at = [k for k, token in enumerate(ledger.ids) if token == tokens.image]
    meant = [place.start + j for place in ledger.places for j in range(place.picture.tokens)]
    if image_at != meant:
        raise TraceError(f"the ledger has {len(image_at)} image tokens where its pictures want {len(meant)}")
    banned = set(tokens.banned)
    for k, (token, kind, logprob) in enumerate(zip(ledger.ids, ledger.kinds, ledger.logprobs, strict=True)):
        if logprob is not None and kind not in SAMPLED:
            raise TraceError(f"token {k} ({kind}) has a log-probability, but nobody sampled it")
        if logprob is not None and token in banned:
            raise TraceError(f"token {k} ({kind}) was sampled, but {tokens.decode([token])!r} never is")
        if logprob is not None and not logprob <= 0.0:
            raise TraceError(f"token {k} ({kind}) has the log-probability {logprob}: want 0 or less")
    if any(later < earlier for earlier, later in zip(ledger.steps, ledger.steps[1:], strict=False)):
        raise TraceError("the steps of the ledger go back: want them in order")


def check_recomputed(ledger: Ledger, recomputed: Sequence[float], *, tolerance: float = 1e-4) -> float:
    """The largest difference between sampled and recomputed log-probabilities; TraceError where it is too large.

    `recomputed` (n,) is aligned with the tokens; entries of tokens that were given are not looked at.
    """
    worst, where = 0.0, -1
    for k, (before, now) in enumerate(zip(ledger.logprobs, recomputed, strict=True)):
        gap = 0.0 if before is None else abs(before - now)
        if not gap <= worst:
            worst, where = gap, k
        if math.isnan(gap):
            break
    if not worst <= tolerance:
        raise TraceError(
            f"token {where} ({ledger.kinds[where]}) was sampled at {ledger.logprobs[where]:.6f} nats and is recomputed "
            f"at {recomputed[where]:.6f}: the masks or pictures of the update are not those of the rollout"
        )
    return worst


def positions(ids: Sequence[int], places: Sequence[Place], start: int = 0) -> NDArray[np.int64]:
    """(3, n) positions in time, height and width (M-RoPE) of tokens: words go on by one in all three, a picture stands
    at one time and spreads over its rows and columns, and what follows begins after its longer side."""
    out = np.empty((3, len(ids)), dtype=np.int64)
    at, next_position = 0, start
    for place in places:
        words = place.start - at
        out[:, at : place.start] = next_position + np.arange(words)
        next_position += words
        rows, columns = place.picture.rows, place.picture.columns
        grid = slice(place.start, place.start + rows * columns)
        out[0, grid] = next_position
        out[1, grid] = next_position + np.repeat(np.arange(rows), columns)
        out[2, grid] = next_position + np.tile(np.arange(columns), rows)
        next_position += max(rows, columns)
        at = grid.stop
    out[:, at:] = next_position + np.arange(len(ids) - at)
    return out
