"""What holds for every plan: limits kept, bounds that only fall with more of anything, the same plan every time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import instances, l40s, lognormal_workload

import solver
from solver.evaluate import admission_of
from solver.one_kind.search import MakespanSearch
from solver.one_kind.sorted_work import SortedWork
from solver.pricing import Pricing

either = st.booleans().flatmap(lambda refill: instances(refill=refill))
NORMS = (1.0, 4.0)  # a reference held fixed


def bound(instance, objective, **options):
    """The bound of the search alone, for a reference that does not move with the problem."""
    workload, cluster, latency, admission = instance
    work = SortedWork.of(
        workload, latency, admission_of(latency, None, admission), most_actors=cluster.max_actors,
        prewarmed=cluster.prewarmed, **options,
    )  # fmt: skip
    pricing = Pricing.of(cluster, latency, objective, solver.StepRest())
    return MakespanSearch(work, pricing, NORMS, lambda split, how: pytest.fail("a bound needs no plan")).bound_beyond(0, np.inf)


@given(either, st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from(["actors", "slots", "memory", "prewarmed", "speed"]))
@settings(max_examples=150, deadline=None)
def test_more_of_anything_never_raises_the_bound(instance, time_weight, what):
    objective = solver.Objective(time_weight)
    latency, cluster = instance.latency, instance.cluster
    more = {
        "actors": lambda: instance._replace(cluster=replace(cluster, nodes=cluster.nodes + 1)),
        "slots": lambda: instance._replace(latency=replace(latency, max_batch=latency.max_batch + 1)),
        "memory": lambda: instance._replace(latency=replace(latency, kv_capacity_tokens=2 * latency.kv_capacity_tokens)),
        "prewarmed": lambda: instance._replace(cluster=replace(cluster, prewarmed=cluster.prewarmed + 1)),
        "speed": lambda: instance._replace(latency=replace(latency, base_s=latency.base_s / 2)),
    }[what]()
    assert bound(more, objective) <= bound(instance, objective) * (1 + 1e-6) + 1e-12


@given(either, st.sampled_from(["deadline_s", "budget_gpu_s"]), st.floats(1.05, 3.0))
@settings(max_examples=80, deadline=None)
def test_a_looser_limit_never_raises_the_bound(instance, limit, slack):
    split = solver.random_split(*instance[:3], admission=instance.admission)
    tight = split.makespan_s if limit == "deadline_s" else split.gpu_seconds
    tight = max(tight, 1e-3)
    one, two = (solver.Objective(**{limit: tight * factor}) for factor in (1.0, slack))
    assert bound(instance, two) <= bound(instance, one) * (1 + 1e-6) + 1e-12


@given(either, st.booleans())
@settings(max_examples=60, deadline=None)
def test_keeping_prompts_together_or_fewer_actors_never_lowers_the_bound(instance, together):
    """Every plan of the narrower problem is one of the wider."""
    objective = solver.Objective(0.5)
    if together:
        narrower = bound(instance, objective, keep_together=True)
    else:
        narrower = bound(instance._replace(cluster=replace(instance.cluster, nodes=1)), objective)
    assert narrower >= bound(instance, objective) * (1 - 2e-2) - 1e-12  # intervals are halved a finite number of times


@given(either, st.sampled_from(["done", "generation", "step"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_plan_keeps_every_limit(instance, release, together):
    workload, cluster, latency, admission = instance
    plan = solver.plan_generation(
        workload, cluster, latency, time_limit_s=0.1, admission=admission, release=release, keep_together=together
    )
    assert len(plan.actors) <= cluster.max_actors
    taken = [gpu for a in plan.actors for gpu in a.gpu_ids]
    assert len(taken) == len(set(taken))
    for actor in plan.actors:
        assert len(actor.gpu_ids) == latency.gpus_per_actor
        assert {gpu // cluster.gpus_per_node for gpu in actor.gpu_ids} == {actor.node}
        assert actor.node < cluster.nodes
        assert actor.max_batch <= latency.max_batch
        assert actor.responses
    solver.evaluate(plan, workload, latency, admission=admission)  # which refuses what is not complete


def facts(plan):
    """All of a plan but the seconds that planning took."""
    read = json.loads(plan.to_json())
    read.pop("solve_s")
    for line in read["history"]:
        line.pop("at_s")
    return json.dumps(read, sort_keys=True)


@pytest.mark.parametrize("options", [{}, {"keep_together": True}, {"share_prefill": True}])
def test_the_same_problem_gives_the_same_plan(options):
    """Also in another process; the clock waits for the same work, so that it stops nothing."""
    workload, cluster, latency = lognormal_workload(32, 4, seed=3), solver.Cluster(2, 8, 2), l40s(max_batch=32)
    one, two = (solver.plan_generation(workload, cluster, latency, time_limit_s=3.0, patience=20, **options) for _ in range(2))
    assert facts(one) == facts(two)
    assert one.status != "stopped"
    if not options:
        code = (
            "import sys; sys.path.insert(0, 'tests/solver')\n"
            "import solver\nfrom test_invariants import facts\nfrom solver_strategies import l40s, lognormal_workload\n"
            "print(facts(solver.plan_generation(lognormal_workload(32, 4, seed=3), solver.Cluster(2, 8, 2), "
            "l40s(max_batch=32), time_limit_s=3.0, patience=20)))"
        )
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert run.stdout.strip() == facts(one)


@pytest.mark.parametrize("limit_s", [0.5, 1.5])
def test_the_time_limit_is_kept_within_a_fifth(limit_s):
    """A problem that nothing finishes in time. The best of three, since the machine may have other things to do."""
    workload, latency = lognormal_workload(1500, 4, sd_log=1.0), l40s(max_batch=64)
    plans = [
        solver.plan_generation(workload, solver.Cluster(20, 8, 2), latency, time_limit_s=limit_s, keep_together=True)
        for _ in range(3)
    ]
    assert min(plan.solve_s for plan in plans) <= 1.2 * limit_s
    assert all(plan.lower_bound <= plan.value for plan in plans)


@pytest.mark.parametrize("limit_s", [0.3, 1.0])
def test_the_time_limit_is_kept_within_a_fifth_over_scenarios(limit_s):
    """Search, prices of candidates and bounds share the time; none of them finishes."""
    rng = np.random.default_rng(0)
    one = lognormal_workload(512, 4)
    workload = one.with_response_tokens(one.response_tokens * rng.lognormal(0, 0.5, (64, len(one))))
    plans = [
        solver.plan_generation(workload, solver.Cluster(20, 8, 2), l40s(max_batch=256), time_limit_s=limit_s) for _ in range(3)
    ]
    assert min(plan.solve_s for plan in plans) <= 1.2 * limit_s
    assert all(0 < plan.lower_bound <= plan.value <= 1 + 1e-12 for plan in plans)
    assert all(plan.status == "stopped" for plan in plans) or limit_s > 0.3


def several_kinds(slots):
    """Two kinds on three pools, one in two sizes."""
    wide = l40s(max_batch=slots, kind="slow", kv_capacity_tokens=1_500_000)
    one, fast = replace(wide, gpus_per_actor=1, base_s=8e-3), replace(wide, kind="fast", base_s=3e-3)
    pools = [solver.Pool("slow", 2, 8, 3.0), solver.Pool("fast", 1, 4, 7.0), solver.Pool("fast", 1, 2, 3.0, "preemptible")]
    return solver.MixedCluster(pools), {("slow", 1): one, ("slow", 2): wide, ("fast", 2): fast}


def over_scenarios(workload, count):
    """The workload with scenarios around its lengths."""
    factor = np.random.default_rng(1).lognormal(0, 0.3, (count, len(workload)))
    sampled = np.clip(workload.response_tokens * factor, 1, 2048).astype(int)
    tokens = workload.response_tokens
    return solver.Workload(workload.prompt_tokens, workload.prompt_of, tokens, response_limit=2048, scenarios=sampled)


TOGETHER, SHARED = {"keep_together": True}, {"share_prefill": True}


def least_seconds(plan_generation, limit_s):
    """The best of three, since the machine may have other things to do; of plans no worse than the random split."""
    plan_generation(time_limit_s=0.0)  # whatever happens once per process
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        plan = plan_generation(time_limit_s=limit_s)
        taken.append(time.perf_counter() - began)
        assert 0 <= plan.lower_bound <= plan.value <= 1 + 1e-9
    return min(taken)


@pytest.mark.parametrize(("prompts", "scenarios"), [(512, 0), (4096, 0), (512, 8), (512, 64)])
@pytest.mark.parametrize("slots", [256, 1 << 20])
def test_the_time_limit_is_kept_on_mixed_clusters(prompts, scenarios, slots):
    """Of 0.5 s, with the best plan so far and a bound that holds."""
    workload, (cluster, models) = lognormal_workload(prompts, 4), several_kinds(slots)
    if scenarios:
        workload = over_scenarios(workload, scenarios)
    assert least_seconds(partial(solver.plan_generation, workload, cluster, models), 0.5) <= 1.2 * 0.5


@pytest.mark.parametrize("slots", [32, 1 << 20])
@pytest.mark.parametrize(
    ("options", "limit_s"), [(TOGETHER, 0.3), (TOGETHER, 1.0), (SHARED, 0.3), (SHARED, 1.0), ({**TOGETHER, **SHARED}, 0.3)]
)
def test_the_time_limit_is_kept_where_prompts_stay_together(options, limit_s, slots):
    workload, (cluster, models) = lognormal_workload(512, 4), several_kinds(slots)
    assert least_seconds(partial(solver.plan_generation, workload, cluster, models, **options), limit_s) <= 1.2 * limit_s


@pytest.mark.parametrize(
    ("cost", "scenarios", "options"),
    [("gpu_s", 0, {}), ("usd", 0, {}), ("gpu_s", 4, {}), ("gpu_s", 0, TOGETHER), ("gpu_s", 0, SHARED), ("usd", 4, TOGETHER)],
)
def test_load_on_the_machine_does_not_change_a_plan_of_several_kinds(cost, scenarios, options, monkeypatch):
    """At a time limit of 1 s, with a clock that is too patient to matter: counted work stops the search."""
    monkeypatch.setattr("solver.mixed.planner.LAST_S", 30.0)
    monkeypatch.setattr("solver.mixed.scenarios.LAST_S", 30.0)
    workload, (cluster, models) = lognormal_workload(128, 4), several_kinds(64)
    if scenarios:
        workload = over_scenarios(workload, scenarios)
    objective = solver.Objective(0.5, cost=cost)
    plan_generation = partial(solver.plan_generation, workload, cluster, models, objective, **options)
    quiet = plan_generation(time_limit_s=1.0)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        loaded = plan_generation(time_limit_s=1.0)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert facts(quiet) == facts(loaded)
    assert loaded.status != "stopped"


def test_a_search_that_the_clock_stops_says_so_and_returns_the_best_plan_so_far():
    workload, latency = lognormal_workload(1500, 4, sd_log=1.0), l40s(max_batch=64)
    plan = solver.plan_generation(workload, solver.Cluster(20, 8, 2), latency, time_limit_s=0.01, keep_together=True)
    assert plan.status == "stopped"
    assert plan.value <= 1.0 + 1e-12  # of the random split
    assert 0 <= plan.lower_bound <= plan.value
    assert 0 <= plan.gap <= 1
