"""What policies plan with: a problem and options from one list of changes, and a workload of many lengths."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

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


def log_normal_workload(prompts: int = 32, samples: int = 4, seed: int = 0, limit: int = 2000) -> Workload:
    """Log-normal means per prompt, log-normal samples around them."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(5.5, 0.8, (prompts, 1))
    tokens = np.clip(np.exp(mean + rng.normal(0, 0.15, (prompts, samples))), 1, limit).astype(int)
    return Workload.grid(rng.integers(20, 200, prompts), tokens, max_response_tokens=limit)
