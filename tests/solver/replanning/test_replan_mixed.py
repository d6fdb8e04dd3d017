"""Re-planning actors of several kinds, sizes and prices: each is judged by its own latency model and its own price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from solver.lengths.survival import known_lengths
from solver.model.runtime_rules import ActorView, StepState
from solver.replanning.actor_classes import ActorClasses
from solver.replanning.lookahead import simulated_busy_s
from solver.replanning.migrations import LinkSchedule
from solver.replanning.replan import Replan, replan
from solver.replanning.running_responses import survivors_of

LIMIT = 400
SLOW = solver.LatencyModel(
    "slow", 1, 8e-3, 3e-5, 3e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, transfer_base_s=2e-3,
    transfer_per_kv_token_s=1e-7, max_batch=64, kind="slow",
)  # fmt: skip
FAST = replace(SLOW, name="fast", kind="fast", base_s=4e-3, per_response_s=1e-5, per_kv_token_s=1e-8)


def fleet(kinds: str, rates=(1.0, 1.0), models=(SLOW, FAST)) -> ActorClasses:
    """Actors by letter: s or f."""
    return ActorClasses(tuple(m.affine for m in models), rates, tuple("sf".index(kind) for kind in kinds))


def state_of(groups: list[list[int]], tokens, free: int = 50) -> StepState:
    count = 1 + max(r for g in groups for r in g)
    views = tuple(ActorView(k, 1, len(g), 0, tuple(g), (), (), free) for k, g in enumerate(groups))
    return StepState(3.0, views, np.broadcast_to(np.asarray(tokens), (count,)).copy(), (False,) * count, np.full(count, 20))


def known(lengths) -> object:
    lengths = np.asarray(lengths)
    return known_lengths(
        solver.Workload(np.full(len(lengths), 20), np.arange(len(lengths)), lengths, max_response_tokens=LIMIT)
    )


def dealt(sizes: list[int]) -> list[list[int]]:
    return [part.tolist() for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])]


seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("seed", range(12))
def test_classes_that_are_alike_are_one_class(seed):
    """Without ties, which go to the first actor of the first class; in another unit of cost, too."""
    sizes = np.random.default_rng(seed).integers(3, 25, 5).tolist()
    price = 1.0 + seed / 2
    rng = np.random.default_rng(seed)
    kinds = "".join(rng.choice(["s", "f"], len(sizes)))
    tokens = rng.integers(0, 200, sum(sizes))
    forecast, state = known(tokens + rng.integers(1, 200, sum(sizes))), state_of(dealt(sizes), tokens)
    alike = replan(state, forecast, SLOW, price)
    assert replan(state, forecast, fleet(kinds, models=(SLOW, SLOW)), price) == alike
    assert replan(state, forecast, fleet(kinds, (4.0, 4.0), (SLOW, SLOW)), 4.0 * price) == alike


@given(st.lists(st.integers(1, 25), min_size=2, max_size=5), seeds, st.floats(0.2, 8.0), st.floats(0.3, 5.0))
@settings(max_examples=30, deadline=None)
def test_decisions_keep_every_actors_own_memory_and_slots(sizes, seed, price, dear):
    rng = np.random.default_rng(seed)
    few = replace(FAST, kv_capacity_tokens=6 * (LIMIT + 20))
    kinds = "".join(rng.choice(["s", "f"], len(sizes)))
    tokens = rng.integers(0, 200, sum(sizes))
    state = state_of(dealt(sizes), tokens, free=4)
    actors = fleet(kinds, (1.0, dear), (SLOW, few))
    moves = replan(state, known(tokens + rng.integers(1, 200, sum(sizes))), actors, price)
    assert len({m.response for m in moves}) == len(moves)
    for k, view in enumerate(state.actors):
        came, left = sum(m.to_actor == k for m in moves), sum(m.response in view.running for m in moves)
        assert came - left <= 4
        if kinds[k] == "f" and came:
            assert len(view.running) + came - left <= 6


@given(seeds, st.floats(0.5, 8.0), st.floats(0.5, 4.0))
@settings(max_examples=25, deadline=None)
def test_gains_are_the_rise_of_what_all_actors_earn(seed, price, dear):
    """With each response's load on the actor where it is."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 12, 4).tolist()
    tokens = rng.integers(0, 200, sum(sizes))
    forecast, actors = known(tokens + rng.integers(1, 200, sum(sizes))), fleet("sfsf", (1.0, dear))
    s = survivors_of(state_of(dealt(sizes), tokens), forecast, actors, price)

    def earned(owner: np.ndarray) -> float:
        total = 0.0
        for k, model in enumerate((SLOW, FAST, SLOW, FAST)):
            mine = owner == k
            step = model.base_s + (model.per_response_s + model.per_kv_token_s * (20 + tokens[mine])).sum()
            total += s.token_value[mine].sum() / step - (1.0, dear)[k % 2]
        return total

    gains = s.gains(np.arange(len(s.owner)), np.ones(4, bool))
    for i in rng.integers(0, len(s.owner), 5).tolist():
        for k in range(4):
            if k != s.owner[i]:
                owner = s.owner.copy()
                owner[i] = k
                assert gains[i, k] == pytest.approx(earned(owner) - earned(s.owner), rel=1e-9, abs=1e-9)


