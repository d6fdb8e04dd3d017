"""What a pool of actors needs of an engine kind: a record of what it can do, and classes whose methods have defaults.

A new kind is a factory (``PoolEngines``) with its ``Capabilities``, and an engine (``PoolEngine``): docs/add_an_engine.md.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, ClassVar, Protocol, Self

from rlhfless.engine.protocol import Progress, Request
from solver.model.admission import Admission
from solver.model.latency import LatencyModel


@dataclass(frozen=True)
class Capabilities:
    """What engines of one kind can do for actors in processes of their own. What they cannot do is refused before a step.

    Attributes:
        name: what sentences call such an engine, such as ``the torch engine``.
        backend: module whose class ``Backend`` is this kind's part of a process; the default needs no device.
        min_start_timeout_s: minimum of the seconds that an actor may take until its first report, before it counts as lost.
        one_gpu: an engine decodes on one GPU only; else on those of its actor, however many.
        served: an engine decodes on a server that runs already, whose URL is the actor's device.
        takes_prefixes: they compute prefixes for other engines and continue from such prefixes.
        starts_server: a process starts a server for them that takes long, and stays with its GPU memory
            (``Backend.start_server``).
        moves: a response that has begun can continue on another actor.
        loads_weights: they decode with the weights of each step, as training needs it.
    """

    name: str
    backend: str = __name__
    min_start_timeout_s: float = 0.0
    one_gpu: bool = False
    served: bool = False
    takes_prefixes: bool = False
    starts_server: bool = False
    moves: bool = True
    loads_weights: bool = True


class Backend:
    """An engine kind's part of a process in which an actor runs."""

    def cuda_devices(self) -> list[str]:
        """Return the CUDA devices that the process sees, in order; none for engines that do not use them."""
        return []

    def use_device(self, device: str) -> None:
        """Let the process compute on ``device`` from now on: ``cpu``, or CUDA devices separated by commas, or a URL."""

    def start_server(self, engines: Any, latency: LatencyModel) -> bool:
        """Start what engines need in addition to the process; returns whether anything was started, which counts as
        start-up.
        """
        return False

    def prewarm(self, engines: Any, latency: LatencyModel) -> None:
        """Start the server before the step begins, with engines of an earlier step. The step's weights arrive with its
        engines. Only called where ``Capabilities.starts_server``.
        """

    def pack(self, obj: Any) -> tuple[bytes, list[PickleBuffer]]:
        """Return the pickle of an object without its tensors, and their bytes: buffers of pickle protocol 5."""
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL), []

    def unpack(self, form: bytes, buffers: Iterable[Any], device: str) -> Any:
        """Return the object that ``pack`` was given, on ``device``; the buffers may be freed then."""
        return pickle.loads(form)

    def free_memory(self, device: str) -> None:
        """Return unused memory to the device."""


class PoolEngine(Protocol):
    """An engine that decodes in real time, in the process of its actor; its methods are those of ``Engine``, but ``step``."""

    @property
    def clock_s(self) -> float:
        """Return the end of the last iteration."""
        ...

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests in admission order."""
        ...

    def step(self, from_s: float, clock: Callable[[], float]) -> Progress:
        """Run one iteration from ``from_s`` (or the end of the last one, if that is later) until ``clock()`` after it.

        Called again and again while there are responses. Orders to the actor wait meanwhile, so it takes a second at most.
        """
        ...

    def cut(self, at_s: float, responses: Sequence[int] | None = None) -> tuple[list[Request], Progress]:
        """Remove responses, between iterations, so that another engine can continue them (``Capabilities.moves``)."""
        ...

    def generated_tokens(self) -> dict[int, int]:
        """Return the tokens so far of every unfinished response."""
        ...

    def running(self) -> tuple[int, ...]:
        """Return the responses in the batch, in admission order."""
        ...

    def waiting(self) -> tuple[int, ...]:
        """Return the responses in the queue, in admission order."""
        ...

    def close(self) -> None:
        """Free memory. Idempotent."""
        ...


class PoolEngines:
    """Base of engine factories for actors in processes of their own; a factory is pickled, and makes an actor's engine there.

    Attributes:
        capabilities: what its engines can do.
    """

    capabilities: ClassVar[Capabilities]

    @property
    def version(self) -> int | None:
        """Return the version of the weights that it names; None: weights are sent with it, and are the step's.

        With a version, engines have the attribute ``weights_version``: the version that they have loaded. An actor with another
        one counts as lost.
        """
        return None

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that every actor receives as the step's weights."""
        return 0

    def measured(self, devices: Sequence[str] = ()) -> Self:
        """Return the same engines, charged with measured time.

        Args:
            devices: of the actors of the plan.

        Raises:
            MissingExtra, InputError: they cannot be made here, or not on these devices.
        """
        return self

    def to_remote(self) -> Any:
        """Return the form of the factory that processes of other machines receive; their backend reads it as a factory."""
        return self

    def compatibility_key(self, latency: LatencyModel) -> Any:
        """Return the compatibility key of a process that made an engine for this latency model; None: it is as good as any.

        The process can make further engines only for an equal key.
        """
        return None

    def check(self, requests: Sequence[Request], admission: Admission) -> None:
        """Refuse requests that an engine with this admission would refuse, before prefixes are computed for them.

        Raises:
            ValueError: naming the response, what is wrong with it, and what would be right.
        """

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> Any:
        """Make an engine (``PoolEngine``) in the process of an actor."""
        raise NotImplementedError
