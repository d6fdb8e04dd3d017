"""Moves go where there is room: no receiver gets more responses than it has slots for, nor more KV tokens than it can hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.assignments import Spread, Static
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.scheduling.rules import DrainingFold, Fold, LocalCut, ReceiverRoom, hand_over
from solver import Cluster, LatencyModel, Objective, Plan, Workload
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Cut, Move, StepState, Trigger

LIMIT = 60
LATENCY = LatencyModel("x", 1, 0.01, 4e-4, 1e-6, transfer_base_s=2e-3, max_batch=16, kv_capacity_tokens=400)
CLUSTER = Cluster(2, 4, 1)


def view(actor: int, running: tuple[int, ...], *, free: int = 9, kv: float = 0.0, done: int = 9) -> ActorView:
    return ActorView(actor, 1, done + len(running), done, running, (), (), free, kv)


def state(*views: ActorView, total: int = 20, tokens: int = 5, reserves: bool = True) -> StepState:
    """Prompts of 10 tokens and limits of 60."""
    unfinished = {r for v in views for r in v.unfinished}
    complete = np.array([r not in unfinished for r in range(total)])
    prompt = np.full(total, 10)
    return StepState.of(1.0, views, np.full(total, tokens), complete, prompt, prompt + LIMIT if reserves else None)


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_a_receiver_with_slots_but_without_memory_gets_nothing():
    leaving, full, open_to = view(0, (0, 1)), view(1, (), kv=69), view(2, (5, 6, 7), kv=140)
    now = state(leaving, full, open_to)
    assert hand_over(leaving, [full, open_to], ReceiverRoom(now)) == Cut(0, (Move(0, 2), Move(1, 2)))
    less = state(leaving, full, replace(open_to, free_kv_tokens=139))
    assert hand_over(leaving, less.actors[1:], ReceiverRoom(less)) is None


def test_under_preempt_a_response_needs_what_its_context_holds():
    leaving, other = view(0, (0, 1)), view(1, (5,), kv=30)
    assert hand_over(leaving, [other], ReceiverRoom(state(leaving, other, reserves=False))) == Cut(0, (Move(0, 1), Move(1, 1)))
    assert hand_over(leaving, [other], ReceiverRoom(state(leaving, other, tokens=6, reserves=False))) is None


def test_a_large_response_passes_by_the_actor_that_a_small_one_fits_on():
    leaving, small, large = view(0, (0, 1)), view(1, (), kv=50), view(2, (5, 6), kv=200)
    now = replace(state(leaving, small, large), reserved_tokens=np.array([100, 40, *[70] * 18]))
    assert hand_over(leaving, [small, large], ReceiverRoom(now)) == Cut(0, (Move(0, 2), Move(1, 1)))


def test_decisions_of_one_moment_share_the_room_and_one_that_fails_takes_none():
    one, two, other = view(0, (0,)), view(1, (1, 2)), view(2, (5,), kv=150)
    room = ReceiverRoom(state(one, two, other))
    assert hand_over(one, [other], room) == Cut(0, (Move(0, 2),))
    assert hand_over(two, [other], room) is None
    assert room.kv_tokens(2) == 80
    assert hand_over(view(3, (1,)), [other], room) == Cut(3, (Move(1, 2),))


def test_the_local_cut_waits_for_memory_and_says_how_long():
    """Two responses of 70 tokens need 140; 40 are free, so 2 completions are missing, wherever they happen."""
    rule = LocalCut(0.5)
    due, other = view(0, (0, 1)), view(1, (4, 5, 6, 7), kv=40)
    assert rule.decide(1.0, state(due, other)) == []
    assert rule.next_trigger(other).step_completions == 14 + 2
    assert len(rule.decide(1.0, state(due, replace(other, free_kv_tokens=140)))) == 1


def test_the_global_cut_keeps_as_many_actors_as_have_memory():
    views = [view(a, (3 * a, 3 * a + 1, 3 * a + 2), kv=190) for a in range(4)]
    assert [c.actor for c in GlobalCut(13, 20).decide(1.0, state(*views))] == [3]
    roomy = [replace(v, free_kv_tokens=210) for v in views]
    assert [c.actor for c in GlobalCut(13, 20).decide(1.0, state(*roomy))] == [2, 3]


@pytest.mark.filterwarnings("error")
def test_the_global_cut_keeps_one_actor_where_no_engine_limits_its_memory():
    views = [view(a, (3 * a, 3 * a + 1, 3 * a + 2), kv=math.inf) for a in range(4)]
    assert [c.actor for c in GlobalCut(13, 20).decide(1.0, state(*views))] == [1, 2, 3]
    mixed = [replace(views[0], free_kv_tokens=190), *views[1:]]
    assert [c.actor for c in GlobalCut(13, 20).decide(1.0, state(*mixed))] == [2, 3], "actor 0 alone has no room for the others"


def test_folding_leaves_alone_what_nobody_can_hold():
    rule = DrainingFold(nu=1e-9, latency=LATENCY, total=20, actors=2)
    thin, other = view(0, (0,)), view(1, (5, 6), kv=69)
    assert rule.decide(1.0, state(thin, other)) == []
    assert len(rule.decide(2.0, state(thin, replace(other, free_kv_tokens=70)))) == 1


# --- in the course of a step -----------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A rule with a note of what it saw and decided."""

    rule: object
    seen: list[tuple[StepState, list[Cut | Move]]] = field(default_factory=list)
    name: str = "watched"

    def next_trigger(self, v: ActorView) -> Trigger | None:
        return self.rule.next_trigger(v)

    def decide(self, now_s: float, s: StepState) -> list[Cut | Move]:
        self.seen.append((s, self.rule.decide(now_s, s)))
        return self.seen[-1][1]


