"""Makes the inference engines of a training run, updates their weights every step, and makes the actor pool.

Inputs are the trained model, the configuration and the cluster. Outputs are an engine factory per step and a pool of local
processes or Ray actors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol

import torch

from rlhfless.engine.common.sampling import Sampling
from rlhfless.engine.torch.capacity import admission_within
from rlhfless.engine.torch.devices import cuda_devices
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.row_model import RowModel
from rlhfless.engine.torch.row_models import row_model
from rlhfless.engine.torch.transformers_limits import scales_rope, supported_tokens
from rlhfless.executor import Faults, Lifecycle, PlanForecast, ProcessPool, RayPool, ShortestStep
from rlhfless.executor.distributed.ray.cluster import import_ray
from rlhfless.executor.distributed.ray.object_store import store_bytes
from rlhfless.executor.distributed.ray.placement import FewerGpus
from rlhfless.system.child import HEARTBEAT_TIMEOUT_S
from rlhfless.system.cleanup import clean_up
from rlhfless.training.config import ClusterConfig, TrainConfig, TrainError
from rlhfless.training.config.learning import Precision
from rlhfless.training.weight_sync import FolderSync
from solver.model.cluster import Cluster
from solver.model.drafting import Drafting
from solver.model.latency import LatencyModel


class Engines(Protocol):
    """Makes the engine factory of every step of a run, with the weights of that step."""

    def of_step(self, model: Any, step: int) -> Any:
        """Return an engine factory with the current weights of ``model``, which are those of ``step``."""
        ...

    def release(self) -> None:
        """Give back the memory of the step's weights, until the next step. Idempotent."""
        ...

    def close(self) -> None:
        """Remove the stored weights. Idempotent."""
        ...


class TorchEngines:
    """Torch engines that share one copy of the weights.

    Args:
        rows: the copy, in the number format in which tokens are generated.
        drafting: how responses are decoded with drafts; None: one token per pass.
    """

    def __init__(
        self,
        rows: RowModel,
        eos_id: int | Sequence[int],
        sampling: Sampling,
        drafting: Drafting | None = None,
    ) -> None:
        self._rows = rows
        self._factory = TorchEngineFactory(rows, eos_id, sampling, drafting=drafting)

    def of_step(self, model: Any, step: int) -> TorchEngineFactory:
        """See ``Engines``. All steps use one factory, whose weights are replaced."""
        self._rows.load(model)
        return self._factory

    def release(self) -> None:
        """See ``Engines``: the engines' copy of the weights is freed while the learner needs memory."""
        self._rows.free()

    def within(self, latency: LatencyModel, memory_bytes: int) -> LatencyModel:
        """Return ``latency`` with the slots and KV tokens of GPUs with ``memory_bytes``; planner and engines both use them.

        Raises:
            TrainError: the memory is too small for an actor.
        """
        try:
            fits = admission_within(self._rows, memory_bytes, max_slots=latency.max_batch)
        except MemoryError as error:
            raise TrainError(str(error)) from None
        return replace(latency, max_batch=fits.max_batch, kv_capacity_tokens=fits.kv_capacity_tokens)

    def close(self) -> None:
        """See ``Engines``; there is nothing to remove, because the weights are in this process only."""


class VllmEngines:
    """vLLM engines, one in the process of every actor, with the weights that ``sync`` publishes.

    On the virtual clock one process decodes for all emulated actors (``engine/vllm/emulation``). It sleeps between steps.

    Args:
        precision: vLLM's name of the number format in which it computes.
        sync: writes each step's weights for replicas.
        drafting: how responses are decoded with drafts; None: one token per pass.
        options: further arguments of vLLM, see ``VllmSettings``.
        heartbeat_timeout_s: see ``VllmEngineFactory``.
    """

    def __init__(
        self,
        eos_id: int | Sequence[int],
        max_tokens: int,
        sampling: Sampling,
        precision: str,
        sync: FolderSync,
        drafting: Drafting | None = None,
        options: Mapping[str, Any] = MappingProxyType({}),
        heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S,
    ) -> None:
        self._eos_id, self._max_tokens, self._sampling, self._precision = eos_id, max_tokens, sampling, precision
        self._sync, self._drafting, self._options = sync, drafting, dict(options)
        self._heartbeat_timeout_s = heartbeat_timeout_s

    def of_step(self, model: Any, step: int) -> Any:
        """See ``Engines``. Publishes the weights."""
        from rlhfless.engine.vllm.factory import VllmEngineFactory

        folder = self._sync.publish(model, step)
        return VllmEngineFactory(
            str(folder), step, self._eos_id, self._max_tokens, self._sampling, self._precision, options=self._options,
            drafting=self._drafting, heartbeat_timeout_s=self._heartbeat_timeout_s,
        )  # fmt: skip

    def release(self) -> None:
        """See ``Engines``: withdraws the step's weights. The process of emulated actors sleeps."""
        from rlhfless.engine.vllm import emulation

        emulation.sleep()
        self._sync.release()

    def close(self) -> None:
        """See ``Engines``; removes what is stored of weights, and ends the process of emulated actors."""
        from rlhfless.engine.vllm import emulation

        emulation.close()
        self._sync.close()


def check_engine(engine: str) -> None:
    """Check that the engine ``torch``, ``transformers`` or ``vllm`` can be used in this installation.

    Raises:
        MissingExtra, InputError: vLLM is not installed, or its version is not supported.
    """
    if engine == "vllm":
        from rlhfless.engine.vllm.adapter import check_version

        check_version()


