"""Re-planning: what a token is worth, groups by worth, and decisions that keep slots, memory and every response."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import LatencyModel, PlanningError, Workload
from solver.lengths.survival import from_batch, from_samples, known_lengths
from solver.model.runtime_rules import ActorView, Move, StepState
from solver.replanning.lookahead import simulated_busy_s
from solver.replanning.marginal_value import delay_s, group_by_token_value, price_of, stall_s, time_left_s, token_value
from solver.replanning.migrations import LinkSchedule
from solver.replanning.receivers import ReceiverState, candidates_of
from solver.replanning.replan import MAX_ROUND_SHARE, ROUND_RESPONSE_S, ROUND_S, Replan, replan
from solver.replanning.running_responses import survivors_of

LATENCY = LatencyModel(
    "x", 1, 5.6e-3, 2.2e-5, 2.5e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, transfer_base_s=5e-3,
    transfer_per_kv_token_s=1e-6, max_batch=64,
)  # fmt: skip
FREE = replace(LATENCY, transfer_base_s=0.0, transfer_per_kv_token_s=0.0)
LIMIT = 400


def state_of(groups: list[list[int]], tokens, free: int | list[int] = 50, total: int | None = None, **kind) -> StepState:
    """Actors with these running responses; all others are complete."""
    count = 1 + max((r for g in groups for r in g), default=-1) if total is None else total
    here = {r for g in groups for r in g}
    slots = [free] * len(groups) if isinstance(free, int) else free
    views = tuple(
        ActorView(k, 1, len(g) + 5, 5, tuple(g), (), kind.get("arriving", {}).get(k, ()), f)
        for k, (g, f) in enumerate(zip(groups, slots, strict=True))
    )
    done = tuple(r not in here for r in range(count))
    return StepState.of(3.0, views, np.broadcast_to(np.asarray(tokens), (count,)).copy(), done, np.full(count, 20))


def known(lengths) -> object:
    lengths = np.asarray(lengths)
    return known_lengths(Workload(np.full(len(lengths), 20), np.arange(len(lengths)), lengths, max_response_tokens=LIMIT))


# --- worth --------------------------------------------------------------------------------------------------------------


@given(st.floats(1.0, 50.0), st.integers(1, 300), st.floats(1e-5, 1e-4))
@settings(max_examples=40, deadline=None)
def test_the_worth_of_a_token_makes_the_wanted_load_the_best_choice(left_s, tokens, load):
    """W* = (X - a L) / L for a known length; no other load has a smaller cost less worth of progress per second."""
    base_s = 2e-3
    root = np.array([tokens * math.sqrt(load)])
    (worth,) = token_value(left_s, base_s, np.array([load]), np.array([float(tokens)]), root)
    wanted = (left_s - base_s * tokens) / tokens
    assert worth == pytest.approx(load * (base_s + wanted) ** 2 / wanted**2)

    def cost(w: float) -> float:
        return load / w - worth / (base_s + w)

    assert all(cost(wanted) <= cost(wanted * f) + 1e-15 for f in (0.2, 0.5, 0.9, 1.1, 2.0, 10.0))


@given(st.floats(0.1, 100.0), st.lists(st.tuples(st.integers(1, 400), st.floats(0.01, 3.0)), min_size=1, max_size=20))
@settings(max_examples=40, deadline=None)
def test_the_last_second_of_the_time_left_costs_the_price(price, responses):
    most, root = (np.array(x, dtype=float) for x in zip(*responses, strict=True))
    left = time_left_s(price, 5e-3, most, root)
    assert left > 5e-3 * most.max()
    assert price_of(left, 5e-3, most, root) == pytest.approx(price, rel=1e-5)


def test_time_that_costs_nothing_takes_forever_and_late_responses_are_worth_an_actor():
    one = np.ones(1)
    assert time_left_s(0.0, 1e-3, one, one) == math.inf
    np.testing.assert_allclose(token_value(math.inf, 1e-3, 2e-5 * one, one, one), 2e-5)
    late = token_value(0.1, 1e-3, 2e-5 * one, 200 * one, one)
    np.testing.assert_allclose(late / (1e-3 + 2e-5), (1e-3 + 2e-5) / 2e-5)  # alone it earns more than an actor costs
    assert price_of(0.1, 1e-3, 200 * one, one) == math.inf


@given(st.lists(st.tuples(st.floats(1e-5, 3e-5), st.floats(1e-4, 5e-3)), min_size=1, max_size=7), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_groups_are_the_best_contiguous_ones(responses, most):
    load, worth = (np.array(x) for x in zip(*responses, strict=True))
    base_s, n = 2e-3, len(load)

    def value(groups) -> float:
        return sum(worth[g].sum() / (base_s + load[g].sum()) - 1.0 for g in groups)

    found = group_by_token_value(load, worth, base_s, most, 100, np.zeros(n), 1.0)
    order = np.argsort(-worth, kind="stable")
    best = max(value(np.split(order, ends)) for k in range(min(most, n)) for ends in itertools.combinations(range(1, n), k))
    assert sorted(np.concatenate(found).tolist()) == list(range(n))
    assert value(found) == pytest.approx(best)


def test_groups_keep_slots_and_memory_or_are_equal_when_nothing_fits():
    load, worth = np.full(10, 1e-5), np.linspace(1, 2, 10) * 1e-4
    assert max(len(g) for g in group_by_token_value(load, worth, 1e-2, 10, 3, np.zeros(10), 1.0)) <= 3
    assert max(len(g) for g in group_by_token_value(load, worth, 1e-2, 10, 10, np.full(10, 10.0), 20.0)) <= 2
    assert [len(g) for g in group_by_token_value(load, worth, 1e-2, 2, 3, np.zeros(10), 1.0)] == [5, 5]


def test_a_move_waits_for_the_cheaper_of_transfer_and_recompute():
    slow = replace(LATENCY, transfer_base_s=1.0)
    np.testing.assert_allclose(delay_s(LATENCY, np.array([0.0, 100.0]), 0.01), [0.005, 0.005 + 5e-3 + 1e-4])
    np.testing.assert_allclose(delay_s(slow, np.array([100.0]), 0.01), 0.005 + 5e-3 + 3e-3)


# --- decisions ------------------------------------------------------------------------------------------------------------


def test_one_actor_or_nobody_unfinished_is_left_alone():
    assert replan(state_of([[0, 1, 2]], 10), known([300] * 3), LATENCY, 5.0) == []
    assert replan(state_of([[], []], 10, total=4), known([300] * 4), LATENCY, 5.0) == []


def test_doing_nothing_is_best_when_moving_takes_longer_than_the_step():
    dear = replace(LATENCY, transfer_base_s=1e4, prefill_base_s=1e4)
    groups = [list(range(20)), list(range(20, 22)), [22]]
    state = state_of(groups, 100)
    assert replan(state, known([300] * 23), LATENCY, 3.0) != []
    assert replan(state, known([300] * 23), dear, 3.0) == []


def test_a_likely_long_survivor_leaves_the_fat_actor_for_the_small_fast_batch():
    """Known lengths: one of twenty still has 300 tokens to go; the others end soon."""
    lengths = [390] + [110] * 49 + [390] * 3
    groups = [list(range(50)), [50, 51, 52]]
    moves = replan(state_of(groups, 100, free=60), known(lengths), LATENCY, 4.0)
    assert moves == [Move(0, 1)]


def test_a_move_that_makes_the_receiver_recompute_must_repay_its_whole_batch():
    """A transfer and a recompute of the same time: the first holds up one response, the second the receiver's batch too."""
    lengths = [390] + [110] * 49 + [390] * 3
    groups = [list(range(50)), [50, 51, 52]]
    for moved in (True, False):
        latency = replace(
            LATENCY, transfer_base_s=0.1 + 0.001 * (not moved), prefill_base_s=0.1 + 0.001 * moved,
            transfer_per_kv_token_s=0.0, prefill_per_token_s=0.0,
        )  # fmt: skip
        assert bool(stall_s(latency, np.array([120.0]))[0]) is not moved
        assert bool(replan(state_of(groups, 100, free=60), known(lengths), latency, 8.0)) is moved
    np.testing.assert_array_equal(stall_s(LATENCY, np.array([0.0, 100.0])), 0.0)


