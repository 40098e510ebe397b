"""The process that tools run in, so that a backend that hangs, crashes or eats memory takes nothing with it.

Messages are length-prefixed JSON (and artifact bytes) over the pipes of the process: nothing is unpickled. The parent
holds the deadline and kills; the kernel holds the memory ceiling.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

from pixelis.errors import MediaError, PixelisError
from pixelis.media import MediaSet, Medium, ViewRecipe, open_media
from pixelis.tools.results import Execution, pack, unpack

MAX_MESSAGE_BYTES = 2**31
KEPT_MEDIA = 8
"""Open media kept in a worker, so that a chain over one clip indexes it once."""


class WorkerDied(Exception):  # noqa: N818 - it is news, not a mistake of the caller
    """The process ended or was killed; the message is a sentence for the failed result."""

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Worker:
    """One tool process: started when first needed, killed at a deadline, started again."""

    def __init__(self, config: dict[str, Any], *, memory_bytes: int) -> None:
        self._config = config
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: BinaryIO | None = None

    def run(self, request: dict[str, Any], deadline_s: float) -> Execution:
        """The result of one call; WorkerDied where the process did not live to say it."""
        process = self._started()
        try:
            _send(process.stdin, json.dumps(request).encode())
            return unpack(_receive_before(process.stdout, time.monotonic() + deadline_s))
        except TimeoutError:
            self.stop()
            raise WorkerDied("timeout", f"it did not finish within {deadline_s:g} s and was stopped") from None
        except (OSError, EOFError, ValueError) as error:
            sentence = self._last_words(error)
            self.stop()
            raise WorkerDied("crashed", sentence) from None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "pixelis.tools.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
            hello = {"config": self._config, "memory_bytes": self._memory_bytes, "path": sys.path}
            _send(self._process.stdin, json.dumps(hello).encode())
        return self._process

    def _last_words(self, error: Exception) -> str:
        code = self._process.wait(timeout=5) if self._process and isinstance(error, EOFError) else None
        words = ""
        if self._complaints is not None:
            self._complaints.seek(0)
            lines = self._complaints.read()[-4000:].decode(errors="replace").strip().splitlines()
            words = f": {lines[-1].strip()[:200]}" if lines else ""
        how = f"signal {-code}" if code is not None and code < 0 else f"exit status {code}" if code else str(error)
        return f"its process died ({how}){words}"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    pipe.close()
            self._process = None
        if self._complaints is not None:
            self._complaints.close()
            self._complaints = None


def _send(pipe: Any, message: bytes) -> None:
    pipe.write(len(message).to_bytes(8, "big") + message)
    pipe.flush()


def _receive_before(pipe: Any, deadline: float) -> bytes:
    """One message, or TimeoutError; EOFError where the other side is gone."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        received = bytearray()
        wanted = 8
        while len(received) < wanted:
            if not selector.select(max(deadline - time.monotonic(), 0.0)):
                raise TimeoutError
            part = os.read(pipe.fileno(), min(wanted - len(received), 2**20))
            if not part:
                raise EOFError("the pipe closed")
            received += part
            if wanted == 8 and len(received) == 8:
                wanted = 8 + int.from_bytes(received, "big")
                if wanted > MAX_MESSAGE_BYTES:
                    raise ValueError("its answer is too large")
        return bytes(received[8:])


def reference(medium: Medium, spool: Path) -> dict[str, Any]:
    """How another process opens the same medium: by its file, or by pixels put on disk once."""
    if medium.path is not None:
        return {"path": str(medium.path.absolute()), "sha256": medium.sha256, "fps": getattr(medium, "fps", None)}
    import numpy as np

    file = spool / f"{medium.sha256}.npy"
    if not file.exists():
        partial = spool / f"{medium.sha256}.{os.getpid()}.{threading.get_ident()}.part"
        with partial.open("wb") as out:
            np.save(out, np.stack([medium.frame(i) for i in range(medium.frame_count)]), allow_pickle=False)
        partial.replace(file)
    return {"pixels": str(file), "kind": medium.kind, "sha256": medium.sha256, "fps": getattr(medium, "fps", None)}


class MediaShelf:
    """Open media by content, in the worker."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Medium] = OrderedDict()

    def take(self, reference: dict[str, Any]) -> Medium:
        sha256 = reference["sha256"]
        if sha256 not in self._open:
            self._open[sha256] = self._opened(reference)
            if len(self._open) > KEPT_MEDIA:
                self._open.popitem(last=False)
        self._open.move_to_end(sha256)
        return self._open[sha256]

    @staticmethod
    def _opened(reference: dict[str, Any]) -> Medium:
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
    """The life of a worker: a greeting, then one call after another until the pipe closes."""
    from pixelis.tools.base import WorkLimits
    from pixelis.tools.cache import PerceptionCache, ResultCache
    from pixelis.tools.executing import execute, parse_args
    from pixelis.tools.results import ToolResult
    from pixelis.tools.toolbox import ToolboxConfig, build_tools

    def receive() -> dict[str, Any] | None:
        head = requests.read(8)
        return json.loads(requests.read(int.from_bytes(head, "big"))) if len(head) == 8 else None

    hello = receive()
    if hello is None:
        return
    _confine(hello["memory_bytes"])
    sys.path[:] = hello["path"]
    config = ToolboxConfig.model_validate(hello["config"])
    tools = build_tools(config)
    below = ResultCache(config.cache_path, limit_bytes=config.cache_bytes) if config.cache else None
    perceive = PerceptionCache(below)
    shelf = MediaShelf()
    while (request := receive()) is not None:
        tool = tools[request["tool"]]
        try:
            media = MediaSet(
                tuple(shelf.take(r) for r in request["media"]),
                tuple(ViewRecipe.model_validate(v) for v in request["views"]),
            )
            execution = execute(tool, parse_args(tool, request["args"]), media, WorkLimits(**config.limits), perceive)
        except PixelisError as error:
            execution = Execution(ToolResult.failed(tool.name, str(error), identity=tool.identity()), {})
        _send(replies, pack(execution))


def _confine(memory_bytes: int) -> None:
    """The memory ceiling, one thread a library, and an end when the parent is gone."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import cv2

    cv2.setNumThreads(1)
    parent = os.getppid()

    def leave_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()


if __name__ == "__main__":
    own_stdout = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not fall among the replies
    serve(sys.stdin.buffer, own_stdout)