def make_pool(
    config: ClusterConfig, cluster: Cluster, time_weight: float, weight_bytes: int = 0
) -> ProcessPool | RayPool | None:
    """Return the actor pool of the run, or None for the virtual clock, whose actors are emulated.

    Idle actors end by cost, with the planner's time weight, unless the configuration says after how long. A Ray cluster started
    here offers this machine's CUDA devices. Without CUDA it counts as many GPUs as the run has, and actors compute on the CPU.

    Args:
        weight_bytes: that every actor receives in a step; the object store of a Ray cluster started here has room for them.

    Raises:
        MissingExtra, InputError: Ray is not installed, or there is no cluster at the address, or shared memory is too small.
        FewerGpus: the Ray cluster has fewer GPUs than ``cluster``.
    """
    if config.executor == "virtual":
        return None
    forecasts = {"none": None, "shortest": ShortestStep(), "forecast": PlanForecast()}
    lifecycle = Lifecycle(config.idle_timeout_s, forecasts[config.prewarm], time_weight=time_weight)
    limit_s = config.heartbeat_timeout_s
    faults = Faults(silence_floor_s=limit_s, min_start_timeout_s=max(Faults.min_start_timeout_s, limit_s))
    if config.executor == "local":
        return ProcessPool(lifecycle=lifecycle, faults=faults)
    ray_is_up = config.ray_address is not None or import_ray().is_initialized()
    logical = None if ray_is_up or cuda_devices() else config.gpu_count  # without CUDA actors compute on the CPU
    store = store_bytes(weight_bytes)
    pool = RayPool(config.ray_address, gpus=logical, lifecycle=lifecycle, faults=faults, object_store_bytes=store)
    try:
        pool.check(cluster)
    except BaseException as error:
        clean_up(pool.close, after=error)
        raise
    return pool


def options_for(error: FewerGpus) -> str:
    """Return the keys of the configuration that fit the GPUs which Ray still has; the empty text if none fit."""
    return "" if error.largest is None else "cluster.gpus={} cluster.gpus_per_node={}".format(*error.largest)


def options_after_loss(pool: ProcessPool | RayPool | None, cluster: Cluster) -> str:
    """Return the options to continue with on a Ray cluster that has become smaller; the empty text if it has not, or if it
    cannot be asked.
    """
    try:
        if isinstance(pool, RayPool):
            pool.check(cluster)
    except FewerGpus as error:
        return options_for(error)
    except Exception:  # Ray itself may be gone
        return ""
    return ""


def precision_of(config: TrainConfig, device: str, checkpoint: str = "float32") -> Precision:
    """Return the number format in which a run generates.

    Args:
        device: device type of the policy, where actors are emulated.
        checkpoint: number format of the weights that the run began with, which ``auto`` takes; engines have no float16.
    """
    if config.rollout.generation_dtype != "auto":
        return config.rollout.generation_dtype
    on_gpu = device == "cuda" if config.cluster.executor == "virtual" else bool(cuda_devices())
    return "bfloat16" if checkpoint == "bfloat16" or (checkpoint == "float16" and on_gpu) else "float32"


def same_bits(config: TrainConfig, device: str, checkpoint: str, *, custom_pool: bool) -> bool:
    """Return whether the sampled tokens are certain to be the same on every cluster: the torch engine in float32 on the CPU
    guarantees that.

    Args:
        device, checkpoint: as for ``precision_of``. custom_pool: the caller passed the pool.
    """
    cluster = config.cluster
    if cluster.engine != "torch" or cluster.actor_threads > 1:
        return False
    if custom_pool or cluster.ray_address is not None:
        return False
    if precision_of(config, device, checkpoint) != "float32":
        return False
    return device == "cpu" if cluster.executor == "virtual" else not cuda_devices()


def model_context(engine: str, model: Any) -> int | None:
    """Return the longest context, prompt and response, with which an engine can run a model; None where it is not known here.

    Args:
        engine: ``torch``, ``transformers`` or ``vllm``. The last one extends the context of a model whose rotary embedding is
            scaled, by rules of its own.
    """
    config = model.config.get_text_config()
    tokens = getattr(config, "max_position_embeddings", None)
    if tokens is None or (engine == "vllm" and scales_rope(config)):
        return None
    return supported_tokens(model, None) if engine == "transformers" else int(tokens)


def make_engines(
    config: ClusterConfig,
    model: Any,
    eos_id: int | Sequence[int],
    max_tokens: int,
    sampling: Sampling,
    precision: str,
    drafting: Drafting | None = None,
) -> Engines:
    """Return the engines of a run that its options name, with their settings of drafts if any.

    Args:
        precision: ``float32`` or ``bfloat16``, see ``precision_of``.
    """
    if config.engine == "vllm":
        share = config.gpu_memory_utilization
        options = {} if share is None else {"gpu_memory_utilization": share}
        sync = FolderSync(keeps_last=config.prewarm != "none", dtype=getattr(torch, precision))
        limit_s = config.heartbeat_timeout_s
        return VllmEngines(eos_id, max_tokens, sampling, precision, sync, drafting, options, limit_s)
    forward = "own" if config.engine == "torch" else config.engine
    rows = row_model(forward, model, max_tokens, getattr(torch, precision), threads=config.actor_threads)
    return TorchEngines(rows, eos_id, sampling, drafting)
