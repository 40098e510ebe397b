"""A client of any OpenAI-compatible server that never asks twice and never spends more than it may.

A reply is put on disk under the hash of its request before anything is made of it, and every attempt is written into a
ledger before it is sent. So a killed run goes on from the disk, and the cap holds over all runs. What the server says
is hostile until checked: replies have a limit of bytes, requests one of time, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pixelis.data.corpus_config import ServerConfig
from pixelis.data.teaching import UndoneError
from pixelis.errors import ConfigError, TraceError
from pixelis.trace.artifacts import write_whole
from pixelis.trace.schema import canonical_json

AGAIN = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Another try may help."""
REFUSALS = frozenset({400, 413, 422})
"""The server has read the request and will not have it: the same request would be refused again."""
LONGEST_PAUSE_S = 60.0
MOST_TOKENS = 10**8
"""A reply that claims to have used more is not believed."""


class Answer(NamedTuple):
    """What the server said to a request."""

    status: int
    """200, or one of the refusals."""
    body: dict[str, Any]
    kept: bool
    """It was on disk already."""

    @property
    def refused(self) -> bool:
        return self.status != 200

    @property
    def tokens(self) -> int | None:
        """Tokens used, where the server says so in a number that can be true."""
        usage = self.body.get("usage")
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        return total if type(total) is int and 0 <= total <= MOST_TOKENS else None


