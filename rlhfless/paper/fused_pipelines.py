"""The fused pipelines of RLHFuse (arXiv 2409.13221): the 12 published instances, and tables of schedules for such instances.

``rlhfuse_pipelines.csv`` holds the published sizes, times, latencies, peak memories and seconds. The memory of a micro-batch is
published for the actor. For the critic it is 1 where the critic has as many stages as the actor and 2 otherwise: with these
values the published schedules have their published memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from rlhfless.errors import InputError
from solver.pipeline import PipelinePlan, PipelineProblem, fused, schedule_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    import plotly.graph_objects as go

PUBLISHED = Path(__file__).with_name("rlhfuse_pipelines.csv")
SIZES = (
    "pp_actor", "pp_critic", "micro_batches_actor", "micro_batches_critic", "forward_time_actor", "forward_time_critic",
)  # fmt: skip
ACTIVATIONS = ("activation_per_microbatch_actor", "activation_per_microbatch_critic")
RESULTS = ("paper_latency", "paper_peak_memory_latency_pass", "paper_peak_memory_memory_pass")


@dataclass(frozen=True)
class FusedInstance:
    """One actor and critic that train on the same devices.

    Attributes:
        name: of the instance. actor, critic: stages, forward time, micro-batches. activations: memory of a micro-batch.
        paper_latency, paper_memory: published latency, and peak memory of the better of its two passes; NaN where unknown.
    """

    name: str
    actor: tuple[int, float, int]
    critic: tuple[int, float, int]
    activations: tuple[float, float] = (0.0, 0.0)
    paper_latency: float = math.nan
    paper_memory: float = math.nan

    def problem(self, split_backward: bool = False) -> PipelineProblem:
        """Return the scheduling problem.

        Raises:
            PlanningError: a size or time is out of range.
        """
        return fused(self.actor, self.critic, activations=self.activations, split_backward=split_backward)


def rlhfuse_instances() -> list[FusedInstance]:
    """Return the 12 published instances, by their number in the paper's artefact."""
    return read_instances(PUBLISHED)


def read_instances(path: str | Path) -> list[FusedInstance]:
    """Return the instances of a csv file with a row each.

    Args:
        path: columns ``pp_actor, pp_critic`` (stages), ``micro_batches_actor, micro_batches_critic, forward_time_actor,
            forward_time_critic``; optional ``experiment`` (name), ``activation_per_microbatch_actor`` and ``..._critic``.

    Raises:
        InputError: the file cannot be read, lacks a column, or has a cell that is no number.
    """
    try:
        table = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as csv ({str(error).splitlines()[0]})") from None
    missing = [name for name in SIZES if name not in table]
    if missing:
        raise InputError(f"{path}: has no column {missing[0]!r}; the columns {', '.join(SIZES)} are needed")
    if table.empty:
        raise InputError(f"{path}: has no rows; one per instance is needed")
    for name in (*SIZES, *ACTIVATIONS, *RESULTS):
        if name in table and table[name].dtype.kind not in "if":
            raise InputError(f"{path}: column {name!r} has a cell that is not a number; numbers are needed")
    return [_instance(row, number) for number, row in enumerate(table.to_dict("records"))]


def _instance(row: Mapping[str, float], number: int) -> FusedInstance:
    sizes = [
        (_whole(row[f"pp_{model}"]), row[f"forward_time_{model}"], _whole(row[f"micro_batches_{model}"]))
        for model in ("actor", "critic")
    ]
    activations = (row.get(ACTIVATIONS[0], 0.0), row.get(ACTIVATIONS[1], 0.0))
    memories = [row[name] for name in RESULTS[1:] if not math.isnan(row.get(name, math.nan))]
    return FusedInstance(
        str(row.get("experiment", number)), sizes[0], sizes[1], activations, row.get(RESULTS[0], math.nan),
        min(memories, default=math.nan),
    )  # fmt: skip


def _whole(value: float) -> int:
    """Return a whole number of pandas, which are floats where a column has gaps, as it is; others unchanged for the solver."""
    return int(value) if math.isfinite(value) and value == int(value) else value  # type: ignore[return-value]


@dataclass(frozen=True)
class ScheduledInstance:
    """An instance with its schedule and the CPU seconds that it took."""

    instance: FusedInstance
    plan: PipelinePlan
    cpu_s: float

    def plot(self) -> go.Figure:
        """Return a figure of the schedule: what every device does over time."""
        from rlhfless.plots import plot_pipeline

        return plot_pipeline({"planned": self.plan})


def schedule_instance(
    instance: FusedInstance, *, memory: bool = False, split_backward: bool = False, time_limit_s: float = 5.0, seed: int = 0
) -> ScheduledInstance:
    """Return the schedule of an instance: the fastest, and with ``memory`` the one of least memory among those.

    Raises:
        PlanningError: a size or time is out of range.
    """
    began = time.process_time()
    plan = schedule_pipeline(
        instance.problem(split_backward), objective="latency_then_memory" if memory else "latency", time_limit_s=time_limit_s,
        seed=seed,
    )  # fmt: skip
    return ScheduledInstance(instance, plan, time.process_time() - began)


def schedules_table(scheduled: Iterable[ScheduledInstance]) -> pd.DataFrame:
    """Return a row per instance.

    Returns:
        Columns ``instance, latency, latency_bound, latency_gap, latency_status`` (``optimal``, or ``PipelinePlan.status``
        without that proof), ``peak_memory`` (NaN where it was not searched: the first schedule at that latency has any memory),
        ``memory_bound, paper_latency, paper_memory, cpu_s``, and ``memory_search_share`` of the time limit.
    """
    rows = [
        {
            "instance": one.instance.name,
            "latency": one.plan.latency,
            "latency_bound": one.plan.latency_bound,
            "latency_gap": one.plan.latency_gap,
            "latency_status": "optimal" if one.plan.latency_is_optimal else one.plan.status,
            "peak_memory": one.plan.peak_memory if one.plan.search.objective == "latency_then_memory" else math.nan,
            "memory_bound": one.plan.memory_bound,
            "paper_latency": one.instance.paper_latency,
            "paper_memory": one.instance.paper_memory,
            "cpu_s": one.cpu_s,
            "memory_search_share": one.plan.search.memory_share,
        }
        for one in scheduled
    ]
    return pd.DataFrame(rows)
