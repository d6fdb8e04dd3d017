"""What a run chooses where its options leave it open: where actors run, on how many GPUs, the profile, number formats, rewards.

What was chosen is stored with the run's options, so a resumed run, also on another machine, goes on with it.
"""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from rlhfless.executor import ProcessPool, RayPool
from rlhfless.latency.profile import nearest_profile, read_profile, weights_of_profile
from rlhfless.system.cpu_threads import usable_cores
from rlhfless.system.model_folders import local_folder
from rlhfless.training import missing_torch

try:
    import torch
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.torch.devices import cuda_devices
from rlhfless.engine.torch.pretrained import checkpoint_dtype
from rlhfless.training.config import ClusterConfig, TrainConfig, TrainError
from rlhfless.training.engines import precision_of
from rlhfless.training.learner_device import learner_device
from rlhfless.training.weight_bytes import weights_of

EMULATED_GPUS = 8
IMPORTANCE_RATIO_CAP = 2.0
"""As TRL's ``vllm_importance_sampling_cap``."""
TINY_PROFILE = "cpu-tiny-qwen2"
LEARNER_BYTES = 16
"""Of a weight that is learned: in float32 the weight, its gradient and two moments."""
USABLE = 0.8
"""Share of a GPU's memory that is left by activations, kernels and what is between allocations."""
GIB = 2**30


class Chosen(NamedTuple):
    """The options of a run without any that are left open.

    Attributes:
        device: of the learner.
        words: what was chosen and why, for the run's first lines; empty where all was given.
    """

    config: TrainConfig
    device: torch.device
    words: tuple[str, ...]


def choose(
    config: TrainConfig,
    model: str | Path | tuple[Any, Any] | None,
    pool: ProcessPool | RayPool | None,
    *,
    own_algorithm: bool = False,
    own_rule: bool = True,
    saves: bool = False,
) -> Chosen:
    """Return a run's options with what they leave open.

    Args:
        model, pool: that the caller has passed or named; None: a tiny model is made, and the options say where actors run.
        own_algorithm: the caller has passed an algorithm, which has its own number format and old log-probabilities.
        own_rule: the caller has passed rewards, or the task is no data set and has a rule of its own.
        saves: the run writes checkpoints, as it has a folder.

    Raises:
        TrainError: the GPUs of a Ray cluster elsewhere are not given.
        InputError, ProfileError: there is no such device or model, or no profile fits.
    """
    words: list[str] = []
    config = _where(config, pool, words)
    device = model[0].device if isinstance(model, tuple) else learner_device(config.cluster, pool)
    config = _profile(config, model, device, words)
    if config.optimizer.learner_dtype == "auto":
        dtype = "bfloat16" if device.type == "cuda" and not own_algorithm else "float32"
        words.append(f"learner_dtype {dtype}{' with float32 weights' if dtype == 'bfloat16' else ''}")
        config = config.replace(optimizer={"learner_dtype": dtype})
    if config.algorithm.old_logprobs_from == "auto":
        config = _corrected(config, model, device, words, own_algorithm=own_algorithm)
    if words and config.rollout.generation_dtype == "auto":
        words.append(f"generation_dtype {precision_of(config, device.type, _checkpoint(model))}")
    if not own_rule and "rewards" not in config.task.model_fields_set:
        words.append("rewards task (1 where the response has the row's answer, else 0)")
    if saves and "save_every" not in config.model_fields_set:
        words.append(f"save_every {config.save_every}, the steps from one checkpoint to the next")
    return Chosen(config, device, tuple(words))


def vllm_is_installed() -> bool:
    """Return whether vLLM can be imported, without importing it."""
    return importlib.util.find_spec("vllm") is not None


def _where(config: TrainConfig, pool: Any, words: list[str]) -> TrainConfig:
    """Choose the executor and the number of GPUs."""
    here, asked = len(cuda_devices()), config.cluster
    executor, gpus = asked.executor, asked.gpus
    if executor == "auto":
        executor = "local" if pool is None and _runs_here(config, here) else "virtual"
        if pool is None:
            words.append(f"executor {executor}")
    if gpus is None:
        if executor == "ray" and asked.ray_address is not None:
            raise TrainError("cluster.gpus is not given, but with cluster.ray_address the run needs it; give cluster.gpus=N")
        emulated = executor == "virtual" and pool is None
        gpus = here or (EMULATED_GPUS if emulated else min(EMULATED_GPUS, usable_cores()))
        without = "this machine has none, and they are emulated on the virtual clock" if emulated else "cores in place of them"
        words.append(f"gpus {gpus} ({'of this machine' if here else without})")
    return config.replace(cluster={"executor": executor, "gpus": gpus})


