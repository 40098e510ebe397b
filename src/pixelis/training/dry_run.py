"""Estimate a run without training: parameters, memory per device, tokens, steps, hours, cost.

The output says that it is an estimate: for models that no machine here can hold, it was never compared with a run.
"""

from __future__ import annotations

from collections.abc import Callable
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
from pixelis.policy.tokenizer import PolicyTokenizer
from pixelis.rewards.heads import ToolHeads
from pixelis.training.common.run_config import CorpusRunConfig
from pixelis.training.dataset.prepared_examples import tool_schemas
from pixelis.training.grpo.rft_config import RftConfig
from pixelis.training.sft.build_sft import build_policy
from pixelis.training.sft.sft_config import SftConfig

REFERENCE_NANO = "nano-sft"
SAMPLED_RECORDS = 100
"""Records whose mean length is measured."""
CHARACTERS_PER_TOKEN = 3.6
"""Of English and JSON, if the tokenizer is not available."""
GB = 1e9
MASTER, MOMENTS = 4, 8
"""Bytes of a trained number, and of its two moments in AdamW: float32 whatever the arithmetic (`precision`)."""


class MemoryEstimate(NamedTuple):
    """Gigabytes on one device."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    """Of weights, for the arithmetic: in bfloat16, or gathered from all devices."""
    activations: float

    @property
    def total(self) -> float:
        return sum(self)


class RunEstimate(NamedTuple):
    """An estimate of a run."""

    parameters: int
    trained: int
    what: str
    """The unit: `examples` of a corpus, or `rollouts`."""
    over: str
    """`3 epochs, 1,200 steps`, or `400 updates`."""
    examples: int
    tokens_per_example: float
    """0 without a corpus: tokens, hours and cost are then unknown."""
    tokens: int
    """Over all epochs."""
    steps: int
    memory: MemoryEstimate
    fits: bool
    """Whether a device holds this, and the whole model while it is loaded."""
    flops: float
    hours: float
    cost: float
    notes: tuple[str, ...]


class NetworkShape(NamedTuple):
    """What the cost of a policy depends on."""

    model: Any
    style: PromptStyle
    image_config: ImageProcessorConfig
    count_tokens: Callable[[str], float]
    note: str = ""


def load_network_shape(config: SftConfig, corpus: Corpus | None) -> NetworkShape:
    """The policy: nano itself, the shape of a local checkpoint, or the architecture in the config."""
    if config.init == "nano" and corpus is None:
        shipped = load_network_shape(config.model_copy(update={"init": REFERENCE_NANO}), None)
        note = f"the shape is that of {REFERENCE_NANO}: nano's tokenizer is trained on its corpus"
        return shipped._replace(note=note)
    if config.init == "nano" and corpus is not None:
        policy, _, _ = build_policy(config.model_copy(update={"lora": None}), corpus)
        return NetworkShape(policy.model, policy.style, policy.image_config, token_counter(policy.tokenizer))
    from transformers import AutoConfig, AutoModelForImageTextToText, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    path = Path(find_checkpoint(config.init))
    if path.is_dir():
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(path, trust_remote_code=False))
        style, image_config = config.style or read_card(path).style, read_image_config(path, model)
        return NetworkShape(model, style, image_config, token_counter(PolicyTokenizer.open(path)))
    if config.architecture is None:
        raise ConfigError(f"{config.init} is not on this machine: give its `architecture`, as configs/qwen3vl-8b does")
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config.architecture))
    note = (
        f"{config.init} is not on this machine: its shape comes from `architecture`, and a token is taken as "
        f"{CHARACTERS_PER_TOKEN} characters"
    )
    style, image_config = config.style or PromptStyle(), read_image_config(path, model)
    return NetworkShape(model, style, image_config, lambda text: len(text) / CHARACTERS_PER_TOKEN, note)


def token_counter(tokenizer: PolicyTokenizer) -> Callable[[str], float]:
    return lambda text: len(tokenizer.encode(text))


def dry_run(config: SftConfig) -> RunEstimate:
    """Estimate `train_sft` with this configuration."""
    corpus = Corpus(config.corpus) if config.corpus.exists() else None
    net = load_network_shape(config, corpus)
    rows = [row for row in corpus.rows(split="train") if row.accepted or config.answers_only] if corpus else []
    if corpus and not rows:
        raise ConfigError(f"{config.corpus}: its train split has no record to train on")
    mean = mean_tokens(corpus, net, config.answers_only) if corpus else 0.0
    examples = len(rows) + config.format_traces * config.answers_only if rows else 0
    steps_per_epoch = np.ceil(mean * examples / (0.95 * config.batch_tokens))  # a twentieth is padding
    corpus_steps, interval = int(np.ceil(steps_per_epoch * config.epochs)), config.warmup_task_interval
    warmup_steps = config.warmup_task_steps + (corpus_steps // interval if interval else 0)
    tokens = int(mean * examples * config.epochs) + warmup_steps * config.batch_tokens
    steps, device = corpus_steps + warmup_steps, config.device_facts
    head_parameters = sum(value.numel() for value in ToolHeads(net.model.config.text_config.hidden_size).parameters())
    trained = count_trained(config, net.model) + head_parameters
    frozen_bytes = count_parameters(net.model) * bytes_per_number(config.dtype) if config.lora else 0
    memory = estimate_memory(config, net.model, trained, frozen_bytes, head_parameters, batches=1 / device.count)
    notes = []
    if warmup_steps:
        notes.append(f"tokens and steps include {warmup_steps:,} batches of warm-up tasks")
    if config.device != "cuda":
        notes.append("loading, preparing the examples and exporting take another minute")
    run = estimate_run(
        config, config, net, corpus, memory, passes=update_passes(config), trained=trained, tokens=tokens,
        tokens_per_example=mean, what="examples", over=f"{config.epochs:g} epochs, {steps:,} steps",
        examples=examples, steps=steps, notes=tuple(notes),
    )  # fmt: skip
    if config.minutes is not None and run.hours * 60 > config.minutes:
        notes.append(f"epochs are cut to what {config.minutes:g} minutes allow: hours and cost are those of all epochs")
    if device.count > 1:
        saved_gb = trained * (MASTER + MOMENTS) / GB
        notes.append("not run: more than two processes; two on one machine (gloo) are tested")
        notes.append(f"the main process gathers {saved_gb:.0f} GB in CPU memory to save them")
    return run._replace(notes=(*run.notes, *notes))


def dry_run_rft(config: RftConfig) -> RunEstimate:
    """Estimate `train_rft`: rollouts as long as the corpus's traces, read twice and trained on once."""
    shape = SftConfig.model_validate({
        "corpus": config.corpus, "init": config.policy, "lora": config.lora, "batch_tokens": config.batch_tokens,
        "device": config.device, "dtype": config.dtype, "device_facts": config.device_facts,
        "architecture": config.architecture, "checkpoint_activations": config.checkpoint_activations,
    })  # fmt: skip
    corpus = Corpus(config.corpus) if config.corpus.exists() else None
    net = load_network_shape(shape, corpus)
    mean = mean_tokens(corpus, net, answers_only=False) if corpus else 0.0
    rollouts = config.steps * config.prompts_per_step * config.group_size
    trained = count_trained(shape, net.model)
    # π_SFT is the policy without its adapters, or a copy beside it
    frozen_bytes = count_parameters(net.model) * (bytes_per_number(config.dtype) if config.lora else MASTER)
    memory = estimate_memory(shape, net.model, trained, frozen_bytes, batches=1, networks=2)
    return estimate_run(
        config, shape, net, corpus, memory, passes=4.0 + update_passes(shape),  # rolled out, and read by π_SFT
        trained=trained, tokens=int(mean * rollouts), tokens_per_example=mean, what="rollouts",
        over=f"{config.steps:,} updates", examples=rollouts, steps=config.steps,
        notes=("the time of tools comes on top",),
    )  # fmt: skip