def random_work(seed: int) -> Workload:
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.05, (int(rng.integers(8, 30)), 3)), LIMIT)
    return Workload.grid(rng.integers(0, 40, len(lengths)), lengths, max_response_tokens=LIMIT)


def plan_of(policy: str, problem: PlanningProblem, options: PlanningOptions) -> Plan:
    if policy == "draining":
        return Fold(Spread()).plan(problem, options)
    if policy == "replan":
        return SolverReplan(looks_ahead=False).plan(problem, options)
    if policy == "tau":
        return replace(Static(6).plan(problem, options), rule=LocalCut(0.5))
    return make_policy(policy).plan(problem, options)


def executed(plan: Plan, work: Workload, latency: LatencyModel, admission: str, engine=SimulatedEngine):
    prompts = work.prompt_tokens[work.prompt_of].tolist()
    lengths = work.response_tokens.tolist()
    requests = [Request(i, p, LIMIT, target_tokens=n) for i, (p, n) in enumerate(zip(prompts, lengths, strict=True))]
    return run_step(plan, requests, engine, latency, CLUSTER, admission=admission)


RULES = ["tau", "rlhfuse", "fold", "draining", "replan"]


@example(0, "tau", 400)
@given(st.integers(0, 10_000), st.sampled_from(RULES), st.sampled_from([150, 250, 400, 900]))
@settings(max_examples=40, deadline=None)
def test_no_actor_is_given_more_than_it_can_hold(seed, policy, capacity):
    """Under ``reserve``, after every decision: who got something has memory for all that is with it or on its way to it."""
    work, latency = random_work(seed), replace(LATENCY, kv_capacity_tokens=capacity)
    given_ = (PlanningProblem(work, CLUSTER, latency, Objective(0.5)), PlanningOptions(seed=seed))
    plan = plan_of(policy, *given_)
    if plan.rule is None:
        return
    record = executed(replace(plan, rule=Watched(plan.rule)), work, latency, "reserve")
    reserved = work.reserved_tokens
    for s, decisions in record.rule.seen:
        moves = [m for d in decisions for m in (d.moves if isinstance(d, Cut) else (d,))]
        goes_to = {m.response: m.to_actor for m in moves}
        for v in s.actors:
            own = [*v.unfinished, *v.arriving]
            assert v.free_kv_tokens == capacity - reserved[own].sum()
            after = [r for r in own if goes_to.get(r, v.actor) == v.actor] + [r for r, to in goes_to.items() if to == v.actor]
            assert reserved[list(v.running)].sum() <= capacity
            if v.actor in goes_to.values():
                assert reserved[after].sum() <= capacity
                assert len(after) <= latency.max_batch
    assert sorted(record.completions) == list(range(len(work)))


@given(st.integers(0, 10_000), st.sampled_from(RULES))
@settings(max_examples=40, deadline=None)
def test_under_preempt_receivers_have_memory_for_the_contexts_of_the_moment(seed, policy):
    work, capacity = random_work(seed), 250
    latency = replace(LATENCY, kv_capacity_tokens=capacity)
    given_ = (
        PlanningProblem(work, CLUSTER, latency, Objective(0.5), admission="preempt"),
        PlanningOptions(seed=seed),
    )
    plan = plan_of(policy, *given_)
    if plan.rule is None:
        return
    record = executed(replace(plan, rule=Watched(plan.rule)), work, latency, "preempt")
    for s, decisions in record.rule.seen:
        moves = [m for d in decisions for m in (d.moves if isinstance(d, Cut) else (d,))]
        goes_to = {m.response: m.to_actor for m in moves}
        held = s.prompt_tokens + s.generated_tokens
        np.testing.assert_array_equal(s.held_tokens, held)
        for v in s.actors:
            own = [*v.unfinished, *v.arriving]
            assert v.free_kv_tokens == capacity - held[own].sum()
            after = [r for r in own if goes_to.get(r, v.actor) == v.actor] + [r for r, to in goes_to.items() if to == v.actor]
            if v.actor in goes_to.values():
                assert held[after].sum() <= capacity
    assert sorted(record.completions) == list(range(len(work)))
