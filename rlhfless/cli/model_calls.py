"""What ``rlhfless step`` and ``rlhfless layouts`` state alike: the algorithm, the model of every role, and the GPUs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from rlhfless.cli.options import Count, Gib, Gpus, Limits, NotNegative, Options, shown, total_and_node
from rlhfless.errors import InputError

if TYPE_CHECKING:
    from rlhfless.latency import CallTable, StepBatch
    from solver.layouts import Graph
    from solver.model.cluster import Cluster

NODE_GPUS, NODE_SIZES = 8, (1, 2, 4, 8)
GIB = 2**30


class StepModels(Options):
    """What a step calls: the algorithm, and the model of every role."""

    heading: ClassVar[str] = "The step"
    algorithm: str = Field(
        "ppo", json_schema_extra=shown("NAME"),
        description="Plan the step of this algorithm: one that training has, such as ppo or grpo. `rlhfless layouts` also has "
        "remax and dpo.",
    )  # fmt: skip
    models: tuple[str, ...] = Field(
        validation_alias="model", json_schema_extra=shown("ROLE=MODEL"),
        description="Model of a role, such as actor=llama2-13b. Default for the reward model: the critic's; for other roles: "
        "the actor's. Repeatable.",
    )  # fmt: skip
    mini_batches: Count = Field(4, description="Number of updates of each trained model per step.")

    @property
    def graph(self) -> Graph:
        """The calls of the algorithm.

        Raises:
            InputError: training has no algorithm of this name.
        """
        from rlhfless.run.planned_whole_step import graph_of

        try:
            return graph_of(self.algorithm)
        except InputError as error:
            raise InputError(f"--{error}") from None

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


class StepGpus(Options):
    """The GPUs of a step."""

    heading: ClassVar[str] = "The GPUs"
    gpu: str = Field(json_schema_extra=shown("KIND"), description="Kind of GPU: a100, h100 or l40s.")
    gpus: Gpus = Field(
        json_schema_extra=shown("N|NODESxN"),
        description="Number of GPUs: 1, 2, 4, or whole nodes of 8; 2x4 is 2 nodes of 4.",
    )
    memory_gib: Gib | None = Field(None, description="GiB of each GPU's memory that may be used.  [default: all of it]")
    usd_per_gpu_hour: NotNegative | None = Field(
        None, json_schema_extra=shown("USD"), description="Price of one GPU for an hour.  [default: list price of its kind]"
    )

    @property
    def total_gpus(self) -> int:
        """GPUs of all nodes."""
        return total_and_node(self.gpus)[0]

    @property
    def node_gpus(self) -> int:
        """GPUs of a node: 8 where nothing is stated, or all if they are 1, 2 or 4."""
        total, stated = total_and_node(self.gpus)
        return stated or (total if total in NODE_SIZES else NODE_GPUS)

    def cluster(self, limits: Limits) -> Cluster:
        """Return the cluster with the price of its GPUs; 0 where none is known.

        Raises:
            InputError: nodes have another number of GPUs than 1, 2, 4 or 8, the GPUs are not whole nodes, or no price is known
                for a budget in USD.
        """
        from solver import Cluster

        if self.node_gpus not in NODE_SIZES:
            raise InputError(f"--gpus is {self.gpus}, with nodes of {self.node_gpus}; nodes of 1, 2, 4 or 8 GPUs are needed")
        if self.total_gpus % self.node_gpus:
            raise InputError(f"--gpus is {self.gpus}; 1, 2, 4 or a multiple of the {self.node_gpus} GPUs of a node is needed")
        price = self.price_usd
        if math.isnan(price):
            if "budget_usd" in limits.limits:
                raise InputError(f"GPU kind {self.gpu!r} has no list price; --usd-per-gpu-hour is needed")
            price = 0.0
        return Cluster(self.total_gpus // self.node_gpus, self.node_gpus, 1, self.gpu, price)

    def costs(self, models: StepModels, batch: StepBatch) -> CallTable:
        """Return the seconds and bytes of every call.

        Raises:
            InputError: see ``StepModels.of_roles``.
            ProfileError: a model or the GPU kind has no table.
        """
        from rlhfless.latency import CallTable

        return CallTable(self.gpu, models.of_roles(), batch, gpus_per_node=self.node_gpus)

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
            return usd_per_gpu_hour(self.gpu)
        except PriceError:
            return math.nan
