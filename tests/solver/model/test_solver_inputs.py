"""Wrong input is refused by the object that it is given to, in one sentence; right input is kept as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from solver.model.admission import Admission
from solver.model.drafting import Drafting
from solver.model.iteration_table import IterationTable
from solver.model.workload import CutLengthsWarning


def latency(**changes: object) -> solver.LatencyModel:
    return solver.LatencyModel("x", **{"gpus_per_actor": 1, "base_s": 1e-3, "per_response_s": 0.0, **changes})  # type: ignore


REFUSED = {
    "no responses": (lambda: solver.Workload([1], [], []), ("responses",)),
    "shapes": (lambda: solver.Workload([1], [0, 0], [1]), ("prompt_of", "2", "response_tokens", "1", "generated_tokens")),
    "unknown prompt": (lambda: solver.Workload([1], [0, 3], [1, 1]), ("prompt_of[1]", "3", "1")),
    "negative": (lambda: solver.Workload([1], [0, 0], [1, -4]), ("response_tokens[1]", "-4")),
    "negative prompt": (lambda: solver.Workload([-1], [0], [1]), ("prompt_tokens[0]", "-1")),
    "nan": (lambda: solver.Workload([1], [0, 0], [1, math.nan]), ("response_tokens[1]", "nan")),
    "text": (lambda: solver.Workload([1], [0], ["many"]), ("response_tokens", "<U4")),
    "dimensions": (lambda: solver.Workload([1], [0], [[[1]]]), ("response_tokens", "(1, 1, 1)")),
    "limit": (lambda: solver.Workload([1], [0], [1], max_response_tokens=0), ("max_response_tokens", "0")),
    "generated": (lambda: solver.Workload([1], [0], [1], -1), ("generated_tokens[0]", "-1")),
    "flat grid": (lambda: solver.Workload.grid([1], [1, 2]), ("response_tokens_of_samples", "(2,)", "(prompts, samples)")),
    "most drafts": (lambda: Drafting(max_draft_tokens=33), ("max_draft_tokens", "33", "32")),
    "draft length": (lambda: Drafting(length="long"), ("length", "'long'", "adaptive")),  # type: ignore[arg-type]
    "length above most": (lambda: Drafting(length=9), ("9", "max_draft_tokens", "8")),
    "min_match": (lambda: Drafting(min_match=0), ("min_match", "0")),
    "history": (lambda: Drafting(history="first"), ("history", "'first'", "last")),  # type: ignore[arg-type]
    "drafter": (lambda: Drafting("ngram"), ("drafter", "'ngram'", "suffix")),
    "nodes": (lambda: solver.Cluster(0, 8, 1), ("nodes", "0")),
    "gpus": (lambda: solver.Cluster(1, 8, 0), ("gpus_per_actor", "0")),
    "actor size": (lambda: solver.Cluster(1, 4, 8), ("gpus_per_actor", "8", "4")),
    "price": (lambda: solver.Cluster(1, 1, 1, usd_per_gpu_hour=-1.0), ("usd_per_gpu_hour", "-1.0")),
    "nan price": (lambda: solver.Cluster(1, 1, 1, usd_per_gpu_hour=math.nan), ("usd_per_gpu_hour", "nan")),
    "weight": (lambda: solver.Objective(1.5), ("time_weight", "1.5")),
    "nan weight": (lambda: solver.Objective(math.nan), ("time_weight", "nan")),
    "two limits": (lambda: solver.Objective(deadline_s=1, budget_gpu_s=1), ("deadline_s", "budget_gpu_s")),
    "deadline": (lambda: solver.Objective(deadline_s=0), ("deadline_s", "0")),
    "budget": (lambda: solver.Objective(budget_gpu_s=math.inf), ("budget_gpu_s", "inf")),
    "phases": (lambda: solver.NonGenerationPhases(learn_s=-1), ("NonGenerationPhases.learn_s", "-1")),
    "admission": (lambda: Admission(1, 1, "hope"), ("'hope'", "reserve", "preempt")),
    "no time": (lambda: latency(base_s=0.0), ("'x'", "base_s")),
    "negative time": (lambda: latency(sync_s=-1.0), ("'x'", "sync_s", "-1.0")),
    "nan time": (lambda: latency(base_s=math.nan), ("'x'", "base_s", "nan")),
    "no slots": (lambda: latency(max_batch=0), ("'x'", "max_batch", "0")),
    "small table": (lambda: IterationTable([1], [0, 1], [[1, 1]]), ("2 x 2",)),
    "table shape": (lambda: IterationTable([1, 2], [0, 1], [[1, 1]]), ("2 x 2", "seconds")),
    "table order": (lambda: IterationTable([2, 1], [0, 1], np.ones((2, 2))), ("batch", "context_tokens")),
    "table zero": (lambda: IterationTable([1, 2], [0, 1], np.zeros((2, 2))), ("0",)),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence(name):
    make, named = REFUSED[name]
    with refused(solver.PlanningError, *named) as refusal:
        make()
    assert "\n" not in str(refusal.value)


def test_a_workload_keeps_what_it_is_given():
    work = solver.Workload([3, 4], [1, 0, 1], [10.2, 99, 5], [2, 0, 7], max_response_tokens=50)
    assert work.response_tokens.tolist() == [11, 50, 5]  # fractions up, predictions above the limit cut
    assert work.remaining_tokens.tolist() == [9, 50, 0]
    assert work.context_tokens.tolist() == [6, 3, 11]
    assert work.reserved_tokens.tolist() == [54, 53, 54]
    assert "3 responses to 2 prompts" in repr(work)
    with refused(ValueError):
        work.prompt_of[0] = 0


def test_a_workload_can_be_compared_and_be_a_key():
    one, two = solver.Workload([1], [0, 0], [1, 2]), solver.Workload([1], [0, 0], [1, 2])
    assert one == one
    assert one != two  # identity, as for every other object that holds arrays
    assert len({one, two}) == 2


def test_gpu_ids_count_through_the_nodes():
    cluster = solver.Cluster(2, 5, 2)
    assert [cluster.place(i) for i in range(cluster.max_actors)] == [(0, (0, 1)), (0, (2, 3)), (1, (5, 6)), (1, (7, 8))]


@st.composite
def tables(draw: st.DrawFn) -> IterationTable:
    """Tables whose times rise with batch and context, as measured ones do."""
    batch = np.cumsum(draw(st.lists(st.integers(1, 20), min_size=2, max_size=5)))
    context = np.cumsum(draw(st.lists(st.integers(1, 200), min_size=2, max_size=5)))
    shape = (len(batch), len(context))
    rises = draw(st.lists(st.floats(1e-4, 1e-2), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return IterationTable(batch, context, np.array(rises).reshape(shape).cumsum(0).cumsum(1))


@given(tables())
@settings(max_examples=40, deadline=None)
def test_a_table_is_exact_on_its_grid(table):
    batch, context = np.meshgrid(table.batch, table.context_tokens, indexing="ij")
    np.testing.assert_allclose(table(batch, batch * context), table.iteration_s, rtol=1e-9)


@given(tables(), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_a_table_rises_between_its_points_when_they_rise(table, u, v, du, dv):
    def at(x: float, y: float) -> float:
        batch = table.batch[0] + x * (table.batch[-1] - table.batch[0])
        return float(table(batch, batch * (table.context_tokens[0] + y * (table.context_tokens[-1] - table.context_tokens[0]))))

    assert at(u, v) <= at(min(1, u + du), min(1, v + dv)) * (1 + 1e-9)
    assert table.iteration_s.min() * (1 - 1e-9) <= at(u, v) <= table.iteration_s.max() * (1 + 1e-9)


@given(tables(), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_a_table_never_falls_under_its_smallest_time(table, u, v):
    batch = u * table.batch[-1]
    assert table(batch, v * batch * table.context_tokens[-1]) >= table.iteration_s.min()


def test_an_empty_batch_takes_no_time():
    table = IterationTable([1, 256], [0, 10], np.ones((2, 2)))
    for model in (latency(), latency(table=table)):
        assert model.iteration_s([0, 1], [0, 5]).tolist()[0] == 0.0
    assert latency(table=table).affine.table is None


TABLE = IterationTable([1, 4], [0, 20], np.ones((2, 2)))


def test_a_table_holds_every_slot():
    with refused(solver.PlanningError, "max_batch is 5", "4 fed tokens"):
        latency(table=TABLE, max_batch=5)
    assert latency(table=TABLE, max_batch=4).max_batch == 4


@pytest.mark.parametrize("prefill", [{}, {"prefill": "mixed", "token_budget": 4}])
def test_a_table_holds_every_context_that_an_actor_can_hold(prefill):
    work, cluster = solver.Workload([3, 9], [0, 1], [5, 5], max_response_tokens=12), solver.Cluster(1, 1, 1)
    short = latency(table=TABLE, max_batch=4, **prefill)
    with refused(solver.PlanningError, "response 1", "21", "prompt 9", "limit 12", "'x'", "20"):
        solver.PlanningProblem(work, cluster, short)
    solver.PlanningProblem(work, cluster, short.affine)
    ample = solver.LatencyModel("ample", 2, 1e-3, 0.0, kind="b")
    little = latency(table=TABLE, max_batch=4, kv_capacity_tokens=20, kind="a", **prefill)  # too little for response 1
    pools = solver.MixedCluster([solver.GpuPool("a", 1, 1), solver.GpuPool("b", 1, 2)])
    solver.PlanningProblem(work, pools, {("a", 1): little, ("b", 2): ample})


WORK, HERE, MODEL = solver.Workload([1], [0, 0], [5, 9]), solver.Cluster(1, 4, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: solver.plan(solver.PlanningProblem(WORK, HERE, MODEL), quick=1), ("quick", "1")),
        (lambda: solver.plan(solver.PlanningProblem(WORK, HERE, MODEL), seed=-1), ()),
        (lambda: solver.plan(solver.PlanningProblem(WORK, HERE, MODEL, min_actors=1.5)), ("min_actors", "1.5")),
        (lambda: solver.plan(solver.PlanningProblem(WORK, HERE, MODEL, max_actors=2.5)), ("max_actors", "2.5")),
        (lambda: solver.Cluster(2.5, 1, 1), ("2.5",)),
        (lambda: solver.Cluster(1, 1, 1, usd_per_gpu_hour=float("inf")), ("usd_per_gpu_hour",)),
        (lambda: solver.GpuPool("a", 1, 1, prewarmed=0.5), ("0.5",)),
        (lambda: solver.Workload([1], [0], [1e300]), ("response_tokens[0]", "1e+300")),
        (lambda: solver.pareto_front(solver.PlanningProblem(WORK, HERE, MODEL, release="x")), ("'x'",)),
        (
            lambda: solver.pareto_front(solver.PlanningProblem(WORK, HERE, MODEL, solver.Objective(cost="usd"))),
            ("usd_per_gpu_hour",),
        ),
        (
            lambda: solver.bound(solver.PlanningProblem(WORK, solver.MixedCluster([solver.GpuPool("gpu", 1, 1)]), MODEL)),
            ("MixedCluster",),
        ),
    ],
)
def test_nonsense_asked_of_the_planner_is_refused_in_one_sentence(ask, sentence):
    with refused(solver.PlanningError, *sentence):
        ask()


def test_lengths_above_the_limit_are_cut_and_counted():
    with pytest.warns(CutLengthsWarning, match=r"2 of 3 .*=100 .* 3,000 tokens"):
        cut = solver.Workload([1], [0, 0, 0], [200, 3000, 100], max_response_tokens=100)
    assert cut.response_tokens.tolist() == [100, 100, 100]


def test_kinds_that_do_not_fit_together_are_refused():
    workload, fast = solver.Workload([1], [0, 0], [30, 20]), latency(kind="fast")
    with refused(solver.PlanningError, "'slow'", "'fast'"):
        solver.PlanningProblem(workload, solver.Cluster(1, 1, 1, "slow"), fast)
    pools = tuple(solver.GpuPool(kind, 1, 1, 2.0) for kind in ("fast", "slow"))
    with refused(solver.PlanningError, "'fast'", "1 x slow"):
        solver.PlanningProblem(workload, solver.MixedCluster(pools[1:]), {("slow", 1): fast})
    with refused(solver.PlanningError, "'slow'", "fast"):
        solver.PlanningProblem(workload, solver.MixedCluster(pools), fast)
    for kind in ("gpu", "FAST"):  # not given, or written in another case
        assert solver.PlanningProblem(workload, solver.Cluster(1, 1, 1, kind), fast).cluster.kind == kind
