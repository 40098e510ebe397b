"""What a run would take: parameters, memory per device, tokens, steps, hours, cost. Nothing is trained.

An estimate, and it says so: of a model that no machine here can hold, it has been compared with no run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from pixelis.data.record import Record
from pixelis.data.store import Corpus
from pixelis.errors import ConfigError
from pixelis.policy import script
from pixelis.policy.checkpoint import find_checkpoint, optics_of, read_card
from pixelis.policy.pictures import Optics, fitted
from pixelis.policy.script import Style, spread
from pixelis.train.heads import ToolHeads
from pixelis.train.prepared import tool_schemas
from pixelis.train.rft_config import RftConfig
from pixelis.train.sft_config import SftConfig
from pixelis.train.starting import begin_policy

LIKE_NANO = "nano-sft"
LOOKED_AT = 100
"""Records that the mean length is taken from."""
LETTERS_PER_TOKEN = 3.6
"""Of English and JSON, where the tokenizer cannot be reached."""
GB = 1e9
MASTER, MOMENTS = 4, 8
"""Bytes of a trained number, and of its two moments in AdamW: float32 whatever the arithmetic (`precision`)."""


class Memory(NamedTuple):
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


class Plan(NamedTuple):
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
    memory: Memory
    fits: bool
    """Whether a device holds this, and the whole model while it is opened."""
    flops: float
    hours: float
    cost: float
    notes: tuple[str, ...]


class Network(NamedTuple):
    """The policy as far as its cost goes."""

    model: Any
    style: Style
    optics: Optics
    encode: Any
    """Text to its number of tokens."""
    note: str = ""


def corpus_at(folder: Path) -> Corpus | None:
    """A corpus, or None where there is not even a folder: parameters and memory can be told without."""
    return Corpus(folder) if folder.exists() else None


def network(config: SftConfig, corpus: Corpus | None) -> Network:
    """The policy: nano itself, the shape of a local checkpoint, or the architecture that the file gives."""
    if config.init == "nano" and corpus is None:
        shipped = network(config.model_copy(update={"init": LIKE_NANO}), None)
        return shipped._replace(note=f"the shape is that of {LIKE_NANO}: nano's tokenizer is trained on its corpus")
    if config.init == "nano" and corpus is not None:
        policy, _, _ = begin_policy(config.model_copy(update={"lora": None}), corpus)
        return Network(policy.model, policy.style, policy.optics, lambda text: len(policy.tokens.encode(text)))
    from transformers import AutoConfig, AutoModelForImageTextToText, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from pixelis.policy.tokens import Tokens

    where = Path(find_checkpoint(config.init))
    if where.is_dir():
        with torch.device("meta"):
            model = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(where, trust_remote_code=False))
        tokens = Tokens.open(where)
        style = config.style or read_card(where).style
        return Network(model, style, optics_of(where, model), lambda text: len(tokens.encode(text)))
    if config.architecture is None:
        raise ConfigError(f"{config.init} is not on this machine: give its `architecture`, as configs/qwen3vl-8b does")
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**config.architecture))
    note = f"{config.init} is not on this machine: its shape is the file's, and a token is {LETTERS_PER_TOKEN} letters"
    return Network(model, config.style or Style(), optics_of(where, model), letters, note)


def letters(text: str) -> float:
    return len(text) / LETTERS_PER_TOKEN


def dry_run(config: SftConfig) -> Plan:
    """Reckon what `train_sft` would take with this configuration."""
    corpus = corpus_at(config.corpus)
    net = network(config, corpus)
    rows = [row for row in corpus.rows(split="train") if row.accepted or config.answers_only] if corpus else []
    if corpus and not rows:
        raise ConfigError(f"{config.corpus}: no record of its train split can be learnt from")
    mean = mean_tokens(corpus, net, config.answers_only) if corpus else 0.0
    examples = len(rows) + config.format_traces * config.answers_only if rows else 0
    an_epoch = np.ceil(mean * examples / (0.95 * config.batch_tokens))  # a twentieth is filling
    taught = int(np.ceil(an_epoch * config.epochs))
    drills = config.drill_steps + (taught // config.drill_every if config.drill_every else 0)
    tokens = int(mean * examples * config.epochs) + drills * config.batch_tokens
    heads = sum(value.numel() for value in ToolHeads(net.model.config.text_config.hidden_size).parameters())
    own = sum(value.numel() for value in net.model.parameters())
    trained = (lora_parameters(config, net.model) if config.lora else own) + heads
    steps = taught + drills
    frozen = own * wide(config.dtype) if config.lora else 0
    memory = memory_of(config, net.model, trained, frozen, heads, batches=1 / config.device_facts.count)
    passes = 6.0 if config.lora is None else 4.0  # forward 2, gradient of activations 2, of weights 2
    flops = (passes + 2.0 * config.checkpoint_activations) * own * tokens
    device = config.device_facts
    hours = flops / (device.tflops * 1e12 * device.used * device.count) / 3600
    notes = [net.note] if net.note else []
    notes += [] if corpus else [unbuilt(config.corpus)]
    notes.append("memory, hours and cost are reckoned, not measured")
    if drills:
        notes.append(f"{drills:,} batches of drills are counted among the tokens and steps")
    if config.device != "cuda":
        notes.append("the minute that opening, making the examples and exporting take comes on top")
    if config.minutes is not None and hours * 60 > config.minutes:
        notes.append(f"epochs are cut to what {config.minutes:g} minutes allow: hours and cost are those of all epochs")
    if config.device == "cuda":
        notes.append("not run: nothing of this has been run on a GPU here")
    if config.device_facts.count > 1:
        notes.append("not run: more than two processes; two on one machine (gloo) are tested")
        kept = trained * (MASTER + MOMENTS) / GB
        notes.append(f"the first process saves {kept:.0f} GB, which it puts together in the memory of its CPU")
    return Plan(
        parameters=own,
        trained=trained,
        what="examples",
        over=f"{config.epochs:g} epochs, {steps:,} steps",
        examples=examples,
        tokens_per_example=mean,
        tokens=tokens,
        steps=steps,
        memory=memory,
        fits=max(memory.total, opened(config, own)) <= device.memory_gb,
        flops=flops,
        hours=hours,
        cost=hours * device.count * device.per_hour,
        notes=tuple(notes),
    )


def dry_run_rft(config: RftConfig) -> Plan:
    """Reckon what `train_rft` would take: rollouts as long as the corpus's chains, read twice and learnt from once."""
    shape = SftConfig.model_validate({
        "corpus": config.corpus, "init": config.policy, "lora": config.lora, "batch_tokens": config.batch_tokens,
        "device": config.device, "dtype": config.dtype, "device_facts": config.device_facts,
        "architecture": config.architecture, "checkpoint_activations": config.checkpoint_activations,
    })  # fmt: skip
    corpus = corpus_at(config.corpus)
    net = network(shape, corpus)
    mean = mean_tokens(corpus, net, answers_only=False) if corpus else 0.0
    rollouts = config.updates * config.queries * config.samples
    tokens = int(mean * rollouts)
    own = sum(value.numel() for value in net.model.parameters())
    trained = lora_parameters(shape, net.model) if config.lora else own
    frozen = own * (wide(config.dtype) if config.lora else MASTER)  # π_SFT: without its adapters, or a copy beside it
    memory = memory_of(shape, net.model, trained, frozen, batches=1, networks=2)
    learning = (6.0 if config.lora is None else 4.0) + 2.0 * config.checkpoint_activations
    flops = (2.0 + 2.0 + learning) * own * tokens  # rolled out, read by π_SFT, learnt from
    device = config.device_facts
    hours = flops / (device.tflops * 1e12 * device.used * device.count) / 3600
    notes = [net.note] if net.note else []
    notes += [] if corpus else [unbuilt(config.corpus)]
    notes.append("memory, hours and cost are reckoned, not measured; the time of tools comes on top")
    if config.device == "cuda":
        notes.append("not run: nothing of this has been run on a GPU here")
    return Plan(
        parameters=own, trained=trained, what="rollouts", over=f"{config.updates:,} updates",
        examples=rollouts, tokens_per_example=mean, tokens=tokens,
        steps=config.updates, memory=memory, fits=max(memory.total, opened(shape, own)) <= device.memory_gb,
        flops=flops, hours=hours,
        cost=hours * device.count * device.per_hour, notes=tuple(notes),
    )  # fmt: skip