def update_passes(config: SftConfig) -> float:
    """Operations per parameter and token: forward 2, gradient of activations 2, of weights 2."""
    return (6.0 if config.lora is None else 4.0) + 2.0 * config.checkpoint_activations


def estimate_run(
    config: CorpusRunConfig,
    shape: SftConfig,
    net: NetworkShape,
    corpus: Corpus | None,
    memory: MemoryEstimate,
    *,
    passes: float,
    tokens: int,
    notes: tuple[str, ...],
    **counts: Any,
) -> RunEstimate:
    """What follows from the counts: operations, hours, cost, whether it fits."""
    parameters, device = count_parameters(net.model), config.device_facts
    flops = passes * parameters * tokens
    # before the model is sharded or wrapped
    loading_bytes = parameters * (bytes_per_number(shape.dtype) if shape.lora else MASTER)
    hours = flops / (device.tflops * 1e12 * device.used * device.count) / 3600
    common_notes = [net.note] if net.note else []
    if corpus is None:
        folder = config.corpus
        common_notes.append(f"{folder} does not exist yet: create it with `pixelis data build CONFIG -o {folder}`")
    common_notes.append("memory, hours and cost are estimated, not measured")
    if config.device == "cuda":
        common_notes.append("not run: nothing of this has been run on a GPU here")
    return RunEstimate(
        parameters=parameters, tokens=tokens, memory=memory, flops=flops, hours=hours,
        fits=max(memory.total, loading_bytes / GB) <= device.memory_gb,
        cost=hours * device.count * device.per_hour, notes=(*common_notes, *notes), **counts,
    )  # fmt: skip


