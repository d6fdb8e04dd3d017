"""A client of one OpenAI-compatible server: the model that it serves, and completions of token ids as they are streamed.

Only http and https are spoken, and only what JSON has is read. Redirects are not followed. What a server sends is text of
others: control characters of it are not printed, and anything of another type than the protocol's is refused.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from rlhfless.errors import InputError, UserError
from solver.model.errors import is_number

CONNECT_S = 10.0
KEY = "VLLM_API_KEY"  # as vLLM's server reads its own
LONGEST_LINE = 1 << 24  # bytes of an event; the first one may repeat a prompt
LARGEST_ID = (1 << 63) - 1
SERVE = "start one with `vllm serve MODEL --port 8000`"
PORTS = {"http": 80, "https": 443}
T = TypeVar("T")


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
        timeout_s: the longest wait for an answer, or for the beginning of one that is streamed. How long the next token may
            take, the caller decides.

    Attributes:
        url: the same for every way to write it: without ``/v1``, a port that its scheme implies, or capitals in its host.

    Raises:
        InputError: the URL is no http or https URL of a server, or has a password.
    """

    def __init__(self, url: str, timeout_s: float = CONNECT_S) -> None:
        if "@" in url:  # first: no other message may repeat a password
            host = _printable(url.rpartition("@")[2].partition("/")[0].partition("?")[0])
            raise InputError(f"the URL of the server at {host} has a user name; leave it out, and give its key as {KEY}")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host.encode("idna")
            taken = parts.scheme in PORTS and host and parts.path.isascii() and not (parts.query or parts.fragment)
        except ValueError:  # also of a host that has no encoding
            taken = False
        if not taken or not url.isprintable() or " " in url:
            raise InputError(f"server {url!r} is no URL of a server; give one such as http://localhost:8000")
        usual = PORTS[parts.scheme]
        self._host, self._port = host, usual if port is None else port
        self._path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{parts.scheme}://{shown}{'' if self._port == usual else f':{self._port}'}{self._path}"
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._timeout_s = timeout_s

    def model(self, name: str | None) -> Model:
        """Return the model of this name, or the only one that the server has.

        Raises:
            InputError: it is no OpenAI-compatible server, or has no such model, or several, or none.
            ServerLost: nothing answers there.
        """
        text = self.send("GET", "/v1/models", read=_whole)
        listed = self.object(text).get("data")
        models = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        has = {one["id"]: one.get("max_model_len") for one in models if isinstance(one.get("id"), str)}
        if not has:
            raise InputError(f"the server at {self.url} lists no model (it answers {text[:60]!r}); name another one")
        if name is None and len(has) == 1:
            name = next(iter(has))
        if name is None or name not in has:
            want = "several models; name one" if name is None else f"no model {name!r}; name one that it has"
            raise InputError(f"the server at {self.url} has {want} ({', '.join(map(repr, has))})")
        longest = has[name]
        return Model(name, longest if isinstance(longest, int) and longest > 0 else None)

    def complete(self, body: Mapping[str, Any]) -> Stream:
        """Return a completion, which is sent when it is iterated."""
        return Stream(self, {**body, "stream": True})

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        read: Callable[[http.client.HTTPResponse], T],
        connected: Callable[[socket.socket], None] = lambda _: None,
    ) -> T:
        """Return what ``read`` returns of the server's answer, within ``timeout_s`` however slowly bytes come.

        Args:
            connected: is given the socket, which another thread may shut down.

        Raises:
            InputError: the server refuses it, or the key cannot be sent. ServerLost: it does not answer.
        """
        headers = {"Content-Type": "application/json", **_authorisation()}
        connection = self._kind(self._host, self._port, timeout=CONNECT_S)
        try:
            connection.connect()
            its_socket: socket.socket = connection.sock
            its_socket.settimeout(None)  # ``_within`` limits everything together
            connected(its_socket)
            with _within(self._timeout_s, its_socket):
                connection.request(method, self._path + path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                its_socket.close()  # as soon as the answer is, which reads it
                if answer.status == 200:
                    return read(answer)
                text = _whole(answer)
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ServerLost(f"no server answers at {self.url} ({_said(error)})") from None
        connection.close()
        if answer.status >= 500:
            raise ServerLost(f"the server at {self.url} failed with status {answer.status}: {_message(text)}")
        raise InputError(f"the server at {self.url} refuses {path} with status {answer.status}: {_message(text)}")

    def object(self, line: bytes) -> dict[str, Any]:
        """Return the JSON object of a line of the server.

        Raises:
            InputError: it is none.
        """
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.incompatible(line)
        return found

    def incompatible(self, line: bytes) -> InputError:
        """Return the error for a line that is not as the protocol has it."""
        return InputError(f"the server at {self.url} is not OpenAI-compatible: it answers {line[:60]!r}; name another one")


def served_model(url: str, name: str | None) -> Model:
    """Return the model of this name, or the only one, of a server from which nothing was asked yet.

    Raises:
        InputError: as ``Client.model``, and where nothing answers.
    """
    try:
        return Client(url).model(name)
    except ServerLost as error:
        raise InputError(f"{error}; {SERVE}, or name the URL of one that runs") from None


class Stream:
    """A completion; iterating sends it. ``close`` lets the server abort it, also while its answer has not begun."""

    def __init__(self, client: Client, body: Mapping[str, Any]) -> None:
        self._client, self._body = client, body
        self._socket: socket.socket | None = None
        self._closed = False

    def close(self) -> None:
        """End it, from any thread. Idempotent."""
        self._closed = True
        if self._socket is not None:
            _shut(self._socket)

    def _connected(self, its_socket: socket.socket) -> None:
        self._socket = its_socket
        if self._closed:
            _shut(its_socket)

    def __iter__(self) -> Iterator[Chunk]:
        """Yield new tokens as they come, until the completion ends.

        Raises:
            InputError: the server refuses it, or does not say what the tokens are. ServerLost: the server ended it.
        """
        at = f"the server at {self._client.url}"
        answer = self._client.send("POST", "/v1/completions", self._body, read=lambda begun: begun, connected=self._connected)
        with contextlib.closing(answer):
            while True:
                try:
                    line = answer.readline(LONGEST_LINE)
                except (OSError, http.client.HTTPException, ValueError) as error:
                    raise ServerLost(f"{at} ended a response before it was complete ({_said(error)})") from None
                if not line:
                    raise ServerLost(f"{at} ended a response before it was complete")
                if not line.startswith(b"data:"):
                    continue
                if (text := line.removeprefix(b"data:").strip()) == b"[DONE]":
                    raise ServerLost(f"{at} ended a response without saying why")
                for chunk in self._chunks(text):
                    yield chunk
                    if chunk.finish is not None:
                        return

    def _chunks(self, text: bytes) -> list[Chunk]:
        """Return the tokens of an event, whose data is ``text``."""
        at, event = f"the server at {self._client.url}", self._client.object(text)
        if (error := event.get("error")) is not None:
            known: Mapping[str, Any] = error if isinstance(error, dict) else {}
            code: Any = known.get("code")  # a number of HTTP, or a word
            if known.get("type") == "invalid_request_error" or (is_number(code, 400) and code < 500):
                raise InputError(f"{at} refuses a response: {_message(text)}")
            raise ServerLost(f"{at} failed: {_message(text)}")
        choices = event.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            raise self._client.incompatible(text)
        return [self._chunk(choice, text) for choice in choices]

    def _chunk(self, choice: Mapping[str, Any], text: bytes) -> Chunk:
        ids, probabilities, finish = choice.get("token_ids"), choice.get("logprobs") or {}, choice.get("finish_reason")
        logprobs = probabilities.get("token_logprobs") if isinstance(probabilities, dict) else None
        if not (
            isinstance(probabilities, dict)
            and choice.get("index") in (None, 0)  # one completion was asked for
            and (ids is None or (isinstance(ids, list) and all(type(one) is int and 0 <= one <= LARGEST_ID for one in ids)))
            and (logprobs is None or (isinstance(logprobs, list) and all(map(_is_logprob, logprobs))))
            and (finish is None or isinstance(finish, str))
            and (ids is None or logprobs is None or len(ids) == len(logprobs))
        ):
            raise self._client.incompatible(text)
        if ids is None and logprobs is None:
            if finish is None or choice.get("text"):
                raise InputError(
                    f"the server at {self._client.url} sends neither token ids nor log-probabilities, so that its tokens "
                    "cannot be counted; use one that does, such as vLLM"
                )
            return Chunk(0, None, None, finish)
        if logprobs is not None:
            logprobs = [math.nan if one is None else float(one) for one in logprobs]
        return Chunk(len(logprobs or () if ids is None else ids), ids, logprobs, finish)


def _is_logprob(value: Any) -> bool:
    return value is None or isinstance(value, float) or is_number(value)


def _authorisation() -> dict[str, str]:
    """Return the header with the key, if there is one.

    Raises:
        InputError: no header can have it.
    """
    key = os.environ.get(KEY)
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        raise InputError(f"{KEY} has a character that no header can have, such as a line break; give the key alone")
    return {"Authorization": f"Bearer {key}"}


@contextlib.contextmanager
def _within(seconds: float, its_socket: socket.socket) -> Iterator[None]:
    """Shut the socket down after so many seconds; what is still under way then is a TimeoutError."""
    late = threading.Event()

    def end() -> None:
        late.set()
        _shut(its_socket)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except Exception:  # a socket that is shut down fails in many ways
        if not late.is_set():
            raise
    finally:
        timer.cancel()
    if late.is_set():
        raise TimeoutError(f"its answer was not complete after {seconds:g} s")


def _shut(its_socket: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has ended
        its_socket.shutdown(socket.SHUT_RDWR)


def _whole(answer: http.client.HTTPResponse) -> bytes:
    with answer:
        text = answer.read(LONGEST_LINE)
        if answer.length and len(text) < LONGEST_LINE:
            raise http.client.IncompleteRead(text, answer.length)
        return text


def _said(error: Exception) -> str:
    """Return what an error says, on one line and without control characters."""
    return _printable(str(error)) or type(error).__name__


def _message(text: bytes) -> str:
    """Return what a server says of an error, on one line and without control characters."""
    words: Any = text.decode(errors="replace")
    with contextlib.suppress(ValueError, AttributeError, RecursionError):
        found = json.loads(text)
        found = found.get("error", found)
        words = found.get("message") or found.get("detail") if isinstance(found, dict) else found
    return _printable(str(words or "nothing"))[:300]


def _printable(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
