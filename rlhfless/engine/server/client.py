"""A client of one OpenAI-compatible server: the model that it serves, and completions of token ids as they are streamed.

Only http and https are spoken, and only what JSON has is read. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from rlhfless.errors import InputError, UserError

CONNECT_S = 10.0
KEY = "VLLM_API_KEY"  # as vLLM's server reads its own
LONGEST_LINE = 1 << 24  # bytes of an event; the first one may repeat a prompt
SERVE = "start one with `vllm serve MODEL --port 8000`"


class ServerLost(UserError, ConnectionError):
    """A server that answered before does not any more; its responses start anew on another one."""


class Model(NamedTuple):
    """A model that a server has; ``max_tokens`` of a response with its prompt, None where the server does not say it."""

    name: str
    max_tokens: int | None


class Chunk(NamedTuple):
    """New tokens of a completion; ``ids`` are None where the server does not send them. ``finish`` says why it ended."""

    tokens: int
    ids: list[int] | None
    logprobs: list[float] | None
    finish: str | None


class Client:
    """A client of the server at ``url``, with or without ``/v1`` at its end.

    Args:
        timeout_s: the longest wait for the beginning of an answer. How long the next token may take, the caller decides.

    Raises:
        InputError: the URL is no http or https URL of a server, or has a password.
    """

    def __init__(self, url: str, timeout_s: float = CONNECT_S) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query or parts.fragment:
            raise InputError(f"server {url!r} is no URL of a server; give one such as http://localhost:8000")
        if parts.username is not None:
            raise InputError(f"the URL of the server at {parts.hostname} has a user name; give its key as {KEY}")
        self.url = url.rstrip("/").removesuffix("/v1")
        self._host, self._port, self._path = parts.hostname, port, urlsplit(self.url).path
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._timeout_s = timeout_s

    def model(self, name: str | None) -> Model:
        """Return the model of this name, or the only one that the server has.

        Raises:
            InputError: nothing answers there, or no OpenAI-compatible server, or it has no such model, or several.
        """
        try:
            found = self._object(self._send("GET", "/v1/models")[0].read(LONGEST_LINE))
        except ServerLost as error:
            raise InputError(f"{error}; {SERVE}, or name the URL of one that runs") from None
        listed = found.get("data")
        models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        has = {str(one.get("id")): one.get("max_model_len") for one in models}
        if name is None and len(has) == 1:
            name = next(iter(has))
        if name not in has:
            want = "several models; name one" if name is None else f"no model {name!r}; name one that it has"
            raise InputError(f"the server at {self.url} has {want} ({', '.join(map(repr, has)) or 'none'})")
        longest = has[name]
        return Model(name, longest if isinstance(longest, int) and longest > 0 else None)

    def complete(self, body: Mapping[str, Any]) -> Stream:
        """Begin a completion.

        Raises:
            InputError: the server refuses it. ServerLost: it does not answer.
        """
        return Stream(self, *self._send("POST", "/v1/completions", {**body, "stream": True}))

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> tuple[http.client.HTTPResponse, socket.socket]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        connection = self._kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            connected: socket.socket = connection.sock
            connected.settimeout(self._timeout_s)
            connection.request(method, self._path + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerLost(f"no server answers at {self.url} ({_said(error)})") from None
        if answer.status == 200:
            return answer, connected
        text = answer.read(LONGEST_LINE)
        connection.close()
        if answer.status >= 500:
            raise ServerLost(f"the server at {self.url} failed with status {answer.status}: {_message(text)}")
        raise InputError(f"the server at {self.url} refuses {path} with status {answer.status}: {_message(text)}")

    def _object(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise InputError(f"the server at {self.url} is not OpenAI-compatible: it answers {line[:60]!r}; name another one")
        return found


class Stream:
    """A completion that is under way; ``close`` lets the server abort it."""

    def __init__(self, client: Client, answer: http.client.HTTPResponse, connected: socket.socket) -> None:
        self._client, self._answer, self._connected = client, answer, connected
        connected.settimeout(None)  # a response may wait in the server's queue

    def close(self) -> None:
        """End it, from any thread. Idempotent."""
        with contextlib.suppress(OSError):  # it has ended
            self._connected.shutdown(socket.SHUT_RDWR)
        self._connected.close()

    def __iter__(self) -> Iterator[Chunk]:
        """Yield new tokens as they come, until the completion ends.

        Raises:
            InputError: the server does not say what the tokens are. ServerLost: the server ended it.
        """
        at = f"the server at {self._client.url}"
        while True:
            try:
                line = self._answer.readline(LONGEST_LINE)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise ServerLost(f"{at} ended a response before it was complete ({_said(error)})") from None
            if not line:
                raise ServerLost(f"{at} ended a response before it was complete")
            if not line.startswith(b"data:"):
                continue
            if (text := line[5:].strip()) == b"[DONE]":
                raise ServerLost(f"{at} ended a response without saying why")
            event = self._client._object(text)
            if isinstance(refused := event.get("error"), dict) and (refused.get("code") or 500) < 500:
                raise InputError(f"{at} refuses a response: {_message(text)}")
            if "error" in event:
                raise ServerLost(f"{at} failed: {_message(text)}")
            for choice in event.get("choices") or ():
                yield (chunk := self._chunk(choice))
                if chunk.finish is not None:
                    return

    def _chunk(self, choice: Mapping[str, Any]) -> Chunk:
        ids, probabilities, finish = choice.get("token_ids"), choice.get("logprobs") or {}, choice.get("finish_reason")
        logprobs = probabilities.get("token_logprobs")
        if logprobs is not None:
            logprobs = [math.nan if one is None else float(one) for one in logprobs]
        if ids is None and logprobs is None:
            if finish is None:
                raise InputError(
                    f"the server at {self._client.url} sends neither token ids nor log-probabilities, so that its tokens "
                    "cannot be counted; use one that does, such as vLLM"
                )
            return Chunk(0, None, None, str(finish))
        return Chunk(len(ids if ids is not None else logprobs or ()), ids, logprobs, None if finish is None else str(finish))


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _message(text: bytes) -> str:
    """Return what a server says of an error, on one line."""
    said: Any = text.decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError):
        found = json.loads(text)
        found = found.get("error", found)
        said = found.get("message") or found.get("detail") if isinstance(found, dict) else found
    return " ".join(str(said or "nothing").split())[:300]
