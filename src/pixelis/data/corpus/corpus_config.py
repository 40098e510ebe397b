"""The configuration of a corpus (sec:data): how many items of which kind, which teacher, which tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from pixelis.core.config import Config
from pixelis.data.corpus.record import Split
from pixelis.data.corpus.splits import SEEDS_PER_CORPUS, SEEDS_PER_SPLIT
from pixelis.items import FAMILIES, Family
from pixelis.rollout.remote.chat_client import ServerConfig
from pixelis.tools.toolbox import ToolboxConfig

RUNTIME_KEYS: dict[str, Any] = {
    "toolbox": {"cache", "cache_path", "cache_bytes", "isolate", "workers", "memory_bytes"},
    "teacher": {
        "server": {
            "concurrency", "max_requests", "max_tokens_spent", "api_key_variable", "timeout_s", "tries", "pause_s",
        }
    },
}  # fmt: skip
"""Keys that affect the speed of a build and where it keeps files, not its content."""


class TeacherConfig(Config):
    """The teacher that solves the items."""

    old_names: ClassVar = {
        "detours": "detour_rate",
        "by_eye": "visual_guess_rate",
        "plain": "canonical_wording",
        "max_slips": "max_parse_errors",
    }

    kind: Literal["oracle", "vlm", "answers", "auto", "plugin"] = "oracle"
    """`oracle` follows the reference program; `vlm` is a model behind a server; `answers` calls no tool and gives the
    item's answer; `auto` is the oracle if it knows the template, otherwise `answers`; `plugin` is your own teacher."""
    plugin: str = ""
    """`module:factory` of a teacher, for `kind: plugin`."""
    detour_rate: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of items in which the oracle makes mistakes and recovers; in the others it takes the shortest path."""
    visual_guess_rate: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of opportunities at which the oracle looks at a place that no tool has returned; lower it for a policy with
    weak vision."""
    canonical_wording: bool = False
    """For a small policy: one wording per thought, the order of the question, and boxes copied as they were printed."""
    server: ServerConfig = ServerConfig()
    max_turns: int = Field(default=16, ge=1, le=64)
    """Replies after which a VLM's trace ends without an answer."""
    max_parse_errors: int = Field(default=3, ge=0)
    """Unparsable replies per trace that are answered with a reminder."""
    image_side: int = Field(default=1024, ge=64, le=4096)
    """Longest side, in pixels, of the pictures that are sent."""
    clip_frames: int = Field(default=16, ge=1, le=128)
    """Frames of a clip that are sent, each with its time."""

    @model_validator(mode="after")
    def _require_teacher_settings(self) -> Self:
        if self.kind == "vlm" and not self.server.model:
            raise ValueError("kind vlm: server.model must name the model")
        if self.kind == "plugin" and ":" not in self.plugin:
            raise ValueError("kind plugin: plugin must be module:factory")
        return self


class TeacherToolboxConfig(ToolboxConfig):
    """The teacher's tools, with classical regions by default."""

    seg: Literal["auto", "classical", "sam2", "sam2-transformers"] = "classical"


class CorpusConfig(Config):
    """A corpus of generated items, imported items, or both."""

    old_names: ClassVar = {"shifted": "shift_share"}
    n: int = Field(default=5000, ge=1, le=SEEDS_PER_CORPUS)
    """Number of items."""
    seed: int = Field(default=0, ge=0, lt=SEEDS_PER_SPLIT // SEEDS_PER_CORPUS)
    """Corpora of different seeds share no item."""
    splits: dict[Split, float] = Field(default={"train": 0.82, "dev": 0.06, "dev-cal": 0.04, "test": 0.08})
    """Shares. The paper's media are 108k, 10k and 10k (sec:data); `dev-cal` is split off dev for calibration."""
    families: dict[Family, float] = dict.fromkeys(FAMILIES, 1.0)
    """Weights of the six generated task families; all 0 if only `items` are given."""
    items: tuple[Path, ...] = ()
    """Files of items from `pixelis data import`; each item is used once, in the split that owns its media."""
    items_weight: float = Field(default=1.0, ge=0.0)
    """Weight of all imported items together, beside the weights of the families."""
    difficulties: dict[int, float] = Field(default={1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0})
    """Weights of the five difficulty levels."""
    shift_share: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of items whose media are shifted."""
    photographs: Path | None = None
    """Folder of pictures used as backgrounds."""
    shard_size: int = Field(default=200, ge=1, le=100_000)
    """Records per shard."""
    store_artifacts: bool = False
    """Keep the tools' artifacts (views, frames). If off, traces keep their hashes and a replay makes them again."""
    store_media: bool = False
    """Copy the media of imported items into the shards. Generated media are rendered again from their seed."""
    teacher: TeacherConfig = TeacherConfig()
    toolbox: TeacherToolboxConfig = TeacherToolboxConfig()

    @model_validator(mode="before")
    @classmethod
    def _default_to_items_only(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("items") and "families" not in data:
            return {**data, "families": dict.fromkeys(FAMILIES, 0.0)}
        return data

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        may_be_zero = {"families"} if self.items and self.items_weight > 0.0 else set[str]()
        for name in ("splits", "families", "difficulties"):
            values = list(getattr(self, name).values())
            if any(value < 0.0 for value in values) or (sum(values) <= 0.0 and name not in may_be_zero):
                raise ValueError(f"{name}: weights must be 0 or more, and at least one over 0")
        if invalid_levels := [d for d in self.difficulties if not 1 <= d <= 5]:
            raise ValueError(f"difficulties: {invalid_levels} are not among 1 to 5")
        if len({path.name for path in self.items}) < len(self.items):
            raise ValueError("items: two files have the same name, which records refer to; rename one")
        return self

    @property
    def items_share(self) -> float:
        """Share of imported items, 0 to 1, if there are enough of them."""
        family_weight = sum(self.families.values())
        return self.items_weight / (self.items_weight + family_weight) if self.items and self.items_weight else 0.0

    def identity(self) -> dict[str, Any]:
        """The part of the configuration that the content depends on. The plan names files of items by their content."""
        content = self.model_dump(mode="json", exclude={**RUNTIME_KEYS, "items": True})
        if not self.items:
            del content["items_weight"]
        return content
