"""Nonsense given to any public constructor or option is refused by the project, never by a library it uses."""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from solver.model.admission import Admission
from solver.model.iteration_table import IterationTable

numbers = st.sampled_from(
    [math.nan, math.inf, -math.inf, -1, 0, 1, 2, 0.5, 1.5, 1e300, -1e300, True, None, 10**400, "3", [], [1], np.float64(2.5)]
)
arrays = st.one_of(
    numbers,
    st.lists(numbers, max_size=4),
    st.lists(st.integers(-2, 9), max_size=4),
    st.lists(st.lists(st.sampled_from([0, 1, 5, -1, 0.5, math.nan, math.inf, "x", None]), max_size=3), max_size=3),
    st.just(np.zeros((2, 0))),
    st.just(np.zeros((0, 2))),
    st.just(np.zeros((1, 1, 1))),
    st.just(np.array([1 + 2j])),
    st.just(np.array(["2020-01-01"], dtype="datetime64[D]")),
)
MODEL = {"name": "x", "gpus_per_actor": 1, "base_s": 1e-3, "per_response_s": 1e-4}
WORK, HERE, SPEED = solver.Workload([1], [0, 0], [5, 9]), solver.Cluster(1, 4, 1), solver.LatencyModel(**MODEL)
PROBLEM = solver.PlanningProblem(WORK, HERE, SPEED)
TABLE = IterationTable([1, 8], [0, 10], np.ones((2, 2)))
CONSTRUCTORS = {
    "Workload": (
        solver.Workload,
        {"prompt_tokens": [3, 4], "prompt_of": [0, 1], "response_tokens": [5, 6], "generated_tokens": 0,
        "max_response_tokens": 9,
         "scenarios": None},
        arrays,
    ),
    "Workload.grid": (
        solver.Workload.grid, {"prompt_tokens": [3, 4], "response_tokens_of_samples": [[1], [2]], "max_response_tokens": 9},
        arrays,
    ),
    "IterationTable": (
        IterationTable, {"batch": [1, 2], "context_tokens": [0, 10], "iteration_s": [[1.0, 1.0], [1.0, 1.0]]}, arrays,
    ),
    "LatencyModel": (
        solver.LatencyModel,
        {**MODEL, "per_kv_token_s": 0.0, "table": TABLE, "prefill_base_s": 0.0, "prefill_per_token_s": 0.0, "start_s": 0.0,
         "sync_s": 0.0, "transfer_base_s": 0.0, "transfer_per_kv_token_s": 0.0, "max_batch": 4, "kv_capacity_tokens": 99,
         "join_s": 0.0, "kv_bytes_per_token": 1.0, "weight_bytes": 1.0, "fit_mean_error": 0.0, "fit_max_error": 0.0},
        numbers,
    ),
    "Admission": (Admission, {"max_batch": 2, "kv_capacity_tokens": 9, "rule": "reserve"}, numbers),
    "GpuPool": (
        solver.GpuPool,
        {"kind": "a", "nodes": 1, "gpus_per_node": 2, "usd_per_gpu_hour": 1.0, "prewarmed": 0, "node_bytes_per_s": None,
         "network_bytes_per_s": None},
        numbers,
    ),
    "Cluster": (
        solver.Cluster,
        {"nodes": 1, "gpus_per_node": 2, "gpus_per_actor": 1, "usd_per_gpu_hour": 1.0, "prewarmed": 0, "node_bytes_per_s": None,
         "network_bytes_per_s": None},
        numbers,
    ),
    "MixedCluster": (solver.MixedCluster, {"pools": [solver.GpuPool("a", 1, 1)]}, arrays),
    "Objective": (
        solver.Objective,
        {"time_weight": 0.5, "deadline_s": None, "budget_gpu_s": None, "budget_usd": None, "cost": "gpu_s", "cvar_alpha": 1.0},
        numbers,
    ),
    "NonGenerationPhases": (
        solver.NonGenerationPhases, {"prepare_s": 0.0, "learn_s": 0.0, "learner_gpus": 1, "usd_per_gpu_hour": None}, numbers,
    ),
    "PlanningProblem": (
        lambda **options: solver.PlanningProblem(**options),
        {"workload": WORK, "cluster": HERE, "latency": SPEED, "objective": solver.Objective(),
         "phases": solver.NonGenerationPhases(), "admission": "reserve", "keep_together": False, "share_prefill": False,
         "min_actors": 1, "max_actors": None, "release": "done"},
        arrays,
    ),
    "plan": (
        lambda **options: solver.plan(PROBLEM, **options),
        {"seed": 0, "quick": True},
        numbers,
    ),
    "pareto_front": (
        lambda **options: solver.pareto_front(PROBLEM, **options),
        {"points": 3},
        st.one_of(st.sampled_from(["3", None, [], math.nan, True, 1.5, -1, 0, 2]))),
    "random_split": (
        lambda **options: solver.random_split(PROBLEM, **options), {"actors": None, "seed": 0, "spread": False}, numbers,
    ),
}  # fmt: skip