def unbuilt(folder: Path) -> str:
    return f"{folder} is not there yet: `pixelis data build CONFIG -o {folder}` makes it"


def memory_of(
    config: SftConfig, model: Any, trained: int, frozen: int, heads: int = 0, *, batches: float, networks: int = 1
) -> Memory:
    """Gigabytes on one device, which reads this share of a batch at once with so many networks; `frozen` are bytes.

    Where the run is sharded everything is spread, but for what is gathered: all that lies outside the blocks, from the
    forward pass to the backward, the block at work and the one that comes next, and their gradients until they are
    summed. Otherwise autocast copies what is trained. The rows of the output matrix that may be sampled are a copy too.
    """
    width, sharded = wide(config.dtype), config.shard and config.device_facts.count > 1
    spread_over = config.device_facts.count if sharded else 1
    seen = width if sharded or config.lora else MASTER  # of the weights and states that the forward pass meets
    text = model.config.text_config
    layers, d, mlp = text.num_hidden_layers, text.hidden_size, text.intermediate_size
    copies = text.vocab_size * d * (seen + width * (seen != width))
    if sharded:
        blocks = (*model.model.visual.blocks, *model.model.language_model.layers)
        sizes = [sum(value.numel() for value in block.parameters()) for block in blocks]
        own = sum(value.numel() for value in model.parameters())
        copies += (own + heads - sum(sizes) + 2 * max(sizes)) * width * (1 if config.lora else 2)
    elif width != MASTER:
        copies += trained * width
    within = 10 * d + 4 * text.num_attention_heads * text.head_dim + 4 * mlp
    inner = layers * d * seen + within * width if config.checkpoint_activations else layers * within * width
    logits = 0.3 * text.vocab_size * 4 * 4 * networks  # three tokens in ten are taught; four copies in float32
    return Memory(
        weights=(trained * MASTER + frozen) / spread_over / GB,
        gradients=trained * MASTER / spread_over / GB,
        optimizer=trained * MOMENTS / spread_over / GB,
        copies=copies / GB,
        activations=batches * config.batch_tokens * (inner + logits) / GB,
    )


