"""Wrong input is refused by the object that it is given to, in one sentence; right input is kept as it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import pareto_front, plan_generation

import solver


def latency(**changes: object) -> solver.LatencyModel:
    return solver.LatencyModel("x", **{"gpus_per_actor": 1, "base_s": 1e-3, "per_response_s": 0.0, **changes})  # type: ignore


REFUSED = {
    "no responses": (lambda: solver.Workload([1], [], []), "the workload has no responses; at least one"),
    "shapes": (lambda: solver.Workload([1], [0, 0], [1]), "prompt_of has 2, response_tokens 1 and generated_tokens 1 entries"),
    "unknown prompt": (lambda: solver.Workload([1], [0, 3], [1, 1]), r"prompt_of\[1\] is 3, but the workload has only 1"),
    "negative": (lambda: solver.Workload([1], [0, 0], [1, -4]), r"response_tokens\[1\] is -4; tokens cannot be negative"),
    "negative prompt": (lambda: solver.Workload([-1], [0], [1]), r"prompt_tokens\[0\] is -1; tokens cannot be negative"),
    "nan": (lambda: solver.Workload([1], [0, 0], [1, math.nan]), r"response_tokens\[1\] is nan; a finite number"),
    "text": (lambda: solver.Workload([1], [0], ["many"]), "response_tokens holds <U4 values; numbers are needed"),
    "dimensions": (lambda: solver.Workload([1], [0], [[[1]]]), r"response_tokens has shape \(1, 1, 1\); one number per entry"),
    "limit": (lambda: solver.Workload([1], [0], [1], max_response_tokens=0),
    "max_response_tokens is 0; a whole number of at least 1"),
    "generated": (lambda: solver.Workload([1], [0], [1], -1), r"generated_tokens\[0\] is -1; tokens cannot be negative"),
    "flat grid": (lambda: solver.Workload.grid([1], [1, 2]), r"has shape \(2,\); \(prompts, samples\) is needed"),
    "nodes": (lambda: solver.Cluster(0, 8, 1), "the cluster's nodes is 0; a whole number of at least 1"),
    "gpus": (lambda: solver.Cluster(1, 8, 0), "the cluster's gpus_per_actor is 0; a whole number of at least 1"),
    "actor size": (lambda: solver.Cluster(1, 4, 8), "an actor needs 8 GPUs in one node, but a node has only 4; .*at most 4"),
    "price": (lambda: solver.Cluster(1, 1, 1, usd_per_gpu_hour=-1.0), "usd_per_gpu_hour is -1.0; a finite price of 0 or more"),
    "nan price": (lambda: solver.Cluster(1, 1, 1, usd_per_gpu_hour=math.nan), "usd_per_gpu_hour is nan"),
    "weight": (lambda: solver.Objective(1.5), "time_weight is 1.5; a number from 0"),
    "nan weight": (lambda: solver.Objective(math.nan), "time_weight is nan"),
    "two limits": (lambda: solver.Objective(deadline_s=1, budget_gpu_s=1), "are given together; choose one"),
    "deadline": (lambda: solver.Objective(deadline_s=0), "deadline_s is 0; a finite number above 0"),
    "budget": (lambda: solver.Objective(budget_gpu_s=math.inf), "budget_gpu_s is inf; a finite number above 0"),
    "phases": (lambda: solver.NonGenerationPhases(learn_s=-1),
    "NonGenerationPhases.learn_s is -1; a finite number of 0 or more"),
    "admission": (lambda: solver.Admission(1, 1, "hope"), "'hope' is unknown; choose one of reserve, preempt"),
    "no time": (lambda: latency(base_s=0.0), "latency model 'x': a decode iteration takes no time"),
    "negative time": (lambda: latency(sync_s=-1.0), "latency model 'x': sync_s is -1.0; a time of 0 s or more"),
    "nan time": (lambda: latency(base_s=math.nan), "latency model 'x': base_s is nan"),
    "no slots": (lambda: latency(max_batch=0), "latency model 'x': max_batch is 0; a whole number of at least 1"),
    "small table": (lambda: solver.StepTable([1], [0, 1], [[1, 1]]), "at least 2 x 2 points"),
    "table shape": (lambda: solver.StepTable([1, 2], [0, 1], [[1, 1]]), "at least 2 x 2 points.* step_s"),
    "table order": (lambda: solver.StepTable([2, 1], [0, 1], np.ones((2, 2))), "batch and context_tokens .* must increase"),
    "table zero": (lambda: solver.StepTable([1, 2], [0, 1], np.zeros((2, 2))), "finite and above 0 seconds"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence(name):
    make, sentence = REFUSED[name]
    with pytest.raises(solver.PlanningError, match=sentence) as refusal:
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
def tables(draw: st.DrawFn) -> solver.StepTable:
    """Tables whose times rise with batch and context, as measured ones do."""
    batch = np.cumsum(draw(st.lists(st.integers(1, 20), min_size=2, max_size=5)))
    context = np.cumsum(draw(st.lists(st.integers(1, 200), min_size=2, max_size=5)))
    shape = (len(batch), len(context))
    rises = draw(st.lists(st.floats(1e-4, 1e-2), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    return solver.StepTable(batch, context, np.array(rises).reshape(shape).cumsum(0).cumsum(1))


@given(tables())
@settings(max_examples=40, deadline=None)
def test_a_table_is_exact_on_its_grid(table):
    batch, context = np.meshgrid(table.batch, table.context_tokens, indexing="ij")
    np.testing.assert_allclose(table(batch, batch * context), table.step_s, rtol=1e-9)


@given(tables(), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=40, deadline=None)
def test_a_table_rises_between_its_points_when_they_rise(table, u, v, du, dv):
    def at(x: float, y: float) -> float:
        batch = table.batch[0] + x * (table.batch[-1] - table.batch[0])
        return float(table(batch, batch * (table.context_tokens[0] + y * (table.context_tokens[-1] - table.context_tokens[0]))))

    assert at(u, v) <= at(min(1, u + du), min(1, v + dv)) * (1 + 1e-9)
    assert table.step_s.min() * (1 - 1e-9) <= at(u, v) <= table.step_s.max() * (1 + 1e-9)


@given(tables(), st.integers(0, 200), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_a_table_never_falls_under_its_smallest_time(table, batch, kv_tokens):
    assert table(batch, kv_tokens) >= table.step_s.min()


def test_an_empty_batch_takes_no_time():
    table = solver.StepTable([1, 2], [0, 10], np.ones((2, 2)))
    for model in (latency(), latency(table=table)):
        assert model.step_s([0, 1], [0, 5]).tolist()[0] == 0.0
    assert latency(table=table).affine.table is None


WORK, HERE, MODEL = solver.Workload([1], [0, 0], [5, 9]), solver.Cluster(1, 4, 1), solver.LatencyModel("x", 1, 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: plan_generation(WORK, HERE, MODEL, time_limit_s=float("nan")), ("time_limit_s",)),
        (lambda: plan_generation(WORK, HERE, MODEL, time_limit_s=-1.0), ("time_limit_s", "-1.0")),
        (lambda: plan_generation(WORK, HERE, MODEL, seed=-1), ()),
        (lambda: plan_generation(WORK, HERE, MODEL, min_actors=1.5), ("min_actors", "1.5")),
        (lambda: plan_generation(WORK, HERE, MODEL, max_actors=2.5), ("max_actors", "2.5")),
        (lambda: solver.Cluster(2.5, 1, 1), ("2.5",)),
        (lambda: solver.Cluster(1, 1, 1, usd_per_gpu_hour=float("inf")), ("usd_per_gpu_hour",)),
        (lambda: solver.GpuPool("a", 1, 1, prewarmed=0.5), ("0.5",)),
        (lambda: solver.Workload([1], [0], [1e300]), ("response_tokens[0]", "1e+300")),
        (lambda: pareto_front(WORK, HERE, MODEL, release="x"), ("'x'",)),
        (lambda: pareto_front(WORK, HERE, MODEL, cost="usd"), ("usd_per_gpu_hour",)),
        (
            lambda: solver.clairvoyant_bound(WORK, solver.MixedCluster([solver.GpuPool("a", 1, 1)]), MODEL),
            ("mixed_clairvoyant_bound",),
        ),
    ],
)
def test_nonsense_asked_of_the_planner_is_refused_in_one_sentence(ask, sentence):
    with refused(solver.PlanningError, *sentence):
        ask()
