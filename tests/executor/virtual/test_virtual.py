"""Steps on the virtual clock: nothing lost, nothing billed twice, nothing decided with what is not known yet."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from error_messages import refused
from executor_samples import LIMIT, Orders, Restless, Step, assert_sound, execute, plan_of, random_step, run, uniform_step
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.assignments import Spread
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.scheduling.rules import Fold
from solver import NonGenerationPhases, Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Cut, Decision, Move, StepState, Trigger
from solver.timing.evaluate import evaluate

RULES = ["fold", "rlhfless", "rlhfuse"]
seeds = st.integers(0, 10_000)
migrations = st.sampled_from(["cheaper", "move", "recompute"])


@example(4220, "fold", "cheaper", "reserve")
@given(seeds, st.sampled_from([*RULES, "static", "least-loaded"]), migrations, st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=40, deadline=None)
def test_whatever_the_policy_every_response_completes_once_and_is_billed_once(seed, policy, migration, admission):
    step = random_step(seed)
    record = execute(step, policy, seed=seed, migration=migration, admission=admission, start_s=5.0)
    # `fold` takes single responses from actors that go on: their arrivals end no span
    assert_sound(record, step, "generation" if policy == "static" else "done", cuts_only=policy != "fold")


@given(seeds, migrations, st.sampled_from(["reserve", "preempt"]))
@settings(max_examples=40, deadline=None)
def test_whatever_a_rule_orders_every_response_completes_once_and_is_billed_once(seed, migration, admission):
    step = random_step(seed)
    record = execute(step, "static", rule=Restless(seed), migration=migration, admission=admission)
    held = {a["end_s"] for a in record.allocations}
    assert held == {record.end_s}  # `static` holds on
    assert_sound(record, step, "generation", cuts_only=False)


@given(seeds, st.sampled_from(["static", "random", "least-loaded", "solver"]))
@settings(max_examples=30, deadline=None)
def test_without_a_rule_a_step_takes_what_evaluate_says(seed, policy):
    step = random_step(seed)
    record = execute(step, policy, seed=seed)
    taken = evaluate(record.plan, PlanningProblem(step.truth, step.cluster, step.latency))
    assert record.makespan_s == pytest.approx(max(taken.done_s))
    assert sum(a["end_s"] - a["start_s"] for a in record.allocations) == pytest.approx(taken.gpu_seconds)


# --- causality -------------------------------------------------------------------------------------------------------


def decisions_before(record, time_s: float) -> list[object]:
    return [(at_s, decided) for at_s, decided in getattr(record.rule, "decided", []) if at_s < time_s]


@given(st.data(), seeds, st.sampled_from([*RULES, "restless"]), st.sampled_from(["move", "recompute"]))
@settings(max_examples=40, deadline=None)
def test_other_lengths_after_a_moment_change_no_decision_before_it(data, seed, policy, migration):
    step = random_step(seed, prompts=12)

    def executed(some):
        if policy == "restless":
            return execute(some, "static", rule=Restless(seed), migration=migration)
        return execute(some, policy, seed=seed, migration=migration)

    before = executed(step)
    at_s = data.draw(st.floats(0.02, 0.98)) * before.makespan_s
    rng = np.random.default_rng(seed)
    lengths = step.truth.response_tokens.copy()
    for i, c in before.completions.items():
        if c.start_s > at_s:
            lengths[i] = rng.integers(1, LIMIT + 1)
        elif c.time_s > at_s:  # under way: another length beyond what any engine can have committed by then
            committed = math.floor((at_s - c.start_s) / step.latency.base_s + 1e-9)
            lengths[i] = rng.integers(min(committed + 1, lengths[i]), LIMIT + 1)
    after = executed(step.with_truth(lengths))
    assert decisions_before(after, at_s) == decisions_before(before, at_s)
    known = {i: c for i, c in before.completions.items() if c.time_s <= at_s}
    assert {i: after.completions[i].time_s for i in known} == {i: c.time_s for i, c in known.items()}


@given(seeds, st.lists(st.integers(0, 40), min_size=4, max_size=12), st.integers(4, 95))
@settings(max_examples=40, deadline=None)
def test_a_rule_sees_the_tokens_of_finished_iterations_and_no_others(seed, lengths, period):
    """All iterations take 1/8 s and begin at multiples of it, so the tokens known at any time are known to the digit."""
    step = uniform_step(lengths, base_s=0.125)
    groups = [list(range(k, len(lengths), 4)) for k in range(4)]
    record = run(step, plan_of(groups, Restless(seed, period * math.pi * 1e-3)), migration="move")
    for state in record.rule.seen:
        iterations = math.floor(state.now_s / 0.125)
        truth = step.truth.response_tokens
        np.testing.assert_array_equal(state.generated_tokens, np.minimum(truth, iterations))
        assert [bool(c) for c in state.complete] == [n <= iterations for n in truth]
        seen = [r for view in state.actors for r in (*view.unfinished, *view.arriving)]
        assert len(set(seen)) == len(seen)
        assert not any(state.complete[r] for r in seen)
    assert_sound(record, step, cuts_only=False)


# --- by hand ---------------------------------------------------------------------------------------------------------


@dataclass
class Once:
    """Orders ``decisions`` at the first completion of ``actor``, or at ``time_s``."""

    decisions: list[Decision]
    actor: int = 0
    completions: int | None = 1
    time_s: float | None = None
    name: str = "once"
    seen: list[StepState] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(self.completions, self.time_s) if view.actor == self.actor and not self.seen else None

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.seen.append(state)
        return self.decisions


def by_holder(rows, holder):
    return [(r["phase"], round(r["start_s"], 6), round(r["end_s"], 6), r["background"]) for r in rows if r["holder"] == holder]


def held(record):
    return {a["holder"]: (round(a["start_s"], 6), round(a["end_s"], 6)) for a in record.allocations}


def test_a_rule_is_asked_at_the_last_completion_of_an_actor_too():
    seen = run(uniform_step([1, 2, 9, 9]), plan_of([[0, 1], [2, 3]], Once([], actor=0, completions=2))).rule.seen
    assert [round(s.now_s, 6) for s in seen] == [0.2]
    assert [view.actor for view in seen[0].actors] == [1]


def test_a_cut_moves_kv_caches_and_holds_the_sender_until_they_are_sent():
    """Cut at 0.1; contexts of 11 tokens are sent one after the other, 0.13 s each, behind the receiver's decoding."""
    step = uniform_step([1, 3, 3, 8], transfer_base_s=0.02, transfer_per_kv_token_s=0.01)
    rule = Once([Cut(0, (Move(1, 1), Move(2, 1)))])
    record = run(step, plan_of([[0, 1, 2], [3]], rule), migration="move")
    sent = [("migrate", 0.1, 0.23, False), ("migrate", 0.23, 0.36, False)]
    assert by_holder(record.spans, "actor-0") == [("decode", 0.0, 0.1, False), *sent]
    received = [s for s in by_holder(record.spans, "actor-1") if s[0] == "transfer"]
    assert received == [("transfer", 0.1, 0.23, True), ("transfer", 0.23, 0.36, True)]
    assert held(record) == {"actor-0": (0.0, 0.36), "actor-1": (0.0, 0.8)}
    times = {i: round(c.time_s, 6) for i, c in record.completions.items()}
    assert times == {0: 0.1, 1: 0.5, 2: 0.6, 3: 0.8}  # admitted at 0.3 and 0.4, two tokens to go
    assert [c.prefill_tokens_computed for _, c in sorted(record.completions.items())] == [9] * 4
    assert record.moves == 2
    assert [(e["name"], round(e["time_s"], 6), json.loads(e["detail"])) for e in record.events] == [
        ("cut", 0.1, {"responses": 2, "to": {"actor-1": [1, 2]}})
    ]
    assert_sound(record, step)