class TransientError(Exception):
    """A try that failed in a way that another may not."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


def request_key(body: dict[str, Any]) -> str:
    """The name of a request: the same question to the same model, wherever it is served."""
    return hashlib.sha256(canonical_json(body)).hexdigest()


class Ledger:
    """Requests and tokens spent, over all runs: one line before a request is sent, one when its cost is known."""

    def __init__(self, path: Path, *, max_requests: int, max_tokens: int) -> None:
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests = self.tokens = 0
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise ConfigError(f"{path.parent}: another process spends from this folder; wait for it") from None
        self._read_back(path)

    def _read_back(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n")
        if lines[-1]:
            os.write(self._file, b"\n")  # a crash cut the last line off: what follows starts on its own
        for line in lines:
            try:
                entry = json.loads(line)
                if "sent" in entry:
                    self.requests += 1
                    self.tokens += int(entry["sent"])
                else:
                    self.tokens += int(entry["corrected"])
            except (ValueError, TypeError, KeyError):
                continue

    def spend(self, tokens: int) -> None:
        """Set a request's likely cost aside before it is sent; UndoneError where the cap would be passed."""
        with self._lock:
            if self.requests + 1 > self.max_requests:
                raise UndoneError("cap", f"the cap of {self.max_requests} requests is reached", stop=True)
            if self.tokens + tokens > self.max_tokens:
                spent = f"{self.tokens} of {self.max_tokens} tokens are spent, the next request may take {tokens}"
                raise UndoneError("cap", f"the cap on tokens is reached: {spent}", stop=True)
            self.requests += 1
            self.tokens += tokens
            self._write({"sent": tokens})

    def correct(self, difference: int) -> None:
        """What a request really took, less what was set aside for it."""
        with self._lock:
            self.tokens += difference
            self._write({"corrected": difference})

    def _write(self, entry: dict[str, int]) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class ChatServer:
    """Sends chat requests, from any number of threads. Own it with `close`."""

    def __init__(self, config: ServerConfig, folder: Path) -> None:
        if urlsplit(config.url).scheme not in ("http", "https") or not urlsplit(config.url).hostname:
            raise ConfigError(f"server.url {config.url!r} is no http or https address")
        if urlsplit(config.url).username is not None:  # the address goes into the corpus's plan
            raise ConfigError("server.url holds a name or a password: name the key by server.api_key_variable")
        self.config, self.folder = config, folder
        self._key = ""
        if config.api_key_variable:
            self._key = os.environ.get(config.api_key_variable, "")
            if not self._key:
                raise ConfigError(f"the environment variable {config.api_key_variable} for the server's key is empty")
        self.ledger = Ledger(
            folder / "ledger.jsonl", max_requests=config.max_requests, max_tokens=config.max_tokens_spent
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self._run(self._opened())

    async def _opened(self) -> Any:
        import httpx2

        here = urlsplit(self.config.url).hostname in ("localhost", "127.0.0.1", "::1")
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        limits = httpx2.Limits(max_connections=self.config.concurrency)
        return httpx2.AsyncClient(
            headers=headers, timeout=self.config.timeout_s, limits=limits, follow_redirects=False, trust_env=not here
        )

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()
        self.ledger.close()

    def kept(self, key: str) -> Answer | None:
        """The reply to a request that was answered before; a damaged file is none."""
        try:
            entry = json.loads(self._path(key).read_bytes())
            return Answer(int(entry["status"]), dict(entry["body"]), kept=True)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def complete(self, body: dict[str, Any], *, keep_refusal: bool = True) -> Answer:
        """The reply to a chat request, from disk or from the server.

        UndoneError where the server fails every time, will not let us in, or the cap is reached.
        """
        key = request_key(body)
        known = self.kept(key)
        if known is not None:
            return known
        answer = self._asked(body, key)
        if not answer.refused or keep_refusal:
            write_whole(self._path(key), canonical_json({"status": answer.status, "body": answer.body}))
        return answer

    def _asked(self, body: dict[str, Any], key: str) -> Answer:
        content = json.dumps(body).encode()
        estimate = likely_tokens(body)
        reason = ""
        for attempt in range(self.config.tries):
            self.ledger.spend(estimate)
            try:
                answer: Answer = self._run(self._post(content))
            except TransientError as error:
                reason = str(error)
                if attempt + 1 < self.config.tries:
                    time.sleep(self._pause(attempt, key, error.wait_s))
                continue
            if answer.tokens is not None:
                self.ledger.correct(answer.tokens - estimate)
            return answer
        raise UndoneError("server", f"{self.config.url}: {reason}, {self.config.tries} times")

    def _pause(self, attempt: int, key: str, asked_s: float | None) -> float:
        """Doubled each time, and apart for each request, so that they do not all come back at once."""
        own = self.config.pause_s * 2**attempt * (0.5 + int(key[:4], 16) / 0xFFFF)
        return float(min(max(own, asked_s or 0.0), LONGEST_PAUSE_S))

    async def _post(self, content: bytes) -> Answer:
        import httpx2

        try:
            async with asyncio.timeout(self.config.timeout_s):  # all of it: a server may also drip
                url = f"{self.config.url.rstrip('/')}/chat/completions"
                headers = {"Content-Type": "application/json"}
                async with self._client.stream("POST", url, content=content, headers=headers) as response:
                    received = await self._received(response)
        except (TimeoutError, httpx2.TimeoutException):
            raise TransientError(f"no whole reply within {self.config.timeout_s:g} s") from None
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise TransientError(f"the connection broke ({type(error).__name__})") from error
        if self._key:  # a server that repeats what it was sent must not bring the key into a file
            received = received.replace(self._key.encode(), b"***")
        return checked(response.status_code, received, response.headers.get("retry-after"))

    async def _received(self, response: Any) -> bytes:
        received = bytearray()
        async for part in response.aiter_raw():
            received += part
            if len(received) > self.config.reply_bytes:
                raise TransientError(f"a reply of over {self.config.reply_bytes} bytes")
        return bytes(received)


def checked(status: int, received: bytes, retry_after: str | None) -> Answer:
    """The reply as JSON; whatever else came is a failed try, or the end where no other try can help."""
    if status in AGAIN:
        wait = retry_after if retry_after and retry_after.isdigit() and len(retry_after) < 6 else None
        raise TransientError(f"status {status}", float(wait) if wait else None)
    try:
        body = json.loads(received)
        canonical_json(body)  # NaN and what is nested too deeply could not be kept
    except (ValueError, RecursionError, TraceError):
        body = None
    if status in REFUSALS:
        return Answer(status, {"error": received[:2000].decode(errors="replace")}, kept=False)
    if status != 200:
        said = received[:200].decode(errors="replace").strip().replace("\n", " ")
        raise UndoneError("server", f"the server answers with status {status}: {said}", stop=True)
    if not isinstance(body, dict):
        raise TransientError("a reply that is no JSON object")
    return Answer(status, body, kept=False)


def likely_tokens(body: dict[str, Any]) -> int:
    """What a request may cost: four characters a token, a thousand tokens a picture, and the whole of its reply."""
    pictures = 0

    def characters(value: Any) -> int:
        nonlocal pictures
        if isinstance(value, str):
            if value.startswith("data:image/"):
                pictures += 1
                return 0
            return len(value)
        if isinstance(value, dict):
            return sum(characters(part) + len(key) for key, part in value.items())
        return sum(characters(part) for part in value) if isinstance(value, list) else 4

    written = characters(body)
    return written // 4 + 1000 * pictures + int(body.get("max_tokens", 0))