def test_free_links_are_served_from_the_last_look_without_a_new_one():
    """Between looks the rule sends what was listed, in turn, and nothing that has completed since."""
    rule = Replan(known([390] * 10 + [390] * 40), replace(LATENCY, transfer_base_s=0.02), 1.0)
    rule._links.leaving.add(0)
    state = state_of([list(range(10)), list(range(10, 50))], 100)
    (first,) = rule.decide(3.0, state)
    found = rule._round
    nothing = replace(state, now_s=rule.next_trigger(state.actors[1]).time_s)
    done = tuple(r == 1 for r in range(50))
    second = rule.decide(nothing.now_s, replace(nothing, complete=done))
    assert rule._round is found
    assert [first.response, *(m.response for m in second)] == [0, 2]


@pytest.mark.parametrize("price", [1.0, 4.0, 16.0])
def test_equal_responses_are_folded_as_the_square_root_says(price):
    """For equal responses W* = (X - a r) / r, so the wanted number of actors is n l / W*."""
    count, actors = 120, 12
    latency = replace(FREE, per_kv_token_s=0.0)
    forecast = known([300] * count)
    groups = [list(range(k, count, actors)) for k in range(actors)]
    links = LinkSchedule()
    for _ in range(actors):
        replan(state_of(groups, 100, free=200), forecast, latency, price, links)
    s = survivors_of(state_of(groups, 100), forecast, latency, price)
    wanted = float(s.load.sum()) / ((s.left_s - latency.base_s * 200) / 200)
    assert actors - len(links.leaving) == pytest.approx(min(actors, wanted), abs=1.0)
    if wanted < actors - 1:
        assert links.leaving


