"""No plan of a small workload is better than the bounds say, on one kind of actors and several, and over scenarios."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_brute_force import EveryMixedPlan, MixedInstance, mixed_instances
from solver_reference import EveryPlan
from solver_strategies import LIMIT, Instance, instances, l40s, lognormal_workload

import solver
from solver.bounds.late_opening import LateOpening
from solver.bounds.plans import MakespanIntervals, PlanBound, limited_value
from solver.bounds.sequences import SequenceBound
from solver.model.plan import ActorPlan, Plan
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of
from solver.timing.items import Items
from solver.timing.step_cost import StepObjective

one_kind = st.tuples(st.booleans(), st.booleans()).flatmap(lambda which: instances(refill=which[0], mixed=which[1]))
several_kinds = st.booleans().flatmap(lambda refill: mixed_instances(refill=refill))
rests = st.sampled_from([solver.NonGenerationPhases(), solver.NonGenerationPhases(prepare_s=0.02, learn_s=0.1, learner_gpus=3)])
weights = st.sampled_from([0.0, 0.3, 0.7, 1.0])
NORMS = 0.3, 0.7
BOUNDS = LateOpening, SequenceBound  # of one kind; that of several kinds holds for one, too


def problem_of(instance: Instance | MixedInstance, *args, **options) -> solver.PlanningProblem:
    latency = instance.latency if isinstance(instance, Instance) else {(o.kind, o.gpus): o.latency for o in instance.offers}
    return solver.PlanningProblem(instance.workload, instance.cluster, latency, *args, admission=instance.admission, **options)


def every_plan(instance: Instance) -> list[tuple[float, float]]:
    """Makespan and GPU-seconds of every plan."""
    rule = admission_of(instance.latency, None, instance.admission)
    return [plan[1:] for plan in EveryPlan(instance.workload, instance.cluster, instance.latency, rule).plans]


@pytest.mark.parametrize("kind", BOUNDS)
@given(one_kind)
@settings(max_examples=40, deadline=None)
def test_no_plan_of_one_kind_is_cheaper_than_the_bound_at_its_makespan(kind, instance):
    bound = kind(Items.of(problem_of(instance)))
    for makespan_s, gpu_s in every_plan(instance):
        assert bound.at(makespan_s) <= gpu_s * (1 + 1e-9) + 1e-12
        assert bound.shortest_makespan_s <= makespan_s * (1 + 1e-9)
        assert bound.least_makespan_s <= makespan_s * (1 + 1e-9)


@pytest.mark.parametrize("kind", BOUNDS)
@given(one_kind)
@settings(max_examples=40, deadline=None)
def test_more_time_never_costs_more(kind, instance):
    bound = kind(Items.of(problem_of(instance)))
    costs = [bound.at(m) for m in np.linspace(0.5 * bound.shortest_makespan_s, 1.2 * bound.longest_makespan_s, 40)]
    assert all(later <= earlier * (1 + 1e-9) for earlier, later in itertools.pairwise(costs))


@given(one_kind, weights, rests, st.booleans(), st.sampled_from([1.0, 0.01]))
@settings(max_examples=40, deadline=None)
def test_the_bound_is_below_the_best_plan_of_one_kind(instance, weight, phases, quick, known_share):
    """Whichever makespan is thought to be near and whichever value known, as long as some plan has it."""
    objective = solver.Objective(weight)
    values = [objective.value(phases.step_time_s(t), phases.step_gpu_s(t, gpu_s), NORMS) for t, gpu_s in every_plan(instance)]
    near_s = known_share * max(t for t, _ in every_plan(instance))
    for known in (np.inf, max(values), min(values)):
        assert PlanBound(problem_of(instance, objective, phases), quick).value_near(known, NORMS, near_s) <= min(values) * (
            1 + 1e-9
        )


@given(
    several_kinds,
    weights,
    rests,
    st.booleans(),
    st.sampled_from(["gpu_s", "usd"]),
    st.sampled_from(["done", "generation", "step"]),
)
@settings(max_examples=25, deadline=None)
def test_the_bound_is_below_the_best_plan_of_several_kinds(instance, weight, phases, together, cost, release):
    objective = solver.Objective(weight, cost=cost)
    every = EveryMixedPlan(instance, together, release=release, rest_s=phases.seconds)
    problem = problem_of(instance, objective, phases, keep_together=together, release=release)
    optimum = every.optimum(objective, phases, NORMS) if every.plans else np.inf
    bound = PlanBound(problem).value_near(optimum, NORMS, max((t for t, *_ in every.plans), default=1.0))
    assert bound <= optimum * (1 + 1e-9) + 1e-12


@given(st.data(), st.one_of(one_kind, several_kinds), rests, st.sampled_from(["deadline_s", "budget_gpu_s"]))
@settings(max_examples=40, deadline=None)
def test_the_bounds_under_a_limit(data, instance, phases, limit):
    """A limit that some plan keeps: the bound is below the best of those that do, and what a refusal says below the limit."""
    plans = every_plan(instance) if isinstance(instance, Instance) else [plan[:2] for plan in EveryMixedPlan(instance).plans]
    if not plans:
        return
    steps = [(phases.step_time_s(t), phases.step_gpu_s(t, gpu_s)) for t, gpu_s in plans]
    kept = data.draw(st.sampled_from(steps))[0 if limit == "deadline_s" else 1] * (1 + 1e-6) + 1e-9
    objective = solver.Objective(**{limit: kept})
    optimum = min(objective.value(*step, NORMS) for step in steps)
    problem = problem_of(instance, objective, phases)
    near_s = data.draw(st.sampled_from(plans))[0]
    assert PlanBound(problem).value_near(optimum, NORMS, near_s) <= optimum * (1 + 1e-9)
    assert PlanBound(problem, quick=True).least_limited() <= kept


def scenarios_of(work: solver.Workload, seed: int, count: int) -> solver.Workload:
    """The same responses with scenarios of lengths, alike or not."""
    rng = np.random.default_rng(seed)
    spread = rng.choice([0.1, 0.5, 1.0])
    lengths = np.ceil(work.response_tokens * (1 - spread) + rng.integers(0, LIMIT + 1, (count, len(work))) * spread)
    return solver.Workload(work.prompt_tokens, work.prompt_of, lengths[0], work.generated_tokens, LIMIT, scenarios=lengths)


@given(
    st.booleans().flatmap(lambda refill: instances(refill=refill)), st.integers(0, 1000), st.integers(1, 4), rests,
    st.sampled_from([1.0, 0.5, 0.25]), st.sampled_from(["0.0", "0.5", "1.0", "deadline_s", "budget_gpu_s"]), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_the_bounds_over_scenarios(instance, seed, count, phases, tail, goal, quick):
    workload = scenarios_of(instance.workload, seed, count)
    per_case = np.array([every_plan(instance._replace(workload=case)) for case in workload.cases()])
    time_s, gpu_s = (per_case[:, :, i].T for i in (0, 1))  # (plans, scenarios)
    step_s, step_gpu_s = phases.step_time_s(time_s), phases.step_gpu_s(time_s, gpu_s)
    risk = solver.Objective(cvar_alpha=tail).risk
    if goal in ("deadline_s", "budget_gpu_s"):
        risks = [risk(row) for row in (step_s if goal == "deadline_s" else step_gpu_s)]
        kept = risks[seed % len(risks)] * (1 + 1e-6) + 1e-9
        objective = solver.Objective(cvar_alpha=tail, **{goal: kept})
    else:
        kept, objective = np.inf, solver.Objective(float(goal), cvar_alpha=tail)
    values = [objective.value_over(t, c, NORMS) for t, c in zip(step_s, step_gpu_s, strict=True)]
    problem = problem_of(instance._replace(workload=workload), objective, phases)
    bound = PlanBound(problem, quick).value_near(min(values), NORMS, time_s[int(np.argmin(values))])
    assert bound <= min(values) * (1 + 1e-9)
    assert PlanBound(problem, quick).value_near(np.inf, NORMS, time_s[0]) <= min(values) * (1 + 1e-9)
    if objective.limited:
        assert PlanBound(problem, quick=True).least_limited() <= kept


def plan_on(groups, kinds, pools, models):
    price = {pool.kind: pool.usd_per_gpu_s for pool in pools}
    actors = [
        ActorPlan(kind, (i,), 0, tuple(group), (), models[kind, 1].max_batch, usd_per_gpu_s=price[kind])
        for i, (group, kind) in enumerate(zip(groups, kinds, strict=True))
    ]
    return Plan(tuple(actors), "any", 0.0, 0.0, 0.0)


@given(st.integers(0, 10**6), st.sampled_from(["gpu_s", "usd"]), st.sampled_from([1000, 8]))
@settings(max_examples=40, deadline=None)
def test_no_plan_on_any_offers_costs_less(seed, cost, slots):
    """Also where prices and speeds differ a hundredfold."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(3, 60))
    workload = solver.Workload(
        [10], [0] * count, rng.integers(1, 10 ** int(rng.integers(1, 4)) + 1, count), max_response_tokens=2000
    )
    pools = [solver.GpuPool(k, 1, int(rng.integers(1, 4)), 36.0 * 10 ** rng.uniform(-2, 2)) for k in ("a", "b", "c")]
    models = {
        (pool.kind, 1): solver.LatencyModel(
            pool.kind, 1, 10 ** rng.uniform(-3.5, -1), 10 ** rng.uniform(-5, -2.5), start_s=rng.choice([0.0, 0.3]),
            prefill_base_s=rng.choice([0.0, 0.004]), join_s=rng.choice([0.0, 0.003]), max_batch=slots, kind=pool.kind,
        )
        for pool in pools
    }  # fmt: skip
    problem = solver.PlanningProblem(workload, solver.MixedCluster(pools), models, solver.Objective(cost=cost))
    bound = SequenceBound(Items.of(problem))
    room = [pool.kind for pool in pools for _ in range(pool.gpus)]
    for _ in range(4):
        kinds = list(rng.permutation(room)[: int(rng.integers(1, len(room) + 1))])
        order = np.argsort(-workload.response_tokens) if rng.random() < 0.7 else rng.permutation(count)
        groups = [g for g in np.split(order, np.sort(rng.integers(0, count + 1, len(kinds) - 1))) if len(g)]
        taken = solver.evaluate(plan_on(groups, kinds[: len(groups)], pools, models), problem)
        paid = taken.gpu_seconds if cost == "gpu_s" else taken.cost_usd
        assert bound.at(taken.makespan_s) <= paid * (1 + 1e-9)


