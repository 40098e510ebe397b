"""TRL's `GRPOTrainer` as a peer in an environment of its own; its steps and ours are interleaved.

It generates a given number of tokens per completion, in one turn, for a question with or without its image.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Generic, NamedTuple, TypeVar

S = TypeVar("S")

TRL = """
import json, os, sys, time
os.environ["HF_HUB_OFFLINE"] = "1"
own, sys.stdout = sys.stdout, sys.stderr  # what TRL prints is not an answer
import torch
torch.set_num_threads(1)
from datasets import Dataset
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer, BatchFeature, ProcessorMixin, TrainerCallback
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from trl import GRPOConfig, GRPOTrainer
asked = json.loads(sys.stdin.readline())
made, mark = [], 0.0

class Processor(ProcessorMixin):  # Qwen's own wants torchvision, for clips
    def __init__(self, folder):
        self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.chat_template = self.tokenizer.chat_template

    def __call__(self, text=None, images=None, padding=False, return_tensors=None, **_):
        seen = self.image_processor(images=[one for own in images for one in own], return_tensors="pt")
        counts = (seen["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2).tolist()
        pad = "<|image_pad|>"
        text = [one.replace(pad, pad * count) for one, count in zip(text, counts, strict=True)]
        said = self.tokenizer(text, padding=padding, return_tensors=return_tensors)
        own = self.tokenizer.convert_tokens_to_ids(pad)
        kinds = [[int(k == own) for k in ids] for ids in said["input_ids"]]
        said["mm_token_type_ids"] = torch.tensor(kinds) if return_tensors else kinds
        return BatchFeature({**said, **seen})

    def apply_chat_template(self, conversation, tokenize=False, return_dict=False, tools=None, **more):
        text = self.tokenizer.apply_chat_template(conversation, tokenize=False, **more)
        if not tokenize:
            return text
        parts = [[part for turn in one for part in turn["content"]] for one in conversation]
        return self(text, [[part["image"] for part in own if part["type"] == "image"] for own in parts])

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
queries = [{"prompt": asked["prompt"]} for _ in range(asked["queries"])]
for query, picture in zip(queries, asked["pictures"]):
    query["image"] = Image.open(picture).convert("RGB")
reads = Processor if asked["pictures"] else AutoTokenizer.from_pretrained
trainer = GRPOTrainer(
    model, worth, args=settings, train_dataset=Dataset.from_list(queries), processing_class=reads(asked["folder"]),
    callbacks=[Turns()],
)
mark = time.process_time()
trainer.train()
"""


class InterleavedSteps(NamedTuple, Generic[S]):
    """Interleaved steps of both."""

    our_steps: list[S]
    """Results of our steps."""
    peer_seconds: list[float]
    """CPU seconds of the peer's steps; empty if it failed."""
    error: str


def run_interleaved(python: Path, update: Callable[[], S], job: Mapping[str, Any]) -> InterleavedSteps[S]:
    """Run one of our steps after each of TRL's, which waits meanwhile. The first step of both does not count.

    `job` has the checkpoint's `folder`, `queries`, `samples` per query, `tokens` per completion, `steps`, `beta`, the
    `prompt` and files of `pictures`. If TRL fails, `error` says why.
    """
    if not python.exists():
        return InterleavedSteps([], [], "`make peers` installs TRL")
    expected_tokens = job["queries"] * job["samples"] * job["tokens"]
    our_steps, peer_seconds = list[S](), list[float]()
    with (
        tempfile.TemporaryFile("w+") as stderr_file,
        subprocess.Popen(
            [str(python), "-c", TRL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr_file, text=True
        ) as peer,
    ):
        assert peer.stdin is not None  # noqa: S101 - both are pipes
        assert peer.stdout is not None  # noqa: S101
        send(peer.stdin, json.dumps(job))
        for line in peer.stdout:
            seconds, generated_tokens = json.loads(line)
            if generated_tokens != expected_tokens:
                peer.kill()
                return InterleavedSteps(
                    our_steps, [], f"TRL generated {generated_tokens} tokens, expected {expected_tokens}"
                )
            peer_seconds.append(seconds)
            our_steps.append(update())
            send(peer.stdin, "")
        if peer.wait() or len(peer_seconds) <= 1:
            stderr_file.seek(0)
            error_lines = stderr_file.read().strip().splitlines() or ["no message"]
            return InterleavedSteps(our_steps[1:], [], f"TRL failed: {error_lines[-1][:200]}")
    return InterleavedSteps(our_steps[1:], peer_seconds[1:], "")


def send(pipe: IO[str], line: str) -> None:
    """Send a line to the peer; if it has ended, its exit status says why."""
    try:
        pipe.write(f"{line}\n")
        pipe.flush()
    except BrokenPipeError:
        with suppress(BrokenPipeError):
            pipe.close()  # the rest of the buffer cannot be written either
