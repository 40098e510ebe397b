"""The process that tools run in, so that a backend that hangs, crashes or exhausts memory harms nothing else.

Messages are length-prefixed JSON (and artifact bytes) over the pipes of the process: nothing is unpickled. The parent
enforces the deadline by killing the process; the kernel enforces the memory limit.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pixelis.core.child_process import ChildProcess
from pixelis.core.errors import MediaError, PixelisError
from pixelis.media import MediaSet, Medium, ViewRecipe, open_media
from pixelis.media.clip import MAX_CACHED_FRAMES
from pixelis.tools.results import Execution, pack, unpack

MAX_MESSAGE_BYTES = 2**31
START_TIMEOUT_S = 60.0
"""Time for a process to start and import, before the deadline of its first call begins."""
REPEATABLE, ONCE = b"+", b"-"
"""First byte of a reply: see `Execution.repeatable`."""
SINGLE_THREAD_ENV = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Sums in another order round differently: results must not depend on the number of cores."""
MAX_OPEN_MEDIA = 8
MAX_OPEN_BYTES = 1 * 2**30
"""Bounds of the open media in a worker, so that a chain of calls on one clip indexes it once."""
SPOOL_BYTES = 2 * 2**30
"""Bound of the pixels spooled to disk for media without a file; the least recently used are deleted first."""


class WorkerDiedError(Exception):
    """The process ended or was killed; the message goes into the failed result."""

    def __init__(self, status: Literal["timeout", "crashed"], sentence: str) -> None:
        super().__init__(sentence)
        self.status: Literal["timeout", "crashed"] = status


class Worker:
    """One tool process: started on first use, killed at a deadline, restarted at the next call."""

    def __init__(self, config: dict[str, Any], *, memory_bytes: int) -> None:
        self._config = config
        self._memory_bytes = memory_bytes
        self._process: ChildProcess | None = None

    def run(self, request: dict[str, Any], deadline_s: float) -> Execution:
        """The result of one call; WorkerDiedError if the process ended without a reply."""
        limit_s = START_TIMEOUT_S
        try:
            process = self._ensure_started()
            limit_s = deadline_s
            _send(process.stdin, json.dumps(request).encode())
            reply = _receive_before(process.stdout, time.monotonic() + limit_s)
            return unpack(reply[1:])._replace(repeatable=reply[:1] == REPEATABLE)
        except TimeoutError:
            self.stop()
            raise WorkerDiedError("timeout", f"it did not finish within {limit_s:g} s and was stopped") from None
        except (OSError, EOFError, ValueError) as error:
            sentence = self._describe_death(error)
            self.stop()
            raise WorkerDiedError("crashed", sentence) from None

    def _ensure_started(self) -> ChildProcess:
        if self._process is None or not self._process.is_alive:
            self.stop()
            self._process = ChildProcess("pixelis.tools.worker", SINGLE_THREAD_ENV)
            handshake = {"config": self._config, "memory_bytes": self._memory_bytes, "path": sys.path}
            _send(self._process.stdin, json.dumps(handshake).encode())
            _receive_before(self._process.stdout, time.monotonic() + START_TIMEOUT_S)
        return self._process

    def _describe_death(self, error: Exception) -> str:
        process = self._process
        status = process.exit_status(timeout_s=5) if process and isinstance(error, EOFError) else ""
        last_line = process.last_line()[:200] if process else ""
        return f"its process died ({status or error})" + (f": {last_line}" if last_line else "")

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None


def _send(pipe: Any, message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "big") + message)
    pipe.flush()


