"""What a process needs to know of the kind of engine that it decodes with, and where that stands.

Knows names only: the engine factory says which module its processes load, so neither side has to know torch or vLLM.
"""

from __future__ import annotations

from typing import Any, Protocol

from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.plan import Plan


class WorkerBackend(Protocol):
    """A module beside a kind of engine (``torch/worker_backend``, ``vllm/worker_backend``)."""

    def cuda_devices(self) -> list[str]:
        """The CUDA devices that the process sees, in order; none for engines that do not use them."""
        ...

    def use_device(self, device: str) -> None:
        """The process computes on ``device`` from now on: ``cpu``, or CUDA devices with commas between them."""
        ...

    def bring_up(self, engines: Any, latency: LatencyModel) -> bool:
        """Start what engines need beside the process; returns whether anything was started, which counts as start-up."""
        ...

    def start_ahead(self, engines: Any, latency: LatencyModel) -> None:
        """The same before the step of the process begins, with engines of an earlier one: their weights go with the next.
        Asked only of a side whose engines bring something up."""
        ...

    def pack(self, thing: Any) -> tuple[Any, Any]:
        """``thing`` without its tensors, and the tensors."""
        ...

    def write(self, packed: Any, tensors: Any, buffer: memoryview) -> None:
        """Copy the tensors into the buffer."""
        ...

    def read(self, packed: Any, buffer: memoryview, device: str) -> Any:
        """What ``pack`` was given, on ``device``."""
        ...

    def free_memory(self, device: str) -> None:
        """Give memory that nothing uses any more back to the device."""
        ...


class RemoteEngines(Protocol):
    """An engine factory for actors in processes of their own.

    Attributes:
        side: name of the module that such a process loads.
        several_gpus: whether one engine can decode on several GPUs.
        start_floor_s: seconds that an actor may always take until it reports, before it counts as lost.
        brings_up: whether a process starts something for them that takes long and stays (``WorkerBackend.bring_up``), so that
            they decode in processes of their own only.
        takes_prefixes: whether they compute prefixes for others and go on from such.
    """

    side: str
    several_gpus: bool
    start_floor_s: float
    brings_up: bool
    takes_prefixes: bool

    @property
    def weights_version(self) -> int | None:
        """Which weights they have; None: whatever is sent with the factory, which is the step's."""
        ...

    def in_real_time(self) -> RemoteEngines:
        """The same engines charged with what they take.

        Raises:
            MissingExtra, InputError: they cannot be made here.
        """
        ...

    def carried(self) -> Any:
        """What processes of other machines need to make these engines: where a process here gets the factory, they get this,
        and their side reads it as a factory."""
        ...

    def binding(self, latency: LatencyModel) -> Any:
        """What a process is bound to once it made an engine for actors of this latency model: it can make more for an equal
        binding only."""
        ...

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> Any:
        """An engine."""
        ...


def prefix_refusal(plan: Plan, engines: RemoteEngines) -> str | None:
    """Why these engines cannot run the plan as far as its prefixes go; None where they can."""
    if engines.takes_prefixes:
        return None
    for i, actor in enumerate(plan.actors):
        if actor.prefixes or i == plan.prefill_actor:
            does = "receives prefixes" if actor.prefixes else "computes prefixes for others"
            name = type(engines).__name__
            return f"actor {i} of the plan {does}, which a {name} cannot; run a plan without deduplicated prefill"
    return None


def remote_engines(engines: Any) -> RemoteEngines:
    """``engines``, which processes can make.

    Raises:
        TypeError: they cannot.
    """
    if not hasattr(engines, "side"):
        name = getattr(engines, "__name__", type(engines).__name__)
        raise TypeError(
            f"actors in processes decode with a TorchEngineFactory or a VllmEngineFactory, not with {name}; run it on the "
            "virtual clock"
        )
    found: RemoteEngines = engines
    return found
