"""Recommends the number and size of replicas for a run, with the lines of the framework's own configuration.

Inputs are simulated comparisons of actor sizes. There are two recommendations, because GPUs are bought in two ways. For
reserved GPUs it is the actor size that is fastest on all of them. For GPUs that can be released it is the right-sized number of
actors with the least ``T^w C^(1-w)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhfless.analysis.framework_defaults import RunSetup
from rlhfless.analysis.what_if import profiles_of_the_same_model
from rlhfless.latency import load_profile, scaled
from rlhfless.simulate import LoggedStep, SimulationConfig, simulate_steps
from solver.model.errors import PlanningError
from solver.model.plurals import counted


@dataclass(frozen=True)
class Size:
    """Actors of one size under the run's own dispatch: on all GPUs, and right-sized.

    Attributes:
        gpus_per_actor: tensor-parallel size. replicas: on all GPUs. time_s, gpu_s: sums over the steps, with all GPUs
            allocated.
        right_sized: median number of actors that the objective chooses. right_time_s, right_gpu_s: with these, each released
            when it is done.
    """

    gpus_per_actor: int
    replicas: int
    time_s: float
    gpu_s: float
    right_sized: int
    right_time_s: float
    right_gpu_s: float


@dataclass(frozen=True)
class Advice:
    """The best sizes among those with a profile.

    Attributes:
        sizes: all compared sizes, in ascending order. reserved: the fastest on all GPUs. elastic: the best for the objective.
    """

    sizes: tuple[Size, ...]
    reserved: Size
    elastic: Size
    time_weight: float


def advise(logged: Sequence[LoggedStep], setting: SimulationConfig, setup: RunSetup, *, factor: float = 1.0) -> Advice:
    """Compare actor sizes on logged steps: the profile's own size and those of shipped profiles of the same model and GPU kind.

    Args:
        factor: ratio of the run's times to its profile; the other profiles are assumed to be off by the same factor.

    Raises:
        PlanningError: no size holds the steps' responses.
    """
    first, cluster = setting.latency, setting.cluster
    models = [first, *(scaled(load_profile(name), factor) for name in profiles_of_the_same_model(first.name))]
    models = [m for m in models if m.kind == cluster.kind and m.gpus_per_actor <= cluster.gpus_per_node]
    sizes, refused = [], None
    for latency in sorted(models, key=lambda m: m.gpus_per_actor):
        of_size = replace(cluster, gpus_per_actor=latency.gpus_per_actor)
        resized = replace(setting, cluster=of_size, latency=latency, bound_work=0)
        try:
            steps = simulate_steps(logged, resized, (setup.dispatch, "random")).steps
        except PlanningError as error:
            refused = error
            continue
        theirs, right = (steps[steps["policy"] == name] for name in (setup.dispatch, "random"))
        time_s = float(theirs["time_s"].sum())
        sizes.append(
            Size(
                latency.gpus_per_actor, of_size.max_actors, time_s, cluster.gpus * time_s, int(np.median(right["actors"])),
                float(right["time_s"].sum()), float(right["gpu_seconds"].sum()),
            )
        )  # fmt: skip
    if not sizes:
        assert refused is not None, "the run's own profile is compared"
        raise refused
    weight = setting.objective.time_weight

    def score(size: Size) -> float:
        return float(weight * np.log(size.right_time_s) + (1 - weight) * np.log(size.right_gpu_s))

    return Advice(tuple(sizes), min(sizes, key=lambda s: s.time_s), min(sizes, key=score), weight)


def configuration_lines(framework: str, replicas: int, gpus_per_actor: int, gpus_per_node: int) -> tuple[str, ...]:
    """Return the framework's options for that many replicas of that size; none where they are not known for certain.

    Option names are those of verl 0.9, TRL 1.16, NeMo-RL 0.4 and slime 0.2. OpenRLHF's have dots since 2026. AReaL's are from
    its reference "Allocation Mode" (per-engine backends), prime-rl's from its ``docs/scaling.md``, which shows replicas of a
    chosen size on one node only.
    """
    return LINES[framework](replicas, gpus_per_actor, gpus_per_node) if framework in LINES else ()


def _nodes(gpus: int, size: int, per_node: int) -> tuple[int, int]:
    """Return the number of nodes and GPUs per node: the fewest equal nodes that hold whole replicas."""
    nodes = -(-gpus // per_node)
    while gpus % nodes or (gpus // nodes) % size:
        nodes += 1
    return nodes, gpus // nodes


def _verl(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    nodes, each = _nodes(replicas * size, size, per_node)
    return (
        f"actor_rollout_ref.rollout.tensor_model_parallel_size={size}",
        f"trainer.n_gpus_per_node={each} trainer.nnodes={nodes}"
        f"  # verl starts one replica per {counted(size, 'GPU')}: {replicas}",
    )


def _trl(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    return (
        f"trl vllm-serve --tensor-parallel-size {size} --data-parallel-size {replicas}   # vllm_mode='server'",
        f"accelerate launch --num_processes {replicas * size} ...   # or vllm_mode='colocate', on the trainer's GPUs",
        f"GRPOConfig(use_vllm=True, vllm_mode='colocate', vllm_tensor_parallel_size={size})",
    )


def _nemo_rl(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    nodes, each = _nodes(replicas * size, size, per_node)
    return (
        f"policy.generation.vllm_cfg.tensor_parallel_size={size}",
        f"cluster.gpus_per_node={each} cluster.num_nodes={nodes}",
    )


def _openrlhf(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    nodes, each = _nodes(replicas * size, size, per_node)
    return (
        f"--vllm.num_engines {replicas} --vllm.tensor_parallel_size {size}   # older releases: --vllm_num_engines ...",
        f"--actor.num_nodes {nodes} --actor.num_gpus_per_node {each}   # with --train.colocate_all, the GPUs of the engines",
    )


def _slime(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    return (f"--rollout-num-gpus {replicas * size} --rollout-num-gpus-per-engine {size}",)


def _areal(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    return (f"rollout.backend=sglang:d{replicas}t{size}   # or vllm:...; older releases: the part before + of allocation_mode",)


def _prime_rl(replicas: int, size: int, per_node: int) -> tuple[str, ...]:
    if replicas * size > per_node:
        return ()
    return (
        f"uv run rl @ rl.toml --deployment.num-infer-gpus {replicas * size} "
        f"--inference.parallel.dp {replicas} --inference.parallel.tp {size}",
    )


LINES: dict[str, Callable[[int, int, int], tuple[str, ...]]] = {
    "verl": _verl, "trl": _trl, "nemo-rl": _nemo_rl, "slime": _slime, "areal": _areal,
    "prime-rl": _prime_rl, "openrlhf": _openrlhf,
}  # fmt: skip
"""By the name of the import format."""