def sent_by(record, holder):
    """(response, start, end) of every cache that it sends."""
    spans = [(json.loads(s["detail"]), s) for s in record.spans if s["phase"] == "migrate" and s["holder"] == holder]
    return [(what["response"], round(s["start_s"], 6), round(s["end_s"], 6)) for what, s in spans]


def test_moves_from_one_actor_take_turns_on_its_link():
    """Ordered at 0.05 for the boundary at 0.1: a context of 11 tokens takes 0.13 s; another one is ordered at 0.15, for 0.2."""
    step = uniform_step([9, 9, 9, 9, 9], transfer_base_s=0.02, transfer_per_kv_token_s=0.01)
    rule = Orders({0.05: [Move(2, 1), Move(0, 2)], 0.15: [Move(1, 1)]})
    record = run(step, plan_of([[0, 1, 2], [3], [4]], rule), migration="move")
    assert sent_by(record, "actor-0") == [(2, 0.1, 0.23), (0, 0.23, 0.36), (1, 0.36, 0.5)]
    assert held(record)["actor-0"] == (0.0, 0.5)  # nothing is left on it, but its last cache is still being sent
    assert_sound(record, step, cuts_only=False)


def test_a_cut_waits_for_what_the_link_still_sends():
    step = uniform_step([9, 9, 9], transfer_base_s=0.25)
    record = run(step, plan_of([[0, 1], [2]], Orders({0.05: [Move(0, 1)], 0.15: [Cut(0, (Move(1, 1),))]})), migration="move")
    assert sent_by(record, "actor-0") == [(0, 0.1, 0.35), (1, 0.35, 0.6)]
    assert held(record)["actor-0"] == (0.0, 0.6)
    assert_sound(record, step)