def test_a_sender_uses_its_link_for_one_response_at_a_time():
    groups = [[0, 1], list(range(2, 22)), list(range(22, 42))]
    links = LinkSchedule(leaving={0})
    state = state_of(groups, 100)
    forecast = known([300] * 42)
    first = replan(state, forecast, LATENCY, 1.0, links)
    from_leaving = [m for m in first if m.response in (0, 1)]
    assert len(from_leaving) == 1
    assert links.free_s[0] == pytest.approx(3.0 + LATENCY.transfer_s(120))
    assert not [m for m in replan(state, forecast, LATENCY, 1.0, links) if m.response in (0, 1)]
    later = replace(state, now_s=3.0 + LATENCY.transfer_s(120))
    assert [m for m in replan(later, forecast, LATENCY, 1.0, links) if m.response in (0, 1)]


def test_responses_without_kv_cache_need_no_link():
    links = LinkSchedule(leaving={0})
    moves = replan(state_of([[0, 1, 2], list(range(3, 40))], 0), known([300] * 40), LATENCY, 1.0, links)
    assert {m.response for m in moves if m.to_actor == 1} == {0, 1, 2}


def test_without_room_nothing_moves():
    groups = [[0, 1], list(range(2, 22)), list(range(22, 42))]
    assert replan(state_of(groups, 100, free=0), known([300] * 42), LATENCY, 1.0) == []
    tight = replace(LATENCY, kv_capacity_tokens=20 * (20 + LIMIT))
    assert replan(state_of(groups[1:], 100), known([300] * 42), tight, 1.0) == []


groups_strategy = st.lists(st.integers(0, 12), min_size=1, max_size=6)


