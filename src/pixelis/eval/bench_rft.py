"""Bench rows of phase 2: an update of ours with two tool turns beside a step of TRL's `GRPOTrainer` with none.

Ours is what `train_rft` does between two updates: rollouts, π_SFT read, the four terms of R(τ), a GRPO step with exact
KL, a pass of h_ψ, the controller, the log. Tools take no time: results are ready at once, and every call shows a view
of its own. Turns are given but for their first words, so that every rollout has two calls and none is decoded, or read
again, as one with another.

TRL reads the same checkpoint in an environment of its own and generates as many tokens in one turn: once for the
question alone, which is cheapest for it (it encodes no picture, and reads neither picture nor observations), and once
for the question with its picture, as ours has it. Both times all completions come in one batch, without gradient
checkpointing, without a second pass for the old log-probabilities, with a reward that costs nothing, and no logging.
β > 0, so that it too has a reference forward. The two take turns, so that whatever else the machine does troubles both.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pixelis.config import load_config
from pixelis.equations.embedding import CosineStatistics
from pixelis.equations.pid import Pid
from pixelis.equations.zscore import Spread
from pixelis.eval.bench import BenchRow
from pixelis.eval.bench_rollout import (
    LOOK,
    QUERIES,
    QUESTION,
    READ,
    SAMPLES,
    TOOL_TURNS,
    VIEW,
    Forced,
    picture,
    random_nano,
)
from pixelis.eval.bench_trl import in_turns
from pixelis.media import MediaSet
from pixelis.media.image import Image
from pixelis.policy.checkpoint import Card, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.nano import NanoConfig
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.results import Execution, ToolCall
from pixelis.train.crew import Crew, trained
from pixelis.train.dynamics import DynamicsHeads
from pixelis.train.experience import lived, parts_of, read_anchor
from pixelis.train.rft import advantages_of, improve, react
from pixelis.train.rft_config import RftConfig
from pixelis.train.rft_export import keep_summaries
from pixelis.train.rft_measuring import measured
from pixelis.train.rft_state import RftState
from pixelis.train.run import Log
from pixelis.train.worth import Known, chains_of, learn_dynamics, worth_of
from pixelis.world.item import Item, MediumFacts

STEPS = 3
"""Steps that count, after one that does not."""
BETA = 0.2
PEER = "TRL GRPOTrainer, one turn"


class Step(NamedTuple):
    """One update, in CPU seconds by its parts, and what it sampled."""

    seconds: dict[str, float]
    tokens: int
    """Sampled by all rollouts."""
    read: int
    """Tokens of all ledgers: prompts, pictures and observations included."""
    values: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def apart(self) -> float:
        """Without the reference forward."""
        return self.total - self.seconds["anchor"]


class Views:
    """A toolbox whose results are there at once: first a view, never twice the same, then a line of text."""

    def __init__(self) -> None:
        self._number = count()

    def schemas(self) -> list[dict[str, Any]]:
        return []

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        if media.views:
            return Execution(READ, {})
        left = next(self._number) % 50 / 100.0
        view = VIEW.model_copy(update={"box": (left, 0.3, left + 0.32, 0.58)})
        return Execution(LOOK.model_copy(update={"view": view}), {})


def rows(
    nano: NanoConfig = NanoConfig(),
    *,
    queries: int = QUERIES,
    samples: int = SAMPLES,
    steps: int = STEPS,
    peers: Path = Path(".peers"),
) -> list[BenchRow]:
    """One thread, CPU seconds of the same run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _rows(nano, queries, samples, steps, peers / "trl" / "bin" / "python", Path(folder))
    finally:
        torch.set_num_threads(threads)


def _rows(nano: NanoConfig, queries: int, samples: int, steps: int, python: Path, folder: Path) -> list[BenchRow]:
    policy, _ = random_nano(nano)
    save_checkpoint(folder / "policy", policy, Card(name="bench"))
    rng = np.random.default_rng(0)
    pictures = [picture(rng) for _ in range(queries)]
    update = ours(policy, folder, pictures, samples)
    said = update().tokens // (queries * samples)  # the first update does not count
    files = [str(written(one, folder / f"{k}.png")) for k, one in enumerate(pictures)]
    asked: dict[str, Any] = {"queries": queries, "samples": samples, "tokens": said, "steps": steps + 1, "beta": BETA}
    asked |= {"folder": str(folder / "policy"), "prompt": [{"role": "user", "content": QUESTION}]}
    found = [in_turns(python, update, asked | {"pictures": shown}) for shown in (list[str](), files)]
    every = [step for beside in found for step in beside.taken] or [update() for _ in range(steps)]
    out = []
    for beside, what in zip(found, ("no picture", "with the picture"), strict=True):
        taken = beside.taken or every
        mine = float(np.median([step.total for step in taken]))
        peer = float(np.median(beside.theirs)) if beside.theirs else None
        out.append(
            BenchRow(
                f"an update of RFT, {queries} queries x {samples}, {TOOL_TURNS} tool turns, {said} tokens sampled and "
                f"{taken[0].read // (queries * samples)} read each",
                mine,
                f"{PEER}, {what}",
                peer,
                "at least 3 times",
                f"{f'{peer / mine:.1f} times' if peer else beside.failed}; {parts_told(taken)}",
            )
        )
    rest = float(np.median([step.apart for step in every]))
    entropy = entropy_seconds(every[0].tokens, len(policy.open_ids))
    logged = float(np.median([step.seconds["log"] for step in every])) + entropy
    last = BenchRow(
        "of it controller, measurements and log, entropy included",
        logged,
        target="under 3 % of an update without the reference forward",
        note=f"{100.0 * logged / rest:.2f} %, of which {100.0 * entropy / rest:.2f} is the entropy",
    )
    return [*out, last]