def test_two_actors_send_to_one_at_the_same_time():
    step = uniform_step([9, 9, 9, 9, 9], transfer_base_s=0.25)
    record = run(step, plan_of([[0, 1], [2, 3], [4]], Orders({0.05: [Move(0, 2), Move(2, 2)]})), migration="move")
    assert sent_by(record, "actor-0") == [(0, 0.1, 0.35)]
    assert sent_by(record, "actor-1") == [(2, 0.1, 0.35)]
    assert_sound(record, step, cuts_only=False)


def test_a_cache_that_is_on_its_way_is_sent_on_when_it_has_arrived():
    step = uniform_step([9, 9, 9, 9], transfer_base_s=0.25)
    record = run(step, plan_of([[0, 1], [2], [3]], Orders({0.05: [Move(0, 1)], 0.15: [Move(0, 2)]})), migration="move")
    assert sent_by(record, "actor-0") == [(0, 0.1, 0.35)]
    assert sent_by(record, "actor-1") == [(0, 0.35, 0.6)]
    assert record.actor_of[0] == "actor-2"
    assert_sound(record, step, cuts_only=False)


@pytest.mark.parametrize(("bytes_per_token", "sent"), [(0.0, None), (512.0, 11 * 512)])
def test_a_transfer_says_its_bytes_where_they_are_known(bytes_per_token, sent):
    step = uniform_step([9, 9], transfer_base_s=0.1, kv_bytes_per_token=bytes_per_token)
    record = run(step, plan_of([[0], [1]], Orders({0.05: [Move(0, 1)]})), migration="move")
    assert [s["bytes"] for s in record.spans if s["phase"] in ("migrate", "transfer")] == [sent, sent]


def test_events_say_who_gets_which_response_also_when_it_is_recomputed():
    rule = Orders({0.05: [Move(3, 1)], 0.15: [Cut(0, (Move(0, 1), Move(1, 2), Move(2, 1)))]})
    record = run(uniform_step([9] * 6), plan_of([[0, 1, 2, 3], [4], [5]], rule), migration="recompute")
    assert [(e["name"], json.loads(e["detail"])) for e in record.events] == [
        ("move", {"responses": 1, "to": {"actor-1": [3]}}),
        ("cut", {"responses": 3, "to": {"actor-1": [0, 2], "actor-2": [1]}}),
    ]