def opened(config: SftConfig, own: int) -> float:
    """Gigabytes that a device holds before its model is spread or wrapped."""
    return own * (wide(config.dtype) if config.lora else MASTER) / GB


def wide(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def lora_parameters(config: SftConfig, model: Any) -> int:
    if config.lora is None:
        return 0
    fitting = [m for name, m in model.named_modules() if name.rsplit(".", 1)[-1] in config.lora.targets]
    return sum(config.lora.rank * sum(module.weight.shape) for module in fitting)


def mean_tokens(corpus: Corpus, net: Network, answers_only: bool) -> float:
    """Tokens of an example, from a sample of records; pictures are counted by their sizes, nothing is rendered."""
    numbers = [k for k, row in enumerate(corpus.rows()) if row.split == "train" and (row.accepted or answers_only)]
    chosen = np.unique(np.linspace(0, len(numbers) - 1, min(LOOKED_AT, len(numbers))).astype(int))
    schemas = tool_schemas()
    return float(np.mean([tokens_of(corpus[numbers[k]], net, schemas, answers_only) for k in chosen]))


def tokens_of(record: Record, net: Network, schemas: list[dict[str, Any]], answers_only: bool) -> float:
    style, cell = net.style, net.optics.cell
    words = style.system + record.item.question + (record.trace.answer or "")
    if style.tool_schemas:
        words += script.TOOLS_HEAD + script.TOOLS_FOOT + str(schemas)
    visual = 0
    for medium in record.item.media:
        shown = len(spread(medium.frames, style.clip_frames)) if medium.frames > 1 else 1
        most = style.frame_pixels if medium.frames > 1 else style.image_pixels
        rows, columns = fitted(medium.width, medium.height, most, cell)
        visual += shown * (rows * columns + 8)
    for step in () if answers_only else record.trace.steps:
        words += step.thought + script.call_text(step.call) + (step.result.text or step.result.error)
        visual += 20  # the tags of a turn
        if step.result.view is not None:
            rows, columns = fitted(step.result.view.width, step.result.view.height, style.view_pixels, cell)
            visual += rows * columns + 4
    return net.encode(words + ("" if answers_only else record.trace.answer_thought)) + visual + 20
