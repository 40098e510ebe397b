"""Bench rows of phase 2: an update of ours with two tool turns beside a step of TRL's `GRPOTrainer` with none.

Ours is what `train_rft` does between two updates: rollouts, π_SFT read, the four terms of R(τ), a GRPO step with exact
KL, a pass of h_ψ, the controller, the log. Tools take no time: results are ready at once, and every call shows a view
of its own, since rollouts that look alike would share one. Turns are given, so that every rollout has two calls.

TRL reads the same checkpoint in an environment of its own and generates as many tokens in one turn. It gets what is
cheapest for it: the question without its picture (it encodes none, and reads neither picture nor observations), all
completions in one batch, no gradient checkpointing, no second pass for the old log-probabilities, a reward that costs
nothing, no logging. β > 0, so that it too has a reference forward. The two take turns, so that whatever else the
machine does troubles both.
"""

from __future__ import annotations

import copy
import json
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch

from pixelis.config import load_config
from pixelis.equations.embedding import CosineStatistics
from pixelis.equations.pid import Pid
from pixelis.equations.zscore import Spread
from pixelis.eval.bench import BenchRow
from pixelis.eval.bench_rollout import (
    CALL,
    LOOK,
    QUERIES,
    QUESTION,
    READ,
    SAMPLES,
    THOUGHT,
    TOOL_TURNS,
    VIEW,
    Forced,
    encoded,
    picture,
    random_nano,
)
from pixelis.media import MediaSet
from pixelis.policy import script
from pixelis.policy.checkpoint import Card, save_checkpoint
from pixelis.policy.model import Policy
from pixelis.policy.nano import NanoConfig
from pixelis.rollout.batch import rollout
from pixelis.rollout.episode import Limits, Query
from pixelis.tools.results import Execution, ToolCall
from pixelis.train.crew import Crew, trained
from pixelis.train.dynamics import DynamicsHeads
from pixelis.train.experience import lived, parts_of, read_anchor
from pixelis.train.rft import advantages_of, improve, measured, react
from pixelis.train.rft_config import RftConfig
from pixelis.train.rft_export import keep_summaries
from pixelis.train.rft_state import RftState
from pixelis.train.run import Log
from pixelis.train.worth import Known, chains_of, learn_dynamics, worth_of
from pixelis.world.item import Item, MediumFacts

STEPS = 3
"""Steps that count, after one that does not."""
BETA = 0.2
PEER = "TRL GRPOTrainer, one turn, no picture"

TRL = """
import json, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
own, sys.stdout = sys.stdout, sys.stderr  # what TRL prints is not an answer
import torch
torch.set_num_threads(1)
from datasets import Dataset
from transformers import AutoModelForImageTextToText, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
asked = json.loads(sys.stdin.readline())
made, mark = [], 0.0

def worth(prompts, completion_ids, **_):
    made[:] = [len(ids) for ids in completion_ids]
    return [float(k % 3) for k in range(len(prompts))]

class Turns(TrainerCallback):
    def on_step_end(self, *_, **__):
        global mark
        spent = time.process_time() - mark
        print(json.dumps([spent, sum(made)]), file=own, flush=True)
        sys.stdin.readline()
        mark = time.process_time()

rows = asked["queries"] * asked["samples"]
settings = GRPOConfig(
    asked["folder"] + "/out", max_steps=asked["steps"], per_device_train_batch_size=rows,
    num_generations=asked["samples"], max_completion_length=asked["tokens"],
    generation_kwargs={"min_new_tokens": asked["tokens"]}, beta=asked["beta"],
    loss_type="grpo", learning_rate=1e-6, optim="adamw_torch_fused", temperature=1.0, bf16=False, use_cpu=True,
    gradient_checkpointing=False, logging_strategy="no", save_strategy="no", report_to=[], disable_tqdm=True,
    dataloader_pin_memory=False, shuffle_dataset=False,
)
model = AutoModelForImageTextToText.from_pretrained(asked["folder"], dtype=torch.float32, attn_implementation="sdpa")
trainer = GRPOTrainer(
    model, worth, args=settings, train_dataset=Dataset.from_list([{"prompt": asked["prompt"]}] * asked["queries"]),
    processing_class=AutoTokenizer.from_pretrained(asked["folder"]), callbacks=[Turns()],
)
mark = time.process_time()
trainer.train()
"""


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
    update = ours(policy, folder, queries, samples)
    said = update().tokens // (queries * samples)  # the first update does not count
    taken, theirs, failed = list[Step](), list[float](), "`make peers` installs TRL"
    if python.exists():
        taken, theirs, failed = in_turns(python, folder / "policy", update, said, queries, samples, steps)
    taken = taken or [update() for _ in range(steps)]
    mine = float(np.median([step.total for step in taken]))
    peer = float(np.median(theirs)) if theirs else None
    median = {part: float(np.median([s.seconds[part] for s in taken])) for part in taken[0].seconds}
    parts = ", ".join(f"{part} {seconds:.2f}" for part, seconds in median.items() if part != "log")
    beside = f"{peer / mine:.1f} times" if peer else failed
    rest = float(np.median([step.apart for step in taken]))
    entropy = entropy_seconds(taken[0].tokens, len(policy.open_ids))
    logged = median["log"] + entropy
    return [
        BenchRow(
            f"an update of RFT, {queries} queries x {samples}, {TOOL_TURNS} tool turns, {said} tokens sampled and "
            f"{taken[0].read // (queries * samples)} read each",
            mine,
            PEER,
            peer,
            "at least 3 times",
            f"{beside}; {parts} s",
        ),
        BenchRow(
            "of it controller, measurements and log, entropy included",
            logged,
            target="under 3 % of an update without the reference forward",
            note=f"{100.0 * logged / rest:.2f} %, of which {100.0 * entropy / rest:.2f} is the entropy",
        ),
    ]


