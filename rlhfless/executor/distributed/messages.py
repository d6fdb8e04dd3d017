"""What the event loop on the wall clock and an actor elsewhere say to each other, whatever carries it.

Knows requests and reports; nothing of plans' rules, of processes, pipes or engines. The loop gives orders and never waits for
them; the actor reports what it did, in order: whatever happened before it obeyed an order is reported before the answer. That
order is what completeness rests on: a response that an actor does not hand over when asked is complete, and was reported so.
An actor that is lost reports nothing that counts any more, whatever it may still say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rlhfless.engine.protocol import Completion, EngineSpan, Request
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.plan import ActorPlan
from solver.model.runtime_rules import Signals

if TYPE_CHECKING:
    from pathlib import Path

    from rlhfless.executor.step.record import StepRecord


class ActorError(RuntimeError):
    """Actors died or failed and the step could not be finished; the message says why.

    Attributes:
        record: the step up to then: what was completed, spans, events, and what was held until then.
        kept_in: the folder in which a run that keeps a trace has that as a trace of its own.
        resume_with: options that the run has to be resumed with, as its cluster has become smaller.
    """

    record: StepRecord | None = None
    kept_in: Path | None = None
    resume_with: str = ""


class NoRoom(ActorError):
    """Where actors lay out what they give each other there is no room for more."""


class Unreachable(ActorError):
    """What another actor handed over was lost with it or its node, was never laid out, or does not come in time."""


@dataclass(frozen=True)
class Copied:
    """KV state, copied by its actor: of one response, or of all prefixes that it receives.

    Attributes:
        phase: ``migrate`` (out of the sender) or ``transfer`` (into the receiver).
        response: None for prefixes.
        kv_tokens, bytes: how much of it.
    """

    phase: str
    response: int | None
    start_s: float
    end_s: float
    kv_tokens: int
    bytes: int


@dataclass(frozen=True)
class ActorReport:
    """What happened at an actor since its last report. Times are seconds since the run's start.

    Attributes:
        time_s: the iteration boundary that it describes.
        running, waiting: responses in its batch and in its queue, in admission order.
        tokens: (n,) responses with it, and (n,) how many tokens of each are generated.
        signals: what its engine tells of the same tokens by ``recent_signals`` (``SupportsSignals``), if it was asked for any.
        ready_s: in its first report: when its process was up, and when it had the weights.
        weights_version: in its first report: which weights these are.
        taken: the answer to ``cut``: the responses handed over, with their KV state where it was asked for and there is one.
        prefixes: the answer to ``prefill``: by receiver, what ``add`` takes there.
        again: responses whose KV state, handed over by another actor, could not be read: it is computed again.
        closed: the answer to ``close``, after which nothing is reported.
    """

    time_s: float
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    tokens: tuple[Any, Any] = ((), ())
    signals: tuple[Any, Signals] = ((), {})
    completions: list[Completion] = field(default_factory=list)
    spans: list[EngineSpan] = field(default_factory=list)
    copies: list[Copied] = field(default_factory=list)
    ready_s: tuple[float, float] | None = None
    weights_version: int = 0
    taken: list[Request] | None = None
    prefixes: Mapping[int, Any] | None = None
    again: Sequence[int] = ()
    closed: bool = False


@dataclass(frozen=True)
class ActorLost:
    """Instead of a report: the actor is gone, and with it whatever it has not reported.

    Attributes:
        why: goes on the sentence "actor-3 ...".
        out_of_memory: another one would need a smaller batch.
        hopeless: what was asked cannot be done by any actor, so that trying again makes no sense.
        gpus_gone: nothing can be started on its GPUs any more (their node is gone, say).
        trace: of the exception, where there is one.
    """

    why: str
    out_of_memory: bool = False
    hopeless: bool = False
    gpus_gone: bool = False
    trace: str = ""


@dataclass(frozen=True)
class StartActor:
    """An actor to start, with the weights of this version and no others.

    Attributes:
        short_of_memory: memory ran out on its GPUs in this step: it is started with fewer slots than another step may need, so
            it ends with its work, whatever the life-cycle says.
    """

    index: int
    plan: ActorPlan
    latency: LatencyModel
    admission: Admission
    weights_version: int = 0
    short_of_memory: bool = False


class RemoteActor(Protocol):
    """An actor that decodes by itself. No call waits for it, and none fails because it died: its crew says so."""

    def add(self, requests: Sequence[Request], prefixes: Any = None) -> None:
        """Queue requests, new ones or such as another actor of the crew handed over. May be called before it is ready.

        Args:
            prefixes: what a prefill actor of the crew computed for this one (``ActorReport.prefixes``): KV state of prompts,
                for the requests that say that tokens of their prompt are there.
        """
        ...

    def cut(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        """Hand over responses at the next iteration boundary, those of ``with_kv`` with their KV state; answered once."""
        ...

    def prefill(self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]) -> None:
        """Compute the KV state of prefixes, what they share once; answered once.

        Args:
            prefixes: token ids by prompt. receivers: by index of an actor, the prompts that it receives.
        """
        ...

    def close(self) -> None:
        """Give the GPUs back; answered once."""
        ...


class StepActors(Protocol):
    """The actors of one step and the clock that they share."""

    @property
    def warm(self) -> Collection[tuple[int, ...]]:
        """GPUs of actors that are done with the step and wait: another one there starts at once."""
        ...

    def now_s(self) -> float:
        """Seconds since the run's start."""
        ...

    def start(self, orders: Sequence[StartActor]) -> list[RemoteActor]:
        """Start actors, all at once; called again for those that start later, each with an index that was never used."""
        ...

    def prefill(
        self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]
    ) -> tuple[Mapping[int, Any], float]:
        """Compute the KV state of prefixes here, where the learner is: as ``RemoteActor.prefill``, but waited for.

        Returns:
            By receiver, what ``add`` takes there, and when it was computed.
        """
        ...

    def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        """Reports with the index of who sent them, in order; waits for one, at most ``timeout_s`` (None: for ever).

        An actor that died or failed is ``ActorLost``, after everything that it reported before.
        """
        ...

    def abandon(self, index: int) -> None:
        """The actor was declared lost: end it, if that can be done from here, without waiting for it."""
        ...
