"""Bench row of phase 1: one of our steps and one of transformers' `Trainer`, on the same model and batches.

Both start from the same weights, extract patches from the same images, read the same padded ids, clip the gradient and
take a fused AdamW step. `Trainer` uses plain cross-entropy on the trained tokens; our loss is smoothed and weighted,
and also trains the argument heads. The steps are interleaved, so that other load affects both alike.
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

from benchmarks.bench_rollout import (
    OCR_RESULT,
    QUESTION,
    THOUGHT,
    VIEW,
    ZOOM_CALL,
    ZOOM_RESULT,
    random_nano,
    random_picture,
)
from benchmarks.bench_rows import BenchRow
from pixelis.media import MediaSet
from pixelis.nano.nano_model import NanoConfig
from pixelis.policy import chat_format
from pixelis.policy.images import extract_patches
from pixelis.policy.model import Policy
from pixelis.policy.sequence import TokenSequence
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rewards.heads import ToolHeads
from pixelis.tools.results import ToolCall
from pixelis.trace.tool_call_parser import CALL_OPEN
from pixelis.training.common.distributed import DistributedContext
from pixelis.training.dataset.examples import Example, example_from_sequence, step_row, steps_from_rows
from pixelis.training.sft.build_sft import build_optimizer
from pixelis.training.sft.sft_config import SftConfig
from pixelis.training.sft.sft_model import SftModel, sample_hidden_tokens
from pixelis.training.sft.sft_state import SftState
from pixelis.training.sft.train import record_errors, train_step

BATCH, STEPS = 16, 8
"""Examples per batch, and measured steps after a warm-up step."""
OCR_CALL = ToolCall(tool="OCR", args={"box": [0.14, 0.33, 0.41, 0.52]})


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
    peer_policy, _ = random_nano(nano)  # the same seed: the same weights
    rng = np.random.default_rng(0)
    examples = [make_example(policy, rng, number) for number in range(2 * batch)]
    batches = [examples[:batch], examples[batch:]]
    take_step = make_step(policy, batches)
    ours_s, peer_s = time_interleaved(peer_policy, batches, steps, take_step)
    tokens = sum(len(example) for example in examples) / len(batches)
    return BenchRow(
        f"a step of SFT, {batch} examples, {tokens:.0f} tokens",
        ours_s,
        "transformers Trainer, plain cross-entropy",
        peer_s,
        "not slower",
        f"{peer_s / ours_s:.2f} times; {tokens / ours_s:.0f} tokens a CPU-second",
    )


def make_example(policy: Policy, rng: np.random.Generator, number: int) -> Example:
    """Zoom, read, answer: a question about a noise image, and one row of targets per call."""
    tokenizer, optics, style = policy.tokenizer, policy.image_config, policy.style
    media, sequence, targets = MediaSet((random_picture(rng),)), TokenSequence(), []
    sequence.append_context(
        chat_format.render_prompt(QUESTION + " Look closely." * (number % 4), media, style, []), tokenizer, optics
    )
    for step, (call, result) in enumerate(((ZOOM_CALL, ZOOM_RESULT), (OCR_CALL, OCR_RESULT)), start=1):
        sequence.append_context(chat_format.render_call(THOUGHT, call, step=step), tokenizer, optics)
        step_check = {"decisive": True, "passed": True}
        targets.append(
            step_row(
                find_opening_token(sequence, step, tokenizer),
                call,
                result,
                step_check,
                sequence.image_spans,
                media,
                tokenizer,
            )
        )
        media = media.with_view(VIEW) if result.view else media
        view = media.names[-1] if result.view else None
        sequence.append_context(
            chat_format.render_observation(result, view, media, style, step=step), tokenizer, optics
        )
    sequence.append_context(chat_format.render_answer(THOUGHT, "GATE 12", style, step=3), tokenizer, optics)
    return example_from_sequence(
        sequence, tokenizer, id=f"bench-{number}", family="read", difficulty=1, accepted=True,
        steps=steps_from_rows(targets),
    )  # fmt: skip


def find_opening_token(sequence: TokenSequence, step: int, tokenizer: PolicyTokenizer) -> int:
    first = next(k for k in range(len(sequence)) if sequence.kinds[k] == "action" and sequence.steps[k] == step)
    return first + len(tokenizer.encode(CALL_OPEN, control=True)) - 1


def make_step(policy: Policy, batches: Sequence[Sequence[Example]]) -> Callable[[], None]:
    """A function that takes one step of phase 1, as `train_sft` does, without dropout of tokens."""
    config = SftConfig(corpus=Path(), feedback_dropout=0.0, early_action_dropout=0.0)
    torch.manual_seed(config.seed)
    model = SftModel(policy, ToolHeads(policy.width), w_act=config.w_act, smoothing=config.label_smoothing)
    optimizer = build_optimizer(config, model)
    size = len(batches[0])
    pool_size = size * len(batches)
    state = SftState(np.random.default_rng(0), np.full(pool_size, np.nan), epochs=config.epochs)

    def take_step() -> None:
        batch_index = state.step % len(batches)
        chosen_indices = list(range(batch_index * size, (batch_index + 1) * size))
        state.batches.append(chosen_indices)
        dropout_draws = [sample_hidden_tokens(config, example, state.rng) for example in batches[batch_index]]
        losses = train_step(config, model, optimizer, batches[batch_index], dropout_draws, 1.0, DistributedContext())
        record_errors(state, chosen_indices, losses)

    return take_step


def collate_for_trainer(examples: Sequence[Example], policy: Policy) -> dict[str, torch.Tensor]:
    """A batch as a user of `Trainer` would collate it."""
    tokenizer, merge = policy.tokenizer, policy.image_config.merge
    longest = max(len(example) for example in examples)
    ids = torch.full((len(examples), longest), tokenizer.pad_id)
    labels = torch.full((len(examples), longest), -100)
    mask = torch.zeros(len(examples), longest, dtype=torch.long)
    for row, example in enumerate(examples):
        row_ids = torch.from_numpy(example.ids.astype(np.int64))
        ids[row, : len(example)] = row_ids
        labels[row, : len(example)] = torch.where(torch.from_numpy(example.is_sampled), row_ids, -100)
        mask[row, : len(example)] = 1
    pictures = [image_span.image for example in examples for image_span in example.image_spans]
    return {
        "input_ids": ids,
        "labels": labels,
        "attention_mask": mask,
        "mm_token_type_ids": (ids == tokenizer.image_id).long(),
        "pixel_values": torch.from_numpy(np.concatenate([extract_patches(p, policy.image_config) for p in pictures])),
        "image_grid_thw": torch.tensor([[1, p.rows * merge, p.columns * merge] for p in pictures]),
    }


class InterleavedTrainerCallback(TrainerCallback):
    """Takes one of our steps after each of `Trainer`'s and records the CPU seconds of both, collation included."""

    def __init__(self, take_step: Callable[[], None]) -> None:
        self.take_step = take_step
        self.our_seconds: list[float] = []
        self.peer_seconds: list[float] = []
        self.last_mark = time.process_time()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        step_end = time.process_time()
        self.take_step()
        self.peer_seconds.append(step_end - self.last_mark)
        self.last_mark = time.process_time()
        self.our_seconds.append(self.last_mark - step_end)


def time_interleaved(
    policy: Policy, batches: Sequence[Sequence[Example]], steps: int, take_step: Callable[[], None]
) -> tuple[float, float]:
    """Median CPU seconds of our steps and of `Trainer`'s, without the first of each."""
    config = SftConfig(corpus=Path())
    callback = InterleavedTrainerCallback(take_step)
    dataset: Any = [example for batch in batches for example in batch]  # Trainer accepts any sequence
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
            data_collator=lambda examples: collate_for_trainer(examples, policy),
            train_dataset=dataset,
            callbacks=[callback],
        )
        trainer.remove_callback(PrinterCallback)  # keep standard output clean
        trainer.train()
    return float(np.median(callback.our_seconds[1:])), float(np.median(callback.peer_seconds[1:]))