@given(groups_strategy, st.integers(0, 2**31), st.floats(0.05, 40.0), st.integers(0, 6), st.integers(0, 12), st.booleans())
@settings(max_examples=40, deadline=None)
def test_decisions_keep_slots_memory_and_every_response(sizes, seed, price, free, capacity, certain):
    rng = np.random.default_rng(seed)
    count = sum(sizes)
    ids = iter(range(count))
    groups = [[next(ids) for _ in range(n)] for n in sizes]
    tokens = rng.integers(0, LIMIT, max(count, 1))
    lengths = np.minimum(tokens + rng.integers(1, 200, len(tokens)), LIMIT)
    forecast = known(lengths) if certain else from_batch(
        Workload([20], np.zeros(len(tokens), int), lengths, max_response_tokens=LIMIT), pool=[50, 300]
    )  # fmt: skip
    reserved = 20 + LIMIT
    memory = max((max(sizes) + capacity) * reserved, reserved)
    latency = replace(LATENCY, kv_capacity_tokens=memory)
    state = state_of(groups, tokens, free=free, total=len(tokens))
    before = state.generated_tokens.copy()
    links = LinkSchedule(leaving={0} if rng.random() < 0.3 and len(sizes) > 1 else set())
    moves = replan(state, forecast, latency, price, links)
    np.testing.assert_array_equal(state.generated_tokens, before)
    where = {r: k for k, g in enumerate(groups) for r in g}
    assert len({m.response for m in moves}) == len(moves)
    for m in moves:
        assert isinstance(m, Move)
        assert m.response in where
        assert m.to_actor != where[m.response]
        assert m.to_actor not in links.leaving
    for k, size in enumerate(sizes):
        sent = sum(where[m.response] == k for m in moves)
        got = sum(m.to_actor == k for m in moves)
        assert got <= free + sent
        assert (size + got - sent) * reserved <= memory or got == 0
        assert sum(where[m.response] == k and tokens[m.response] > 0 for m in moves) <= 1


