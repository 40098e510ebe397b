"""The toolbox: all tools behind one call, with cache, deadlines and processes."""

from __future__ import annotations

import importlib
import json
import queue
import threading
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from pixelis.core.errors import ConfigError, MediaError, ToolError
from pixelis.core.geometry import Value
from pixelis.media import MediaSet
from pixelis.tools.base import Tool, ToolArgs, WorkLimits, canonical_name
from pixelis.tools.cache import PerceptionCache, ResultCache, cache_key
from pixelis.tools.execute import execute, parse_args, rename_media, source_name
from pixelis.tools.results import Execution, Status, ToolCall, ToolIdentity, ToolResult, pack, unpack

if TYPE_CHECKING:
    from pixelis.tools.worker import Spool, Worker


class ToolboxConfig(Value):
    """How tools run."""

    seg: Literal["auto", "classical", "sam2", "sam2-transformers"] = "auto"
    """Backend of SEG; `auto` is SAM 2 where its weights are pulled, else classical regions."""
    sam2_model: str = "facebook/sam2.1-hiera-large"
    """Directory or hub id for the `sam2-transformers` backend."""
    disabled: tuple[str, ...] = ()
    """Tools that answer with a typed empty result (supp:tool_necessity)."""
    plugins: tuple[str, ...] = ()
    """Additional tools as `module:Class`; one with a built-in name replaces that tool."""
    limits: WorkLimits = WorkLimits()
    cache: bool = True
    cache_path: Path | None = None
    cache_bytes: int = 4 * 2**30
    isolate: bool = True
    """Run tools in separate processes. Without them, a backend that hangs blocks the caller."""
    workers: int = Field(default=1, ge=1, le=64)
    memory_bytes: int = 8 * 2**30
    """Limit on the address space of one worker."""
    deadline_s: float | None = Field(default=None, gt=0.0)
    """Overrides every tool's own deadline."""


def build_tools(config: ToolboxConfig) -> dict[str, Tool[Any]]:
    """The six tools and the plugins, by name. Cheap: models load at the first call."""
    from pixelis.tools.ocr import Ocr
    from pixelis.tools.prop import Prop
    from pixelis.tools.seg import Seg
    from pixelis.tools.temp import Temp
    from pixelis.tools.trk import Trk
    from pixelis.tools.zoom import Zoom

    tools: list[Tool[Any]] = [Seg(config.seg, config.sam2_model), Zoom(), Trk(), Ocr(), Temp(), Prop()]
    tools += [load_plugin(plugin) for plugin in config.plugins]
    return {tool.name: tool for tool in tools}


def decisive_thresholds(tools: Mapping[str, Tool[Any]]) -> dict[str, float]:
    """Minimum confidence of a decisive step, by tool."""
    return {name: tool.decisive_confidence for name, tool in tools.items()}


@cache
def builtin_thresholds() -> Mapping[str, float]:
    """`decisive_thresholds` of the six built-in tools, for use without a toolbox."""
    return decisive_thresholds(build_tools(ToolboxConfig()))


def load_plugin(plugin: str) -> Tool[Any]:
    """A tool from `module:Class`, as docs/how-to/own_tool.md shows it."""
    module_name, _, class_name = plugin.partition(":")
    try:
        tool = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:  # a module that somebody names may raise anything while it is imported
        why = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugin {plugin!r} cannot be loaded ({why}); want module:Class of a Tool") from error
    if not isinstance(tool, Tool):
        raise ConfigError(f"plugin {plugin!r} is not a pixelis.tools.base.Tool")
    return tool


