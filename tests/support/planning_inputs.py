"""What policies plan with, from one list of changes."""

from __future__ import annotations

from dataclasses import fields

from rlhfless.scheduling import PlanningOptions
from solver.model.cluster import Cluster
from solver.model.latency import LatencyModel
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload

OPTIONS = {field.name for field in fields(PlanningOptions)}


def planning_inputs(
    workload: Workload, cluster: Cluster, latency: LatencyModel, **changes: object
) -> tuple[PlanningProblem, PlanningOptions]:
    """A problem and options; every change goes to the one that has it."""
    of_options = {name: changes.pop(name) for name in OPTIONS & changes.keys()}
    whole = {"workload": workload, "cluster": cluster, "latency": latency, **changes}
    return PlanningProblem(**whole), PlanningOptions(**of_options)  # type: ignore[arg-type]
