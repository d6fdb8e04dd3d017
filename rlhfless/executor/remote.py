"""What the event loop on the wall clock and an actor elsewhere say to each other, whatever carries it.

Knows requests and reports; nothing of plans' rules, of processes, pipes or engines. The loop gives orders and never waits for
them; the actor reports what it did, in order: whatever happened before it obeyed an order is reported before the answer. That
order is what completeness rests on: a response that an actor does not hand over when asked is complete, and was reported so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlhfless.engine.protocol import Completion, EngineSpan, Request
from solver.admission import Admission
from solver.latency import LatencyModel
from solver.plan import ActorPlan


class ActorError(RuntimeError):
    """An actor died or failed, so its step was given up; the message says which one, where and why."""


@dataclass(frozen=True)
class Copied:
    """The KV state of one response, copied by its actor.

    Attributes:
        phase: ``migrate`` (out of the sender) or ``transfer`` (into the receiver).
        kv_tokens, bytes: how much of it.
    """

    phase: str
    response: int
    start_s: float
    end_s: float
    kv_tokens: int
    bytes: int


@dataclass(frozen=True)
class Report:
    """What happened at an actor since its last report. Times are seconds since the run's start.

    Attributes:
        time_s: the iteration boundary that it describes.
        running, waiting: responses in its batch and in its queue, in admission order.
        tokens: (n,) responses with it, and (n,) how many tokens of each are generated.
        ready_s: in its first report: when its process was up, and when it had the weights.
        taken: the answer to ``cut``: the responses handed over, with their KV state where it was asked for and there is one.
        closed: the answer to ``close``, after which nothing is reported.
    """

    time_s: float
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    tokens: tuple[Any, Any] = ((), ())
    completions: list[Completion] = field(default_factory=list)
    spans: list[EngineSpan] = field(default_factory=list)
    copies: list[Copied] = field(default_factory=list)
    ready_s: tuple[float, float] | None = None
    taken: list[Request] | None = None
    closed: bool = False


@dataclass(frozen=True)
class Order:
    """An actor to start."""

    index: int
    plan: ActorPlan
    latency: LatencyModel
    admission: Admission


class RemoteActor(Protocol):
    """An actor that decodes by itself. No call waits for it, and none fails because it died: its crew says so."""

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests, new ones or such as another actor of the crew handed over. May be called before it is ready."""
        ...

    def cut(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        """Hand over responses at the next iteration boundary, those of ``with_kv`` with their KV state; answered once."""
        ...

    def close(self) -> None:
        """Give the GPUs back; answered once."""
        ...


class Crew(Protocol):
    """The actors of one step and the clock that they share."""

    def now_s(self) -> float:
        """Seconds since the run's start."""
        ...

    def start(self, orders: Sequence[Order]) -> list[RemoteActor]:
        """Start actors, all at once."""
        ...

    def reports(self, timeout_s: float | None) -> list[tuple[int, Report]]:
        """Reports with the index of who sent them, in order; waits for one, at most ``timeout_s`` (None: for ever).

        Raises:
            ActorError: an actor died or failed.
        """
        ...