class Toolbox:
    """Runs calls. Thread-safe; a context manager, since it owns processes."""

    def __init__(self, config: ToolboxConfig | None = None) -> None:
        self.config = config = config or ToolboxConfig()
        self.tools = build_tools(config)
        self._disabled = frozenset(canonical_name(name) for name in config.disabled)
        unknown = self._disabled - self.tools.keys()
        if unknown:
            raise ConfigError(f"cannot disable {', '.join(sorted(unknown))}: the tools are {', '.join(self.tools)}")
        self.cache = ResultCache(config.cache_path, limit_bytes=config.cache_bytes) if config.cache else None
        self._perceive = PerceptionCache(self.cache)
        self._in_process_lock = threading.Lock()
        self._spool: Spool | None = None
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._workers: list[Worker] = []
        if config.isolate:
            from pixelis.tools.worker import Spool, Worker

            self._spool = Spool()
            worker_config = config.model_dump(mode="json")
            self._workers = [Worker(worker_config, memory_bytes=config.memory_bytes) for _ in range(config.workers)]
            for worker in self._workers:
                self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        if self._spool:
            self._spool.close()
        if self.cache:
            self.cache.close()

    def reset_perception(self) -> None:
        """Drop this process's perception cache, so that the next call costs as much as the first."""
        self._perceive = PerceptionCache(self.cache)

    def release(self, media: MediaSet) -> None:
        """Delete the pixels that were spooled to disk for workers: these media are no longer needed."""
        if self._spool:
            self._spool.release(media.sources)

    def schemas(self) -> list[dict[str, Any]]:
        """Every tool in the OpenAI function format."""
        return [tool.schema() for tool in self.tools.values()]

    def pull_weights(self, tool: str) -> None:
        """Fetch the files that a tool cannot do without, where they are absent; WeightsError where they cannot be."""
        from pixelis.weights import is_available, pull

        for name in getattr(self.tools.get(canonical_name(tool)), "weights", ()):
            if not is_available(name):
                pull(name)

    def run(self, call: ToolCall, media: MediaSet) -> Execution:
        """The result of one call. A failure of any kind is a result; nothing is raised."""
        start = time.perf_counter()
        name = canonical_name(call.tool)
        tool = self.tools.get(name)
        if tool is None:
            error = f"there is no tool {call.tool!r}: the tools are {', '.join(self.tools)}"
            return _failed_execution(name, error, "invalid")
        if name in self._disabled:
            return Execution(ToolResult(tool=name, status="disabled", text=f"{name}: no output"), {})
        try:
            args = parse_args(tool, call.args)
            medium = media.canonical_name(args.media)
        except (ToolError, MediaError) as refusal:
            return _failed_execution(name, str(refusal), "invalid")
        key = self._cache_key(tool, args, media, medium)
        cached = self._cached_result(key, source_name(media, medium))
        if cached is not None:
            seconds = round(time.perf_counter() - start, 6)
            result = cached.result.model_copy(update={"seconds": seconds})
            return cached._replace(result=result, first_seconds=cached.result.seconds)
        execution = self._execute(tool, args, media)
        if self.cache and execution.repeatable:
            self.cache.put(key, pack(execution))
        return execution

    def _cache_key(self, tool: Tool[Any], args: ToolArgs, media: MediaSet, name: str) -> str:
        recipe = media.recipe(name)
        source = media.source(source_name(media, name))
        canonical = args.model_copy(update={"media": None}).model_dump_json()
        view_key = recipe.model_copy(update={"media": ""}).model_dump_json() if recipe else ""
        limits = self.config.limits.model_dump_json()
        return cache_key("result", source.sha256, view_key, tool.identity().model_dump_json(), limits, canonical)

    def _cached_result(self, key: str, name: str) -> Execution | None:
        packed = self.cache.get(key) if self.cache else None
        if packed is None:
            return None
        try:
            execution = unpack(packed)
        except ValueError:
            return None  # a damaged entry is no entry
        return Execution(rename_media(execution.result, name), execution.blobs, cached=True)

    def _execute(self, tool: Tool[Any], args: ToolArgs, media: MediaSet) -> Execution:
        if self._spool is None:
            with self._in_process_lock:
                return execute(tool, args, media, self.config.limits, self._perceive)
        from pixelis.tools.worker import WorkerDiedError

        worker = self._idle.get()
        deadline_s = self.config.deadline_s or tool.deadline_s
        try:
            with self._spool.references(media.sources) as references:
                arguments = json.loads(args.model_dump_json())
                views = [json.loads(view.model_dump_json()) for view in media.views]
                request = {"tool": tool.name, "args": arguments, "media": references, "views": views}
                return worker.run(request, deadline_s)
        except WorkerDiedError as worker_error:
            return _failed_execution(tool.name, str(worker_error), worker_error.status, tool.identity())
        except MediaError as error:
            return _failed_execution(tool.name, str(error), "failed", tool.identity())
        except OSError as error:
            sentence = f"the medium cannot be handed to a worker ({error.strerror})"
            return _failed_execution(tool.name, sentence, "failed", tool.identity())
        finally:
            self._idle.put(worker)


def _failed_execution(tool: str, error: str, status: Status, identity: ToolIdentity | None = None) -> Execution:
    return Execution(ToolResult.failed(tool, error, status, identity=identity), {}, repeatable=False)
