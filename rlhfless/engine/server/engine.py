"""An engine that sends its responses to an OpenAI-compatible server, one request each, and counts tokens as they are streamed.

The server decides what it computes when: an iteration here is what arrived since the last one. The batch scheduler's admission
rule decides how many responses the server has at a time. A thread per response reads its stream; one queue takes what they
read.

- A server does not say when it computes prompts. The time until tokens arrive is split between prompts and tokens by their
  numbers, and a prompt counts as computed, also where the server has its prefix in a cache.
- Log-probabilities are the server's: vLLM's are those of what is sampled from with ``--logprobs-mode processed_logprobs``.
"""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from rlhfless.engine.common import pool_engines
from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
from rlhfless.engine.common.request_validation import TokenRoom, check, stop_tokens
from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.common.stop_ids import stop_ids
from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from rlhfless.engine.server.client import Chunk, Client, Model, ServerLost, Stream, served_model
from rlhfless.errors import InputError
from solver.model.admission import Admission
from solver.model.errors import as_given, is_number
from solver.model.latency import LatencyModel

WAIT_S = 0.02  # for the next token; orders to the actor wait as long
UNKNOWN = 1 << 62  # a limit that a server does not say
SMALL_IDS = 32  # token ids below which every model's vocabulary has others


@dataclass(frozen=True)
class ServerEngineFactory(PoolEngines):
    """Makes the engines of actors that are OpenAI-compatible servers; the pool's devices are their URLs.

    A server that is started with more than one GPU is the device of all of them. It keeps its weights: training needs an engine
    that loads those of each step. A running response cannot move to another server.

    Attributes:
        model: its name at the servers; None: the only one that they have.
        eos_id: tokens that end a response in addition to those that the server knows.
        sampling: fields with their default are left to the server.
        timeout_s: a server that sends no token of any response for so long is lost.
        tokenizer: the model's tokenizer, which encodes the texts of ``rlhfless.requests``; None if the caller encodes them.

    Raises:
        InputError: ``timeout_s`` is no number above 0.

    Example:
        >>> import rlhfless as rl, solver
        >>> from rlhfless.engine import ServerEngineFactory
        >>> pool = rl.executor.ProcessPool(["http://localhost:8000", "http://localhost:8001"])
        >>> latency, cluster = rl.load_profile("h100-qwen2.5-3b-tp1"), solver.Cluster(1, 2, 1, "h100")
        >>> executor = rl.Executor(ServerEngineFactory(), cluster, latency=latency, actor_pool=pool)
        >>> executor.close()
    """

    model: str | None = None
    eos_id: int | Sequence[int] = ()
    sampling: Sampling = field(default_factory=Sampling)
    timeout_s: float = 120.0
    tokenizer: Any = field(default=None, repr=False, compare=False)

    capabilities: ClassVar[Capabilities] = Capabilities("a server", __name__, served=True, moves=False, loads_weights=False)

    def __post_init__(self) -> None:
        if not (is_number(self.timeout_s, 0) and self.timeout_s > 0):
            raise InputError(f"timeout_s is {as_given(self.timeout_s)}; a finite number of seconds above 0 is needed")

    def measured(self, devices: Sequence[str] = ()) -> ServerEngineFactory:
        """Return this factory after asking the servers for their model; actors get token ids.

        Raises:
            InputError: a server does not answer, is not OpenAI-compatible, or has no such model; or they have different ones.
        """
        found: dict[str, str] = {}  # one URL of each model
        for url in dict.fromkeys(devices):
            found.setdefault(served_model(url, self.model).name, url)
        if len(found) > 1:
            listed = " and ".join(f"{name!r} at {url}" for name, url in found.items())
            raise InputError(f"a step is decoded with one model, but the servers have {listed}; serve the same on all")
        return replace(self, model=next(iter(found), self.model), tokenizer=None)

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> ServerEngine:
        return ServerEngine(_here.url, self, admission, start_s)


class Backend(pool_engines.Backend):
    """The part of an actor's process: it keeps the URL of its server."""

    def use_device(self, device: str) -> None:
        """See ``Backend``."""
        _here.url = device


@dataclass
class _Process:
    url: str = ""


_here = _Process()


@dataclass(eq=False)
class _Response:
    """A response that the server has, or will get."""

    request: Request
    ids: list[int] | None = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    tokens: int = 0
    finish: str = ""
    start_s: float = math.nan
    first_token_s: float = math.nan
    stream: Stream | None = None


