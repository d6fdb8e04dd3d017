"""The engine protocol: one model replica that decodes with continuous batching.

An engine has its own clock (seconds since the run's start) and commits whole decode iterations. A response of L tokens takes
exactly L iterations; with drafts of up to n tokens, ``ceil(L / (n + 1))`` to L. Prefill computes the KV cache of all prompt
tokens but the last. Every iteration feeds the last token of each response in the batch, and drafted ones, and yields the next
tokens. A response of no tokens needs no slot and ends at the first boundary at which it is available. An engine knows neither
plans nor rules, GPU allocations or cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Request:
    """A response to generate, from its beginning or from where another actor stopped.

    Attributes:
        response: its index in the step's workload.
        prompt_tokens: number of tokens of its prompt.
        max_tokens: it ends by ``length`` at this many tokens.
        prompt: index of its prompt in the step's workload; None when unknown, then no prompt is shared.
        cached_tokens: prompt tokens whose KV cache was received for it; the others are computed when it joins.
        prefix_kv: KV state of these tokens (the prompt's last may be missing), as the engine's kind computes it once for many
            responses; real engines only.
        shares_prompt: of the responses to one ``prompt`` with this flag, the first that joins this engine's batch computes what
            was not received of the prompt. Those that join with it or later reuse all of it.
        available_s: admitted at the first iteration boundary at or after this time.
        generated_tokens: tokens already generated.
        target_tokens: its true length: required by the simulated engine; a forced length (trace replay) for real engines.
        target_finish: finish reason to report with ``target_tokens``.
        prompt_ids: (prompt_tokens,) token ids; real engines only.
        seed: random stream of this response, counting modulo 2 ** 64; real engines only.
        generated_ids, logprobs: (generated_tokens,) ids so far and the log-probabilities with which they were drawn; real
            engines only. They are those after temperature, filters and the ban of tokens under a forced length.
        kv: KV state of its whole context as the engine exported it; None means that prefill recomputes the context, except
            cached prefixes.
        history: token ids of earlier responses of its prompt, from which drafts may come (``Drafting``); a hint that an
            engine may ignore.
        start_s, first_token_s, prefill_tokens_computed, passes, drafted_tokens, accepted_tokens: recorded by earlier engines
            (None or 0 if there were none).
    """

    response: int
    prompt_tokens: int
    max_tokens: int
    available_s: float = 0.0
    generated_tokens: int = 0
    target_tokens: int | None = None
    target_finish: str = "stop"
    prompt_ids: np.ndarray | None = None
    seed: int = 0
    generated_ids: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    kv: Any = field(default=None, repr=False)
    prompt: int | None = None
    cached_tokens: int = 0
    prefix_kv: Any = field(default=None, repr=False)
    shares_prompt: bool = False
    history: Sequence[np.ndarray] = field(default=(), repr=False)
    start_s: float | None = None
    first_token_s: float | None = None
    prefill_tokens_computed: int = 0
    passes: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0

    @property
    def context_tokens(self) -> int:
        """Return the KV tokens that it takes at its next decode iteration."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, eq=False)
class Completion:
    """A finished response: its times, length and finish reason; token ids and log-probabilities from real engines.

    ``start_s`` is when it first joined a batch, ``first_token_s`` when its first token was generated (``time_s`` if it has
    none). ``prefill_tokens_computed`` is the number of prefill tokens that all engines computed for it. With speculative
    decoding, ``passes`` is its number of iterations, so that passes plus accepted tokens are its tokens; None otherwise.
    """

    response: int
    time_s: float
    response_tokens: int
    finish_reason: str
    first_token_s: float
    start_s: float
    prefill_tokens_computed: int
    token_ids: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    passes: int | None = None
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None


@dataclass(frozen=True)
class EngineSpan:
    """A time interval of an actor in one phase: ``prefill``, ``decode``, or ``start`` (shapes were prepared for the device).

    ``tokens`` are computed context tokens (prefill) or generated tokens (decode). After an eviction or a hand-over prefill
    computes generated tokens, too. ``kv_tokens`` is the mean KV tokens in memory, ``batch_mean`` the mean batch weighted by
    time. ``call`` is the index of the call of the phase, where there are several. ``computed`` holds (response, tokens
    computed) of the prefill of responses that join. With drafts, ``drafted_tokens`` were fed besides the last token of each
    response, and ``accepted_tokens`` of them are among ``tokens``; both are None without drafts.
    """

    phase: str
    start_s: float
    end_s: float
    batch_mean: float
    slots: int
    tokens: int
    kv_tokens: float
    call: str | None = None
    computed: Sequence[tuple[int, int]] = ()
    drafted_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def fed_tokens(self) -> int | None:
        """Return the tokens that iterations fed, drafts included; None without drafts."""
        if self.drafted_tokens is None or self.accepted_tokens is None:
            return None
        return self.tokens - self.accepted_tokens + self.drafted_tokens


@dataclass(frozen=True)
class Progress:
    """Iterations that ``advance`` committed, as completions and spans in order of time."""

    completions: Sequence[Completion]
    spans: Sequence[EngineSpan]


class Engine(Protocol):
    """One model replica with continuous batching on its own clock.

    ``advance`` commits iterations that END at or before ``to_s``, so at time t the committed state is what is known at t. An
    iteration that is running at t is not visible yet. An idle engine's clock jumps to the next ``available_s``.

    Attributes:
        slots: maximum number of responses in the batch.
        reuses_prefixes: whether it can reuse the KV cache of a part of a response's context (``Request.cached_tokens``,
            ``Request.shares_prompt``). Other engines raise an error for such requests (vLLM's accepts ``shares_prompt``,
            because it shares equal prompts by itself).
    """

    slots: int
    reuses_prefixes: bool

    @property
    def clock_s(self) -> float:
        """Return the end of the last committed iteration."""
        ...

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests in admission order; each joins the batch when available, a slot is free and its KV fits."""
        ...

    def peek_next_event_s(self, completions: int = 1) -> float:
        """Return a lower bound on the time of the ``completions``-th next completion (infinite if there is none).

        Commits nothing. Call again after that time for a tighter bound.
        """
        ...

    def advance(self, to_s: float) -> Progress:
        """Commit every iteration that ends at or before ``to_s`` (infinite: until nothing is left)."""
        ...

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """Remove responses (all when None) from the actor at the first iteration boundary at or after ``at_s``, to migrate
        them.

        Commits the iteration that is running at ``at_s``. Returns the unfinished responses, running first in admission order,
        then waiting, with ids, log-probabilities and KV state, and the committed progress. ``clock_s`` is the boundary. Cached
        tokens of a response that has not joined yet stay behind: elsewhere it needs its whole context.
        """
        ...

    def generated_tokens(self) -> dict[int, int]:
        """Return the committed tokens of every unfinished response of this engine."""
        ...

    def running(self) -> tuple[int, ...]:
        """Return the responses in the batch, in admission order."""
        ...

    def waiting(self) -> tuple[int, ...]:
        """Return the responses in the queue, in admission order."""
        ...

    def sync(self, weights: Any, weights_version: int) -> None:
        """Replace the weights."""
        ...

    def close(self) -> None:
        """Free memory. Idempotent."""
        ...


@runtime_checkable
class SupportsTokenArrays(Protocol):
    """An engine that returns its responses and their tokens as arrays, for runtime rules that are asked thousands of times."""

    def token_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Return (n,) the unfinished responses, ``running`` and then ``waiting``; (n,) their committed tokens; and how many of
        them are running.
        """
        ...


@runtime_checkable
class SupportsDrafts(Protocol):
    """An engine that can decode with drafts."""

    @property
    def drafts_off(self) -> str | None:
        """Return why it drafts no more, as part of a sentence; None while nothing is wrong."""
        ...
