"""A small OpenAI-compatible server in this process, for what a real one does not do on demand: refuse, hang, or die.

A response's token is a function of its prompt, its seed and its number (``token_of``). What is said wrongly is an attribute.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from rlhfless.engine.protocol import Request


def token_of(prompt: Sequence[int], seed: int, number: int) -> int:
    """One token of a response."""
    return (sum(prompt) * 31 + seed * 7 + number * number) % 97


def tokens_of(request: Request, count: int) -> list[int]:
    """The tokens of a response of this server."""
    assert request.prompt_ids is not None
    return [token_of(request.prompt_ids.tolist(), request.seed, number) for number in range(count)]


def requests_of(lengths: Sequence[int], limit: int = 60) -> list[Request]:
    """Responses of these forced lengths to prompts of different lengths."""
    return [
        Request(i, 3 + i % 3, limit, prompt_ids=np.arange(3 + i % 3) + i, seed=i, target_tokens=n)
        for i, n in enumerate(lengths)
    ]


class SmallServer(ThreadingHTTPServer):
    """Serves the model ``small`` with contexts of 100 tokens.

    Attributes:
        raw: Bytes that it sends for any question, in place of an answer, header included; it closes the connection then.
        model_answers: How often it still says which models it has; afterwards it fails. None: for ever.
        silent: It takes completions, and never begins an answer.
        says: Status and body of an answer to ``/v1/completions`` in place of tokens.
        lines: Lines of a stream, which may come late, in place of those of a response.
        sends_ids, knows_min_tokens: Whether it sends token ids, and whether forced lengths are known to it.
        stops_after: Tokens of all responses after which it does what ``at_stop`` says; None: never.
        together: Responses that it waits for before it sends the first token.
        bodies: What it was asked for. most: Responses that it had at a time. aborted: Those that were given up.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models: Any = {"object": "list", "data": [{"id": "small", "max_model_len": 100}]}
        self.says: tuple[int, str] | None = None
        self.lines: Iterable[str] | None = None
        self.raw: Iterable[bytes] | None = None
        self.model_answers: int | None = None
        self.silent = False
        self.sends_ids = self.knows_min_tokens = True
        self.stops_after: int | None = None
        self.at_stop = "hang"
        self.token_s = 0.002
        self.together = 1
        self.key: str | None = None
        self.bodies: list[dict[str, Any]] = []
        self.now = self.most = self.aborted = self.sent = 0
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error."""

    def stops(self) -> bool:
        """Count a token; whether the server has sent as many as it may."""
        with self.lock:
            self.sent += 1
            return self.stops_after is not None and self.sent > self.stops_after


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SmallServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        models = self.server.models
        if self.server.raw is not None:
            self.close_connection = True
            for piece in self.server.raw:
                self.wfile.write(piece)
            return
        if self.server.model_answers is not None:
            self.server.model_answers -= 1
            if self.server.model_answers < 0:
                self._answer(503, "gone")
                return
        self._answer(200, models if isinstance(models, str) else json.dumps(models))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if self.server.key is not None and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            self._answer(401, json.dumps({"error": "Unauthorized"}))
        elif self.server.says is not None:
            self._answer(*self.server.says)
        elif self.server.silent:
            self.connection.recv(1)  # returns when the client goes away
            self.server.aborted += 1
            self.close_connection = True
        else:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                self._stream(body)
            except OSError:
                self.server.aborted += 1
                self.close_connection = True

    def _stream(self, body: dict[str, Any]) -> None:
        server, self.has_response = self.server, True
        with server.lock:
            server.now += 1
            server.most = max(server.most, server.now)
        try:
            for line in self._lines(body) if server.lines is None else server.lines:
                self.wfile.write(f"{len(line) + 2:x}\r\n{line}\n\n\r\n".encode())
            self.wfile.write(b"0\r\n\r\n")
        finally:
            self._leave()

    def _leave(self) -> None:
        """Count the response no more: it has its last token, or was given up."""
        with self.server.lock:
            self.server.now -= self.has_response
            self.has_response = False

    def _lines(self, body: dict[str, Any]) -> Iterator[str]:
        server, count = self.server, body["max_tokens"]
        if "min_tokens" not in body or not server.knows_min_tokens:
            count = min(count, 5)
        while server.most < server.together:
            time.sleep(server.token_s)
        for number in range(count):
            time.sleep(server.token_s)
            if server.stops():
                if server.at_stop == "close":
                    raise OSError("closed")
                while server.stops_after is not None:
                    time.sleep(0.01)
            choice: dict[str, Any] = {"text": "x", "finish_reason": None, "logprobs": {"token_logprobs": [-0.5]}}
            if server.sends_ids:
                choice["token_ids"] = [token_of(body["prompt"], body.get("seed", 0), number)]
            if number == count - 1:
                choice["finish_reason"] = "length" if count == body["max_tokens"] else "stop"
                self._leave()
            yield "data: " + json.dumps({"choices": [choice]})
        yield "data: [DONE]"

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()
        self.wfile.write(text.encode())


@contextmanager
def small_server() -> Iterator[SmallServer]:
    """A server that runs while the context lasts."""
    server = SmallServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stops_after = None
        server.shutdown()
        server.server_close()
        thread.join()
