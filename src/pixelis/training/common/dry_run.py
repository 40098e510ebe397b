"""What a run would take: parameters, memory per device, tokens, steps, hours, cost. Nothing is trained.

An estimate, and it says so: of a model that no machine here can hold, it has been compared with no run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pixelis.core.errors import ConfigError
from pixelis.data.corpus.corpus import Corpus
from pixelis.data.corpus.record import Record
from pixelis.policy import chat_format
from pixelis.policy.chat_format import PromptStyle, spaced_indices
from pixelis.policy.checkpoint import read_card, read_image_config
from pixelis.policy.images import ImageProcessorConfig, fit_token_grid
from pixelis.policy.model_names import find_checkpoint
from pixelis.rewards.heads import ToolHeads
from pixelis.training.dataset.prepared_examples import tool_schemas
from pixelis.training.dataset.training_index import build_policy
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.sft_config import SftConfig

REFERENCE_NANO = "nano-sft"
SAMPLED_RECORDS = 100
"""Records that the mean length is taken from."""
CHARACTERS_PER_TOKEN = 3.6
"""Of English and JSON, where the tokenizer cannot be reached."""
GB = 1e9
MASTER, MOMENTS = 4, 8
"""Bytes of a trained number, and of its two moments in AdamW: float32 whatever the arithmetic (`precision`)."""


class MemoryEstimate(NamedTuple):
    """Gigabytes on one device."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    """Of weights, to compute with: in bfloat16, or gathered from all devices."""
    activations: float

    @property
    def total(self) -> float:
        return sum(self)


class RunEstimate(NamedTuple):
    """What a run would take."""

    parameters: int
    trained: int
    what: str
    """What is counted: `examples` of a corpus, or `rollouts`."""
    over: str
    """`3 epochs, 1,200 steps`, or `400 updates`."""
    examples: int
    tokens_per_example: float
    """0 where there is no corpus to take it from: tokens, hours and cost are unknown then."""
    tokens: int
    """Over all epochs."""
    steps: int
    memory: MemoryEstimate
    fits: bool
    """Whether a device holds this, and the whole model while it is opened."""
    flops: float
    hours: float
    cost: float
    notes: tuple[str, ...]


class NetworkShape(NamedTuple):
    """The policy as far as its cost goes."""

    model: Any
    style: PromptStyle
    image_config: ImageProcessorConfig
    count_tokens: Any
    """Text to its number of tokens."""
    note: str = ""


def open_corpus_if_present(folder: Path) -> Corpus | None:
    """A corpus, or None where there is not even a folder: parameters and memory can be told without."""
    return Corpus(folder) if folder.exists() else None


def load_network_shape(config: SftConfig, corpus: Corpus | None) -> NetworkShape:
    """The policy: nano itself, the shape of a local checkpoint, or the architecture that the file gives."""
    if config.init == "nano" and corpus is None:
        shipped_shape = load_network_shape(config.model_copy(update={"init": REFERENCE_NANO}), None)
        return shipped_shape._replace(
            note=f"the shape is that of {REFERENCE_NANO}: nano's tokenizer is trained on its corpus"
        )
    if config.init == "nano" and corpus is not None:
        policy, _, _ = build_policy(config.model_copy(update={"lora": None}), corpus)
        return NetworkShape(
            policy.model, policy.style, policy.image_config, lambda text: len(policy.tokenizer.encode(text))
        )
    from transformers import AutoConfig, AutoModelForImageTextToText, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from pixelis.policy.tokenizer import PolicyTokenizer

    checkpoint_path = Path(find_checkpoint(config.init))
    if checkpoint_path.is_dir():
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(
                AutoConfig.from_pretrained(checkpoint_path, trust_remote_code=False)
            )
        tokens = PolicyTokenizer.open(checkpoint_path)
        style = config.style or read_card(checkpoint_path).style
        return NetworkShape(
            model, style, read_image_config(checkpoint_path, model), lambda text: len(tokens.encode(text))
        )
    if config.architecture is None:
        raise ConfigError(f"{config.init} is not on this machine: give its `architecture`, as configs/qwen3vl-8b does")
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config.architecture))
    note = (
        f"{config.init} is not on this machine: its shape is the file's, and a token is {CHARACTERS_PER_TOKEN} letters"
    )
    return NetworkShape(
        model, config.style or PromptStyle(), read_image_config(checkpoint_path, model), estimate_token_count, note
    )


def estimate_token_count(text: str) -> float:
    return len(text) / CHARACTERS_PER_TOKEN


def dry_run(config: SftConfig) -> RunEstimate:
    """Reckon what `train_sft` would take with this configuration."""
    corpus = open_corpus_if_present(config.corpus)
    net = load_network_shape(config, corpus)
    rows = [row for row in corpus.rows(split="train") if row.accepted or config.answers_only] if corpus else []
    if corpus and not rows:
        raise ConfigError(f"{config.corpus}: no record of its train split can be learnt from")
    mean = mean_tokens(corpus, net, config.answers_only) if corpus else 0.0
    examples = len(rows) + config.format_traces * config.answers_only if rows else 0
    steps_per_epoch = np.ceil(mean * examples / (0.95 * config.batch_tokens))  # a twentieth is filling
    corpus_steps = int(np.ceil(steps_per_epoch * config.epochs))
    warmup_steps = config.drill_steps + (corpus_steps // config.drill_every if config.drill_every else 0)
    tokens = int(mean * examples * config.epochs) + warmup_steps * config.batch_tokens
    head_parameters = sum(value.numel() for value in ToolHeads(net.model.config.text_config.hidden_size).parameters())
    parameters = sum(value.numel() for value in net.model.parameters())
    trained_parameters = (count_lora_parameters(config, net.model) if config.lora else parameters) + head_parameters
    steps = corpus_steps + warmup_steps
    frozen_bytes = parameters * bytes_per_number(config.dtype) if config.lora else 0
    memory = estimate_memory(
        config, net.model, trained_parameters, frozen_bytes, head_parameters, batches=1 / config.device_facts.count
    )
    passes = 6.0 if config.lora is None else 4.0  # forward 2, gradient of activations 2, of weights 2
    flops = (passes + 2.0 * config.checkpoint_activations) * parameters * tokens
    device = config.device_facts
    hours = flops / (device.tflops * 1e12 * device.used * device.count) / 3600
    notes = [net.note] if net.note else []
    notes += [] if corpus else [missing_corpus_note(config.corpus)]
    notes.append("memory, hours and cost are reckoned, not measured")
    if warmup_steps:
        notes.append(f"{warmup_steps:,} batches of drills are counted among the tokens and steps")
    if config.device != "cuda":
        notes.append("the minute that opening, making the examples and exporting take comes on top")
    if config.minutes is not None and hours * 60 > config.minutes:
        notes.append(f"epochs are cut to what {config.minutes:g} minutes allow: hours and cost are those of all epochs")
    if config.device == "cuda":
        notes.append("not run: nothing of this has been run on a GPU here")
    if config.device_facts.count > 1:
        notes.append("not run: more than two processes; two on one machine (gloo) are tested")
        saved_gb = trained_parameters * (MASTER + MOMENTS) / GB
        notes.append(f"the first process saves {saved_gb:.0f} GB, which it puts together in the memory of its CPU")
    return RunEstimate(
        parameters=parameters,
        trained=trained_parameters,
        what="examples",
        over=f"{config.epochs:g} epochs, {steps:,} steps",
        examples=examples,
        tokens_per_example=mean,
        tokens=tokens,
        steps=steps,
        memory=memory,
        fits=max(memory.total, opening_gb(config, parameters)) <= device.memory_gb,
        flops=flops,
        hours=hours,
        cost=hours * device.count * device.per_hour,
        notes=tuple(notes),
    )


def dry_run_rft(config: RftConfig) -> RunEstimate:
    """Reckon what `train_rft` would take: rollouts as long as the corpus's chains, read twice and learnt from once."""
    shape = SftConfig.model_validate({
        "corpus": config.corpus, "init": config.policy, "lora": config.lora, "batch_tokens": config.batch_tokens,
        "device": config.device, "dtype": config.dtype, "device_facts": config.device_facts,
        "architecture": config.architecture, "checkpoint_activations": config.checkpoint_activations,
    })  # fmt: skip
    corpus = open_corpus_if_present(config.corpus)
    net = load_network_shape(shape, corpus)
    mean = mean_tokens(corpus, net, answers_only=False) if corpus else 0.0
    rollouts = config.updates * config.queries * config.samples
    tokens = int(mean * rollouts)
    parameters = sum(value.numel() for value in net.model.parameters())
    trained_parameters = count_lora_parameters(shape, net.model) if config.lora else parameters
    frozen_bytes = parameters * (
        bytes_per_number(config.dtype) if config.lora else MASTER
    )  # π_SFT: without its adapters, or a copy beside it
    memory = estimate_memory(shape, net.model, trained_parameters, frozen_bytes, batches=1, networks=2)
    update_passes = (6.0 if config.lora is None else 4.0) + 2.0 * config.checkpoint_activations
    flops = (2.0 + 2.0 + update_passes) * parameters * tokens  # rolled out, read by π_SFT, learnt from
    device = config.device_facts
    hours = flops / (device.tflops * 1e12 * device.used * device.count) / 3600
    notes = [net.note] if net.note else []
    notes += [] if corpus else [missing_corpus_note(config.corpus)]
    notes.append("memory, hours and cost are reckoned, not measured; the time of tools comes on top")
    if config.device == "cuda":
        notes.append("not run: nothing of this has been run on a GPU here")
    return RunEstimate(
        parameters=parameters, trained=trained_parameters, what="rollouts", over=f"{config.updates:,} updates",
        examples=rollouts, tokens_per_example=mean, tokens=tokens,
        steps=config.updates, memory=memory, fits=max(memory.total, opening_gb(shape, parameters)) <= device.memory_gb,
        flops=flops, hours=hours,
        cost=hours * device.count * device.per_hour, notes=tuple(notes),
    )  # fmt: skip