def _runs_here(config: TrainConfig, here: int) -> bool:
    """Return whether this machine has the GPUs, and no option asks for the virtual clock."""
    if here == 0 or (config.cluster.gpus or here) > here or config.cluster.charging != "profile":
        return False
    try:
        config.replace(cluster={"executor": "local", "gpus": config.cluster.gpus or here})
    except TrainError:
        return False
    return True


def _profile(config: TrainConfig, model: Any, device: torch.device, words: list[str]) -> TrainConfig:
    """Choose the latency profile; and on this machine's GPUs their memory, where it is not the profile's."""
    cluster = config.cluster
    if cluster.profile is not None:
        return config
    weights = 0 if model is None else weights_of(model)
    real = cluster.executor == "local" and bool(cuda_devices())
    if weights:
        kind = torch.cuda.get_device_name(0).lower() if cuda_devices() else ""
        known = next((name for name in ("h100", "l40s") if name in kind), None)
        name, size = nearest_profile(weights, _sizes(cluster), known), f"{weights:,} weights"
    else:
        name, size = TINY_PROFILE, "a model of unknown size" if model else "the tiny model"
    measured = weights_of_profile(read_profile(name))
    words.append(f"profile {name}, measured with {measured:,.0f} weights (of the shipped ones the nearest to {size})")
    changes: dict[str, Any] = {"profile": name}
    if real and cluster.memory_gib is None and cluster.engine != "vllm":
        learns = LEARNER_BYTES * weights if device.type == "cuda" and cluster.gpu_count >= len(cuda_devices()) else 0
        total = min(torch.cuda.get_device_properties(one).total_memory for one in cuda_devices())
        changes["memory_gib"] = round(max(USABLE * total - learns, 0.1 * total) / GIB, 1)
        words.append(f"memory_gib {changes['memory_gib']:g} of a GPU for an actor")
    return config.replace(cluster=changes)


def _sizes(cluster: ClusterConfig) -> list[int]:
    """Return how many GPUs an actor may have: one where an engine of torch really decodes, else what divides a node's GPUs."""
    if cluster.tensor_parallel is not None:
        return [cluster.tensor_parallel]
    if cluster.executor != "virtual" and cluster.engine != "vllm":
        return [1]
    return [size for size in range(1, cluster.gpus_of_node + 1) if cluster.gpus_of_node % size == 0]


def _corrected(config: TrainConfig, model: Any, device: torch.device, words: list[str], *, own_algorithm: bool) -> TrainConfig:
    """Choose the old log-probabilities: recomputed, with importance sampling, where engine and learner differ."""
    asked = config.algorithm.importance_ratio_cap
    differ = config.cluster.engine == "vllm" or "bfloat16" in (
        config.optimizer.learner_dtype, precision_of(config, device.type, _checkpoint(model)),
    )  # fmt: skip
    several = config.optimizer.num_mini_batches
    gone = several > 1 and config.cluster.learning == "stream"  # the weights that generated, before all responses are complete
    if asked is None and (own_algorithm or not differ or gone):
        if differ and gone and not own_algorithm:
            words.append(f"old_logprobs_from engine, so no importance sampling, as num_mini_batches is {several} with stream")
            warnings.warn(
                f"engine and learner differ (vLLM, or bfloat16), but cluster.learning 'stream' with optimizer.num_mini_batches "
                f"{several} has no importance sampling; give learning='batch' or num_mini_batches=1, or "
                "old_logprobs_from='engine' if this is meant",
                stacklevel=2,
            )
        else:
            words.append("old_logprobs_from engine")
        return config.replace(algorithm={"old_logprobs_from": "engine"})
    cap = IMPORTANCE_RATIO_CAP if asked is None else asked
    if asked is None:
        words.append(f"old_logprobs_from recomputed, with importance sampling from engine to learner, capped at {cap:g}")
    return config.replace(algorithm={"old_logprobs_from": "recomputed", "importance_ratio_cap": cap})


def _checkpoint(model: Any) -> str:
    if model is None:
        return "float32"
    return str(model[0].dtype).removeprefix("torch.") if isinstance(model, tuple) else checkpoint_dtype(local_folder(model))
