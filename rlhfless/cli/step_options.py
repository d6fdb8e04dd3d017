"""Options of ``rlhfless step``: the models, the batch and the GPUs of a training step, each as one record."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rlhfless.cli.options import Command, Decorator, cluster_size_options, together, usd_option
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.latency import CallTable, StepBatch
    from solver.dataflow import Graph
    from solver.model.cluster import Cluster

NODE_GPUS, NODE_SIZES = 8, (1, 2, 4, 8)
GIB = 2**30
ALGORITHMS = ("ppo", "grpo", "remax", "dpo")


@dataclass(frozen=True)
class StepModels:
    """What a step calls: the algorithm, and the model of every role."""

    algorithm: str
    models: tuple[str, ...]

    @property
    def graph(self) -> Graph:
        """The calls of the algorithm."""
        from solver import dataflow

        graph: Graph = getattr(dataflow, self.algorithm)()
        return graph

    def of_roles(self) -> dict[str, str]:
        """Return the model of every role: as named, else the critic's for the reward and the actor's for others.

        Raises:
            InputError: a value is not ROLE=MODEL, a role is named twice or not called, or the actor has no model.
        """
        roles = list(dict.fromkeys(call.role for call in self.graph.calls))
        named: dict[str, str] = {}
        for text in self.models:
            role, equals, model = text.partition("=")
            if not (role and equals and model):
                raise InputError(f"--model is {text!r}; ROLE=MODEL is needed, such as actor=llama2-13b")
            if role not in roles:
                raise InputError(
                    f"--model names role {role!r}, which {self.algorithm} does not call; it calls {', '.join(roles)}"
                )
            if role in named:
                raise InputError(f"--model names role {role!r} twice; one model per role is needed")
            named[role] = model
        if "actor" not in named:
            raise InputError("--model actor=MODEL is needed, such as actor=llama2-13b")
        other = {"reward": named.get("critic", named["actor"])}
        return {role: named.get(role, other.get(role, named["actor"])) for role in roles}


@dataclass(frozen=True)
class StepGpus:
    """The GPUs of a step as a user states them; None where something was not stated."""

    kind: str
    gpus: int
    gpus_per_node: int | None
    memory_gib: float | None
    usd_per_gpu_hour: float | None

    @property
    def node_gpus(self) -> int:
        """GPUs of a node: 8 where nothing is stated, or all if they are 1, 2 or 4."""
        return self.gpus_per_node or (self.gpus if self.gpus in NODE_SIZES else NODE_GPUS)

    @property
    def cluster(self) -> Cluster:
        """The cluster.

        Raises:
            InputError: nodes have another number of GPUs than 1, 2, 4 or 8, or the GPUs are not whole nodes.
        """
        from solver import Cluster

        if self.node_gpus not in NODE_SIZES:
            raise InputError(f"--gpus-per-node is {self.node_gpus}; 1, 2, 4 or 8 is needed")
        if self.gpus % self.node_gpus:
            raise InputError(f"--gpus is {self.gpus}; 1, 2, 4 or a multiple of the {self.node_gpus} GPUs of a node is needed")
        return Cluster(self.gpus // self.node_gpus, self.node_gpus, 1, self.kind)

    def memory_bytes(self, costs: CallTable) -> float:
        """Return the memory of a GPU: as stated, else as its driver reports it."""
        return costs.gpu_memory_bytes if self.memory_gib is None else self.memory_gib * GIB

    @property
    def price_usd(self) -> float:
        """Price of a GPU-hour: as stated, else the list price; NaN where there is none."""
        from rlhfless.latency import PriceError, usd_per_gpu_hour

        if self.usd_per_gpu_hour is not None:
            return self.usd_per_gpu_hour
        try:
            return usd_per_gpu_hour(self.kind)
        except PriceError:
            return math.nan


def models_options(command: Command) -> Command:
    """Add --algorithm and --model, as the argument ``models``."""
    options = [
        click.option(
            "--algorithm", type=click.Choice(ALGORITHMS), default="ppo", show_default=True,
            help="Plan the step of this algorithm.",
        ),
        click.option(
            "--model", "models", multiple=True, metavar="ROLE=MODEL",
            help="Call this model in a role, such as actor=llama2-13b; repeatable.  [default: the critic's for the reward, the "
            "actor's for others]",
        ),
    ]  # fmt: skip
    return together("models", lambda: StepModels, options)(command)


def batch_options(command: Command) -> Command:
    """Add --responses, --prompt-tokens, --response-tokens and --mini-batches, as the argument ``batch``."""

    def made() -> Callable[..., StepBatch]:
        from rlhfless.latency import StepBatch

        return StepBatch

    numbers: list[tuple[str, int, str]] = [
        ("--responses", 256, "Generate this many responses per step."),
        ("--prompt-tokens", 128, "Plan for prompts of this many tokens."),
        ("--response-tokens", 384, "Plan for responses of this many tokens each."),
        ("--mini-batches", 4, "Update each trained model this many times per step."),
    ]
    options: list[Any] = [
        click.option(name, type=int, default=default, show_default=True, help=text) for name, default, text in numbers
    ]
    return together("batch", made, options)(command)


def gpus_options(command: Command) -> Command:
    """Add --kind, --gpus, --gpus-per-node, --memory-gib and --usd-per-gpu-hour, as the argument ``hardware``."""
    options: list[Decorator] = [
        click.option("--kind", required=True, help="Plan for GPUs of this kind: a100, h100 or l40s."),
        *cluster_size_options(
            required=True, gpus="Plan for this many GPUs: 1, 2, 4, or whole nodes.", per_node="Each node has 1, 2, 4 or 8 GPUs."
        ),
        click.option(
            "--memory-gib", type=click.FloatRange(0, min_open=True), help="Use this much memory of a GPU.  [default: all of it]"
        ),
        usd_option,
    ]
    return together("hardware", lambda: StepGpus, options)(command)
