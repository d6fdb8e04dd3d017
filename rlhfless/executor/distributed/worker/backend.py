"""Interface between a worker process and its engine kind (torch, vLLM): device selection, start-up, tensor serialisation.

The engine factory names the module that its processes import, so the executor imports neither torch nor vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pickle import PickleBuffer
from typing import Any, Protocol

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.engine.simulated.factory import SimulatedEngineFactory
from rlhfless.errors import InputTypeError
from rlhfless.executor.step.work_items import WorkServer
from solver.model.admission import Admission
from solver.model.latency import LatencyModel
from solver.model.plan import Plan
from solver.model.plurals import counted


class WorkerBackend(Protocol):
    """A module of an engine kind (``torch/worker_backend``, ``vllm/worker_backend``) that a worker process imports."""

    def cuda_devices(self) -> list[str]:
        """Return the CUDA devices that the process sees, in order; none for engines that do not use them."""
        ...

    def use_device(self, device: str) -> None:
        """Let the process compute on ``device`` from now on: ``cpu``, or CUDA devices separated by commas."""
        ...

    def start_server(self, engines: Any, latency: LatencyModel) -> bool:
        """Start what engines need in addition to the process; returns whether anything was started, which counts as
        start-up.
        """
        ...

    def prewarm(self, engines: Any, latency: LatencyModel) -> None:
        """Start the server before the step begins, with engines of an earlier step. The step's weights arrive with its engines.

        Only called for a backend whose engines start a server (``starts_server``).
        """
        ...

    def pack(self, obj: Any) -> tuple[bytes, list[PickleBuffer]]:
        """Return the pickle of ``thing`` without its tensors, and their bytes: buffers of pickle protocol 5."""
        ...

    def unpack(self, form: bytes, buffers: Iterable[Any], device: str) -> Any:
        """Return the object that ``pack`` was given, on ``device``; the buffers may be freed then."""
        ...

    def free_memory(self, device: str) -> None:
        """Return unused memory to the device."""
        ...


class RemoteEngines(Protocol):
    """An engine factory for actors in separate processes.

    Attributes:
        backend_module: name of the backend module that such a process imports.
        min_start_timeout_s: minimum of the seconds that an actor may take until its first report, before it counts as lost.
        one_gpu: whether an engine decodes on one GPU only; else on those of its actor, however many.
        takes_prefixes: whether they compute prefixes for other engines and continue from such prefixes.
        starts_server: whether a process starts a server for them that takes long and stays (``WorkerBackend.start_server``).
    """

    backend_module: str
    min_start_timeout_s: float
    one_gpu: bool
    takes_prefixes: bool
    starts_server: bool

    @property
    def weights_version(self) -> int | None:
        """Return the version of their weights; None: the weights are sent with the factory and are the step's."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Return the bytes that every actor receives as the step's weights."""
        ...

    def measured(self) -> RemoteEngines:
        """Return the same engines, charged with measured time.

        Raises:
            MissingExtra, InputError: they cannot be made here.
        """
        ...

    def to_remote(self) -> Any:
        """Return the form of the factory that processes of other machines receive; their backend reads it as a factory."""
        ...

    def compatibility_key(self, latency: LatencyModel) -> Any:
        """Return the compatibility key of a process that made an engine for this latency model.

        The process can make further engines only for an equal key.
        """
        ...

    def __call__(self, latency: LatencyModel, admission: Admission, start_s: float = 0.0) -> Any:
        """Make an engine."""
        ...


def prefix_refusal(plan: Plan, engines: RemoteEngines) -> str | None:
    """Return why these engines cannot compute or share the plan's prefixes; None where they can."""
    if engines.takes_prefixes:
        return None
    for i, actor in enumerate(plan.actors):
        if actor.prefixes or i == plan.prefill_actor:
            does = "receives prefixes" if actor.prefixes else "computes prefixes for others"
            name = type(engines).__name__
            return f"actor {i} of the plan {does}, which a {name} cannot; run a plan without deduplicated prefill"
    return None


def gpus_refusal(index: int, gpu_count: int, engines: RemoteEngines, *, on_gpus: bool) -> str | None:
    """Return why an actor of a plan cannot decode on its GPUs; None where it can.

    Args:
        index, gpu_count: of the actor. on_gpus: its GPUs are real ones, not names for the CPU.
    """
    if gpu_count == 1 or not on_gpus or not engines.one_gpu:
        return None
    return (
        f"actor {index} of the plan has {counted(gpu_count, 'GPU')}, but the torch engine decodes on one; plan for 1 GPU per "
        "actor, or choose engine 'vllm', which is tensor-parallel over the GPUs of an actor"
    )


def kept_memory(servers: Sequence[WorkServer], plan: Plan, engines: RemoteEngines) -> str | None:
    """Return why work cannot use these servers' GPUs, whose actors' engines keep their memory; None where it can."""
    used = {gpu for actor in plan.actors for gpu in actor.gpu_ids}
    for server in servers if engines.starts_server else ():
        if not used.isdisjoint(server.gpu_ids):
            return (
                f"server {server.holder!r} of the work is on GPU {min(used.intersection(server.gpu_ids))} of an actor, but a "
                f"{type(engines).__name__} keeps its GPU memory when it is done; give the work GPUs beside the actors"
            )
    return None


def remote_engines(engines: Any) -> RemoteEngines:
    """Return ``engines`` if other processes can make them; the class ``SimulatedEngine`` stands for its factory.

    Raises:
        InputTypeError: they cannot.
    """
    factory: Any = SimulatedEngineFactory() if engines is SimulatedEngine else engines
    if not hasattr(factory, "backend_module"):
        name = getattr(engines, "__name__", type(engines).__name__)
        raise InputTypeError(
            "actors in processes decode with a TorchEngineFactory, a VllmEngineFactory or a SimulatedEngineFactory, not with "
            f"{name}; run it on the virtual clock: Executor(engine, cluster, latency=latency)"
        )
    checked: RemoteEngines = factory
    return checked
