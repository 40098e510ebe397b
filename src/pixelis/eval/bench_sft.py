"""Bench row of phase 1: a step of ours beside a step of transformers' `Trainer`, on the same model and batches.

Both begin at the same weights, cut the same pictures into patches, read the same filled-up ids, clip the gradient and
take a fused AdamW step. `Trainer` has plain cross-entropy on the tokens that we teach; ours is smoothed and weighted,
and trains the argument heads as well. A step of ours follows every step of `Trainer`'s, so that whatever else the
machine does troubles both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from pixelis.eval.bench import BenchRow
from pixelis.eval.bench_rollout import CALL, LOOK, QUESTION, READ, THOUGHT, VIEW, picture, random_nano
from pixelis.media import MediaSet
from pixelis.policy import script
from pixelis.policy.ledger import KINDS, Ledger
from pixelis.policy.model import Policy
from pixelis.policy.nano import NanoConfig
from pixelis.policy.pictures import patches
from pixelis.policy.tokens import Tokens
from pixelis.tools.results import ToolCall
from pixelis.trace.grammar import OPEN
from pixelis.train.crew import Crew
from pixelis.train.examples import Example, outputs, step_row, steps_from
from pixelis.train.heads import ToolHeads
from pixelis.train.lessons import Student
from pixelis.train.sft import dropouts, remember, teach
from pixelis.train.sft_config import SftConfig
from pixelis.train.starting import begin_optimizer
from pixelis.train.state import State

BATCH, STEPS = 16, 8
"""Examples of a batch, and steps that count, after one that does not."""
READING = ToolCall(tool="OCR", args={"box": [0.14, 0.33, 0.41, 0.52]})


def rows(nano: NanoConfig = NanoConfig(), *, batch: int = BATCH, steps: int = STEPS) -> list[BenchRow]:
    """One thread, CPU seconds of the same run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [_sft(nano, batch, steps)]
    finally:
        torch.set_num_threads(threads)


def _sft(nano: NanoConfig, batch: int, steps: int) -> BenchRow:
    policy, _ = random_nano(nano)
    theirs, _ = random_nano(nano)  # the same seed: the same weights
    rng = np.random.default_rng(0)
    examples = [example(policy, rng, number) for number in range(2 * batch)]
    batches = [examples[:batch], examples[batch:]]
    learn = ours(policy, batches)
    ours_s, peer_s = beside_trainer(theirs, batches, steps, learn)
    tokens = sum(len(each) for each in examples) / len(batches)
    return BenchRow(
        f"a step of SFT, {batch} examples, {tokens:.0f} tokens",
        ours_s,
        "transformers Trainer, plain cross-entropy",
        peer_s,
        "not slower",
        f"{peer_s / ours_s:.2f} times; {tokens / ours_s:.0f} tokens a CPU-second",
    )


def example(policy: Policy, rng: np.random.Generator, number: int) -> Example:
    """Zoom, read, answer: a question of some length about a picture of noise, and a row of targets for each call."""
    known, optics, style = policy.tokens, policy.optics, policy.style
    media, ledger, targets = MediaSet((picture(rng),)), Ledger(), []
    ledger.give(script.opening(QUESTION + " Look closely." * (number % 4), media, style, []), known, optics)
    for step, (call, result) in enumerate(((CALL, LOOK), (READING, READ)), start=1):
        ledger.give(script.called(THOUGHT, call, step=step), known, optics)
        judged = {"decisive": True, "passed": True}
        targets.append(step_row(opening_token(ledger, step, known), call, result, judged, ledger.places, media, known))
        media = media.with_view(VIEW) if result.view else media
        view = media.names[-1] if result.view else None
        ledger.give(script.observed(result, view, media, style, step=step), known, optics)
    ledger.give(script.answered(THOUGHT, "GATE 12", style, step=3), known, optics)
    ids = np.array(ledger.ids, dtype=np.int32)
    kinds = np.array([KINDS.index(kind) for kind in ledger.kinds], dtype=np.uint8)
    step_of = np.array(ledger.steps, dtype=np.int16)
    return Example(
        id=f"bench-{number}",
        family="read",
        difficulty=1,
        accepted=True,
        ids=ids,
        kinds=kinds,
        step_of=step_of,
        output_of=outputs(ids, kinds, step_of, known),
        places=tuple(ledger.places),
        steps=steps_from(targets),
    )


