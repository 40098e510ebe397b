"""nano: the Qwen3-VL architecture at a size that two CPU cores train in an hour."""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field

from pixelis.core.config import Config
from pixelis.nano.copy_heads import init_copy_heads, init_number_embeddings
from pixelis.policy.chat_format import PromptStyle
from pixelis.policy.images import ImageProcessorConfig
from pixelis.policy.model import Policy
from pixelis.policy.tokenizer import PolicyTokenizer

NANO_STYLE = PromptStyle(
    system="Look with tools, then answer.",
    tool_schemas=False,
    image_pixels=96 * 96,
    view_pixels=80 * 80,
    frame_pixels=64 * 64,
    clip_frames=4,
    spaced_answers=True,
)


class NanoConfig(Config):
    """The size of nano."""

    hidden: int = 128
    layers: int = Field(default=6, ge=5)
    """At least five: deepstack feature j is added after layer j, and features come from the third from the top."""
    heads: int = 4
    kv_heads: int = 2
    """Keys and values are most of the memory traffic of a rollout on a CPU."""
    head_dim: int = 32
    mlp: int = 384
    vision_hidden: int = 64
    vision_layers: int = 2
    patch: int = 8
    copies: bool = True
    """Whether the first two layers begin with heads that copy, which random weights learn too late."""
    vocabulary: int = 1600
    """Of byte-pair encoding; coordinates, parts of calls and frequent words are added."""


def build_nano(config: NanoConfig, tokenizer: PolicyTokenizer, *, seed: int, style: PromptStyle = NANO_STYLE) -> Policy:
    """nano with random weights."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    half = config.head_dim // 2
    section = [half - 2 * (half // 3), half // 3, half // 3]  # time, height, width; must sum to half a head
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": config.hidden,
        "intermediate_size": config.mlp,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": min(config.kv_heads, config.heads),
        "head_dim": config.head_dim,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": section},
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_id,
    }
    vision = {
        "depth": config.vision_layers,
        "hidden_size": config.vision_hidden,
        "intermediate_size": 2 * config.vision_hidden,
        "num_heads": 4,
        "patch_size": config.patch,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": config.hidden,
        "num_position_embeddings": 144,
        "deepstack_visual_indexes": [0],
    }
    tokens: dict[str, Any] = {"image_token_id": tokenizer.image_id, "video_token_id": tokenizer.image_id}
    tokens["vision_start_token_id"] = tokenizer.control_ids["<|vision_start|>"]
    tokens["vision_end_token_id"] = tokenizer.control_ids["<|vision_end|>"]
    model_config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **tokens)
    rng_state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = Qwen3VLForConditionalGeneration(model_config)
    torch.set_rng_state(rng_state)
    if config.copies:
        generator = torch.Generator().manual_seed(seed)
        init_number_embeddings(model, tokenizer, generator)
        init_copy_heads(model, generator)
    return Policy(model, tokenizer, style, ImageProcessorConfig(patch=config.patch))
