"""Lines of a framework's own configuration for a number and a size of replicas."""

from __future__ import annotations

from collections.abc import Callable

from solver.model.plurals import counted


def configuration_lines(framework: str, replicas: int, gpus_per_actor: int, gpus_per_node: int) -> tuple[str, ...]:
    """Return the framework's configuration lines for this number and size of replicas; empty if they are not certain.

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
