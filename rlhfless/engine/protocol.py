"""What every engine does: hold one model replica and decode with continuous batching.

Knows nothing of plans, rules, GPUs held or money. An engine has a clock of its own (seconds since the run's start) and
commits whole decode iterations. A response of L tokens takes exactly L iterations (one of none ends, without a slot, at the
first boundary at which it is available): prefill computes the KV cache of all prompt tokens but the last, and every iteration
feeds one token of each response in the batch and yields the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from solver.model.runtime_rules import Signals


@dataclass(frozen=True, eq=False)
class Request:
    """A response to generate, from its beginning or from where another actor left it.

    Attributes:
        response: its index in the step's workload.
        prompt_tokens: tokens of its prompt.
        limit_tokens: it ends by ``length`` at this many tokens.
        prompt: index of its prompt in the step's workload; None when nobody says, then it shares with nobody.
        there_tokens: tokens of its prompt whose KV cache was received for it; what is beyond is computed when it joins.
        prefix_kv: KV state of these tokens (the prompt's last may be missing), as the engine's kind computes it once for
            many responses; real engines only.
        shares_prompt: of responses to one ``prompt`` with this set, the first that joins this engine's batch computes what was
            not received of the prompt; all of it is there for those that join with it or later.
        available_s: admitted at the first iteration boundary at or after this time.
        generated_tokens: tokens already generated.
        target_tokens: its true length: required by the simulated engine; a forced length (trace replay) for real engines.
        target_finish: finish reason to report with ``target_tokens``.
        prompt_ids: (prompt_tokens,) token ids; real engines only.
        seed: random stream of this response, counting modulo 2 ** 64; real engines only.
        generated_ids, logprobs: (generated_tokens,) ids so far and the log-probabilities with which they were drawn (after
            temperature, filters and what a forced length forbids); real engines only.
        signals: (generated_tokens, ...) arrays by name that were asked for beside the tokens; real engines only.
        kv: KV state of its whole context as the engine exported it; None means that its context has to be recomputed by
            prefill, but for what is there.
        start_s, first_token_s, prefill_tokens_computed: what earlier engines recorded of it (None and 0 if none did).
    """

    response: int
    prompt_tokens: int
    limit_tokens: int
    available_s: float = 0.0
    generated_tokens: int = 0
    target_tokens: int | None = None
    target_finish: str = "stop"
    prompt_ids: np.ndarray | None = None
    seed: int = 0
    generated_ids: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    kv: Any = field(default=None, repr=False)
    signals: Mapping[str, np.ndarray] | None = field(default=None, repr=False)
    prompt: int | None = None
    there_tokens: int = 0
    prefix_kv: Any = field(default=None, repr=False)
    shares_prompt: bool = False
    start_s: float | None = None
    first_token_s: float | None = None
    prefill_tokens_computed: int = 0

    @property
    def context_tokens(self) -> int:
        """KV tokens that it holds at its next decode iteration."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, eq=False)
class Completion:
    """A finished response: when, how long, why; ids, log-probabilities and signals, if any were asked for, from real engines.

    ``start_s`` is when it first joined a batch, ``first_token_s`` when its first token was there (``time_s`` if it has
    none), ``prefill_tokens_computed`` what all engines together computed for it.
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
    signals: Mapping[str, np.ndarray] | None = None


@dataclass(frozen=True)
class EngineSpan:
    """A stretch of an actor's time in one phase: ``prefill``, ``decode``, or ``start`` (shapes were prepared for the device).

    ``tokens`` are computed prompt tokens (prefill) or generated tokens (decode); ``kv_tokens`` the mean KV tokens held;
    ``batch_mean`` the mean batch weighted by time; ``call`` which call of the phase, where there are several;
    ``computed`` (response, tokens computed) of the prefill of responses that join.
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


@dataclass(frozen=True)
class Progress:
    """What ``advance`` committed, in order of time."""

    completions: Sequence[Completion]
    spans: Sequence[EngineSpan]


class Engine(Protocol):
    """One model replica with continuous batching on a clock of its own.

    ``advance`` commits iterations that END at or before ``to_s``; so at time t the committed state is what is known at t,
    and an iteration under way at t is neither lost nor seen. An idle engine's clock jumps to the next ``available_s``.

    Attributes:
        slots: most responses in the batch.
        reuses_prefixes: whether it can go on from a part of a response's context (``Request.there_tokens``,
            ``Request.shares_prompt``); one that cannot refuses such requests (vLLM's takes
            ``shares_prompt``, as it shares equal prompts by itself).
    """

    slots: int
    reuses_prefixes: bool

    @property
    def clock_s(self) -> float:
        """End of the last committed iteration."""
        ...

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests in admission order; each joins the batch when available, a slot is free and its KV fits."""
        ...

    def peek_next_event_s(self, completions: int = 1) -> float:
        """A time before which the ``completions``-th next completion cannot happen and after which it can be asked anew;
        infinite when nothing is left to do. Commits nothing."""
        ...

    def advance(self, to_s: float) -> Progress:
        """Commit every iteration that ends at or before ``to_s`` (infinite: until nothing is left)."""
        ...

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """Take responses (all when None) off at the first iteration boundary at or after ``at_s``.

        Commits the iteration under way at ``at_s``. Returns the unfinished ones, running first in admission order, then
        waiting, with ids, log-probabilities and KV state, and what was committed. ``clock_s`` is the boundary. What was there
        for one that has not joined yet stays behind: elsewhere it needs its whole context.
        """
        ...

    def generated_tokens(self) -> dict[int, int]:
        """Committed tokens of every response that is with this engine and not complete."""
        ...

    def running(self) -> tuple[int, ...]:
        """Responses in the batch, in admission order."""
        ...

    def waiting(self) -> tuple[int, ...]:
        """Responses in the queue, in admission order."""
        ...

    def sync(self, weights: Any, weights_version: int) -> None:
        """Take over new weights."""
        ...

    def close(self) -> None:
        """Give back memory. Idempotent."""
        ...


@runtime_checkable
class SupportsTokenArrays(Protocol):
    """An engine that has ``generated_tokens`` as arrays too."""

    def generated_arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Responses that are with this engine and not complete, and their committed tokens."""
        ...


@runtime_checkable
class SupportsNextCompletions(Protocol):
    """An engine that sees several completions ahead."""

    def next_completions_s(self, count: int) -> NDArray[np.float64]:
        """(n,) in order, times before which its next completions, ``count`` of them or as many as there are, cannot happen,
        and after which they can be asked anew. Commits nothing."""
        ...


@runtime_checkable
class SupportsSignals(Protocol):
    """An engine that tells the signals of responses under way, if it was asked for any."""

    def recent_signals(self) -> tuple[NDArray[np.int64], Signals]:
        """Responses that are with this engine, have tokens and are not complete; and by name (n, ...) means of their signals
        over their last ``SIGNAL_TOKENS`` committed tokens, all that they have where these are fewer. Nothing where none was
        asked for."""
        ...