def _receive_before(pipe: Any, deadline: float) -> bytes:
    """One message; TimeoutError at the deadline, EOFError if the other side is gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        received = bytearray()
        expected_bytes = 8
        while len(received) < expected_bytes:
            if not selector.select(max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError
            chunk = os.read(pipe.fileno(), min(expected_bytes - len(received), 2**20))
            if not chunk:
                raise EOFError("the pipe closed")
            received += chunk
            if expected_bytes == 8 and len(received) == 8:
                expected_bytes = 8 + int.from_bytes(received, "big")
                if expected_bytes > MAX_MESSAGE_BYTES:
                    raise ValueError("its answer is too large")
        return bytes(received[8:])


class Spool:
    """Media without a file, written to disk once for the workers, within a bound: a run may make a million."""

    def __init__(self, *, limit_bytes: int = SPOOL_BYTES) -> None:
        self._limit = limit_bytes
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._use_counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def references(self, media: tuple[Medium, ...]) -> Iterator[list[dict[str, Any]]]:
        """References by which another process opens these media; their files exist at least while the body runs."""
        with self._lock:
            media_references = [self._reference(medium) for medium in media]
            files_in_use = [r["pixels"] for r in media_references if "pixels" in r]
            self._use_counts.update(files_in_use)
        try:
            yield media_references
        finally:
            with self._lock:
                self._use_counts.subtract(files_in_use)
                self._shrink()

    def release(self, media: tuple[Medium, ...]) -> None:
        """Delete the files of media that are no longer needed, except those in use."""
        with self._lock:
            for medium in media:
                file = self._file(medium)
                if file in self._sizes and not self._use_counts[file]:
                    del self._sizes[file]
                    Path(file).unlink(missing_ok=True)

    def _file(self, medium: Medium) -> str:
        return str(Path(self._folder.name) / f"{medium.sha256}.npy") if self._folder else ""

    def _shrink(self) -> None:
        for file in [f for f in self._sizes if not self._use_counts[f]]:
            if sum(self._sizes.values()) <= self._limit:
                return
            del self._sizes[file]
            Path(file).unlink(missing_ok=True)

    def _reference(self, medium: Medium) -> dict[str, Any]:
        fps = getattr(medium, "fps", None)
        if medium.path is not None:
            return {"path": str(medium.path.absolute()), "sha256": medium.sha256, "fps": fps}
        import numpy as np

        self._folder = self._folder or tempfile.TemporaryDirectory(prefix="pixelis-", ignore_cleanup_errors=True)
        file = Path(self._file(medium))
        if str(file) not in self._sizes:
            try:
                with file.open("wb") as out:
                    np.save(out, np.stack([medium.frame(i) for i in range(medium.frame_count)]), allow_pickle=False)
            except BaseException:
                file.unlink(missing_ok=True)
                raise
            self._sizes[str(file)] = file.stat().st_size
        self._sizes.move_to_end(str(file))
        return {"pixels": str(file), "kind": medium.kind, "sha256": medium.sha256, "fps": fps}

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
            self._sizes.clear()


class OpenMediaCache:
    """Open media by content, in the worker."""

    def __init__(self) -> None:
        self._media: OrderedDict[str, Medium] = OrderedDict()

    def get(self, reference: dict[str, Any]) -> Medium:
        sha256 = reference["sha256"]
        if sha256 not in self._media:
            self._media[sha256] = self._open_reference(reference)
            while len(self._media) > MAX_OPEN_MEDIA or (len(self._media) > 1 and self._bytes() > MAX_OPEN_BYTES):
                self._media.popitem(last=False)
        self._media.move_to_end(sha256)
        return self._media[sha256]

    def _bytes(self) -> int:
        """Upper bound of the decoded bytes: a clip with a file caches some frames, one without holds all."""
        return sum(
            3 * m.size.pixels * (m.frame_count if m.path is None else min(m.frame_count, MAX_CACHED_FRAMES))
            for m in self._media.values()
        )

    @staticmethod
    def _open_reference(reference: dict[str, Any]) -> Medium:
        if "pixels" in reference:
            import numpy as np

            from pixelis.media.clip import Clip
            from pixelis.media.image import Image

            frames = np.load(reference["pixels"], allow_pickle=False)
            if reference["kind"] == "image":
                return Image(frames[0], sha256=reference["sha256"])
            return Clip.from_frames(list(frames), fps=reference["fps"], sha256=reference["sha256"])
        path = Path(reference["path"])
        medium = open_media(path, fps=reference["fps"]) if path.is_dir() else open_media(path)
        if medium.sha256 != reference["sha256"]:
            raise MediaError(f"{path.name} changed after it was opened; open it again")
        return medium


def serve(requests: BinaryIO, replies: BinaryIO) -> None:
    """Run a worker: a handshake, then one call after another until the pipe closes."""
    from pixelis.tools.cache import PerceptionCache, ResultCache
    from pixelis.tools.execute import execute, parse_args
    from pixelis.tools.results import ToolResult
    from pixelis.tools.toolbox import ToolboxConfig, build_tools

    def receive() -> dict[str, Any] | None:
        head = requests.read(8)
        return json.loads(requests.read(int.from_bytes(head, "big"))) if len(head) == 8 else None

    handshake = receive()
    if handshake is None:
        return
    _limit_resources(handshake["memory_bytes"])
    sys.path[:] = handshake["path"]
    config = ToolboxConfig.model_validate(handshake["config"])
    tools = build_tools(config)
    result_cache = ResultCache(config.cache_path, limit_bytes=config.cache_bytes) if config.cache else None
    perceive = PerceptionCache(result_cache)
    media_cache = OpenMediaCache()
    _send(replies, b"ready")
    while (request := receive()) is not None:
        tool = tools[request["tool"]]
        try:
            sources = tuple(media_cache.get(reference) for reference in request["media"])
            media = MediaSet(sources, tuple(ViewRecipe.model_validate(view) for view in request["views"]))
            execution = execute(tool, parse_args(tool, request["args"]), media, config.limits, perceive)
        except PixelisError as error:
            result = ToolResult.failed(tool.name, str(error), identity=tool.identity())
            execution = Execution(result, {}, repeatable=False)
        _send(replies, (REPEATABLE if execution.repeatable else ONCE) + pack(execution))


def _limit_resources(memory_bytes: int) -> None:
    """Set the memory limit and single-threaded libraries, and exit with the parent."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import cv2

    cv2.setNumThreads(1)
    parent = os.getppid()

    def exit_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


if __name__ == "__main__":
    reply_pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints must not mix with the replies
    serve(sys.stdin.buffer, reply_pipe)