def used(made):
    """Plan with what was made, which made sense."""
    roles = {
        solver.Workload: "workload", solver.Cluster: "cluster", solver.MixedCluster: "cluster",
        solver.LatencyModel: "latency", solver.Objective: "objective", solver.NonGenerationPhases: "phases",
    }  # fmt: skip
    if type(made) in roles:
        solver.plan(dataclasses.replace(PROBLEM, **{roles[type(made)]: made}), quick=True)
    if isinstance(made, solver.PlanningProblem):
        solver.plan(made, quick=True)


@pytest.mark.parametrize("name", CONSTRUCTORS)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_nonsense_is_refused_or_makes_sense(name, data):
    make, right, values = CONSTRUCTORS[name]
    option = data.draw(st.sampled_from(sorted(right)))
    with contextlib.suppress(solver.PlanningError):
        used(make(**{**right, option: data.draw(values)}))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: solver.Workload([1], [0.5], [1]), ("prompt_of", "0.5")),
        (lambda: solver.Workload([1], [-1], [1]), ("prompt_of",)),
        (lambda: solver.Workload([1.5], [0], [1]), ("prompt_tokens", "1.5")),
        (lambda: solver.Workload([1], [0, 0], [[1, 2], [3]]), ("response_tokens",)),
        (lambda: solver.Workload([1], [0], [1], max_response_tokens=2.5), ("max_response_tokens", "2.5")),
        (lambda: solver.LatencyModel("x", 1, 1.0, 0.0, max_batch=2.5), ("'x'", "max_batch", "2.5")),
        (lambda: solver.LatencyModel("x", 1, 1.0, 0.0, max_batch=math.nan), ("max_batch",)),
        (lambda: solver.LatencyModel("x", math.nan, 1.0, 0.0), ("gpus_per_actor",)),
        (lambda: solver.LatencyModel("x", 1, 1.0, 0.0, fit_max_error=math.nan), ("fit_max_error",)),
        (lambda: IterationTable([1, math.inf], [0, 1], np.ones((2, 2))), ()),
        (lambda: solver.Cluster(1, 8, 1.5), ("gpus_per_actor", "1.5")),
        (lambda: solver.GpuPool("a", 1, 1, node_bytes_per_s=math.inf), ("node_bytes_per_s",)),
        (lambda: solver.MixedCluster([1]), ()),
        (lambda: solver.NonGenerationPhases(learner_gpus=1.5), ("NonGenerationPhases.learner_gpus", "1.5")),
        (lambda: Admission(0, 1), ("max_batch",)),
        (lambda: solver.random_split(PROBLEM, actors=0), ()),
        (lambda: solver.PlanningProblem(WORK, HERE, SPEED, release="x"), ("'x'",)),
        (lambda: solver.random_split(PROBLEM, seed=-1), ()),
        (lambda: solver.random_split(PROBLEM, actors=2), ()),
        (lambda: solver.random_split(PROBLEM, actors=3, spread=True), ()),
        (
            lambda: solver.PlanningProblem(WORK, HERE, SPEED, share_prefill="yes"),
            ("share_prefill", "'yes'"),
        ),
        (lambda: solver.PlanningProblem(WORK, HERE, SPEED, keep_together="cheaper"), ("keep_together", "'cheaper'")),
        (
            lambda: solver.bound(PROBLEM).gpu_seconds(math.nan),
            ("time_s",),
        ),
        (
            lambda: solver.bound(PROBLEM).least_time_s("9"),
            ("gpu_seconds", "'9'"),
        ),
        (lambda: solver.Cluster("1", 2, 1), ("'1'",)),
        (lambda: solver.LatencyModel("x", 1, "1", 0.0), ("base_s", "'1'")),
        (lambda: solver.Objective("0.5"), ("time_weight", "'0.5'")),
        (lambda: solver.plan(PROBLEM, quick="yes"), ("quick", "'yes'")),
        (lambda: solver.PlanningProblem(WORK, HERE, SPEED, min_actors="2"), ("min_actors", "'2'")),
        (lambda: solver.random_split(PROBLEM, seed="7"), ("'7'",)),
        (lambda: solver.Workload([1], [0], [1], max_response_tokens=np.str_("9")), ("max_response_tokens", "'9'")),
    ],
)
def test_it_says_what_would_be_right(make, sentence):
    with refused(solver.PlanningError, *sentence):
        make()


def test_whole_numbers_may_be_floats():
    assert solver.Cluster(2.0, 8.0, 2.0).place(5) == (1, (10, 11))
    assert solver.LatencyModel("x", 1.0, 1.0, 0.0, max_batch=4.0).max_batch == 4
    assert solver.NonGenerationPhases(learner_gpus=2.0).learner_gpus == 2
    assert solver.Workload([3.0], [0.0], [1.2]).response_tokens.tolist() == [2]
