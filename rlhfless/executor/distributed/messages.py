"""Messages between the wall-clock event loop and a remote actor, independent of the transport (process or Ray).

The loop sends orders and never waits for them. The actor reports its work in order: everything that happened before it obeyed
an order is reported before the answer. No response is lost or doubled because of that order. A response that an actor does not
hand over when asked is complete, and was reported so. Reports of an actor after it was declared lost are ignored.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from rlhfless.engine.protocol import Completion, EngineSpan, Request
from rlhfless.executor.step.failure import ActorError
from rlhfless.executor.step.record import holder_of
from rlhfless.system.child import Failed
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.plan import ActorPlan

ALIGNMENT_BYTES = 64  # of tensors in shared memory


class NoRoom(ActorError):
    """Shared memory, or Ray's object store, is too full for what an actor hands over."""


class Unreachable(ActorError):
    """KV state or prefixes of another actor were lost with it or its node, were never written, or do not arrive in time."""


@dataclass(frozen=True)
class Block:
    """An object with tensors whose bytes are stored as ``name``, in shared memory or as a Ray object.

    Attributes:
        form: the object without its tensors (see ``Backend``). sizes: bytes of each tensor.
    """

    name: str
    form: bytes
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(self.sizes)

    @property
    def places(self) -> list[slice]:
        """Return where each tensor begins and ends in shared memory."""
        begins = accumulate((-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in self.sizes), initial=0)
        return [slice(begin, begin + size) for begin, size in zip(begins, self.sizes, strict=False)]


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
    """What became of a work item that ended at the time of the report: its start, and the result or exception of its function.

    Attributes:
        result: pickled, from another process.
    """

    index: int
    start_s: float
    result: Any = None
    failed: Failed | None = None


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
        taken: the answer to ``TakeOff``: the responses handed over, with their KV state where it was asked for and exists.
        prefixes: the answer to ``ComputePrefixes``: by receiver, the block for ``Add`` there.
        again: responses whose KV state, handed over by another actor, could not be read; it is recomputed.
        drafts_off: why its engine drafts no more, in the first report since then.
        item: the answer to ``RunItem``.
        closed: the answer to ``Close``, after which nothing is reported.
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

    @classmethod
    def failed(cls, where: str, failed: Failed) -> ActorLost:
        """Return the loss of an actor whose process sent an exception; ``where``: it runs, in words."""
        return cls(
            f"({where}) failed with {failed.error}", failed.out_of_memory, failed.unrecoverable,
            gpus_gone=failed.kind == "ServerLost",  # they are the server's
            trace=failed.trace,
        )  # fmt: skip


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


# --- orders to an actor's process -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartStep:
    """Make an engine.

    Attributes:
        origin_s: the run's start on the monotonic clock. engines: block of an engine factory with the weights of
            ``weights_version``.
    """

    origin_s: float
    engines: Block
    latency: LatencyModel
    admission: Admission
    weights_version: int


@dataclass(frozen=True)
class StartWork:
    """Serve work items. ``origin_s`` is the run's start on the monotonic clock; the weights' version is the step's."""

    origin_s: float
    weights_version: int


@dataclass(frozen=True)
class Add:
    """Queue requests, new ones or those that another actor of the step handed over. May be sent before the actor is ready. KV
    states are blocks, which are freed once they are read. Unreadable ones are recomputed.

    Attributes:
        prefixes: block of the KV state of prompts that a prefill actor of the step computed for this one
            (``ActorReport.prefixes``), for requests with cached prompt tokens.
    """

    requests: Sequence[Request]
    prefixes: Block | None = None


@dataclass(frozen=True)
class TakeOff:
    """Hand over responses at the next iteration boundary; answered once (``ActorReport.taken``).

    Attributes:
        kv_names: name of the block of each response that keeps its KV state.
    """

    responses: Sequence[int]
    kv_names: Mapping[int, str]


@dataclass(frozen=True)
class ComputePrefixes:
    """Compute the KV state of prefixes, shared parts only once. One report answers (``ActorReport.prefixes``).

    Attributes:
        prefixes: token ids by prompt. receivers: by index of an actor, the prompts that it receives; names: of its block.
    """

    prefixes: Mapping[int, np.ndarray]
    receivers: Mapping[int, Sequence[int]]
    names: Mapping[int, str]


@dataclass(frozen=True)
class RunItem:
    """Call the function of a work item; answered once (``ActorReport.item``).

    Attributes:
        call: the function and its two arguments, pickled for another process; its result is pickled then, too.
    """

    index: int
    call: bytes | tuple[Any, tuple[Completion, ...], tuple[Any, ...]]

    def pickled(self) -> RunItem:
        """Return the order for another process."""
        return replace(self, call=pickle.dumps(self.call, pickle.HIGHEST_PROTOCOL))

    def run(self, now_s: Callable[[], float]) -> ActorReport:
        """Run the item's function and return the answer; ``now_s``: seconds since the run's start."""
        start_s = now_s()
        try:
            if isinstance(self.call, bytes):
                function, completions, results = pickle.loads(self.call)
                result = pickle.dumps(function(completions, results), pickle.HIGHEST_PROTOCOL)
            else:
                function, completions, results = self.call
                result = function(completions, results)
        except BaseException as error:  # a function that exits, too
            return ActorReport(now_s(), item=ItemAnswer(self.index, start_s, failed=Failed.of(error)))
        return ActorReport(now_s(), item=ItemAnswer(self.index, start_s, result))


@dataclass(frozen=True)
class Close:
    """Release the GPUs, and the engine's memory; answered once (``ActorReport.closed``)."""


@dataclass(frozen=True)
class Prewarm:
    """What a prewarmed process starts before it accepts orders: engines of the last step, whose weights are not those of the
    coming step.
    """

    engines: Any
    latency: LatencyModel


Order = StartStep | StartWork | Add | TakeOff | ComputePrefixes | RunItem | Close


class RemoteActor(Protocol):
    """An actor in another process. Calls return at once, and none fails because the actor died: its ``StepActors``
    report that.
    """

    @property
    def cpu_s(self) -> float | None:
        """Return the processor seconds that its process has used; None where that is not known here."""
        ...

    def send(self, order: Order) -> None:
        """Send an order; orders are obeyed in the order of the calls."""
        ...


def blocks(requests: Sequence[Request]) -> list[Block]:
    """Return the blocks of requests' KV states that another actor stored."""
    return [r.kv for r in requests if isinstance(r.kv, Block)]


def received(order: Order) -> list[Block]:
    """Return the blocks of other actors that an order passes on."""
    if not isinstance(order, Add):
        return []
    return [*blocks(order.requests), *([] if order.prefixes is None else [order.prefixes])]
