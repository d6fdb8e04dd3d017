"""Sentences count one thing in the singular."""

from __future__ import annotations

from error_messages import refused

from solver.model.cluster import Cluster
from solver.model.errors import PlanningError
from solver.model.latency import LatencyModel
from solver.model.plan import ActorPlan, Plan
from solver.model.plurals import counted
from solver.model.problem import PlanningProblem
from solver.model.workload import Workload
from solver.timing.build_plan import assemble


def test_one_is_singular() -> None:
    assert (counted(1, "H100 GPU"), counted(2, "H100 GPU"), counted(1200, "step")) == (
        "1 H100 GPU",
        "2 H100 GPUs",
        "1,200 steps",
    )
    assert (counted(1, "process", "processes"), counted(2, "process", "processes")) == ("1 process", "2 processes")


def test_a_plan_of_one_actor_says_so() -> None:
    one = ActorPlan("h100", (0,), 0, (0,), (0,), 1)
    assert "1 actor on 1 GPU, 1 response\n" in repr(Plan((one,), "static", 0.0, 0.0, 0.0)) + "\n"


def test_refusals_count_one_gpu_in_the_singular() -> None:
    with refused(PlanningError):
        problem = PlanningProblem(Workload([1], [0, 0], [5, 9]), Cluster(1, 1, 1), LatencyModel("x", 1, 1.0, 0.0))
        assemble("static", [[0], [1]], problem)
