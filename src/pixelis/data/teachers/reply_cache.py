"""A chat server with a cache of replies and a cap on spending.

A reply is written to disk under the hash of its request before it is used, and every attempt is written to a ledger
before it is sent. So a killed run resumes from the disk, and the cap holds over all runs.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

from pixelis.core.atomic import write_atomic
from pixelis.core.errors import ConfigError, RetryLaterError
from pixelis.rollout.remote.chat_client import ChatClient, ChatReply, ServerConfig, request_key
from pixelis.trace.schema import canonical_json


class SpendingLedger:
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
        self._restore(path)

    def _restore(self, path: Path) -> None:
        lines = path.read_bytes().split(b"\n")
        if lines[-1]:
            os.write(self._file, b"\n")  # a crash cut the last line off
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
        """Reserve a request's likely cost before it is sent. Raises RetryLaterError if that exceeds a cap."""
        with self._lock:
            if self.requests + 1 > self.max_requests:
                raise RetryLaterError("cap", f"the cap of {self.max_requests} requests is reached", stop_run=True)
            if self.tokens + tokens > self.max_tokens:
                spent = f"{self.tokens} of {self.max_tokens} tokens are spent, the next request may take {tokens}"
                raise RetryLaterError("cap", f"the cap on tokens is reached: {spent}", stop_run=True)
            self.requests += 1
            self.tokens += tokens
            self._write({"sent": tokens})

    def correct(self, difference: int) -> None:
        """Add what a request took beyond its reserve."""
        with self._lock:
            self.tokens += difference
            self._write({"corrected": difference})

    def _write(self, entry: dict[str, int]) -> None:
        os.write(self._file, json.dumps(entry).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class CachingChatClient(ChatClient):
    """A chat client that keeps its replies in a folder."""

    def __init__(self, config: ServerConfig, folder: Path) -> None:
        super().__init__(config)
        self.folder = folder
        self.ledger = SpendingLedger(
            folder / "ledger.jsonl", max_requests=config.max_requests, max_tokens=config.max_tokens_spent
        )

    def close(self) -> None:
        super().close()
        self.ledger.close()

    def load_reply(self, key: str) -> ChatReply | None:
        """The cached reply to a request; None if there is none or its file is damaged."""
        try:
            entry = json.loads(self._path(key).read_bytes())
            return ChatReply(int(entry["status"]), dict(entry["body"]))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"

    def complete(self, body: dict[str, Any], *, keep_refusal: bool = True) -> ChatReply:
        """The reply, from disk or from the server. Raises RetryLaterError also if a cap is reached."""
        key = request_key(body)
        cached_reply = self.load_reply(key)
        if cached_reply is not None:
            return cached_reply
        reply = super().complete(body)
        if not reply.refused or keep_refusal:
            write_atomic(self._path(key), canonical_json({"status": reply.status, "body": reply.body}))
        return reply

    def post(self, body: dict[str, Any]) -> ChatReply:
        estimate = estimate_tokens(body)
        self.ledger.spend(estimate)
        reply = super().post(body)
        if reply.total_tokens is not None:
            self.ledger.correct(reply.total_tokens - estimate)
        return reply


def estimate_tokens(body: dict[str, Any]) -> int:
    """What a request may cost: four characters a token, a thousand tokens a picture, and a full reply."""
    pictures = 0

    def count_characters(value: Any) -> int:
        nonlocal pictures
        if isinstance(value, str):
            if value.startswith("data:image/"):
                pictures += 1
                return 0
            return len(value)
        if isinstance(value, dict):
            return sum(count_characters(child) + len(key) for key, child in value.items())
        return sum(count_characters(child) for child in value) if isinstance(value, list) else 4

    character_count = count_characters(body)
    return character_count // 4 + 1000 * pictures + int(body.get("max_tokens", 0))