# --- ours


def ours(policy: Policy, out: Path, queries: int, samples: int) -> Callable[[], Step]:
    """One update at a call, as `train_rft` takes it."""
    config, us = load_config(RftConfig, Path("configs/nano/rft.yaml")), Crew()
    config = config.model_copy(update={"queries": queries, "samples": samples, "group": samples})
    known, state, log = random_heads(policy), RftState(pid=Pid(beta=BETA)), Log(out, 0, us)
    anchor = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(
        trained(policy).values(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    dynamics = torch.optim.AdamW(known.heads.h_psi.parameters(), lr=config.lr_dynamics, weight_decay=0.01)
    rng = np.random.default_rng(0)
    media = [MediaSet((picture(rng),)) for _ in range(queries)]
    items = [item(k) for k in range(queries)]
    asked = [Query(i.id, i.question, own, i.seed) for i, own in zip(items, media, strict=True)]
    turn = [t for piece in script.called(THOUGHT, CALL, step=1) for t in encoded(piece, policy.tokens)]
    forced, toolbox = Forced(turn, len(policy.tokens)), Views()
    limits = Limits(steps=TOOL_TURNS, turn_tokens=len(turn) + 8, total_tokens=1024)
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


# --- beside TRL


def in_turns(
    python: Path, folder: Path, update: Callable[[], Step], said: int, queries: int, samples: int, steps: int
) -> tuple[list[Step], list[float], str]:
    """A step of ours after each of TRL's, which waits meanwhile. The first of both does not count.

    Nothing of TRL's and the reason where it fails.
    """
    asked = {
        "folder": str(folder), "queries": queries, "samples": samples, "tokens": said, "steps": steps + 1, "beta": BETA,
        "prompt": [{"role": "user", "content": QUESTION}],
    }  # fmt: skip
    taken, theirs = list[Step](), list[float]()
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(
            [str(python), "-c", TRL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True
        ) as peer,
    ):
        assert peer.stdin is not None  # noqa: S101 - both are pipes
        assert peer.stdout is not None  # noqa: S101
        send(peer.stdin, json.dumps(asked))
        for line in peer.stdout:
            seconds, made = json.loads(line)
            if made != queries * samples * said:
                peer.kill()
                return taken, [], f"TRL generated {made} tokens, want {queries * samples * said}"
            theirs.append(seconds)
            taken.append(update())
            send(peer.stdin, "")
        if peer.wait() or len(theirs) <= 1:
            told.seek(0)
            words = told.read().strip().splitlines() or ["no word"]
            return taken[1:], [], f"TRL failed: {words[-1][:200]}"
    return taken[1:], theirs[1:], ""


def send(pipe: IO[str], line: str) -> None:
    """A line for the peer; one that has ended hears nothing, and its exit status says why."""
    try:
        pipe.write(f"{line}\n")
        pipe.flush()
    except BrokenPipeError:
        with suppress(BrokenPipeError):
            pipe.close()  # what is left in the buffer cannot be written either