def test_recomputing_sends_nothing_and_costs_the_receiver_a_prefill():
    step = uniform_step([1, 3, 8], prefill_per_token_s=0.001, transfer_base_s=9.0)
    for migration in ("recompute", "cheaper"):
        record = run(step, plan_of([[0, 1], [2]], Once([Cut(0, (Move(1, 1),))])), migration=migration)
        assert not [s for s in record.spans if s["phase"] in ("migrate", "transfer")]
        assert held(record)["actor-0"][1] == pytest.approx(0.12)
        assert record.completions[1].prefill_tokens_computed == 9 + 10
        assert_sound(record, step)


@pytest.mark.parametrize(("transfer_s", "moved"), [(0.010, True), (0.012, False)])
def test_cheaper_compares_the_transfer_with_the_prefill(transfer_s, moved):
    """Recomputing 11 tokens takes 0.011 s."""
    step = uniform_step([1, 3, 8], prefill_per_token_s=0.001, transfer_base_s=transfer_s)
    record = run(step, plan_of([[0, 1], [2]], Once([Cut(0, (Move(1, 1),))])), migration="cheaper")
    assert bool([s for s in record.spans if s["phase"] == "transfer"]) is moved


def test_an_unknown_migration_is_refused():
    with refused(ValueError, "'teleport'"):
        run(uniform_step([1]), plan_of([[0]]), migration="teleport")


def test_two_actors_may_swap_their_only_responses():
    rule = Once([Move(0, 1), Move(1, 0)], completions=None, time_s=0.25)
    step = uniform_step([6, 9])
    record = run(step, plan_of([[0], [1]], rule), migration="move")
    assert record.actor_of == {0: "actor-1", 1: "actor-0"}
    assert_sound(record, step)


def test_a_response_that_completes_in_the_iteration_under_way_stays():
    """Moves ordered at 0.25: response 1 completes at 0.3, before the boundary at which it would leave."""
    rule = Once([Move(0, 1), Move(1, 1)], completions=None, time_s=0.25)
    step = uniform_step([6, 3, 9])
    record = run(step, plan_of([[0, 1], [2]], rule), migration="move")
    assert record.actor_of == {0: "actor-1", 1: "actor-0", 2: "actor-1"}
    assert held(record)["actor-0"] == (0.0, 0.3)
    assert_sound(record, step)


@dataclass
class MoveThenLook:
    """Moves response 2 at 0.25 s and looks again at 0.27 s, in the same iteration."""

    name: str = "move, then look"
    seen: list[StepState] = field(default_factory=list)

    def next_trigger(self, view: ActorView) -> Trigger | None:
        return Trigger(time_s=(0.25, 0.27, math.inf)[len(self.seen)])

    def decide(self, now_s: float, state: StepState) -> list[Decision]:
        self.seen.append(state)
        return [Move(2, 1)] if len(self.seen) == 1 else []


def test_a_move_shows_nothing_of_the_iteration_under_way():
    """Response 0 completes at 0.3, in the iteration that the move lets finish: at 0.27 it looks like any other."""
    step = uniform_step([3, 6, 9, 9])
    record = run(step, plan_of([[0, 1, 2], [3]], MoveThenLook()), migration="move")
    before, after = record.rule.seen
    assert [(v.running, v.waiting, v.arriving) for v in before.actors] == [((0, 1, 2), (), ()), ((3,), (), ())]
    assert [(v.running, v.waiting, v.arriving) for v in after.actors] == [((0, 1), (), ()), ((3,), (), (2,))]
    assert before.generated_tokens.tolist() == after.generated_tokens.tolist() == [2, 2, 2, 2]
    assert_sound(record, step)