def estimate_memory(
    config: SftConfig, model: Any, trained: int, frozen_bytes: int, heads: int = 0, *, batches: float, networks: int = 1
) -> MemoryEstimate:
    """Gigabytes on one device, which reads a share of `batches` of a batch at once, with so many networks.

    With FSDP everything is sharded except what is gathered: all weights outside the blocks, from the forward pass to
    the backward, the current block and the next one, and their gradients until they are summed. Otherwise autocast
    copies what is trained. The rows of the output matrix that may be sampled are a copy too.
    """
    width, sharded = bytes_per_number(config.dtype), config.fsdp and config.device_facts.count > 1
    spread_over = config.device_facts.count if sharded else 1
    forward_width = width if sharded or config.lora else MASTER  # of weights and states in the forward pass
    text = model.config.text_config
    layers, d, mlp = text.num_hidden_layers, text.hidden_size, text.intermediate_size
    copies = text.vocab_size * d * (forward_width + width * (forward_width != width))
    if sharded:
        blocks = (*model.model.visual.blocks, *model.model.language_model.layers)
        sizes = [sum(value.numel() for value in block.parameters()) for block in blocks]
        gathered = count_parameters(model) + heads - sum(sizes) + 2 * max(sizes)
        copies += gathered * width * (1 if config.lora else 2)
    elif width != MASTER:
        copies += trained * width
    values_per_layer = 10 * d + 4 * text.num_attention_heads * text.head_dim + 4 * mlp
    layer_bytes = layers * values_per_layer * width
    if config.checkpoint_activations:
        layer_bytes = layers * d * forward_width + values_per_layer * width
    logits = 0.3 * text.vocab_size * 4 * 4 * networks  # loss on three tokens in ten; four copies in float32
    return MemoryEstimate(
        weights=(trained * MASTER + frozen_bytes) / spread_over / GB,
        gradients=trained * MASTER / spread_over / GB,
        optimizer=trained * MOMENTS / spread_over / GB,
        copies=copies / GB,
        activations=batches * config.batch_tokens * (layer_bytes + logits) / GB,
    )


def bytes_per_number(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def count_parameters(model: Any) -> int:
    return sum(value.numel() for value in model.parameters())


def count_trained(config: SftConfig, model: Any) -> int:
    """Parameters of the model, or of its adapters, without the heads."""
    if config.lora is None:
        return count_parameters(model)
    target_modules = [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in config.lora.targets]
    return sum(config.lora.rank * sum(module.weight.shape) for module in target_modules)


def mean_tokens(corpus: Corpus, net: NetworkShape, answers_only: bool) -> float:
    """Mean tokens of an example, from a sample of records; pictures count by their sizes, without rendering."""
    candidates = [k for k, row in enumerate(corpus.rows()) if row.split == "train" and (row.accepted or answers_only)]
    chosen = np.unique(np.linspace(0, len(candidates) - 1, min(SAMPLED_RECORDS, len(candidates))).astype(int))
    schemas = tool_schemas()
    return float(np.mean([record_tokens(corpus[candidates[k]], net, schemas, answers_only) for k in chosen]))


def record_tokens(record: Record, net: NetworkShape, schemas: list[dict[str, Any]], answers_only: bool) -> float:
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
