"""An engine whose tokens are counted, not computed: an actor starts in a moment and an iteration sleeps for as long as planned.

For measurements of everything around an engine, with real processes. A response's next token is a function of its seed, the
weights and its whole context, of which the KV state is a checksum: whoever goes on with a wrong state, a wrong length or other
weights writes other tokens. The module is the processes' side of it (``Backend``) and
loads no torch.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from rlhfless.engine.common import pool_engines
from rlhfless.engine.common.pool_engines import Capabilities, PoolEngines
from rlhfless.engine.protocol import Completion, EngineSpan, Progress, Request
from solver.model.admission import Admission
from solver.model.latency import LatencyModel

MODULUS, FACTOR = (1 << 61) - 1, 6364136223846793005
VOCABULARY = 32_000


class Backend(pool_engines.Backend):
    """It computes nothing, and needs nothing beside the process."""

    def pack(self, obj: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
        """Everything is one buffer."""
        return b"", [pickle.PickleBuffer(pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL))]

    def unpack(self, form: bytes, buffers: Iterable[Any], device: str) -> Any:
        """What ``pack`` was given."""
        (buffer,) = buffers
        return pickle.loads(buffer)


@dataclass(frozen=True)
class CountingEngines(PoolEngines):
    """Makes engines.

    Attributes:
        weights: change every token. kv_bytes: size of a KV state that is handed over.
    """

    weights: int = 1
    kv_bytes: int = 8

    capabilities: ClassVar[Capabilities] = Capabilities("an engine that counts", "counting_engine")

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> CountingEngine:
        return CountingEngine(latency, admission, self, start_s)


@dataclass
class _Member:
    request: Request
    tokens: list[int]
    state: int | None  # checksum of its context; None until it is computed
    start_s: float | None
    first_token_s: float | None
    computed: int

    def feed(self, token: int) -> None:
        assert self.state is not None
        self.state = (self.state * FACTOR + token + 1) % MODULUS


class CountingEngine:
    """One replica (see ``PoolEngine``); responses need a ``target_tokens`` and
    ``prompt_ids``.

    Attributes:
        sleep: waits for as long as work is planned to take.
    """

    reuses_prefixes = False
    sleep: Callable[[float], None] = staticmethod(time.sleep)

    def __init__(self, latency: LatencyModel, admission: Admission, made_by: CountingEngines, clock_s: float) -> None:
        self.slots, self._latency, self._admission = admission.max_batch, latency, admission
        self._weights, self._kv_numbers, self.clock_s = made_by.weights, made_by.kv_bytes // 8, clock_s
        self._batch: list[_Member] = []
        self._queue: list[_Member] = []

    def add(self, requests: Sequence[Request]) -> None:
        """Queue them."""
        for r in requests:
            tokens = [] if r.generated_ids is None else [int(t) for t in r.generated_ids]
            assert len(tokens) == r.generated_tokens, "a response comes with all its tokens"
            state = None if r.kv is None else int(r.kv[0])
            self._queue.append(_Member(r, tokens, state, r.start_s, r.first_token_s, r.prefill_tokens_computed))

    def step(self, from_s: float, clock: Any) -> Progress:
        """Let in whoever fits, then a token for each in the batch, after as long as that is planned to take."""
        begin_s, spans = max(from_s, self.clock_s), []
        if joined := self._join(begin_s):
            self.sleep(float(self._latency.prefill_s(joined)))
            spans.append(EngineSpan("prefill", begin_s, clock(), float(len(self._batch)), self.slots, joined, float(joined)))
        kv_tokens = sum(m.request.prompt_tokens + len(m.tokens) for m in self._batch)
        self.sleep(float(self._latency.iteration_s(len(self._batch), kv_tokens)))
        self.clock_s = clock()
        count, decode_s = len(self._batch), spans[-1].end_s if spans else begin_s
        for m in self._batch:
            assert m.state is not None
            m.tokens.append((m.state ^ (m.request.seed * FACTOR + self._weights)) % MODULUS % VOCABULARY)
            m.feed(m.tokens[-1])
            m.first_token_s = self.clock_s if m.first_token_s is None else m.first_token_s
        spans.append(EngineSpan("decode", decode_s, self.clock_s, float(count), self.slots, count, float(kv_tokens)))
        done = [m for m in self._batch if len(m.tokens) == m.request.target_tokens]
        self._batch = [m for m in self._batch if len(m.tokens) != m.request.target_tokens]
        return Progress([self._completed(m) for m in done], spans)

    def _join(self, now_s: float) -> int:
        """Let responses into the batch; returns how many tokens have to be computed for them."""
        joined, held = 0, sum(m.request.prompt_tokens + m.request.max_tokens for m in self._batch)
        while self._queue:
            m = self._queue[0]
            most = m.request.prompt_tokens + m.request.max_tokens
            if not self._admission.admits(len(self._batch), held, most):
                break
            held += most
            self._batch.append(self._queue.pop(0))
            m.start_s = now_s if m.start_s is None else m.start_s
            if m.state is None:
                m.state, there = self.received(m.request)
                assert m.request.prompt_ids is not None
                for token in (*m.request.prompt_ids.tolist(), *m.tokens)[there:]:
                    m.feed(token)
                joined += m.request.context_tokens - there
                m.computed += m.request.context_tokens - there
        return joined

    def _completed(self, m: _Member) -> Completion:
        assert m.start_s is not None
        assert m.first_token_s is not None
        return Completion(
            m.request.response, self.clock_s, len(m.tokens), m.request.target_finish, m.first_token_s, m.start_s, m.computed,
            token_ids=np.array(m.tokens, dtype=np.int64),
        )  # fmt: skip

    def received(self, request: Request) -> tuple[int, int]:
        """The checksum of what is there of a context, and how many tokens that is."""
        return 0, 0

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """Take responses off, with their checksums; called between iterations."""
        wanted = None if responses is None else set(responses)
        taken = [m for m in (*self._batch, *self._queue) if wanted is None or m.request.response in wanted]
        gone = {id(m) for m in taken}
        self._batch, self._queue = ([m for m in some if id(m) not in gone] for some in (self._batch, self._queue))
        return [
            replace(
                m.request, generated_tokens=len(m.tokens), generated_ids=np.array(m.tokens, dtype=np.int64),
                kv=None if m.state is None else np.full(self._kv_numbers, m.state), start_s=m.start_s,
                first_token_s=m.first_token_s, prefill_tokens_computed=m.computed,
            )
            for m in taken
        ], Progress([], [])  # fmt: skip

    def generated_tokens(self) -> dict[int, int]:
        """Of every response that is here."""
        return {m.request.response: len(m.tokens) for m in (*self._batch, *self._queue)}

    def running(self) -> tuple[int, ...]:
        """Responses in the batch."""
        return tuple(m.request.response for m in self._batch)

    def waiting(self) -> tuple[int, ...]:
        """Responses in the queue."""
        return tuple(m.request.response for m in self._queue)

    def close(self) -> None:
        """Nothing is held."""
        self._batch, self._queue = [], []
