"""A chat server as a process of its own, as bad as servers can be. The model's name chooses how it behaves.

python chat_server.py FOLDER    writes FOLDER/port, and a line for every request into FOLDER/log.jsonl
"""

import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1])
LOCK = threading.Lock()
SEEN: dict[str, int] = {}
CALLS = [
    ("ZOOM", {"box": [0.25, 0.25, 0.75, 0.75]}),
    ("PROP", {"box": [0.25, 0.25, 0.75, 0.75], "attributes": ["colour"]}),
    ("ANSWER", {"answer": "B", "confidence": 0.8}),
]


def log(**entry):
    with LOCK, (FOLDER / "log.jsonl").open("a") as file:
        file.write(json.dumps(entry) + "\n")


def native(turn, calls):
    return {
        "role": "assistant",
        "content": f"turn {turn}",
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
            for name, args in calls
        ],
    }


def unreadable(arguments):
    reply = native(0, [("OCR", {})])
    reply["tool_calls"][0]["function"]["arguments"] = arguments
    return reply


def said(content):
    return {"role": "assistant", "content": content}


FIRST = {
    "prose": said("It is surely the red one."),
    "reminded": said("Let me think."),
    "tagged": said("I see it. <answer>blue</answer>"),
    "ghost": native(0, [("TELEPORT", {"where": "moon"})]),
    "malformed": unreadable("{not json"),
    "nested": unreadable('{"box":' + "[" * 400 + "]" * 400 + "}"),
    "surrogate": native(0, [("SEG", {"target": "\ud800 star"})]),
}


def flood(body, turn):
    """Twenty calls in the first reply, one of them with arguments of 300,000 letters."""
    if turn:
        return native(turn, [CALLS[min(turn, 2)]])
    reply = native(0, [("OCR", {"box": [0.0, 0.0, 1.0 - k / 100, 1.0]}) for k in range(20)])
    reply["tool_calls"][0]["function"]["arguments"] = json.dumps({"box": "x" * 300_000})
    return reply


def voter(body, turn):
    """Two of three samples say red; each looks at another place."""
    if turn == 0:
        return native(0, [("ZOOM", {"box": [0.0, 0.0, 0.3 + body["seed"] % 1000 / 2000, 0.9]})])
    with LOCK:
        SEEN["votes"] = SEEN.get("votes", 0) + 1
        answer = "blue" if SEEN["votes"] % 3 == 2 else "red"
    return native(turn, [("ANSWER", {"answer": answer, "confidence": 0.6})])


def mirror(body, turn):
    return native(turn, [("ANSWER", {"answer": body["messages"][1]["content"][-1]["text"], "confidence": 1})])


def unsure(body, turn):
    return native(turn, [("ANSWER", {"answer": "B"})])


OWN = {"flood": flood, "voter": voter, "mirror": mirror, "unsure": unsure}


def message(model, body, turn):
    if model in OWN:
        return OWN[model](body, turn)
    if model in FIRST and (turn == 0 or model == "prose"):
        return FIRST[model]
    if model == "surrogate":
        return native(turn, [("ANSWER", {"answer": "\udfff7"})])
    name, args = CALLS[turn % 2 if model == "endless" else min(turn, 2)]
    if model == "stubborn":
        name, args = "ZOOM", {"box": [0.5, 0.5, 0.5, 0.9]}
    if "response_format" in body or "guided_json" in body:
        return said(json.dumps({"thought": f"turn {turn}", "name": name, "arguments": args}))
    return native(turn, [(name, args)])


SPELT = {
    0: ["I look. ", "<tool_call>", '{"name": "ZOOM"}', "</tool_call>"],
    1: ["<tool_call>", '{"name": "PROP"}', "</tool_call>"],
    2: ["<tool_call>", '{"name": "ANSWER", "arguments": {"answer": "', "B", '"}}', "</tool_call>"],
}


def with_tokens(reply, body, turn):
    """Log-probabilities of −0.25 each and, where they are wanted, the ids 100 · turn + k after all ids before."""
    texts = SPELT[turn]
    content = [{"token": text, "logprob": -0.25} for text in texts]
    reply["choices"][0]["logprobs"] = {"content": content}
    if body.get("return_token_ids"):
        prompt = [1, 2, 3]
        for before in range(turn):
            prompt += [100 * before + k for k in range(len(SPELT[before]))] + [7, 8]
        reply["prompt_token_ids"] = [9, *prompt[1:]] if body["model"] == "forgetful" and turn else prompt
        reply["choices"][0]["token_ids"] = [100 * turn + k for k in range(len(texts))]
    return reply


BAD = {
    "broken": (500, b"oops"),
    "closed": (401, b"no such key"),
    "moved": (307, b""),
    "huge": (200, b" " * 3_000_000 + b"{}"),
    "nan": (200, b'{"choices": [], "usage": {"total_tokens": NaN}}'),
    "html": (200, b"<html>hello</html>"),
    "picky": (400, b'{"error": "no pictures, please"}'),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def send(self, status, content, **headers):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self):
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(raw)
        model, key = body["model"], hashlib.sha256(raw).hexdigest()
        with LOCK:
            SEEN[key] = SEEN.get(key, 0) + 1
            times = SEEN[key]
        log(key=key, event="received", model=model, times=times, auth=self.headers.get("Authorization", ""))
        self.behave(model, body, times, key)

    def drip(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        for _ in range(600):
            self.wfile.write(b" ")
            time.sleep(0.1)

    def behave(self, model, body, times, key):
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        if model in BAD:
            self.send(*BAD[model], Location="http://127.0.0.1:9/elsewhere")
        elif model == "parrot":
            self.send(400, self.headers.get("Authorization", "").encode())
        elif model == "hanging":
            time.sleep(60)
        elif model == "dripping":
            self.drip()
        elif model == "flaky" and times <= 2:
            self.send(503 if times == 1 else 429, b"later", Retry_After="0")
        elif model == "simple" and ("tools" in body or "response_format" in body):
            self.send(400, b'{"error": "unknown field"}')
        elif model == "strict" and "return_token_ids" in body:
            self.send(400, b'{"error": "unknown field return_token_ids"}')
        elif model == "stops" and turn == 1:
            os._exit(1)
        elif model == "full" and turn == 1:
            self.send(400, b'{"error": "context length exceeded"}')
        else:
            time.sleep(0.1 if model == "slow" else 0.0)
            usage = {"total_tokens": -5 if model == "liar" else 700, "completion_tokens": 20}
            reply = {"choices": [{"message": message(model, body, turn)}], "usage": usage}
            if model in ("tokens", "strict", "forgetful"):
                reply = with_tokens(reply, body, turn)
            self.send(200, json.dumps(reply).encode())
            log(key=key, event="answered", model=model)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    (FOLDER / "port.part").write_text(str(server.server_port))
    (FOLDER / "port.part").rename(FOLDER / "port")
    server.serve_forever()
