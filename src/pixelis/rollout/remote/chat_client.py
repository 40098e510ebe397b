"""A client of any OpenAI-compatible server, for any number of threads.

Replies are hostile until checked: their size and time are limited, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field

from pixelis.core.config import Config
from pixelis.core.errors import ConfigError, RetryLaterError, TraceError
from pixelis.trace.schema import canonical_json

RETRY_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Another attempt may succeed."""
REFUSAL_STATUSES = frozenset({400, 413, 422})
"""The server rejects the request itself: another attempt would be rejected too."""
MAX_PAUSE_S = 60.0
MAX_USAGE_TOKENS = 10**8
"""A larger reported usage is ignored."""


class ChatReply(NamedTuple):
    """The server's reply to a request."""

    status: int
    """200, or one of `REFUSAL_STATUSES`."""
    body: dict[str, Any]

    @property
    def refused(self) -> bool:
        return self.status != 200

    @property
    def total_tokens(self) -> int | None:
        """Tokens of prompt and reply, if the server reports a plausible number."""
        return self._usage("total_tokens")

    @property
    def completion_tokens(self) -> int | None:
        return self._usage("completion_tokens")

    def _usage(self, name: str) -> int | None:
        usage = self.body.get("usage")
        count = usage.get(name) if isinstance(usage, dict) else None
        return count if type(count) is int and 0 <= count <= MAX_USAGE_TOKENS else None