def missing_corpus_note(folder: Path) -> str:
    return f"{folder} is not there yet: `pixelis data build CONFIG -o {folder}` makes it"


def estimate_memory(
    config: SftConfig,
    model: Any,
    trained_parameters: int,
    frozen_bytes: int,
    head_parameters: int = 0,
    *,
    batches: float,
    networks: int = 1,
) -> MemoryEstimate:
    """Gigabytes on one device, which reads this share of a batch at once with so many networks; `frozen` are bytes.

    Where the run is sharded everything is spread, but for what is gathered: all that lies outside the blocks, from the
    forward pass to the backward, the block at work and the one that comes next, and their gradients until they are
    summed. Otherwise autocast copies what is trained. The rows of the output matrix that may be sampled are a copy too.
    """
    width, sharded = bytes_per_number(config.dtype), config.shard and config.device_facts.count > 1
    spread_over = config.device_facts.count if sharded else 1
    forward_width = width if sharded or config.lora else MASTER  # of the weights and states that the forward pass meets
    text = model.config.text_config
    layers, d, mlp = text.num_hidden_layers, text.hidden_size, text.intermediate_size
    copies = text.vocab_size * d * (forward_width + width * (forward_width != width))
    if sharded:
        blocks = (*model.model.visual.blocks, *model.model.language_model.layers)
        sizes = [sum(value.numel() for value in block.parameters()) for block in blocks]
        parameters = sum(value.numel() for value in model.parameters())
        copies += (parameters + head_parameters - sum(sizes) + 2 * max(sizes)) * width * (1 if config.lora else 2)
    elif width != MASTER:
        copies += trained_parameters * width
    values_per_layer = 10 * d + 4 * text.num_attention_heads * text.head_dim + 4 * mlp
    layer_bytes = (
        layers * d * forward_width + values_per_layer * width
        if config.checkpoint_activations
        else layers * values_per_layer * width
    )
    logits = 0.3 * text.vocab_size * 4 * 4 * networks  # three tokens in ten are taught; four copies in float32
    return MemoryEstimate(
        weights=(trained_parameters * MASTER + frozen_bytes) / spread_over / GB,
        gradients=trained_parameters * MASTER / spread_over / GB,
        optimizer=trained_parameters * MOMENTS / spread_over / GB,
        copies=copies / GB,
        activations=batches * config.batch_tokens * (layer_bytes + logits) / GB,
    )