class ServerEngine:
    """One actor: the server at ``url``. See ``PoolEngine``; requests are those of ``ServerEngineFactory``."""

    def __init__(self, url: str, made_by: ServerEngineFactory, admission: Admission, start_s: float = 0.0) -> None:
        self._client, self._made_by, self._admission = Client(url, made_by.timeout_s), made_by, admission
        self._model: Model = self._client.model(made_by.model)
        self.slots, self.clock_s = admission.max_batch, start_s
        self._running: list[_Response] = []
        self._waiting: list[_Response] = []
        self._arrived: queue.SimpleQueue[tuple[_Response, Chunk | Exception]] = queue.SimpleQueue()
        self._from_s = self._heard_s = start_s  # end of the last span; when a token arrived last

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests.

        Raises:
            InputError: one cannot be decoded here.
        """
        room = TokenRoom(self._model.max_tokens or UNKNOWN, self._admission.kv_capacity_tokens, UNKNOWN)
        for request in requests:
            check(request, room, lambda r: "has begun elsewhere, which no server continues" if r.generated_tokens else None)
            self._waiting.append(_Response(request))

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """Send what may join, and take the tokens that have arrived; waits for some, but not for long.

        Raises:
            InputError: the server refuses a response, ends it at another length than was forced, or sends more tokens than
                were asked for.
            ServerLost: it has sent no token for ``timeout_s``, or does not answer any more.
        """
        if not self._running:
            self._from_s = self._heard_s = max(from_s, self.clock_s)
        self._admit(clock)
        chunks = self._chunks()
        self.clock_s = now_s = clock()
        if any(chunk.tokens for _, chunk in chunks):  # an event may have none
            self._heard_s = now_s
        elif self._running and now_s - self._heard_s > self._made_by.timeout_s:
            raise ServerLost(f"the server at {self._client.url} has sent no token for {self._made_by.timeout_s:g} s")
        prompts, decoded, ended = [], 0, []
        for response, chunk in chunks:
            if chunk.tokens and not response.tokens:
                response.first_token_s = now_s
                prompts.append((response.request.response, response.request.prompt_tokens))
            self._append(response, chunk)
            decoded += chunk.tokens
            if chunk.finish is not None:
                response.finish = chunk.finish
                ended.append(response)
        spans = self._spans(prompts, decoded, now_s) if decoded else []
        ended += [r for r in self._running if not stop_tokens(r.request)]
        self._running = [r for r in self._running if r not in ended]
        return Progress([self._completion(r, now_s) for r in ended], spans)

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """Refuse: no other actor can continue a server's response, so a pool refuses plans that ask for it."""
        raise InputError(f"the server at {self._client.url} cannot hand a running response over")

    def generated_tokens(self) -> dict[int, int]:
        """See ``PoolEngine``."""
        return {r.request.response: r.tokens for r in (*self._running, *self._waiting)}

    def running(self) -> tuple[int, ...]:
        """See ``PoolEngine``: the responses that the server has."""
        return tuple(r.request.response for r in self._running)

    def waiting(self) -> tuple[int, ...]:
        """See ``PoolEngine``."""
        return tuple(r.request.response for r in self._waiting)

    def close(self) -> None:
        """Let the server abort what it still has. Idempotent."""
        for response in self._running:
            if response.stream is not None:
                response.stream.close()
        self._running, self._waiting = [], []

    # --- one response -------------------------------------------------------------------------------------------------

    def _admit(self, clock: Callable[[], float]) -> None:
        """Send the server the responses at the front of the queue for which it has a slot and memory."""
        admission = self._admission
        held = sum(admission.held_tokens(r.request.prompt_tokens + r.tokens, _most(r.request)) for r in self._running)
        while self._waiting:
            request = self._waiting[0].request
            needs = admission.held_tokens(request.prompt_tokens, _most(request))
            if stop_tokens(request) and not admission.admits(len(self._running), held, needs):
                return
            held += needs
            response = self._waiting.pop(0)
            response.start_s = clock()
            self._running.append(response)
            if stop_tokens(request):
                response.stream = self._client.complete(self._body(request))
                threading.Thread(target=self._read, args=(response, response.stream), daemon=True).start()

    def _read(self, response: _Response, stream: Stream) -> None:
        """Pass on what the server sends of a response; runs in a thread of its own."""
        try:
            for chunk in stream:
                self._arrived.put((response, chunk))
        except Exception as error:
            self._arrived.put((response, error))

    def _body(self, request: Request) -> dict[str, Any]:
        assert request.prompt_ids is not None
        sampling, stop = self._made_by.sampling, stop_ids(self._made_by.eos_id)
        filters = {name: getattr(sampling, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
        forced = {} if request.target_tokens is None else {"ignore_eos": True, "min_tokens": stop_tokens(request)}
        return {
            "model": self._model.name, "prompt": request.prompt_ids.tolist(), "max_tokens": stop_tokens(request),
            "temperature": sampling.temperature, **({"seed": request.seed % (1 << 63)} if sampling.temperature else {}),
            **{name: value for name, value in filters.items() if value != getattr(Sampling(), name)},
            **({} if not stop or forced else {"stop_token_ids": list(stop)}), **forced,
            "logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True,
        }  # fmt: skip

    def _chunks(self) -> list[tuple[_Response, Chunk]]:
        """Return what has arrived of responses that the server has; waits for something, ``WAIT_S`` at most."""
        found: list[tuple[_Response, Chunk]] = []
        try:
            arrived = self._arrived.get(timeout=WAIT_S)
            while True:
                response, what = arrived
                if response in self._running:  # else it was closed
                    if isinstance(what, Exception):
                        raise what
                    found.append((response, what))
                arrived = self._arrived.get_nowait()
        except queue.Empty:
            return found

    def _append(self, response: _Response, chunk: Chunk) -> None:
        response.tokens += chunk.tokens
        if response.tokens > (most := stop_tokens(response.request)):
            raise InputError(
                f"the server at {self._client.url} sent {response.tokens} tokens of response {response.request.response}, but "
                f"{most} were asked for; use one that knows max_tokens, such as vLLM"
            )
        for name, new in (("ids", chunk.ids), ("logprobs", chunk.logprobs)):
            known = getattr(response, name)
            if new is None and chunk.tokens:  # the server does not say them
                setattr(response, name, None)
            elif new and known is not None:
                known.extend(new)

    def _spans(self, prompts: Sequence[tuple[int, int]], decoded: int, now_s: float) -> list[EngineSpan]:
        """Return what the server did since the last span: prompts, then tokens."""
        begin_s, self._from_s = self._from_s, now_s
        computed, batch = sum(tokens for _, tokens in prompts), float(sum(r.tokens > 0 for r in self._running))
        kv_tokens = float(sum(r.request.prompt_tokens + r.tokens for r in self._running if r.tokens))
        between_s = begin_s + (now_s - begin_s) * computed / (computed + decoded)
        spans = [EngineSpan("decode", between_s, now_s, batch, self.slots, decoded, kv_tokens)]
        if prompts:
            joined = float(len(prompts))
            prefill = EngineSpan("prefill", begin_s, between_s, joined, self.slots, computed, float(computed), computed=prompts)
            spans.insert(0, prefill)
        return spans

    def _completion(self, response: _Response, now_s: float) -> Completion:
        request = response.request
        if stop_tokens(request) and response.finish not in ("stop", "length"):
            raise ServerLost(f"the server at {self._client.url} ended response {request.response} by {response.finish!r}")
        if request.target_tokens is not None and response.tokens != stop_tokens(request):
            raise InputError(
                f"the server at {self._client.url} ended response {request.response} after {response.tokens} tokens, but "
                f"{stop_tokens(request)} were forced; use one that knows ignore_eos and min_tokens, such as vLLM"
            )
        if response.logprobs is not None and not all(map(math.isfinite, response.logprobs)):
            raise FloatingPointError(
                f"the log-probabilities of response {request.response} from {self._client.url} are not finite; serve finite "
                "weights, or another --dtype"
            )
        reason = response.finish
        if request.target_tokens is not None and response.tokens >= request.target_tokens:
            reason = request.target_finish
        first_s = now_s if math.isnan(response.first_token_s) else response.first_token_s
        return Completion(
            request.response, now_s, response.tokens, reason, first_s, response.start_s,
            request.prompt_tokens if response.tokens else 0,
            None if response.ids is None else np.array(response.ids, dtype=np.int64),
            None if response.logprobs is None else np.array(response.logprobs, dtype=np.float32),
        )  # fmt: skip


def _most(request: Request) -> int:
    """Return the most KV tokens that a response can come to hold."""
    return request.prompt_tokens + request.max_tokens
