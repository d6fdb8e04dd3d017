"""Messages between the wall-clock event loop and a remote actor, independent of the transport (process or Ray).

The loop sends orders and never waits for them. The actor reports its work in order: everything that happened before it obeyed
an order is reported before the answer. No response is lost or doubled because of that order. A response that an actor does not
hand over when asked is complete, and was reported so. Reports of an actor after it was declared lost are ignored.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlhfless.engine.protocol import Completion, EngineSpan, Request
from rlhfless.executor.step.failure import ActorError
from rlhfless.executor.step.record import holder_of
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.plan import ActorPlan


class NoRoom(ActorError):
    """Shared memory, or Ray's object store, is too full for what an actor hands over."""


class Unreachable(ActorError):
    """KV state or prefixes of another actor were lost with it or its node, were never written, or do not arrive in time."""


@dataclass(frozen=True)
class KvCopy:
    """A copy of KV state made by an actor: of one response, or of all prefixes that it receives.

    Attributes:
        phase: ``migrate`` (out of the sender) or ``transfer`` (into the receiver).
        response: None for prefixes.
        kv_tokens, bytes: the size of the copy.
    """

    phase: str
    response: int | None
    start_s: float
    end_s: float
    kv_tokens: int
    bytes: int


@dataclass(frozen=True)
class ItemAnswer:
    """What became of a work item: its times, and what its function returned or the ``error`` that it raised.

    Attributes:
        result: pickled, from another process; None: ``value`` is the result, from a thread of this one.
    """

    index: int
    start_s: float
    end_s: float
    result: bytes | None = None
    value: Any = None
    error: str | None = None
    trace: str = ""

    def until(self, end_s: float) -> ItemAnswer:
        """Return the answer with another end."""
        return replace(self, end_s=end_s)

    def read(self) -> Any:
        """Return what the function returned."""
        return self.value if self.result is None else pickle.loads(self.result)


@dataclass(frozen=True)
class ActorReport:
    """Events of an actor since its last report; without any it is the heartbeat of a server of work.

    Times are seconds since the run's start.

    Attributes:
        time_s: the iteration boundary that it describes.
        running, waiting: responses in its batch and in its queue, in admission order.
        tokens: (n,) its responses, and (n,) how many tokens of each are generated.
        ready_s: in its first report: when its process was up, and when it had the weights.
        weights_version, weight_bytes: in its first report: the version of its weights, and their bytes.
        taken: the answer to ``take_off``: the responses handed over, with their KV state where it was asked for and exists.
        prefixes: the answer to ``prefill``: by receiver, the argument for ``add`` there.
        again: responses whose KV state, handed over by another actor, could not be read; it is recomputed.
        drafts_off: why its engine drafts no more, in the first report since then.
        item: the answer to ``run_item``.
        closed: the answer to ``close``, after which nothing is reported.
    """

    time_s: float
    running: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    tokens: tuple[Any, Any] = ((), ())
    completions: list[Completion] = field(default_factory=list)
    spans: list[EngineSpan] = field(default_factory=list)
    copies: list[KvCopy] = field(default_factory=list)
    ready_s: tuple[float, float] | None = None
    weights_version: int = 0
    weight_bytes: int = 0
    taken: list[Request] | None = None
    prefixes: Mapping[int, Any] | None = None
    again: Sequence[int] = ()
    drafts_off: str | None = None
    item: ItemAnswer | None = None
    closed: bool = False


@dataclass(frozen=True)
class ActorLost:
    """Comes instead of a report: the actor has ended, and its unreported work is lost.

    Attributes:
        reason: the end of a sentence that begins with "actor-3 ...".
        out_of_memory: another one would need a smaller batch.
        unrecoverable: another actor would fail in the same way, so the order is not repeated.
        gpus_gone: nothing can be started on its GPUs any more (their node has failed, for example).
        trace: of the exception, where there was one.
    """

    reason: str
    out_of_memory: bool = False
    unrecoverable: bool = False
    gpus_gone: bool = False
    trace: str = ""


