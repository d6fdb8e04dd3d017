"""What a run's actors decode with and where they run, and how the weights of every step get there.

Knows the model that is trained, engine factories and pools; nothing of plans or learning.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rlhfless.engine.torch.capacity import admission_within
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.engine.torch.sampling import Sampling
from rlhfless.engine.torch.worker_backend import cuda_devices
from rlhfless.executor import Lifecycle, PlanForecast, ProcessPool, RayPool, ShortestStep
from rlhfless.executor.distributed.ray.cluster import import_ray
from rlhfless.executor.distributed.ray.placement import FewerGpus
from rlhfless.system.scratch_folders import OwnFolder, in_memory
from rlhfless.training.config import TrainConfig, TrainError
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel


class Engines(Protocol):
    """The engines of a run."""

    def of_step(self, model: Any, step: int) -> Any:
        """A factory of engines with the weights that ``model`` has now, which are those of ``step``."""
        ...

    def close(self) -> None:
        """Remove what weights were kept in. Idempotent."""
        ...


class TorchEngines:
    """Torch engines that share a copy of the weights.

    Args:
        model: the model that is trained.
        max_tokens: most tokens of a response with its prompt.
    """

    def __init__(self, model: Any, eos_id: int, max_tokens: int, sampling: Sampling) -> None:
        self._rows = DecoderModel(model, max_tokens)
        self._factory = TorchEngineFactory(self._rows, eos_id, sampling)

    def of_step(self, model: Any, step: int) -> TorchEngineFactory:
        """See ``Engines``; one factory for all steps, whose weights are replaced."""
        self._rows.load(model)
        return self._factory

    def within(self, latency: LatencyModel, memory_bytes: int) -> LatencyModel:
        """``latency`` with the slots and KV tokens of GPUs with so much memory: the planner's and, from there, the engines'.

        Raises:
            TrainError: no actor fits.
        """
        try:
            fits = admission_within(self._rows, memory_bytes, most_slots=latency.max_batch)
        except MemoryError as error:
            raise TrainError(str(error)) from None
        return replace(latency, max_batch=fits.max_batch, kv_capacity_tokens=fits.kv_capacity_tokens)

    def close(self) -> None:
        """See ``Engines``; nothing is kept outside of this process."""


class VllmEngines:
    """vLLM in the process of every actor, which reads each step's weights from a folder, in memory where the system has one; on
    other machines it is one of theirs (see ``vllm/weight_shipping``).

    It computes in float32, as the learner does.

    Args:
        keeps_last: the last step's weights stay, for actors that are started ahead of a step with them.
    """

    def __init__(self, eos_id: int, max_tokens: int, sampling: Sampling, keeps_last: bool) -> None:
        self._eos_id, self._max_tokens, self._sampling = eos_id, max_tokens, sampling
        self._keeps_last = keeps_last
        self._last: Path | None = None
        self._folder = OwnFolder("rlhfless-weights-", in_memory())

    def of_step(self, model: Any, step: int) -> Any:
        """See ``Engines``; writes a folder with the weights and removes those of earlier steps, but the last where it stays."""
        from rlhfless.engine.vllm.factory import VllmEngineFactory
        from rlhfless.engine.vllm.weight_folders import write_weights

        folder = write_weights(model, self._folder.path, step, keep=self._last)
        if self._keeps_last:
            self._last = folder
        return VllmEngineFactory(str(folder), step, self._eos_id, self._max_tokens, self._sampling, "float32")

    def close(self) -> None:
        """See ``Engines``; removes the folders of weights."""
        self._folder.let_go()


def check_engine(engine: str) -> None:
    """Whether the engine called ``torch`` or ``vllm`` can be made here.

    Raises:
        MissingExtra, InputError: vLLM is not installed, or a version that is not supported.
    """
    if engine == "vllm":
        from rlhfless.engine.vllm.adapter import check_version

        check_version()


def make_pool(config: TrainConfig, cluster: Cluster) -> ProcessPool | RayPool | None:
    """Where the run's actors live; None for the virtual clock, on which there are none.

    A Ray cluster that is started here has this machine's CUDA devices; without any it counts as many GPUs as the run has, and
    actors compute on the CPU.

    Raises:
        MissingExtra, InputError: Ray is not installed, or there is no cluster at the address.
        FewerGpus: the Ray cluster has not the GPUs of ``cluster``.
    """
    if config.executor == "virtual":
        return None
    forecasts = {"none": None, "shortest": ShortestStep(), "forecast": PlanForecast()}
    lifecycle = Lifecycle(config.keep_s, forecasts[config.prewarm])
    if config.executor == "local":
        return ProcessPool(lifecycle=lifecycle)
    there = config.ray_address is not None or import_ray().is_initialized()
    logical = None if there or cuda_devices() else config.gpus
    pool = RayPool(config.ray_address, gpus=logical, lifecycle=lifecycle)
    try:
        pool.check(cluster)
    except BaseException:
        pool.close()
        raise
    return pool


def options_for(error: FewerGpus) -> str:
    """The options of ``rlhfless train`` with which a run does on what Ray still has; none where nothing does."""
    return "" if error.largest is None else "--gpus {} --gpus-per-node {}".format(*error.largest)


def same_bits(config: TrainConfig, device: str, *, own_pool: bool) -> bool:
    """Whether tokens do not depend on the cluster: surely so where the torch engine computes on the CPU.

    Args:
        device: type of the policy's, where actors are emulated. own_pool: actors are in a pool that was given.
    """
    if config.engine != "torch" or own_pool or config.ray_address is not None:
        return False
    return device == "cpu" if config.executor == "virtual" else not cuda_devices()


def make_engines(engine: str, model: Any, eos_id: int, max_tokens: int, sampling: Sampling, prewarms: bool) -> Engines:
    """The engines called ``torch`` or ``vllm``; ``prewarms``: actors are started ahead of steps."""
    if engine == "torch":
        return TorchEngines(model, eos_id, max_tokens, sampling)
    return VllmEngines(eos_id, max_tokens, sampling, keeps_last=prewarms)