@given(st.integers(0, 2**31), st.floats(0.5, 20.0))
@settings(max_examples=40, deadline=None)
def test_moves_raise_the_value_of_the_grouping(seed, price):
    """Without migration cost and with nobody folded, what moves is better off after the moves, by the objective itself."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(120, LIMIT, 40)
    groups = [g.tolist() for g in np.array_split(rng.permutation(40), 4)]
    state = state_of(groups, 100)
    forecast = known(lengths)
    links = LinkSchedule()
    moves = replan(state, forecast, FREE, price, links)
    if links.leaving:
        return
    s = survivors_of(state, forecast, FREE, price)

    places, nothing = ReceiverState(s, np.ones(4, bool)), np.zeros(40)
    before = sum(places.rate)
    for m in moves:
        i = int(np.flatnonzero(s.response == m.response)[0])
        (offer,), sender = candidates_of(s, np.array([i]), nothing, nothing, nothing), int(s.owner[i])
        to, gain = places.best(offer, sender)
        assert (to, gain > 0) == (m.to_actor, True)
        if m is moves[0]:
            gains = s.gains(np.array([i]), np.ones(4, bool))[0]
            assert (to, gain) == (int(gains.argmax()), pytest.approx(gains.max()))
        value = sum(places.rate)
        places.move(offer, sender, to)
        assert sum(places.rate) == pytest.approx(value + gain)
    assert sum(places.rate) >= before


@given(st.integers(0, 2**31), st.floats(0.5, 8.0))
@settings(max_examples=25, deadline=None)
def test_gains_are_the_rise_of_what_all_actors_earn(seed, price):
    rng = np.random.default_rng(seed)
    groups = [g.tolist() for g in np.split(np.arange(24), [3, 9, 17])]
    tokens = rng.integers(0, 200, 24)
    s = survivors_of(state_of(groups, tokens), known(tokens + rng.integers(1, 200, 24)), LATENCY, price)

    def earned(owner: np.ndarray) -> float:
        loads = LATENCY.per_response_s + LATENCY.per_kv_token_s * (20 + tokens)
        steps = [LATENCY.base_s + loads[owner == k].sum() for k in range(4)]
        return sum(s.token_value[owner == k].sum() / step - 1.0 for k, step in enumerate(steps))

    gains = s.gains(np.arange(24), np.ones(4, bool))
    for i in rng.integers(0, 24, 5).tolist():
        for k in {0, 1, 2, 3} - {int(s.owner[i])}:
            owner = np.where(np.arange(24) == i, k, s.owner)
            assert gains[i, k] == pytest.approx(earned(owner) - earned(s.owner), rel=1e-9, abs=1e-9)


def test_several_latency_models_are_refused_in_a_sentence():
    models = {("slow", 1): LATENCY, ("fast", 1): replace(LATENCY, kind="fast")}
    forecast, state = known([300] * 4), state_of([[0, 1], [2, 3]], 10)
    work = Workload([20], np.zeros(4, int), [300] * 4, max_response_tokens=LIMIT)
    for ask in (
        lambda: replan(state, forecast, models, 1.0),
        lambda: Replan(forecast, models, 1.0),
        lambda: simulated_busy_s([np.arange(4)], np.ones(4), forecast, work, models, None),
    ):
        with refused(PlanningError, "one latency model"):
            ask()


# --- the rule ---------------------------------------------------------------------------------------------------------------


def test_the_rule_looks_first_at_a_completion_then_at_times_and_not_before_it_is_due():
    rule = Replan(known([300] * 40), LATENCY, 4.0)
    state = state_of([list(range(20)), list(range(20, 40))], 100)
    assert rule.next_trigger(state.actors[0]).completions == 6
    rule.decide(3.0, state)
    due = rule.next_trigger(state.actors[0])
    assert due.completions is None
    assert due.time_s > 3.0
    seen = rule.remaining
    assert rule.decide((3.0 + due.time_s) / 2, state) == []
    assert rule.next_trigger(state.actors[0]) == due
    assert rule.remaining is seen


def test_the_rule_is_silent_when_one_actor_is_left_or_time_is_free():
    state = state_of([[0, 1], [2]], 100)
    for rule, now in (
        (Replan(known([300] * 3), LATENCY, 0.0), state),
        (Replan(known([300] * 3), LATENCY, 1.0), state_of([[0]], 1)),
    ):
        assert rule.decide(3.0, now) == []
        assert rule.next_trigger(now.actors[0]) is None


def test_looks_are_no_more_frequent_than_their_time_is_worth():
    """A look at more responses takes longer, so the next one comes later, however little of the step is left."""
    pauses = []
    for n in (20, 2000):
        rule = Replan(known([101] * n), LATENCY, 4.0)
        rule.decide(3.0, state_of([list(range(n // 2)), list(range(n // 2, n))], 100))
        pauses.append(rule._next_round_s - 3.0)
        assert pauses[-1] >= (ROUND_S + ROUND_RESPONSE_S * n) / MAX_ROUND_SHARE - 1e-9
    assert pauses[0] < pauses[1]


def test_a_predictor_that_updates_while_decoding_plugs_in():
    class Probe:
        observe_response_s = 1e-3

        def __init__(self, inner):
            self.inner, self.looks = inner, 0

        def observe(self, tokens, complete):
            self.looks += 1
            return self

        def __getattr__(self, name):
            return getattr(self.inner, name)

    probe = Probe(from_samples([[200, 300]], Workload([20], np.zeros(40, int), [200] * 40, max_response_tokens=LIMIT)))
    rule = Replan(probe, LATENCY, 4.0)
    rule.decide(3.0, state_of([list(range(20)), list(range(20, 40))], 100))
    assert probe.looks == 1
    assert rule._next_round_s - 3.0 >= (ROUND_S + 1e-3 * 40) / MAX_ROUND_SHARE - 1e-9, "what it takes to observe counts"


def test_responses_without_load_are_worth_nothing_and_are_grouped_all_the_same():
    from solver.replanning.marginal_value import group_by_token_value, token_value

    load, nothing = np.array([0.0, 0.0, 0.0, 1e-4]), np.zeros(4)
    worth = token_value(1.0, 1e-3, load, np.array([0.0, 0.0, 0.0, 28.0]), nothing)
    assert np.all(np.isfinite(worth))
    assert np.all(worth[:3] == 0)
    groups = group_by_token_value(load, worth, 1e-3, 3, 8, np.full(4, 10.0), 1000)
    assert sorted(int(i) for g in groups for i in g) == [0, 1, 2, 3]