def parts_told(taken: Sequence[Step]) -> str:
    """The parts of an update but for the log, medians in seconds."""
    median = {part: float(np.median([s.seconds[part] for s in taken])) for part in taken[0].seconds if part != "log"}
    return ", ".join(f"{part} {seconds:.2f}" for part, seconds in median.items()) + " s"


def written(shown: Image, path: Path) -> Path:
    """A picture as a file that another process can open."""
    from PIL import Image as Pillow

    Pillow.fromarray(np.asarray(shown.frame(0))).save(path)
    return path


# --- ours


def ours(policy: Policy, out: Path, pictures: Sequence[Image], samples: int) -> Callable[[], Step]:
    """One update at a call, as `train_rft` takes it; a question for each picture."""
    config, us, queries = load_config(RftConfig, Path("configs/nano/rft.yaml")), Crew(), len(pictures)
    config = config.model_copy(update={"queries": queries, "samples": samples, "group": samples})
    known, state, log = random_heads(policy), RftState(pid=Pid(beta=BETA)), Log(out, 0, us)
    anchor = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        trained(policy).values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    dynamics = torch.optim.AdamW(known.heads.h_psi.parameters(), lr=config.lr_dynamics, weight_decay=0.01)
    media = [MediaSet((one,)) for one in pictures]
    items = [item(k) for k in range(queries)]
    asked = [Query(i.id, i.question, own, i.seed) for i, own in zip(items, media, strict=True)]
    forced, toolbox = Forced(policy.tokens), Views()
    limits = Limits(steps=TOOL_TURNS, turn_tokens=len(forced) + 8, total_tokens=1024)
    each = [own for own in media for _ in range(samples)]
    places = np.arange(queries * samples)

    def update() -> Step:
        seconds, seed = Counter[str](), state.step
        with spent(seconds, "rollouts"):
            groups = rollout(policy, toolbox, asked, n=samples, seed=seed, limits=limits, grammar=forced)
        with spent(seconds, "rewards"):
            rolled = [(one, i, own) for group, i, own in zip(groups, items, media, strict=True) for one in group]
            experience = [lived(one, i, own, policy.tokens) for one, i, own in rolled]
            laid = parts_of([one.ledger for one in experience], policy, config.batch_tokens)
        with spent(seconds, "anchor"):
            parts = [(part, read_anchor(anchor, part, experience)) for part in laid]
        with spent(seconds, "rewards"):
            chains = chains_of(known, parts, experience, each, places, config.reward, us)
            worth = worth_of(chains, known, config.reward, samples=samples, seed=seed)
            advantages = advantages_of(worth.rewards.total, config)
        with spent(seconds, "step"):
            done = improve(config, policy, anchor, optimizer, parts, advantages, state.pid.beta, us)
        with spent(seconds, "h_psi"):
            surprise = learn_dynamics(known, chains.steps, dynamics, batch=config.dynamics_batch, seed=seed)
        with spent(seconds, "log"):
            values = measured(config, state, chains, worth, advantages, done, experience, us)
            values["dynamics_loss"] = surprise
            react(config, state, values, done, 1.0)
            state.step += 1
            state.stopped = ""  # random weights come to no answer, and are not to be stopped for it
            keep_summaries(out, state.step, [i.id for i in items], samples, worth, chains, us)
            log.write(state.step, **values)
        sampled, read = (sum(int(n) for n in sizes) for sizes in zip(*map(sizes_of, experience), strict=True))
        return Step(dict(seconds), sampled, read, values)

    return update


def entropy_seconds(tokens: int, vocabulary: int) -> float:
    """CPU seconds of the entropy of all sampled tokens, which a GRPO step works out for the log alone."""
    logs, seconds = torch.randn(tokens, vocabulary).log_softmax(-1), Counter[str]()  # the loss has these anyway
    with spent(seconds, "entropy"):
        float(-(logs.exp() * logs).sum(-1).sum())
    return seconds["entropy"]


def sizes_of(one: Any) -> tuple[int, int]:
    return int(one.ledger.sampled.sum()), len(one.ledger)


def random_heads(policy: Policy) -> Known:
    """g_φ and h_ψ as they would come from phase 1, untaught."""
    torch.manual_seed(0)
    heads = DynamicsHeads(policy.width).eval().requires_grad_(False)
    heads.h_psi.requires_grad_(True)
    return Known(
        heads,
        {"search": CosineStatistics(0.5, 0.2, 100)},
        {},
        {"entropy": Spread(1.0, 1.0, 100), "logprob": Spread(-1.0, 1.0, 100)},
    )


def item(number: int) -> Item:
    return Item(
        id=f"q{number}", family="search", template="search.plate_text", difficulty=1, seed=number, stem=QUESTION,
        answer="GATE 12", answers=("GATE 12",), scoring="exact",
        media=(MediumFacts(name="Image_0", sha256="0" * 64, width=96, height=96),),
    )  # fmt: skip


@contextmanager
def spent(seconds: Counter[str], part: str) -> Iterator[None]:
    """Adds the CPU seconds of what is done inside."""
    start = time.process_time()
    yield
    seconds[part] += time.process_time() - start  # type: ignore[assignment]  # a Counter adds up floats as well