def test_between_kinds_the_cache_is_recomputed():
    kv, owner = np.array([0.0, 100.0, 100.0]), np.array([0, 0, 1])
    delay, stall = fleet("sf").moves_s(kv, owner)
    sent, computed = 2e-3 + 100 * 1e-7, 5e-3 + 100 * 3e-5
    np.testing.assert_allclose(delay, [[0.0, 0.0], [sent, computed], [computed, sent]])
    np.testing.assert_allclose(stall, [[0.0, 0.0], [0.0, computed], [computed, 0.0]])


def test_the_survivor_goes_to_the_fast_actor_and_the_dear_actor_is_given_back():
    """One long response among short ones on slow actors; of two thin actors the dearer one is drained."""
    groups = [list(range(10)), list(range(10, 14))]
    lengths = [390, *[110] * 9, *[110] * 4]
    moves = replan(state_of(groups, 100), known(lengths), fleet("sf"), 30.0)
    assert (0, 1) in [(m.response, m.to_actor) for m in moves]
    thin = state_of([list(range(20)), [20, 21], [22, 23]], 100)
    for rates, leaving in (((1.0, 9.0), 1), ((9.0, 1.0), 2)):
        links = LinkSchedule()
        replan(thin, known([300] * 24), ActorClasses((SLOW, SLOW), rates, (0, 1, 0)) if leaving == 1 else
               ActorClasses((SLOW, SLOW), rates, (1, 1, 0)), 0.5, links)  # fmt: skip
        assert links.leaving == {leaving}


def test_an_actor_in_place_of_a_lost_one_is_judged_as_that_one():
    """Whatever its own index, which no plan knows."""
    state, forecast = state_of([list(range(10)), list(range(10, 14)), [14, 15]], 100), known([390, *[110] * 15])
    moves = replan(state, forecast, fleet("sfs"), 30.0)
    assert 1 in {m.to_actor for m in moves}
    slow, fast, lone = state.actors
    later = replace(state, actors=(slow, lone, replace(fast, actor=7, replaces=1)))
    renamed = [replace(m, to_actor=7) if m.to_actor == 1 else m for m in moves]
    assert replan(later, forecast, fleet("sfs"), 30.0) == renamed


def plan_on_two_kinds(seed: int):
    """A random split on two kinds: the fast actors have work left over for nobody, the slow ones the longest responses."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(4.0, 0.8, (24, 4)), 1, LIMIT).astype(int)
    work = solver.Workload.grid(np.full(24, 20), lengths, max_response_tokens=LIMIT)
    cluster = solver.MixedCluster((solver.GpuPool("slow", 1, 3, 1.0), solver.GpuPool("fast", 1, 2, 2.0)))
    models = {("slow", 1): SLOW, ("fast", 1): FAST}
    order = rng.permutation(96)
    parts = np.array_split(order, 5)
    actors = tuple(
        solver.ActorPlan(
            "slow" if k < 3 else "fast", (k,), int(k > 2), tuple(parts[k].tolist()),
            tuple(dict.fromkeys(work.prompt_of[parts[k]].tolist())), 64, usd_per_gpu_s=(1.0 if k < 3 else 2.0) / 3600,
        )
        for k in range(5)
    )  # fmt: skip
    return solver.Plan(actors, "hand", 0.0, 0.0, 0.0), work, cluster, models


@pytest.mark.parametrize("cost", ["gpu_s", "usd"])
def test_a_mixed_step_that_is_replanned_is_worth_more(cost):
    """Executed on both kinds, all responses complete; price * time + cost falls, summed over seeds."""
    before = after = 0.0
    for seed in range(4):
        plan, work, cluster, models = plan_on_two_kinds(seed)
        actors = ActorClasses.of_plan(plan, models, cost)
        price = 4.0 * np.mean(actors.rates)
        prompts, limit = work.prompt_tokens.tolist(), work.max_response_tokens
        requests = [
            Request(i, prompts[owner], limit, target_tokens=tokens, target_finish="stop", prompt=owner)
            for i, (owner, tokens) in enumerate(zip(work.prompt_of.tolist(), work.response_tokens.tolist(), strict=True))
        ]
        for rule in (None, Replan(known_lengths(work), actors, price)):
            record = run_step(replace(plan, rule=rule), requests, SimulatedEngine, models, cluster)
            assert sorted(record.completions) == list(range(96))
            paid = sum(
                (a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) * (1.0 if cost == "gpu_s" else a["usd_per_gpu_s"])
                for a in record.allocations
            )
            value = price * record.makespan_s + paid
            before, after = (before + value, after) if rule is None else (before, after + value)
    assert after < 0.97 * before


def test_what_does_not_say_which_actor_is_which_is_refused_in_a_sentence():
    models = {("slow", 1): SLOW, ("fast", 1): FAST}
    forecast, state = known([300] * 4), state_of([[0, 1], [2, 3]], 10)
    with refused(solver.PlanningError, "ActorClasses.of_plan"):
        replan(state, forecast, models, 1.0)
    with refused(solver.PlanningError):
        Replan(forecast, models, 1.0)
    with refused(solver.PlanningError, "actor 1"):
        replan(state, forecast, fleet("s"), 1.0)
    plan, work, _, _ = plan_on_two_kinds(0)
    with refused(solver.PlanningError):
        ActorClasses.of_plan(plan, {("slow", 1): SLOW})
    free = replace(plan, actors=tuple(replace(a, usd_per_gpu_s=0.0) for a in plan.actors))
    with refused(solver.PlanningError):
        ActorClasses.of_plan(free, models, "usd")
    with refused(solver.PlanningError):
        simulated_busy_s([np.arange(96)], np.ones(96), known_lengths(work), work, models, None)