@given(st.data(), st.integers(2, 24), st.sampled_from([0.0, 4e-3, 5e-2]), st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=40, deadline=None)
def test_random_plans_that_refill_in_any_order_cost_no_less(data, slots, call_s, rule):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    count, actors = int(rng.integers(slots, 160)), int(rng.integers(1, 9))
    workload = solver.Workload(
        [7, 30], rng.integers(0, 2, count), np.ceil(rng.lognormal(3, 0.8, count)), max_response_tokens=400
    )
    memory = int(rng.choice([500 * slots, 200 * slots, 500]))
    latency = l40s(max_batch=slots, prefill_base_s=call_s, kv_capacity_tokens=max(memory, 430), start_s=0.01)
    order = rng.permutation(count) if rng.random() < 0.5 else np.argsort(-workload.remaining_tokens)
    owner = rng.integers(0, actors, count)
    groups = [order[owner == k] for k in range(actors) if (owner == k).any()]
    prewarmed = int(rng.integers(0, actors + 1))
    problem = solver.PlanningProblem(workload, solver.Cluster(actors, 2, 2, prewarmed=prewarmed), latency, admission=rule)
    plan = assemble("random", groups, problem)
    for asked in (problem, replace(problem, min_actors=min(len(groups), count))):
        for kind in BOUNDS:
            assert kind(Items.of(asked)).at(plan.makespan_s) <= plan.gpu_seconds * (1 + 1e-9)