def opening_token(ledger: Ledger, step: int, known: Tokens) -> int:
    first = next(k for k in range(len(ledger)) if ledger.kinds[k] == "action" and ledger.steps[k] == step)
    return first + len(known.encode(OPEN, control=True)) - 1


def ours(policy: Policy, batches: Sequence[Sequence[Example]]) -> Callable[[], None]:
    """One step of phase 1 at a call, as `train_sft` takes it. Nothing is dropped: both sides read the same tokens."""
    config = SftConfig(corpus=Path(), feedback_dropout=0.0, early_action_dropout=0.0)
    torch.manual_seed(config.seed)
    student = Student(policy, ToolHeads(policy.width), w_act=config.w_act, smoothing=config.label_smoothing)
    optimizer = begin_optimizer(config, student)
    size = len(batches[0])
    pool = size * len(batches)
    state = State(np.random.default_rng(0), np.full(pool, np.nan), epochs=config.epochs)

    def learn() -> None:
        at = state.step % len(batches)
        chosen = list(range(at * size, (at + 1) * size))
        state.batches.append(chosen)
        dropped = [dropouts(config, each, state.rng) for each in batches[at]]
        losses = teach(config, student, optimizer, batches[at], dropped, 1.0, Crew())
        remember(state, chosen, losses)

    return learn


def collated(examples: Sequence[Example], policy: Policy) -> dict[str, torch.Tensor]:
    """A batch as a user of `Trainer` would make it."""
    known, m = policy.tokens, policy.optics.merge
    longest = max(len(each) for each in examples)
    ids = torch.full((len(examples), longest), known.pad)
    labels = torch.full((len(examples), longest), -100)
    mask = torch.zeros(len(examples), longest, dtype=torch.long)
    for row, each in enumerate(examples):
        own = torch.from_numpy(each.ids.astype(np.int64))
        ids[row, : len(each)] = own
        labels[row, : len(each)] = torch.where(torch.from_numpy(each.sampled), own, -100)
        mask[row, : len(each)] = 1
    pictures = [place.picture for each in examples for place in each.places]
    return {
        "input_ids": ids,
        "labels": labels,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == known.image).long(),
        "pixel_values": torch.from_numpy(np.concatenate([patches(p, policy.optics) for p in pictures])),
        "image_grid_thw": torch.tensor([[1, p.rows * m, p.columns * m] for p in pictures]),
    }


class Beside(TrainerCallback):
    """Takes a step of ours after each of `Trainer`'s and keeps the CPU seconds of both, batching included."""

    def __init__(self, learn: Callable[[], None]) -> None:
        self.learn = learn
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.mark = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        done = time.process_time()
        self.learn()
        self.theirs.append(done - self.mark)
        self.mark = time.process_time()
        self.ours.append(self.mark - done)


def beside_trainer(
    policy: Policy, batches: Sequence[Sequence[Example]], steps: int, learn: Callable[[], None]
) -> tuple[float, float]:
    """Median CPU seconds of a step of ours and of `Trainer`'s; the first step of both does not count."""
    config = SftConfig(corpus=Path())
    beside = Beside(learn)
    listed: Any = [each for batch in batches for each in batch]  # a sequence is all that Trainer asks of a dataset
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            policy.model,
            TrainingArguments(
                folder,
                max_steps=steps + 1,
                per_device_train_batch_size=len(batches[0]),
                train_sampling_strategy="sequential",
                learning_rate=config.lr,
                weight_decay=config.weight_decay,
                adam_beta1=config.betas[0],
                adam_beta2=config.betas[1],
                max_grad_norm=config.grad_norm,
                lr_scheduler_type="cosine",
                optim="adamw_torch_fused",
                remove_unused_columns=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            data_collator=lambda examples: collated(examples, policy),
            train_dataset=listed,
            callbacks=[beside],
        )
        trainer.remove_callback(PrinterCallback)  # standard output is ours
        trainer.train()
    return float(np.median(beside.ours[1:])), float(np.median(beside.theirs[1:]))