class TransientError(Exception):
    """A failed attempt that is worth repeating."""

    def __init__(self, reason: str, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class ServerConfig(Config):
    """An OpenAI-compatible server, and the limits on its use."""

    url: str = "http://127.0.0.1:8000/v1"
    """Base address, to which `/chat/completions` is appended."""
    model: str = ""
    """The server's name of the model."""
    api_key_variable: str = ""
    """Environment variable that holds the API key; empty: no key is sent. The key is never written anywhere."""
    temperature: float = Field(default=0.7, ge=0.0, le=2.0)
    """The paper's teacher has 0.7 (sec:data)."""
    max_tokens: int = Field(default=1024, ge=1)
    """Of one reply."""
    constrain: Literal["auto", "tool_choice", "response_format", "guided_json", "none"] = "auto"
    """How the server is made to keep the syntax; `auto` tries these in order and keeps the first that is accepted."""
    concurrency: int = Field(default=8, ge=1, le=256)
    """Requests in flight."""
    timeout_s: float = Field(default=120.0, gt=0.0)
    """For one request, from the first byte sent to the last received."""
    tries: int = Field(default=5, ge=1, le=20)
    """Attempts on 408, 409, 429, 5xx, time-outs and broken connections, with growing pauses."""
    pause_s: float = Field(default=1.0, ge=0.0)
    """Before the second attempt; doubled for each later one."""
    max_requests: int = Field(default=100_000, ge=0)
    """Spending cap: requests sent, including repeats, over all runs into the same folder of replies."""
    max_tokens_spent: int = Field(default=500_000_000, ge=0)
    """Spending cap: tokens of prompts and replies."""
    reply_bytes: int = Field(default=4 * 2**20, ge=1024)
    """A longer reply is rejected."""


def request_key(body: dict[str, Any]) -> str:
    """The key of a request: the same for the same question to the same model on any server."""
    return hashlib.sha256(canonical_json(body)).hexdigest()


class ChatClient:
    """Sends chat requests, from any number of threads. Needs `close`."""

    def __init__(self, config: ServerConfig) -> None:
        try:
            address = urlsplit(config.url)
            is_valid = address.scheme in ("http", "https") and address.hostname and (address.port or 1)
        except ValueError:  # a port that is not a number, an unclosed bracket
            is_valid = False
        if not is_valid:
            raise ConfigError(f"the server's address {config.url!r} is not an http or https address")
        if address.username is not None:  # records hold the address
            raise ConfigError(
                "the server's address contains a user name or password: put the key into an environment variable"
            )
        self.config = config
        self._key = ""
        if config.api_key_variable:
            self._key = os.environ.get(config.api_key_variable, "")
            if not self._key:
                raise ConfigError(f"the environment variable {config.api_key_variable} for the server's key is empty")
            if not (self._key.isascii() and self._key.isprintable()):
                raise ConfigError(f"the environment variable {config.api_key_variable} does not hold a valid key")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._client = self._run(self._open_client())

    async def _open_client(self) -> Any:
        import httpx2

        is_local = urlsplit(self.config.url).hostname in ("localhost", "127.0.0.1", "::1")
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {})
        limits = httpx2.Limits(max_connections=self.config.concurrency)
        return httpx2.AsyncClient(
            headers=headers, timeout=self.config.timeout_s, limits=limits, follow_redirects=False,
            trust_env=not is_local,
        )  # fmt: skip

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._run(self._client.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._loop.close()

    def complete(self, body: dict[str, Any], *, keep_refusal: bool = True) -> ChatReply:
        """The reply to a chat request; RetryLaterError if the server fails every time or denies access.

        `keep_refusal` is for clients that cache replies: the refusal of a request format is not cached.
        """
        reason = ""
        for attempt in range(self.config.tries):
            try:
                return self.post(body)
            except TransientError as error:
                reason = str(error)
                if attempt + 1 < self.config.tries:
                    time.sleep(self._pause(attempt, request_key(body), error.wait_s))
        raise RetryLaterError("server", f"{self.config.url}: {reason} (tried {self.config.tries} times)")

    def post(self, body: dict[str, Any]) -> ChatReply:
        """One attempt."""
        reply: ChatReply = self._run(self._post(json.dumps(body).encode()))
        return reply

    def _pause(self, attempt: int, key: str, retry_after_s: float | None) -> float:
        """Doubles each time, with jitter per request, so that requests do not all return at once."""
        backoff_s = self.config.pause_s * 2**attempt * (0.5 + int(key[:4], 16) / 0xFFFF)
        return float(min(max(backoff_s, retry_after_s or 0.0), MAX_PAUSE_S))

    async def _post(self, content: bytes) -> ChatReply:
        import httpx2

        try:
            async with asyncio.timeout(self.config.timeout_s):  # of the whole reply: a server may send byte by byte
                url = f"{self.config.url.rstrip('/')}/chat/completions"
                headers = {"Content-Type": "application/json"}
                async with self._client.stream("POST", url, content=content, headers=headers) as response:
                    body = await self._read_body(response)
        except (TimeoutError, httpx2.TimeoutException):
            raise TransientError(f"no complete reply within {self.config.timeout_s:g} s") from None
        except httpx2.ConnectError as error:
            raise TransientError("no server answers there") from error
        except (httpx2.HTTPError, OSError, ValueError) as error:
            raise TransientError(f"the connection broke ({type(error).__name__})") from error
        if self._key:  # a server that echoes its request must not bring the key into a file
            body = body.replace(self._key.encode(), b"***")
        return parse_response(response.status_code, body, response.headers.get("retry-after"))

    async def _read_body(self, response: Any) -> bytes:
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > self.config.reply_bytes:
                raise TransientError(f"a reply of over {self.config.reply_bytes} bytes")
        return bytes(body)


def parse_response(status: int, content: bytes, retry_after: str | None) -> ChatReply:
    """The reply as JSON; anything else is a failed attempt, or the end if no other attempt can succeed."""
    if status in RETRY_STATUSES:
        retry_after_s = retry_after if retry_after and retry_after.isdigit() and len(retry_after) < 6 else None
        raise TransientError(f"status {status}", float(retry_after_s) if retry_after_s else None)
    try:
        body = json.loads(content)
        canonical_json(body)  # NaN and deep nesting cannot be stored
    except (ValueError, RecursionError, TraceError):
        body = None
    if status in REFUSAL_STATUSES:
        return ChatReply(status, {"error": content[:2000].decode(errors="replace")})
    if status != 200:
        error_text = content[:200].decode(errors="replace").strip().replace("\n", " ")
        raise RetryLaterError("server", f"the server answers with status {status}: {error_text}", stop_run=True)
    if not isinstance(body, dict):
        raise TransientError("a reply that is not a JSON object")
    return ChatReply(status, body)
