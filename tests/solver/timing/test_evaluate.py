"""``evaluate`` is the one function that says what a plan takes, and the plan's own numbers are its."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from solver_strategies import instances, l40s, lognormal_workload

import solver
from solver.model.iteration_table import IterationTable
from solver.timing.build_plan import assemble
from solver.timing.evaluate import admission_of, cached_tokens
from solver.timing.group_times import GroupTimes

# One iteration takes 1 s + 0.1 s per response + 0.01 s per KV token, an actor is ready after 2 s + 1 s.
LATENCY = solver.LatencyModel("hand", 2, 1.0, 0.1, 0.01, start_s=2.0, sync_s=1.0)
WORKLOAD = solver.Workload([10, 20], [0, 0, 1], [2, 1, 3])
CLUSTER = solver.Cluster(1, 4, 2)
# Actor 0 (responses 0, 1): 1 + 0.2 + 0.2, then 1 + 0.1 + 0.11. Actor 1 (response 2): three iterations of 20, 21, 22 tokens.
DONE_S = [3 + 1.4 + 1.21, 3 + 3.3 + 0.63]


@given(st.tuples(st.booleans(), st.booleans()).flatmap(lambda which: instances(refill=which[0], mixed=which[1])))
@settings(max_examples=60, deadline=None)
def test_a_plan_says_what_evaluate_says(instance):
    workload, cluster, latency, admission = instance
    plan = solver.plan(solver.PlanningProblem(workload, cluster, latency, admission=admission))
    taken = solver.evaluate(plan, solver.PlanningProblem(workload, cluster, latency, admission=admission))
    assert (plan.makespan_s, plan.gpu_seconds) == (taken.makespan_s, taken.gpu_seconds)
    assert [a.predicted_s for a in plan.actors] == taken.done_s.tolist()
    reference = (plan.reference.time_s, plan.reference.gpu_s)
    assert plan.value == pytest.approx(solver.Objective().value(taken.makespan_s, taken.gpu_seconds, reference))


@pytest.mark.parametrize(
    ("release", "gpu_s"),
    [
        ("done", 2 * (DONE_S[0] + DONE_S[1])),
        ("generation", 2 * (DONE_S[1] + DONE_S[1])),
        ("step", 2 * (DONE_S[1] + DONE_S[1] + 2 * (5 + 7))),
    ],
)
def test_time_and_gpu_seconds_by_hand(release, gpu_s):
    phases = solver.NonGenerationPhases(
        prepare_s=5, learn_s=7, learner_gpus=100
    )  # learner GPUs are the step's, not the actors'
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, phases=phases, release=release))
    assert [a.predicted_s for a in plan.actors] == pytest.approx(DONE_S)
    assert plan.makespan_s == pytest.approx(DONE_S[1])
    assert plan.gpu_seconds == pytest.approx(gpu_s)


def test_a_later_start_shifts_the_end_but_not_what_is_held():
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    late = replace(plan, actors=(plan.actors[0], replace(plan.actors[1], start_s=10.0)))
    taken = solver.evaluate(late, solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    assert taken.makespan_s == pytest.approx(10 + DONE_S[1])
    assert taken.gpu_seconds == pytest.approx(plan.gpu_seconds)


def test_what_is_there_of_each_context_by_hand():
    """Prompts of 10 and 20 tokens; the first response has no tokens to go: the second computes the prompt for the third."""
    workload = solver.Workload([10, 20], [0, 0, 0, 1, 1], [0, 2, 3, 4, 5], [0, 0, 1, 0, 0])
    everyone = range(5)
    assert cached_tokens(workload, everyone).tolist() == [0] * 5
    assert cached_tokens(workload, everyone, (1,), (7,)).tolist() == [0, 0, 0, 7, 7]
    assert cached_tokens(workload, everyone, shares_prompts=True).tolist() == [10, 0, 10, 0, 20]
    assert cached_tokens(workload, everyone, (0, 1), (10, 7), True).tolist() == [10, 10, 10, 7, 20]
    assert cached_tokens(workload, [4, 3], (1,), (7,), True).tolist() == [7, 20]
    for prefixes, tokens, *named in (((1,), (21,), "prompt 1", "21", "20"), ((2,), (1,), "prompt 2")):
        with refused(solver.PlanningError, *named):
            cached_tokens(workload, everyone, prefixes, tokens)


@given(st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=40, deadline=None)
def test_groups_that_share_prompts_take_what_evaluate_says(seed, refill):
    """Responses that go on from earlier tokens compute these themselves, whoever computes the prompt."""
    rng = np.random.default_rng(seed)
    workload = solver.Workload(
        rng.integers(0, 20, 3), rng.integers(0, 3, 12), rng.integers(0, 30, 12), rng.integers(0, 9, 12), max_response_tokens=30
    )
    slow = replace(LATENCY, prefill_base_s=0.5, prefill_per_token_s=0.2, join_s=0.7, max_batch=2 if refill else 64)
    order = rng.permutation(12)
    times = GroupTimes.of(workload, slow, admission_of(slow), order, shares_prompts=True).busy_s(np.array([0, 5, 12]))
    plan = assemble("hand", np.split(order, [5]), solver.PlanningProblem(workload, CLUSTER, slow, share_prefill=True))
    assert [a.predicted_s for a in plan.actors] == pytest.approx(3.0 + times[0])


def test_an_actor_says_how_much_it_receives_of_each_prefix():
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    with refused(solver.PlanningError, "prefix_tokens"):
        replace(plan.actors[0], prefixes=(0,))


def test_an_actor_without_responses_is_billed_but_ends_no_generation():
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY, release="generation"))
    prefills = replace(plan.actors[0], gpu_ids=(4, 5), responses=(), prompts=(), receive_s=20.0)
    taken = solver.evaluate(replace(plan, actors=(*plan.actors, prefills)), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    assert taken.makespan_s == pytest.approx(DONE_S[1])
    assert taken.gpu_seconds == pytest.approx(plan.gpu_seconds + 2 * 23)


def test_the_price_gives_dollars():
    cluster = replace(CLUSTER, usd_per_gpu_hour=3.6)
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, cluster, LATENCY))
    assert plan.cost_usd == pytest.approx(plan.gpu_seconds * 1e-3)


def test_prefill_is_one_call_of_all_tokens_that_join_together():
    latency = replace(LATENCY, prefill_base_s=0.5, prefill_per_token_s=0.01)
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, latency))
    assert [a.predicted_s for a in plan.actors] == pytest.approx([DONE_S[0] + 0.5 + 0.2, DONE_S[1] + 0.5 + 0.2])


@pytest.mark.parametrize("slots", [2, 64])
def test_every_response_that_has_something_to_generate_joins_once(slots):
    workload = WORKLOAD.with_response_tokens(np.append(WORKLOAD.response_tokens[:-1], 0))
    free, dear = (replace(LATENCY, join_s=join_s, max_batch=slots) for join_s in (0.0, 0.25))
    without, paid = (
        assemble("hand", [[0, 1, 2]], solver.PlanningProblem(workload, CLUSTER, latency)) for latency in (free, dear)
    )
    assert paid.makespan_s == pytest.approx(without.makespan_s + 2 * 0.25)


def test_fewer_slots_than_responses_are_refilled():
    plan = assemble("hand", [[0, 1, 2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY), max_batch=2)
    iterations = [1 + 0.2 + 0.20, 1 + 0.2 + 0.31, 1 + 0.1 + 0.21, 1 + 0.1 + 0.22]  # 0 and 1, then 0 and 2, then 2 alone
    assert plan.makespan_s == pytest.approx(3 + sum(iterations))


def test_the_table_is_used_when_asked_for_and_only_then():
    table = IterationTable([1, 256], [0, 4096], np.full((2, 2), 7.0))
    measured = replace(LATENCY, table=table)
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    assert solver.evaluate(plan, solver.PlanningProblem(WORKLOAD, CLUSTER, measured)).done_s == pytest.approx(DONE_S)
    assert solver.evaluate(plan, solver.PlanningProblem(WORKLOAD, CLUSTER, measured), table=True).done_s == pytest.approx(
        [3 + 2 * 7, 3 + 3 * 7]
    )
    planned = solver.plan(solver.PlanningProblem(WORKLOAD, CLUSTER, measured))
    assert planned.makespan_s == solver.evaluate(planned, solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY)).makespan_s


def test_true_lengths_are_evaluated_with_the_same_plan():
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    taken = solver.evaluate(plan, solver.PlanningProblem(WORKLOAD.with_response_tokens([2, 1, 1]), CLUSTER, LATENCY))
    assert taken.done_s == pytest.approx([DONE_S[0], 3 + 1.1 + 0.2])


@pytest.mark.parametrize(
    ("responses", "sentence"),
    [
        (((0, 1), (1, 2)), ("response 1",)),
        (((0,), (2,)), ("response 1",)),
        (((0, 1), (2, 7)), ("response 7",)),
        (((0, 1), (2, -1)), ("response -1",)),
        ((), ("response 0",)),
    ],
)
def test_a_missing_doubled_or_unknown_response_is_refused(responses, sentence):
    plan = assemble("hand", [[0, 1], [2]], solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))
    actors = tuple(replace(a, responses=r) for a, r in zip(plan.actors, responses, strict=False))
    with refused(solver.PlanningError, *sentence):
        solver.evaluate(replace(plan, actors=actors), solver.PlanningProblem(WORKLOAD, CLUSTER, LATENCY))


def test_every_policy_of_the_same_workload_is_measured_alike():
    """The random split of the reference has the numbers that ``evaluate`` gives it."""
    workload, cluster = lognormal_workload(32, 4), solver.Cluster(2, 8, 2)
    split = solver.random_split(solver.PlanningProblem(workload, cluster, l40s()), actors=5)
    taken = solver.evaluate(split, solver.PlanningProblem(workload, cluster, l40s()))
    assert (split.makespan_s, split.gpu_seconds) == (taken.makespan_s, taken.gpu_seconds)
    assert len(split.actors) == 5
    owners = [set(a.prompts) for a in split.actors]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 32  # whole prompts


def test_a_plan_under_scenarios_is_the_best_mean_of_its_candidates():
    """It takes the mean over the scenarios, as evaluate says, and that mean is no worse than the random split's or than that
    of the plan for the predicted lengths alone."""
    rng = np.random.default_rng(3)
    predicted = rng.integers(20, 200, size=12)
    sampled = np.clip(predicted * rng.lognormal(0, 0.4, size=(5, 12)), 1, 400).astype(int)
    prompts, owner, cluster = np.full(12, 30), np.arange(12), solver.Cluster(1, 4, 1)
    latency = solver.LatencyModel("x", 1, 2e-3, 3e-5, 1e-7, start_s=0.05)
    certain = solver.Workload(prompts, owner, predicted, max_response_tokens=400)
    uncertain = solver.Workload(prompts, owner, predicted, max_response_tokens=400, scenarios=sampled)
    plan = solver.plan(solver.PlanningProblem(uncertain, cluster, latency))
    cases = [
        solver.evaluate(plan, solver.PlanningProblem(certain.with_response_tokens(lengths), cluster, latency))
        for lengths in sampled
    ]
    assert plan.makespan_s == pytest.approx(np.mean([c.makespan_s for c in cases]))
    assert plan.gpu_seconds == pytest.approx(np.mean([c.gpu_seconds for c in cases]))
    again = solver.evaluate(plan, solver.PlanningProblem(uncertain, cluster, latency))
    assert (again.makespan_s, again.gpu_seconds) == (plan.makespan_s, plan.gpu_seconds)
    split = solver.random_split(solver.PlanningProblem(certain, cluster, latency))
    for other in (split, solver.plan(solver.PlanningProblem(certain, cluster, latency))):
        taken = solver.evaluate(other, solver.PlanningProblem(uncertain, cluster, latency))
        norms = (plan.reference.time_s, plan.reference.gpu_s)
        mean = solver.Objective().value(taken.makespan_s, taken.gpu_seconds, norms)
        assert solver.Objective().value(plan.makespan_s, plan.gpu_seconds, norms) <= mean + 1e-9
    assert plan.lower_bound <= plan.value + 1e-12


def test_lengths_that_say_nothing_are_not_grouped_by():
    """Predictions that have nothing to do with the scenarios: the plan is no worse than the random split, in the mean."""
    rng = np.random.default_rng(0)
    predicted = rng.permutation(np.repeat([20, 400], 32))
    sampled = rng.choice([20, 400], size=(6, 64))
    uncertain = solver.Workload(np.zeros(64, int), np.arange(64), predicted, max_response_tokens=400, scenarios=sampled)
    latency, cluster = solver.LatencyModel("x", 1, 2e-3, 3e-5), solver.Cluster(1, 8, 1)
    fast = solver.Objective(1.0)
    plan = solver.plan(solver.PlanningProblem(uncertain, cluster, latency, fast))
    blind = solver.plan(solver.PlanningProblem(uncertain.points, cluster, latency, fast))
    taken = solver.evaluate(blind, solver.PlanningProblem(uncertain, cluster, latency))
    norms = (plan.reference.time_s, plan.reference.gpu_s)
    value = fast.value
    assert value(plan.makespan_s, plan.gpu_seconds, norms) <= 1 + 1e-9
    assert value(plan.makespan_s, plan.gpu_seconds, norms) < value(taken.makespan_s, taken.gpu_seconds, norms)


def test_two_dimensional_lengths_are_scenarios():
    sampled = np.array([[10, 20], [20, 41]])
    workload = solver.Workload([5], [0, 0], sampled, max_response_tokens=40)
    assert workload.response_tokens.tolist() == [15, 31]
    assert workload.scenarios.tolist() == [[10, 20], [20, 40]]
    assert [case.response_tokens.tolist() for case in workload.cases()] == [[10, 20], [20, 40]]
    assert workload.points.scenarios is None
    with refused(solver.PlanningError):
        solver.Workload([5], [0, 0], [1, 2], scenarios=np.ones((2, 3)))


def test_a_limit_that_only_the_predicted_lengths_keep_is_refused():
    """A deadline or budget holds in the mean over the scenarios, or the sentence says what would hold."""
    rng = np.random.default_rng(3)
    predicted = rng.integers(100, 120, size=12)
    sampled = np.clip(predicted * rng.lognormal(0, 0.6, size=(5, 12)), 1, 400).astype(int)
    workload = solver.Workload(np.zeros(12, int), np.arange(12), predicted, max_response_tokens=400, scenarios=sampled)
    latency, cluster = solver.LatencyModel("x", 1, 2e-3, 3e-5), solver.Cluster(1, 4, 1)
    point = solver.plan(solver.PlanningProblem(workload.points, cluster, latency, solver.Objective(1.0)))
    tight = solver.Objective(deadline_s=1.05 * point.makespan_s)
    assert solver.plan(solver.PlanningProblem(workload.points, cluster, latency, tight)).makespan_s <= tight.deadline_s
    with refused(solver.PlanningError) as refusal:
        solver.plan(solver.PlanningProblem(workload, cluster, latency, tight))
    enough = tight.deadline_s + float(str(refusal.value).split("raise the deadline by ")[1].split(" s")[0])
    kept = solver.plan(solver.PlanningProblem(workload, cluster, latency, solver.Objective(deadline_s=enough)))
    assert kept.makespan_s <= enough


def test_the_model_is_asked_where_actors_are_few():
    """With scenarios or without, CP-SAT is part of the history of few actors, not of many."""
    rng = np.random.default_rng(0)
    predicted = rng.integers(20, 400, size=48)
    sampled = np.clip(predicted * rng.lognormal(0, 0.3, size=(8, 48)), 1, 400).astype(int)
    workload = solver.Workload(
        np.full(6, 10), np.repeat(np.arange(6), 8), predicted, max_response_tokens=400, scenarios=sampled
    )
    latency = solver.LatencyModel("x", 1, 6e-4, 2.75e-5, 1e-7, start_s=0.01)
    for asked in (workload, workload.points):
        for actors in (4, 16):
            problem = solver.PlanningProblem(asked, solver.Cluster(1, actors, 1), latency, solver.Objective(1.0))
            plan = solver.plan(problem)
            assert ("few items" in [line.solver for line in plan.history]) == (actors == 4)
            assert plan.status == "feasible" or asked.scenarios is None
