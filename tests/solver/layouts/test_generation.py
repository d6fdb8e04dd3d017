"""Generate calls that are planned: GPUs that are free early, bounds for every generation plan, the rest of a step, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dataflow_samples import (
    ALGORITHMS,
    FewMeshes,
    RandomCosts,
    all_plans,
    cyclic_period_s,
    followed,
    freeing,
    generation,
    random_plans,
    sample,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Cluster, LatencyModel, evaluate, random_split
from solver.layouts import Layout, Mesh, StepGeneration, Strategy, dpo, grpo, plan_step, ppo, remax
from solver.layouts.bound import period_bound_s
from solver.layouts.generation import GenerationPlans, generated_options
from solver.layouts.plan import options_of, plan_times
from solver.layouts.times import periods_s, step_times
from solver.model.errors import PlanningError


@pytest.mark.parametrize("order", ["longest path", "fifo"])
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000))
def test_times_with_early_gpus_are_those_of_a_simulation_of_single_gpus(order: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    options = freeing(sample(seed, link=0.2), rng)
    plans = random_plans(options, 4, rng)
    times = step_times(options, plans, order, steps=4)  # type: ignore[arg-type]
    for at, plan in enumerate(plans):
        for (step, task), end_s in followed(options, plan, order, 4).items():
            assert times.end_s[at, task, step] == pytest.approx(end_s, abs=1e-9)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3]))
def test_no_order_is_below_the_bound_where_gpus_are_free_early(seed: int, link: float) -> None:
    rng = np.random.default_rng(seed)
    options = freeing(sample(seed, link=link), rng)
    plans = random_plans(options, 4, rng)
    bounds = period_bound_s(options, plans)
    for order in ("longest path", "fifo"):
        assert (periods_s(options, plans, order) >= bounds - 1e-9).all()  # type: ignore[arg-type]
    for plan, bound_s in zip(plans, bounds, strict=True):
        assert min(cyclic_period_s(options, plan, rng) for _ in range(3)) >= bound_s - 1e-9


def test_a_call_that_does_not_wait_starts_on_gpus_that_an_actor_gave_back() -> None:
    found = 0
    for seed in range(0, 40, 4):  # PPO
        rng = np.random.default_rng(seed)
        options = freeing(sample(seed), rng)
        plans = random_plans(options, 20, rng)
        early = periods_s(options, plans)
        whole = replace(options, released_early={})
        found += int((early < periods_s(whole, plans) * (1 - 1e-6)).sum())
    assert found > 5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(1, 4, 1), (1, 4, 2), (1, 2, 1), (1, 8, 2)]))
def test_bounds_hold_for_other_generation_plans(seed: int, size: tuple[int, int, int]) -> None:
    nodes, per_node, tp = size
    given_ = generation(seed)
    gpus = nodes * per_node
    planned = GenerationPlans(given_, per_node).of(Layout(Mesh(0, gpus), Strategy(gpus // tp, tp, 1)))
    assert planned is not None
    assert planned.least_s <= planned.plan.makespan_s + 1e-12
    assert max(planned.release_s) == planned.plan.makespan_s
    assert planned.least_gpu_s <= sum(planned.release_s) + 1e-9
    problem = given_.problem(gpus, per_node, tp)
    assert problem is not None
    for actors in range(1, gpus // tp + 1):
        other = evaluate(random_split(problem, actors=actors, seed=seed), problem)
        assert planned.least_s <= other.makespan_s + 1e-9
        assert planned.least_gpu_s <= other.gpu_seconds + 1e-9


@settings(max_examples=6, deadline=None)
@given(
    st.integers(0, 10_000), st.sampled_from([0.0, 0.2]), st.sampled_from([ppo, grpo, remax]), st.sampled_from([1.0, 0.5, 0.1])
)
def test_no_plan_of_all_is_below_the_bound_and_the_gap_that_is_said_is_right(
    seed: int, link: float, graph: Any, fitting: float
) -> None:
    costs, cluster, given_ = FewMeshes(seed, link), Cluster(1, 2, 1), generation(seed)
    plans = {call.name: GenerationPlans(given_, 2) for call in graph().calls if call.kind == "generate"}
    options = generated_options(graph(), cluster, costs, plans)
    every = all_plans(options)
    peak_bytes = options.peak_bytes(every).max(axis=1)
    memory = float(np.quantile(peak_bytes, fitting))
    best_s = float(periods_s(options, every[peak_bytes <= memory]).min())
    plan = plan_step(graph(), cluster, costs, memory_bytes=memory, generation=given_)
    assert max(plan.peak_bytes) <= memory
    assert plan.status in ("optimal", "gap")
    assert plan.lower_bound_s <= best_s + 1e-9
    assert plan.period_s <= best_s * 1.1  # the search leaves out what no order makes shorter, but its order may
    assert plan.status == "gap" or plan.gap <= 0.01 + 1e-9


def test_a_planned_generation_is_in_the_plan() -> None:
    given_ = generation()
    plan = plan_step(ppo(), Cluster(1, 4, 1), RandomCosts(1, 0.1), generation=given_)
    call = next(call for call in plan.calls if call.name == "generate")
    assert plan.generation is call.generation is not None
    assert call.seconds == call.generation.makespan_s == max(call.release_s)
    assert call.layout.strategy.pp == 1
    assert call.gpu_seconds == sum(call.release_s) <= call.seconds * call.layout.mesh.gpus
    times = plan_times(options_of(plan), plan, 8)
    assert times.period_s[0] == pytest.approx(plan.period_s, abs=1e-9)


def test_times_of_a_plan_are_those_that_it_was_planned_with() -> None:
    for algorithm in ALGORITHMS:
        plan = plan_step(algorithm(), Cluster(1, 4, 1), RandomCosts(3, 0.2), work=5_000)
        assert plan_times(options_of(plan), plan, 8).period_s[0] == pytest.approx(plan.period_s, abs=1e-9)


@pytest.mark.parametrize("algorithm", [grpo, ppo, remax])
def test_phases_are_what_the_period_has_beside_generation(algorithm: Any) -> None:
    plan = plan_step(algorithm(), Cluster(1, 8, 1), RandomCosts(4, 0.1), work=5_000)
    generate = [call for call in plan.calls if call.kind == "generate"]
    busy_s = max(call.end_s for call in generate) - min(call.start_s for call in generate)
    phases = plan.phases()
    assert phases.seconds + busy_s == pytest.approx(plan.period_s)
    taken = {gpu for call in generate for gpu in range(call.layout.mesh.first, call.layout.mesh.last)}
    assert phases.learner_gpus <= plan.gpus - len(taken)
    if algorithm is grpo:
        train = next(call for call in plan.calls if call.kind == "train")
        assert phases.prepare_s == pytest.approx(train.start_s - generate[0].end_s)


def test_phases_without_generation_are_the_whole_period() -> None:
    plan = plan_step(dpo(), Cluster(1, 4, 1), RandomCosts(4, 0.1))
    assert plan.phases().seconds == pytest.approx(plan.period_s)


@pytest.mark.parametrize(
    ("graph", "given_", "sentence"),
    [
        (dpo, generation(), "the calls of 'dpo' generate nothing; leave it out"),
        (remax, {"sample": generation()}, "generation is given for sample; one for each of sample, greedy is needed"),
        (grpo, 7, "generation of 'generate' is 7; a StepGeneration is needed"),
    ],
)
def test_generation_that_does_not_fit_the_graph_is_refused(graph: Any, given_: Any, sentence: str) -> None:
    with pytest.raises(PlanningError, match=sentence):
        plan_step(graph(), Cluster(1, 2, 1), RandomCosts(0), generation=given_)


def test_what_cannot_generate_is_refused() -> None:
    work, model = generation().workload, LatencyModel("small", 1, base_s=1e-3, per_response_s=0.0, kv_capacity_tokens=500)
    with pytest.raises(PlanningError, match="can reach 1100 KV tokens"):
        plan_step(grpo(), Cluster(1, 2, 1), RandomCosts(0), generation=StepGeneration(work, {1: model}))
    with pytest.raises(PlanningError, match="a model of 1 GPUs per actor at tp 2"):
        StepGeneration(work, {2: model})
    with pytest.raises(PlanningError, match="a LatencyModel for each tp is needed"):
        StepGeneration(work, model)  # type: ignore[arg-type]
    with pytest.raises(PlanningError, match="workload of generation is 3; a Workload is needed"):
        StepGeneration(3, {1: model})  # type: ignore[arg-type]
