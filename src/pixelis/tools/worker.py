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
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pixelis.errors import MediaError, PixelisError
from pixelis.media import MediaSet, Medium, ViewRecipe, open_media
from pixelis.media.clip import KEPT_FRAMES
from pixelis.tools.results import Execution, pack, unpack

MAX_MESSAGE_BYTES = 2**31
START_S = 60.0
"""For a process to start and import what it needs, before the deadline of its first call begins."""
REPEATABLE, ONCE = b"+", b"-"
"""How a reply begins: see `Execution.repeatable`."""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Sums in another order round differently: results must not depend on how many cores there are."""
KEPT_MEDIA = 8
KEPT_BYTES = 1 * 2**30
"""Open media kept in a worker, in number and in bytes of pixels, so that a chain over one clip indexes it once."""
SPOOL_BYTES = 2 * 2**30
"""Pixels of media that have no file, on disk for the workers; the least recently used leave first."""


class WorkerDied(Exception):  # noqa: N818 - it is news, not a mistake of the caller
    """The process ended or was killed; the message is a sentence for the failed result."""

    def __init__(self, status: Literal["timeout", "crashed"], sentence: str) -> None:
        super().__init__(sentence)
        self.status: Literal["timeout", "crashed"] = status


class Worker:
    """One tool process: started when first needed, killed at a deadline, started again."""

    def __init__(self, config: dict[str, Any], *, memory_bytes: int) -> None:
        self._config = config
        self._memory_bytes = memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._complaints: BinaryIO | None = None

    def run(self, request: dict[str, Any], deadline_s: float) -> Execution:
        """The result of one call; WorkerDied where the process did not live to say it."""
        limit_s = START_S
        try:
            process = self._started()
            limit_s = deadline_s
            _send(process.stdin, json.dumps(request).encode())
            reply = _receive_before(process.stdout, time.monotonic() + limit_s)
            return unpack(reply[1:])._replace(repeatable=reply[:1] == REPEATABLE)
        except TimeoutError:
            self.stop()
            raise WorkerDied("timeout", f"it did not finish within {limit_s:g} s and was stopped") from None
        except (OSError, EOFError, ValueError) as error:
            sentence = self._last_words(error)
            self.stop()
            raise WorkerDied("crashed", sentence) from None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop()
            self._process = subprocess.Popen(
                # -P: a module that lies in the folder where somebody works, among strangers' media, is not imported
                [sys.executable, "-P", "-m", "pixelis.tools.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                env={**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
            )
            hello = {"config": self._config, "memory_bytes": self._memory_bytes, "path": sys.path}
            _send(self._process.stdin, json.dumps(hello).encode())
            _receive_before(self._process.stdout, time.monotonic() + START_S)
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


class Spool:
    """Media that have no file, put on disk once, so that workers can open them. Bounded: a run may make a million."""

    def __init__(self, *, limit_bytes: int = SPOOL_BYTES) -> None:
        self._limit = limit_bytes
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def references(self, media: tuple[Medium, ...]) -> Iterator[list[dict[str, Any]]]:
        """How another process opens these media; their files stay at least as long as the body runs."""
        with self._lock:
            found = [self._reference(medium) for medium in media]
            held = [r["pixels"] for r in found if "pixels" in r]
            self._held.update(held)
        try:
            yield found
        finally:
            with self._lock:
                self._held.subtract(held)
                self._shrink()

    def forget(self, media: tuple[Medium, ...]) -> None:
        """Take away the files of media that will not be asked for again; one that is in use stays."""
        with self._lock:
            for medium in media:
                file = self._file(medium)
                if file in self._sizes and not self._held[file]:
                    del self._sizes[file]
                    Path(file).unlink(missing_ok=True)

    def _file(self, medium: Medium) -> str:
        return str(Path(self._folder.name) / f"{medium.sha256}.npy") if self._folder else ""

    def _shrink(self) -> None:
        for file in [f for f in self._sizes if not self._held[f]]:
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


class MediaShelf:
    """Open media by content, in the worker."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Medium] = OrderedDict()

    def take(self, reference: dict[str, Any]) -> Medium:
        sha256 = reference["sha256"]
        if sha256 not in self._open:
            self._open[sha256] = self._opened(reference)
            while len(self._open) > KEPT_MEDIA or (len(self._open) > 1 and self._bytes() > KEPT_BYTES):
                self._open.popitem(last=False)
        self._open.move_to_end(sha256)
        return self._open[sha256]

    def _bytes(self) -> int:
        """Of decoded pixels, at most: a clip with a file keeps some of its frames, one without has them all."""
        return sum(
            3 * m.size.pixels * (m.frame_count if m.path is None else min(m.frame_count, KEPT_FRAMES))
            for m in self._open.values()
        )

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
    _send(replies, b"ready")
    while (request := receive()) is not None:
        tool = tools[request["tool"]]
        try:
            media = MediaSet(
                tuple(shelf.take(r) for r in request["media"]),
                tuple(ViewRecipe.model_validate(v) for v in request["views"]),
            )
            execution = execute(tool, parse_args(tool, request["args"]), media, config.limits, perceive)
        except PixelisError as error:
            failed = ToolResult.failed(tool.name, str(error), identity=tool.identity())
            execution = Execution(failed, {}, repeatable=False)
        _send(replies, (REPEATABLE if execution.repeatable else ONCE) + pack(execution))


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
