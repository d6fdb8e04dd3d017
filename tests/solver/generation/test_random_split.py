"""The right-sized random split on one and on several offers: complete, as good as every split that was tried, or refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import mixed_instances
from solver_strategies import l40s, lognormal_workload

import solver
from solver.generation.canonical_order import Canonical
from solver.generation.random_split import random_split, reference_of, sized_split
from solver.timing.build_plan import assemble
from solver.timing.step_cost import Pricing

OBJECTIVES = [
    solver.Objective(0.7),
    solver.Objective(0.0, cost="usd"),
    solver.Objective(deadline_s=12.0),
    solver.Objective(budget_gpu_s=80.0),
]


def two_kinds(slots: int = 64, memory: int = 1 << 40) -> dict[tuple[str, int], solver.LatencyModel]:
    slow = solver.LatencyModel("slow", 1, 8e-3, 4e-5, 3e-8, start_s=2.0, sync_s=0.3, max_batch=slots, kind="a")
    fast = solver.LatencyModel("fast", 2, 5e-3, 2e-5, 2e-8, start_s=4.0, sync_s=0.3, max_batch=2 * slots, kind="b")
    return {("a", 1): replace(slow, kv_capacity_tokens=memory), ("b", 2): fast}


POOLS = solver.MixedCluster(
    [solver.GpuPool("a", 1, 6, 1.0, prewarmed=1), solver.GpuPool("b", 2, 4, 4.0, "preemptible", prewarmed=1)]
)


def problem(objective: solver.Objective = OBJECTIVES[0], scenarios: int = 0, **options) -> solver.PlanningProblem:
    work = lognormal_workload(48, 4)
    if scenarios:
        lengths = work.response_tokens * np.random.default_rng(0).lognormal(0, 0.3, (scenarios, len(work)))
        work = solver.Workload(work.prompt_tokens, work.prompt_of, np.clip(lengths, 1, 2048), max_response_tokens=2048)
    models = options.pop("models", two_kinds())
    return solver.PlanningProblem(work, POOLS, models, objective, solver.NonGenerationPhases(0.1, 0.4, 2), **options)


def key(plan: solver.Plan, asked: solver.PlanningProblem) -> tuple[float, float]:
    """What right-sizing minimises, from ``solver.evaluate``."""
    taken, usd = solver.evaluate(plan, asked), asked.objective.cost == "usd"
    time_s = taken.makespans_s + asked.phases.seconds
    cost = taken.cost_usd_of if usd else taken.gpu_seconds_of
    return asked.objective.key(time_s, cost + asked.learner_rate(asked.objective.cost) * time_s)


@pytest.mark.parametrize("slots", [64, 8])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_split_on_one_of_the_offers_is_better(objective, slots):
    """Equal numbers of prompts on every number of actors of either offer."""
    asked = problem(objective, models=two_kinds(slots))
    plan = random_split(asked)
    best = key(plan, asked)
    canonical = Canonical.of(asked.workload)
    for r, most in ((0, 6), (1, 4)):
        for n in range(1, most + 1):
            single = replace(
                asked, cluster=solver.MixedCluster([POOLS.pools[r]]), latency=dict([list(two_kinds(slots).items())[r]])
            )
            split = sized_split(replace(single, workload=canonical.workload), actors=n)
            other = assemble("one offer", [canonical.response[g] for g in split.groups], asked, [r] * n)
            assert best <= (key(other, asked)[0] + 1e-9, key(other, asked)[1] * (1 + 1e-9))


@pytest.mark.parametrize("scenarios", [0, 4])
@pytest.mark.parametrize("release", ["done", "step"])
def test_times_and_reference_are_those_of_the_plan(scenarios, release):
    asked = problem(scenarios=scenarios, release=release)
    canonical = replace(asked, workload=Canonical.of(asked.workload).workload)
    split = sized_split(canonical)
    plan = assemble("random", split.groups, canonical, split.offers.tolist())
    taken, reference = solver.evaluate(plan, canonical), reference_of(canonical, split)
    np.testing.assert_allclose(Pricing.of(canonical).generation(split.busy_s, split.offers)[0], taken.makespans_s)
    assert reference.actors == len(plan.actors)
    assert reference.time_s == pytest.approx(asked.phases.step_time_s(plan.makespan_s))
    assert reference.gpu_s == pytest.approx(asked.phases.step_gpu_s(plan.makespan_s, plan.gpu_seconds))
    assert reference.usd == pytest.approx(plan.cost_usd + asked.learner_rate("usd") * reference.time_s)
    assert [r for r, _ in sized_split(canonical).actors] == split.offers.tolist()
    assert random_split(asked).makespan_s == pytest.approx(plan.makespan_s)


@given(st.booleans().flatmap(lambda refill: mixed_instances(refill=refill)), st.booleans(), st.integers(0, 3), st.booleans())
@settings(max_examples=40, deadline=None)
def test_every_response_is_on_an_actor_that_can_hold_it(instance, spread, seed, shared):
    models = {(offer.kind, offer.gpus): offer.latency for offer in instance.offers}
    asked = solver.PlanningProblem(
        instance.workload, instance.cluster, models, admission=instance.admission, share_prefill=shared
    )
    plan = random_split(asked, seed=seed, spread=spread)
    assert sorted(r for actor in plan.actors for r in actor.responses) == list(range(len(instance.workload)))
    for actor in plan.actors:
        most = instance.workload.reserved_tokens[list(actor.responses)].max(initial=0)
        assert most <= models[actor.kind, len(actor.gpu_ids)].kv_capacity_tokens
    owners = [set(actor.prompts) for actor in plan.actors]
    assert spread or sum(map(len, owners)) == len(set().union(*owners))
    assert solver.evaluate(plan, asked).makespan_s == pytest.approx(plan.makespan_s)


@pytest.mark.parametrize("spread", [False, True])
def test_prompts_that_only_one_offer_can_hold_are_on_it(spread):
    """The cheap offer holds all but the longest prompts."""
    work = lognormal_workload(48, 4)
    prompts = np.where(np.arange(48) % 12 == 0, 5000, 100)
    work = solver.Workload(prompts, work.prompt_of, work.response_tokens, max_response_tokens=2048)
    asked = solver.PlanningProblem(work, POOLS, two_kinds(memory=4000), solver.Objective(0.5, cost="usd"))
    plan = random_split(asked, actors=7, spread=spread)
    assert {actor.kind for actor in plan.actors} == {"a", "b"}
    large = set(np.flatnonzero(prompts == 5000).tolist())
    assert all(actor.kind == "b" for actor in plan.actors if large & set(actor.prompts))


def test_numbers_of_prompts_do_not_matter():
    asked, rng = problem(), np.random.default_rng(1)
    shuffled = replace(asked, workload=asked.workload.reordered(rng.permutation(48), rng.permutation(192)))
    assert random_split(asked).makespan_s == pytest.approx(random_split(shuffled).makespan_s)


@pytest.mark.parametrize("count", [1, 5, 10])
def test_as_many_actors_as_are_asked_for(count):
    """Up to six of one kind and four of the other fit."""
    assert len(random_split(problem(), actors=count).actors) == count
    assert len(random_split(problem(max_actors=count, min_actors=count)).actors) == count


def test_more_actors_than_fit_are_refused():
    with refused(solver.PlanningError, "11 actors", "14 GPUs"):
        random_split(problem(), actors=11)
    with refused(solver.PlanningError, "200", "192 responses"):
        random_split(problem(), actors=200, spread=True)


def test_scenarios_decide_how_many_actors_there_are():
    """In a few scenarios one prompt is far longer, which only several actors can take in time."""
    work = lognormal_workload(48, 4)
    lengths = np.stack([work.response_tokens] * 4)
    lengths[:2] = np.minimum(4 * lengths[:2], 2048)
    sampled = solver.Workload(work.prompt_tokens, work.prompt_of, work.response_tokens, 0, 2048, scenarios=lengths)
    asked = solver.PlanningProblem(work, solver.Cluster(8, 2, 2), l40s(), solver.Objective(deadline_s=18.0))
    one, several = random_split(asked), random_split(replace(asked, workload=sampled))
    assert len(one.actors) < len(several.actors)