@dataclass(frozen=True)
class StartActor:
    """Order to start an actor with this version of the weights and no other.

    Attributes:
        short_of_memory: memory ran out on its GPUs in this step. It is started with fewer slots than another step may need, so
            it ends with its work, whatever the life-cycle says.
    """

    index: int
    plan: ActorPlan
    latency: LatencyModel
    admission: Admission
    weights_version: int = 0
    short_of_memory: bool = False

    @property
    def holder(self) -> str:
        """Return its name in the trace."""
        return holder_of(self.index)


@dataclass(frozen=True)
class StartServer:
    """Order to start a server of work: an actor without an engine.

    Attributes:
        index: negative. holder: its name in the trace.
        plan: says only where it is, and since when its step pays for it.
    """

    index: int
    holder: str
    plan: ActorPlan
    weights_version: int = 0

    @property
    def short_of_memory(self) -> bool:
        """See ``StartActor``: it needs no slots."""
        return False


Started = StartActor | StartServer


class RemoteActor(Protocol):
    """An actor in another process. Calls return at once, and none fails because the actor died: its ``StepActors``
    report that.
    """

    @property
    def cpu_s(self) -> float | None:
        """Return the processor seconds that its process has used; None where that is not known here."""
        ...

    def add(self, requests: Sequence[Request], prefixes: Any = None) -> None:
        """Queue requests, new ones or those that another actor of the step handed over. May be called before the actor is
        ready.

        Args:
            prefixes: KV state of prompts that a prefill actor of the step computed for this one (``ActorReport.prefixes``), for
                requests with cached prompt tokens.
        """
        ...

    def take_off(self, responses: Sequence[int], with_kv: Collection[int]) -> None:
        """Order the actor to hand over responses at the next iteration boundary, those of ``with_kv`` with their KV state;
        answered once.
        """
        ...

    def prefill(self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]) -> None:
        """Compute the KV state of prefixes, shared parts only once. One report answers (``ActorReport.prefixes``).

        Args:
            prefixes: token ids by prompt. receivers: by index of an actor, the prompts that it receives.
        """
        ...

    def run_item(self, index: int, function: Any, completions: Sequence[Completion], results: Sequence[Any]) -> None:
        """Order a server of work to call the function of this item; answered once (``ActorReport.item``)."""
        ...

    def close(self) -> None:
        """Order the actor to release its GPUs; answered once."""
        ...


class StepActors(Protocol):
    """The actors of one step and the clock that they share."""

    @property
    def warm(self) -> Collection[tuple[int, ...]]:
        """Return the GPUs of actors that have finished their part of the step and wait: another actor there starts at once."""
        ...

    def now_s(self) -> float:
        """Return the seconds since the run's start."""
        ...

    def start(self, orders: Sequence[StartActor]) -> list[RemoteActor]:
        """Start actors, all at once; called again for those that start later, each with an index that was never used."""
        ...

    def start_server(self, order: StartServer) -> RemoteActor:
        """Start a server of work; its first report says when it was ready."""
        ...

    def prefill(
        self, prefixes: Mapping[int, np.ndarray], receivers: Mapping[int, Sequence[int]]
    ) -> tuple[Mapping[int, Any], float]:
        """Compute the KV state of prefixes in this process, on the learner's GPU. Like ``RemoteActor.prefill``, but blocking.

        Returns:
            By receiver, the argument for ``add`` there, and when it was computed.
        """
        ...

    def reports(self, timeout_s: float | None) -> list[tuple[int, ActorReport | ActorLost]]:
        """Return reports with the index of their actor, in order; waits for one, at most ``timeout_s`` (None: for ever).

        For an actor that died or failed, ``ActorLost`` follows everything that it reported before.
        """
        ...

    def abandon(self, index: int) -> None:
        """End an actor that was declared lost, as far as possible from here, without waiting for it."""
        ...