@given(st.integers(0, 1 << 20), st.sampled_from([0.0, 5e-2]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_prompts_that_stay_together_cost_no_less_than_the_bound(seed, call_s, shared):
    """A plan of whole prompts is also one of responses; random ones, admitted in any order, lie above both bounds."""
    rng = np.random.default_rng(seed)
    prompts, samples, actors, slots = (int(rng.integers(*ends)) for ends in ((2, 24), (2, 6), (1, 6), (1, 12)))
    tokens = np.clip(rng.lognormal(3, 1.0, (prompts, samples)), 0, 400).astype(int)
    workload = solver.Workload.grid(rng.integers(0, 40, prompts), tokens, max_response_tokens=400)
    latency = l40s(max_batch=slots, prefill_base_s=call_s)
    apart = solver.PlanningProblem(workload, solver.Cluster(actors, 2, 2), latency, share_prefill=shared)
    owner = rng.integers(0, actors, prompts)[workload.prompt_of]
    groups = [rng.permutation(np.flatnonzero(owner == k)) for k in range(actors) if (owner == k).any()]
    plan = assemble("random", groups, apart)
    for problem in (apart, replace(apart, keep_together=True)):
        for kind in BOUNDS:
            assert kind(Items.of(problem)).at(plan.makespan_s) <= plan.gpu_seconds * (1 + 1e-9)


@pytest.mark.parametrize("kind", BOUNDS)
def test_equal_responses_cost_what_their_even_split_does(kind):
    """Every second of that makespan is used by every actor, the prefill call included, so that nothing is cheaper in time."""
    latency = l40s(base_s=0.01, per_response_s=1e-3, per_kv_token_s=0.0, prefill_base_s=0.5)
    actors, each, tokens = 4, 8, 10
    workload = solver.Workload.grid(np.full(actors * each, 50), np.full((actors * each, 1), tokens))
    problem = solver.PlanningProblem(workload, solver.Cluster(1, 2 * actors, 2), latency)
    plan = assemble("even", [np.arange(actors * each)[i::actors] for i in range(actors)], problem)
    bound = kind(Items.of(problem))
    assert bound.at(plan.makespan_s) == pytest.approx(plan.gpu_seconds)
    assert bound.at(plan.makespan_s * 0.999) == np.inf
    assert bound.least_makespan_s == pytest.approx(plan.makespan_s, rel=1e-3)


def test_where_slots_bind_the_bound_of_one_kind_can_be_tighter():
    """It tells actors of long responses, which have no time to refill their slots, from those of short ones."""
    problem = solver.PlanningProblem(lognormal_workload(256, 8), solver.Cluster(16, 2, 2), l40s(max_batch=256))
    one, several = (kind(Items.of(problem)) for kind in BOUNDS)
    makespans_s = np.geomspace(1.02 * one.least_makespan_s, 4 * one.least_makespan_s, 12)
    assert max(one.at(m) / several.at(m) for m in makespans_s) > 1.01


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_the_only_plan_is_proved_to_be_the_best(weight):
    problem = solver.PlanningProblem(
        lognormal_workload(16, 4), solver.Cluster(1, 2, 2), l40s(), solver.Objective(weight), max_actors=1
    )
    plan = assemble("all", [np.arange(64)], problem)
    norms = plan.makespan_s, plan.gpu_seconds
    assert PlanBound(problem).value_near(2.0, norms, 1.3 * plan.makespan_s) == pytest.approx(1.0, rel=1e-5)
    assert 0.5 < PlanBound(problem, quick=True).value_near(2.0, norms, 1.3 * plan.makespan_s) <= 1.0


def test_scenarios_that_are_alike_have_the_bound_of_the_lengths():
    work = lognormal_workload(64, 4)
    same = solver.Workload(work.prompt_tokens, work.prompt_of, np.stack([work.response_tokens] * 3), max_response_tokens=2048)
    one, three = (solver.PlanningProblem(w, solver.Cluster(2, 8, 2), l40s(), solver.Objective(0.5)) for w in (work, same))
    norms = 20.0, 200.0
    assert PlanBound(three).value_near(np.inf, norms, 15.0) == pytest.approx(
        PlanBound(one).value_near(np.inf, norms, 15.0), rel=0.01
    )


@pytest.mark.parametrize("limit", ["deadline_s", "budget_gpu_s"])
def test_a_tight_limit_over_scenarios_raises_the_bound(limit):
    """Near the fastest (cheapest) step the bound is well above what holds for every plan, whatever the limit."""
    work, rng = lognormal_workload(64, 4), np.random.default_rng(0)
    lengths = np.clip(work.response_tokens * rng.lognormal(0, 0.3, (4, len(work))), 1, 2048)
    workload = solver.Workload(work.prompt_tokens, work.prompt_of, lengths, max_response_tokens=2048)
    free = solver.PlanningProblem(workload, solver.Cluster(4, 8, 2), l40s(), solver.Objective(**{limit: 1e9}))
    least = PlanBound(free, quick=True).least_limited()
    tight = replace(free, objective=solver.Objective(**{limit: 1.1 * least}))
    loose_bound, tight_bound = (PlanBound(problem).value_near(np.inf, (15.0, 150.0), 15.0) for problem in (free, tight))
    assert tight_bound > 1.1 * loose_bound


@pytest.mark.parametrize("limit", ["deadline_s", "budget_gpu_s"])
def test_halved_intervals_raise_the_bound_under_a_limit_over_scenarios(limit):
    work, rng = lognormal_workload(64, 4), np.random.default_rng(0)
    lengths = np.clip(work.response_tokens * rng.lognormal(0, 0.3, (4, len(work))), 1, 2048)
    workload = solver.Workload(work.prompt_tokens, work.prompt_of, lengths, max_response_tokens=2048)
    free = solver.PlanningProblem(workload, solver.Cluster(4, 8, 2), l40s(), solver.Objective(**{limit: 1e9}))
    least = PlanBound(free, quick=True).least_limited()
    problem = replace(free, objective=solver.Objective(**{limit: 1.1 * least}))
    goal = StepObjective.of_problem(problem, (15.0, 150.0))
    priced = StepObjective.of_problem(replace(problem, objective=solver.Objective()))

    def bound(halvings: int) -> float:
        scenarios = [
            MakespanIntervals(LateOpening(Items.of(replace(problem, workload=w))), priced, ()) for w in workload.cases()
        ]
        return limited_value(goal, scenarios, halvings)

    rounds = [bound(halvings) for halvings in (0, 1, 4, 8)]
    assert all(before <= after for before, after in itertools.pairwise(rounds))
    assert rounds[0] < rounds[2] < rounds[3]


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("release", ["generation", "step"])
def test_an_actor_that_is_held_costs_its_time_to_the_end(kind, release):
    """The only plan has one actor, which keeps its GPUs until generation or the whole step ends."""
    phases = solver.NonGenerationPhases(prepare_s=2.0, learn_s=5.0)
    problem = solver.PlanningProblem(
        lognormal_workload(4, 4), solver.Cluster(1, 2, 2), l40s(), phases=phases, release=release, max_actors=1
    )
    makespan_s = assemble("all", [np.arange(16)], problem).makespan_s
    held_s = makespan_s + (phases.seconds if release == "step" else 0.0)
    assert kind(Items.of(problem)).at(makespan_s, low_s=makespan_s) == pytest.approx(2 * held_s)


def test_a_further_actor_that_the_cover_does_not_need_may_be_cheaper():
    """The fast GPU could do everything in time; the slow one costs a hundredth and does all but the longest."""
    models = {
        ("fast", 1): solver.LatencyModel("fast", 1, 1e-3, 1e-3, kind="fast", max_batch=1000),
        ("slow", 1): solver.LatencyModel("slow", 1, 20e-3, 1e-3, kind="slow", max_batch=1000),
    }
    cluster = solver.MixedCluster([solver.GpuPool("fast", 1, 1, 36000.0), solver.GpuPool("slow", 1, 1, 360.0)])
    workload = solver.Workload([10] * 101, np.arange(101), [1000] + [100] * 100, max_response_tokens=2000)
    problem = solver.PlanningProblem(workload, cluster, models, solver.Objective(deadline_s=13.0, cost="usd"))
    assert 10.0 < PlanBound(problem).value_near(np.inf, (1.0, 1.0), 12.0) <= 21.2 + 1e-9


def test_without_anything_to_generate_the_bound_is_that_of_one_idle_actor():
    workload = solver.Workload([10], [0, 0], [5, 5], [5, 5])
    problem = solver.PlanningProblem(workload, solver.Cluster(2, 1, 1), solver.LatencyModel("idle", 1, 1e-3, 0.0, sync_s=0.5))
    assert PlanBound(problem).value_near(np.inf, (1.0, 1.0), 0.5) == pytest.approx(0.5)
