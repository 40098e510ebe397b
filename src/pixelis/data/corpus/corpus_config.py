"""What a corpus is made of (sec:data): how much of what, by which teacher, through which tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

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
"""Keys that change how long a build takes and where it keeps things, never what it gives."""


class TeacherConfig(Config):
    """Who solves the items."""

    kind: Literal["oracle", "vlm", "answers", "auto", "plugin"] = "oracle"
    """`oracle` knows the reference program; `vlm` is a model behind a server; `answers` calls no tool and gives the
    item's own answer; `auto` is the oracle where it knows the way, else the answer; `plugin` is your own."""
    plugin: str = ""
    """`module:factory` of a teacher, for `kind: plugin`."""
    detours: float = Field(default=1.0, ge=0.0, le=1.0)
    """In how many items, of 1, the oracle stumbles and recovers as a strong model does; in the others it takes the
    shortest way."""
    by_eye: float = Field(default=1.0, ge=0.0, le=1.0)
    """How often, of 1, the oracle looks at a place that no tool has returned: less for a policy with weak eyes."""
    plain: bool = False
    """For a small policy: the oracle says one thing in one way, goes in the order of the question, and hands boxes on
    as they were printed, so that what it writes is copied and not chosen."""
    server: ServerConfig = ServerConfig()
    max_turns: int = Field(default=16, ge=1, le=64)
    """Replies after which a VLM's trace ends without an answer."""
    max_slips: int = Field(default=3, ge=0)
    """Replies that are no call, in one trace, that are answered with a reminder."""
    image_side: int = Field(default=1024, ge=64, le=4096)
    """Pictures are sent at most this long."""
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
    """Tools of a teacher: classical regions, the gym's default, unless the file says otherwise."""

    seg: Literal["auto", "classical", "sam2", "sam2-transformers"] = "classical"


class CorpusConfig(Config):
    """A corpus of the world, of imported items, or of both."""

    n: int = Field(default=5000, ge=1, le=SEEDS_PER_CORPUS)
    """Items in all."""
    seed: int = Field(default=0, ge=0, lt=SEEDS_PER_SPLIT // SEEDS_PER_CORPUS)
    """Corpora of different seeds share no item."""
    splits: dict[Split, float] = Field(default={"train": 0.82, "dev": 0.06, "dev-cal": 0.04, "test": 0.08})
    """Shares. The paper's media are 108k, 10k and 10k (sec:data); our dev gives a part to calibration."""
    families: dict[Family, float] = dict.fromkeys(FAMILIES, 1.0)
    """Weights of the six task families of the world; 0 for all of them if only `items` are named."""
    items: tuple[Path, ...] = ()
    """Files of items as `pixelis data import` writes them; each is used once, in the split that its media belong to."""
    items_weight: float = Field(default=1.0, ge=0.0)
    """Weight of all items together, beside the weights of the families."""
    difficulties: dict[int, float] = Field(default={1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0, 5: 1.0})
    """Weights of the five levels."""
    shifted: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of items whose media go through a shift."""
    photographs: Path | None = None
    """Folder of pictures that serve as grounds."""
    shard_size: int = Field(default=200, ge=1, le=100_000)
    """Records in one shard."""
    store_artifacts: bool = False
    """Keep what tools produced (views, frames). Off: their hashes are in the traces, and a replay makes them again."""
    store_media: bool = False
    """Copy the files of imported items into the shards. World media are rendered again from their seed."""
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
                raise ValueError(f"{name}: weights are 0 or more, and one of them is over 0")
        if invalid_levels := [d for d in self.difficulties if not 1 <= d <= 5]:
            raise ValueError(f"difficulties: {invalid_levels} are not among 1 to 5")
        if len({path.name for path in self.items}) < len(self.items):
            raise ValueError("items: two files have the same name, by which records call them; rename one")
        return self

    @property
    def items_share(self) -> float:
        """Of the corpus, 0 to 1, as far as there are enough items."""
        family_weight = sum(self.families.values())
        return self.items_weight / (self.items_weight + family_weight) if self.items and self.items_weight else 0.0

    def identity(self) -> dict[str, Any]:
        """What the content depends on: the configuration without the ways of running it.

        Files of items are named in the plan by their content; a corpus of the world alone says nothing about them.
        """
        content = self.model_dump(mode="json", exclude={**RUNTIME_KEYS, "items": True})
        if not self.items:
            del content["items_weight"]
        return content
