"""Plans from given groups on several offers: placement, prewarmed containers, times, and what is refused."""

from __future__ import annotations

import pytest
from error_messages import refused

import solver
from solver.timing.build_plan import assemble


def model(kind: str, gpus: int, start_s: float = 1.0) -> solver.LatencyModel:
    return solver.LatencyModel(f"{kind}{gpus}", gpus, 1e-2 / gpus, 1e-4, start_s=start_s, max_batch=8, kind=kind)


@pytest.fixture
def problem() -> solver.PlanningProblem:
    cluster = solver.MixedCluster(
        [solver.GpuPool("a", 2, 4, 36.0, prewarmed=1), solver.GpuPool("b", 1, 2, 3.6, "preemptible", prewarmed=1)]
    )
    models = {("a", 1): model("a", 1), ("a", 4): model("a", 4, start_s=2.0), ("b", 1): model("b", 1)}
    workload = solver.Workload([10, 900], [0] * 5 + [1], [40, 30, 20, 10, 5, 7], max_response_tokens=100)
    return solver.PlanningProblem(workload, cluster, models)


def test_actors_of_several_offers_are_placed_and_timed(problem):
    """Offers 0 and 1 are one and four GPUs of the first pool, offer 2 is one of the second."""
    plan = assemble("mine", [[0, 1], [5, 2], [4], [3]], problem, [0, 1, 2, 2])
    assert [actor.gpu_ids for actor in plan.actors] == [(4,), (0, 1, 2, 3), (8,), (9,)]
    assert [actor.node for actor in plan.actors] == [1, 0, 2, 2]
    assert [actor.kind for actor in plan.actors] == ["a", "a", "b", "b"]
    assert [actor.market for actor in plan.actors] == ["on-demand", "on-demand", "preemptible", "preemptible"]
    # the container of a pool goes where the start costs most, of equal ones to the first
    assert [actor.prewarmed for actor in plan.actors] == [False, True, True, False]
    assert [actor.prompts for actor in plan.actors] == [(0,), (1, 0), (0,), (0,)]
    taken = solver.evaluate(plan, problem)
    assert (plan.makespan_s, plan.gpu_seconds, plan.cost_usd) == (taken.makespan_s, taken.gpu_seconds, taken.cost_usd)
    assert plan.makespan_s == pytest.approx(1.0 + 40 * 1e-2 + 70 * 1e-4)


@pytest.mark.parametrize(
    ("groups", "offers", "named"),
    [
        ([[0, 1, 2, 3, 4, 5]], None, ("offers", "3")),
        ([[0], [1], [2, 3, 4, 5]], [1, 1, 1], ("3 actors", "4 GPUs", "'a'", "2 nodes")),
        ([[0, 1, 2], [2, 3, 4, 5]], [0, 0], ("response 2", "2 times")),
        ([[0, 1, 2, 3, 4, 5, 6]], [0], ("response 6", "0 to 5")),
        ([[0, 1, 2, 3, 4]], [0], ("response 5", "0 times")),
    ],
)
def test_what_is_no_plan_is_refused(problem, groups, offers, named):
    with refused(solver.PlanningError, *named):
        assemble("mine", groups, problem, offers)


def test_one_offer_need_not_be_named():
    workload = solver.Workload([10], [0] * 3, [4, 3, 2])
    problem = solver.PlanningProblem(workload, solver.Cluster(2, 2, 2, prewarmed=1), model("gpu", 2))
    plans = [assemble("mine", [[0], [1, 2]], problem, offers) for offers in (None, [0, 0])]
    assert plans[0].to_dict() == plans[1].to_dict()
    assert [actor.prewarmed for actor in plans[0].actors] == [True, False]
    with refused(solver.PlanningError, "3 actors", "2 nodes", "2"):
        assemble("mine", [[0], [1], [2]], problem)