def test_a_cut_before_an_actor_is_ready_hands_over_when_it_is():
    step = uniform_step([3, 3], start_s=1.0)
    rule = Once([Cut(0, (Move(0, 1),))], completions=None, time_s=0.5)
    record = run(step, plan_of([[0], [1]], rule))
    assert held(record) == {"actor-0": (0.0, 1.0), "actor-1": (0.0, 1.3)}
    assert_sound(record, step)


@pytest.mark.parametrize(("release", "ends"), [("done", [0.1, 0.5]), ("generation", [0.5, 0.5]), ("step", [3.5, 3.5])])
def test_gpus_are_held_for_as_long_as_the_plan_says(release, ends):
    record = run(uniform_step([1, 5]), plan_of([[0], [1]], release=release), phases=NonGenerationPhases(1.0, 2.0))
    assert [round(a["end_s"], 6) for a in record.allocations] == ends
    assert record.end_s == pytest.approx(3.5)


def test_the_learner_holds_its_gpus_through_the_whole_step():
    record = run(uniform_step([1, 5]), plan_of([[0], [1]]), phases=NonGenerationPhases(1.0, 2.0, 2), start_s=10.0)
    learner = record.allocations[-1]
    assert (learner["role"], learner["gpu_ids"], learner["node"]) == ("learner", [4, 5], 2)  # beside the cluster's four
    assert (learner["start_s"], learner["end_s"]) == (10.0, pytest.approx(13.5))
    assert by_holder(record.spans, "learner") == [("prepare", 10.5, 11.5, False), ("learn", 11.5, 13.5, False)]


@pytest.mark.parametrize("policy", RULES)
def test_the_same_step_runs_the_same_way_twice(policy):
    step = random_step(48, prompts=20)
    one, two = (execute(step, policy, seed=48) for _ in range(2))
    assert (one.events, one.spans, one.allocations) == (two.events, two.spans, two.allocations)
    assert one.moves > 0


# --- a plan is a value -----------------------------------------------------------------------------------------------


RULED = ["fold", "spread+drain", "rlhfless", "random+tau", "rlhfuse", "solver+replan", "oracle+replan", "restless"]


def ruled_plan(policy: str, step: Step, seed: int) -> Plan:
    """A plan whose rule has something to do."""
    problem, options = (
        PlanningProblem(step.predicted, step.cluster, step.latency),
        PlanningOptions(seed=seed),
    )
    if policy == "restless":
        return replace(make_policy("static").plan(problem, options), rule=Restless(seed))
    if policy == "spread+drain":
        return Fold(Spread()).plan(problem, options)
    if policy in ("solver+replan", "oracle+replan"):
        known = replace(problem, workload=step.truth) if policy == "oracle+replan" else problem
        return (OracleReplan if policy == "oracle+replan" else SolverReplan)(looks_ahead=False).plan(known, options)
    return make_policy(policy).plan(problem, options)


def told(record) -> tuple[object, ...]:
    """Everything that a record says."""
    ends = {i: (c.start_s, c.first_token_s, c.time_s, c.prefill_tokens_computed) for i, c in record.completions.items()}
    return ends, record.actor_of, record.events, record.spans, record.allocations, record.moves, record.end_s


class Interrupted(SimulatedEngine):
    """Someone presses Ctrl-C while the first response is handed over."""

    def cut(self, at_s, responses=None):
        raise KeyboardInterrupt


@pytest.mark.parametrize("policy", RULED)
def test_a_plan_can_be_executed_again_whatever_became_of_the_first_time(policy):
    step = random_step(48, prompts=20)
    plans = [plan for seed in range(8) if run(step, plan := ruled_plan(policy, step, seed)).moves > 0]
    assert plans, "the rule has something to do"
    for plan in plans:
        before = pickle.dumps(plan.rule)
        one, two = run(step, plan), run(step, plan)
        with pytest.raises(KeyboardInterrupt):
            run_step(plan, step.requests(), Interrupted, step.latency, step.cluster)
        assert told(one) == told(two) == told(run(step, plan))
        assert pickle.dumps(plan.rule) == before != pickle.dumps(one.rule)
        assert type(one.rule) is type(plan.rule)
