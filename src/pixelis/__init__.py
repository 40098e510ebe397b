"""Pixelis: a pixel-space vision-language agent with executable tools and replayable evidence.

    import pixelis

    answer = pixelis.ask("sign.jpg", "What does the sign say?")
    answer.save("evidence.html")

`import pixelis` alone loads nothing heavy: every name below is imported when it is first used. Media, tools, traces,
metrics and most equations work without torch; policies, training and the losses in `equations` need it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pixelis import equations, metrics
    from pixelis.api import Answer, LoadedPolicy, ask, evaluate, load_policy
    from pixelis.core.errors import PixelisError
    from pixelis.data.corpus.corpus import Corpus
    from pixelis.evaluation.harness import Evaluation
    from pixelis.media import Clip, Image, MediaSet, open_media
    from pixelis.memory.memory_store import MemoryStore as Memory
    from pixelis.tools.base import Tool
    from pixelis.tools.ocr import Ocr
    from pixelis.tools.prop import Prop
    from pixelis.tools.results import ToolCall, ToolResult
    from pixelis.tools.seg import Seg
    from pixelis.tools.temp import Temp
    from pixelis.tools.toolbox import Toolbox, ToolboxConfig
    from pixelis.tools.trk import Trk
    from pixelis.tools.zoom import Zoom
    from pixelis.trace.codec import read as read_traces
    from pixelis.trace.recorder import TraceRecorder
    from pixelis.trace.schema import Trace
    from pixelis.training.grpo.rft_config import RftConfig
    from pixelis.training.grpo.train import train_rft
    from pixelis.training.sft.sft_config import SftConfig
    from pixelis.training.sft.train import train_sft
    from pixelis.training.ttrl.train import adapt
    from pixelis.training.ttrl.ttrl_config import TtrlConfig

__all__ = [
    "Answer", "Clip", "Corpus", "Evaluation", "Image", "LoadedPolicy", "MediaSet", "Memory", "Ocr", "PixelisError",
    "Prop", "RftConfig", "Seg", "SftConfig", "Temp", "Tool", "ToolCall", "ToolResult", "Toolbox", "ToolboxConfig",
    "Trace", "TraceRecorder", "Trk", "TtrlConfig", "Zoom", "__version__", "adapt", "ask", "equations", "evaluate",
    "load_policy", "metrics", "open_media", "read_traces", "train_rft", "train_sft",
]  # fmt: skip
MODULES = {
    "api": "Answer LoadedPolicy ask evaluate load_policy",
    "core.errors": "PixelisError",
    "data.corpus.corpus": "Corpus",
    "evaluation.harness": "Evaluation",
    "media": "Clip Image MediaSet open_media",
    "memory.memory_store": "MemoryStore",
    "tools.base": "Tool",
    "tools.ocr": "Ocr",
    "tools.prop": "Prop",
    "tools.results": "ToolCall ToolResult",
    "tools.seg": "Seg",
    "tools.temp": "Temp",
    "tools.toolbox": "Toolbox ToolboxConfig",
    "tools.trk": "Trk",
    "tools.zoom": "Zoom",
    "trace.codec": "read",
    "trace.recorder": "TraceRecorder",
    "trace.schema": "Trace",
    "training.grpo.rft_config": "RftConfig",
    "training.grpo.train": "train_rft",
    "training.sft.sft_config": "SftConfig",
    "training.sft.train": "train_sft",
    "training.ttrl.train": "adapt",
    "training.ttrl.ttrl_config": "TtrlConfig",
}
EXTRAS = {"api": "policy", "data": "data", "evaluation": "eval", "memory": "memory", "training": "train"}
"""The extra that brings all that a subpackage needs."""
RENAMED = {"MemoryStore": "Memory", "read": "read_traces"}
PUBLIC = {RENAMED.get(name, name): (module, name) for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in ("equations", "metrics"):
        return import_module(f"pixelis.{name}")
    if name not in PUBLIC:
        raise AttributeError(f"module 'pixelis' has no attribute {name!r}")
    module, attribute = PUBLIC[name]
    try:
        value = globals()[name] = getattr(import_module(f"pixelis.{module}"), attribute)
    except ModuleNotFoundError as error:
        from pixelis.core.extras import missing_extra

        extra = EXTRAS.get(module.partition(".")[0], "")
        raise missing_extra(error, f"pixelis.{name}", extra) or error from error
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