def opening_gb(config: SftConfig, parameters: int) -> float:
    """Gigabytes that a device holds before its model is spread or wrapped."""
    return parameters * (bytes_per_number(config.dtype) if config.lora else MASTER) / GB


def bytes_per_number(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def count_lora_parameters(config: SftConfig, model: Any) -> int:
    if config.lora is None:
        return 0
    target_modules = [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in config.lora.targets]
    return sum(config.lora.rank * sum(module.weight.shape) for module in target_modules)


def mean_tokens(corpus: Corpus, net: NetworkShape, answers_only: bool) -> float:
    """Tokens of an example, from a sample of records; pictures are counted by their sizes, nothing is rendered."""
    candidates = [k for k, row in enumerate(corpus.rows()) if row.split == "train" and (row.accepted or answers_only)]
    chosen = np.unique(np.linspace(0, len(candidates) - 1, min(SAMPLED_RECORDS, len(candidates))).astype(int))
    schemas = tool_schemas()
    return float(np.mean([estimate_record_tokens(corpus[candidates[k]], net, schemas, answers_only) for k in chosen]))


def estimate_record_tokens(
    record: Record, net: NetworkShape, schemas: list[dict[str, Any]], answers_only: bool
) -> float:
    style, cell = net.style, net.image_config.cell
    words = style.system + record.item.question + (record.trace.answer or "")
    if style.tool_schemas:
        words += chat_format.TOOLS_HEAD + chat_format.TOOLS_FOOT + str(schemas)
    visual_tokens = 0
    for medium in record.item.media:
        shown_frames = len(spaced_indices(medium.frames, style.clip_frames)) if medium.frames > 1 else 1
        max_pixels = style.frame_pixels if medium.frames > 1 else style.image_pixels
        rows, columns = fit_token_grid(medium.width, medium.height, max_pixels, cell)
        visual_tokens += shown_frames * (rows * columns + 8)
    for step in () if answers_only else record.trace.steps:
        words += step.thought + chat_format.format_call_text(step.call) + (step.result.text or step.result.error)
        visual_tokens += 20  # the tags of a turn
        if step.result.view is not None:
            rows, columns = fit_token_grid(step.result.view.width, step.result.view.height, style.view_pixels, cell)
            visual_tokens += rows * columns + 4
    return net.count_tokens(words + ("" if answers_only else record.trace.answer_thought)) + visual_tokens + 20
