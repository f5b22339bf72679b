"""A small endpoint on loopback that speaks chat completions, over real sockets, and fails as it is told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agentflow.models import pacing

Answer = Callable[["Handler", dict[str, Any]], None]
USAGE = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(body)
            self.server.times.append(time.monotonic())
            self.server.headers.append(dict(self.headers))
            script = self.server.script
            answer = (script.pop(0) if len(script) > 1 else script[0]) if script else say("fine")
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                answer(self, body)
        finally:
            with self.server.lock:
                self.server.at_once -= 1

    def do_GET(self) -> None:
        if self.server.models is None:
            return status(404, {"error": {"message": "no list here"}})(self, {})
        self.reply(200, "application/json", json.dumps({"data": [{"id": m} for m in self.server.models]}).encode())

    def reply(self, code: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, data: Any) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        part = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        self.wfile.flush()

    def end(self) -> None:
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: Any) -> None: ...


class Endpoint(ThreadingHTTPServer):
    """Gives the answers of `script` one after another, the last of them for ever; says "fine" without any."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[Answer] = []
        self.asked: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.headers: list[dict[str, str]] = []
        self.models: list[str] | None = ["m"]
        self.lock = threading.Lock()
        self.at_once = self.most_at_once = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def prompts(self) -> list[str]:
        return [asked["messages"][-1]["content"] for asked in self.asked]


@contextmanager
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


def say(text: str | Callable[[str], str], *, usage: Any = USAGE, why: str = "stop", pause: float = 0.0) -> Answer:
    """A good answer, as a stream or whole, as it was asked for; `text` may be made of the last turn."""

    def answer(handler: Handler, body: dict[str, Any]) -> None:
        said = text if isinstance(text, str) else text(body["messages"][-1]["content"])
        if not body.get("stream"):
            time.sleep(pause)
            choice = {"message": {"role": "assistant", "content": said}, "finish_reason": why}
            whole = json.dumps({"choices": [choice], **({"usage": usage} if usage else {})})
            return handler.reply(200, "application/json", whole.encode())
        handler.begin()
        handler.event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for number, word in enumerate(said.split(" ")):
            time.sleep(pause)
            piece = f" {word}" if number else word
            handler.event({"choices": [{"delta": {"content": piece}, "finish_reason": None}]})
        handler.event({"choices": [{"delta": {}, "finish_reason": why}]})
        if usage and "stream_options" in body:
            handler.event({"choices": [], "usage": usage})
        handler.event("[DONE]")
        handler.end()

    return answer


def status(code: int, body: Any = "", **headers: str) -> Answer:
    """A refusal."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "text/html" if isinstance(body, bytes) else "application/json"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler, _: handler.reply(code, kind, content, named)


def raw(kind: str, content: bytes) -> Answer:
    """Whatever a broken server may say with status 200."""
    return lambda handler, _: handler.reply(200, kind, content)


def hang(seconds: float = 30.0) -> Answer:
    """Not a word."""
    return lambda _handler, _body: time.sleep(seconds)


def cut(text: str, *, clean: bool = False) -> Answer:
    """A stream that ends in the middle: properly closed and yet without an end, or as a lost connection."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin()
        handler.event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        if clean:
            handler.end()
        handler.close_connection = True
        handler.wfile.flush()

    return answer


def stall(text: str, seconds: float = 30.0) -> Answer:
    """A stream that begins and then says nothing more."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin()
        handler.event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        time.sleep(seconds)

    return answer


def drip(seconds: float = 30.0) -> Answer:
    """A stream of signs of life and nothing else."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin()
        for _ in range(int(seconds / 0.05)):
            part = b": still here\n\n"
            handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
            handler.wfile.flush()
            time.sleep(0.05)

    return answer


def flood(handler: Handler, _: dict[str, Any]) -> None:
    """A stream that never ends."""
    handler.begin()
    while True:
        handler.event({"choices": [{"delta": {"content": "x" * 1000}, "finish_reason": None}]})


def failing_in_stream(message: str, code: int) -> Answer:
    """A stream that begins, and then says that it failed."""

    def answer(handler: Handler, _: dict[str, Any]) -> None:
        handler.begin()
        handler.event({"choices": [{"delta": {"content": "well"}, "finish_reason": None}]})
        handler.event({"error": {"message": message, "code": code}})
        handler.end()

    return answer


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No long waits between tries, and no proxy between a test and its own server."""
    monkeypatch.setattr(pacing, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
