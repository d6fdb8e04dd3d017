"""Re-planning in a running step: every response once, no look at the truth, no look ahead, and worth its moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_inputs import planning_inputs

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling.assignments import Random, Spread
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.scheduling.rules import DrainingFold, Fold
from solver import Cluster, LatencyModel, NonGenerationPhases, Objective, PlanningError, Workload
from solver.lengths.survival import from_batch, from_scenarios, known_lengths
from solver.model.plan import Plan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import ActorView, Move, StepState
from solver.replanning.lookahead import drawn_lengths, simulated_busy_s
from solver.replanning.replan import Replan
from solver.timing.evaluate import evaluate

LATENCY = LatencyModel(
    "x", 2, 5.6e-3, 2.2e-5, 2.5e-8, prefill_base_s=5e-3, prefill_per_token_s=3e-5, transfer_base_s=5e-3,
    transfer_per_kv_token_s=1e-6, start_s=0.1, max_batch=64,
)  # fmt: skip
FREE = replace(LATENCY, transfer_base_s=0.0, transfer_per_kv_token_s=0.0)
CLUSTER = Cluster(2, 8, 2)
LIMIT = 600


def truth_and_forecast(prompts: int = 24, samples: int = 6, seed: int = 0) -> tuple[Workload, Workload]:
    """True lengths, and the same prompts with eight scenarios around their means instead."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(5.0, 0.7, (prompts, 1))
    tokens, *scenarios = np.clip(np.exp(mean + rng.normal(0, 0.4, (9, prompts, samples))), 1, LIMIT).astype(int)
    truth = Workload.grid(rng.integers(0, 60, prompts), tokens, max_response_tokens=LIMIT)
    flat = np.array(scenarios).reshape(8, -1)
    return truth, Workload(truth.prompt_tokens, truth.prompt_of, flat, max_response_tokens=LIMIT)


def given_(work: Workload, **changes: object) -> tuple[PlanningProblem, PlanningOptions]:
    return planning_inputs(work, **{"cluster": CLUSTER, "latency": LATENCY, **changes})  # type: ignore[arg-type]


def executed(plan: Plan, truth: Workload, latency: LatencyModel = LATENCY):
    prompts = truth.prompt_tokens[truth.prompt_of].tolist()
    requests = [
        Request(i, p, truth.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(prompts, truth.response_tokens.tolist(), strict=True))
    ]
    return run_step(plan, requests, SimulatedEngine, latency, CLUSTER)


def actor_seconds(record) -> float:
    return sum(a["end_s"] - a["start_s"] for a in record.allocations)


@dataclass
class Watched:
    """A rule with a note of what it saw and decided."""

    rule: Replan
    seen: list[tuple[StepState, list]] = field(default_factory=list)
    name: str = "watched"

    def next_trigger(self, v):
        return self.rule.next_trigger(v)

    def decide(self, now_s, s):
        decisions = self.rule.decide(now_s, s)
        self.seen.append((s, decisions))
        return decisions


def watched(plan: Plan, truth: Workload, latency: LatencyModel = LATENCY):
    record = executed(replace(plan, rule=Watched(plan.rule)), truth, latency)
    return record, record.rule.seen


@given(
    st.lists(st.integers(0, LIMIT), min_size=1, max_size=60),
    st.integers(0, 2**31),
    st.floats(0.05, 0.98),
    st.sampled_from([4, 9, 64]),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_every_response_completes_once_whatever_the_lengths(lengths, seed, weight, slots, moves_are_free, ahead):
    """Zero lengths, one response, few slots: nothing is lost, and slots are kept at every decision."""
    rng = np.random.default_rng(seed)
    owner = np.sort(rng.integers(0, max(1, len(lengths) // 3), len(lengths)))
    prompts = np.full(owner.max() + 1, 7)
    truth = Workload(prompts, owner, lengths, max_response_tokens=LIMIT)
    forecast = Workload(prompts, owner, rng.integers(1, LIMIT, (4, len(lengths))), max_response_tokens=LIMIT)
    latency = replace(FREE if moves_are_free else LATENCY, max_batch=slots)
    plan = SolverReplan(looks_ahead=ahead).plan(
        *given_(forecast, latency=latency, objective=Objective(weight), seed=seed % 1000)
    )
    assert sorted(r for a in plan.actors for r in a.responses) == list(range(len(lengths)))
    if plan.rule is None:
        record, seen = executed(plan, truth, latency), []
    else:
        record, seen = watched(plan, truth, latency)
    assert sorted(record.completions) == list(range(len(lengths)))
    assert [record.completions[i].response_tokens for i in range(len(lengths))] == lengths
    for state, decisions in seen:
        views = {v.actor: v for v in state.actors}
        unfinished = {r: v.actor for v in state.actors for r in v.unfinished}
        for m in decisions:
            assert isinstance(m, Move)
            assert unfinished[m.response] != m.to_actor
        for actor, view in views.items():
            left = sum(unfinished[m.response] == actor for m in decisions)
            assert sum(m.to_actor == actor for m in decisions) <= view.free_slots + left


class Poisoned(Workload):
    """A workload whose true lengths nobody may read."""

    def __getattribute__(self, name):
        if name == "response_tokens":
            raise AssertionError("a policy that is not clairvoyant has read the true lengths")
        return super().__getattribute__(name)


@pytest.mark.parametrize("seed", range(3))
def test_decisions_depend_on_the_truth_only_through_what_has_happened(seed):
    """Two truths that agree on everything up to a time lead to the same decisions up to that time."""
    truth, forecast = truth_and_forecast(seed=seed)
    plan = SolverReplan(looks_ahead=False).plan(*given_(forecast))
    record, seen = watched(plan, truth)
    middle = 0.5 * record.makespan_s
    late = [i for i, c in record.completions.items() if c.time_s > middle]
    other = truth.response_tokens.copy()
    other[late] = np.maximum(other[late], LIMIT - np.arange(len(late)) % 50)
    again = SolverReplan(looks_ahead=False).plan(*given_(forecast))
    _, seen_again = watched(again, truth.with_response_tokens(other))
    first = [(s.now_s, d) for s, d in seen if s.now_s <= middle]
    assert any(d for _, d in first)
    assert first == [(s.now_s, d) for s, d in seen_again if s.now_s <= middle]


def test_the_plan_never_reads_a_truth_beside_its_scenarios():
    truth, forecast = truth_and_forecast()
    poisoned = object.__new__(Poisoned)
    poisoned.__dict__.update(truth.__dict__)
    with refused(AssertionError):
        OracleReplan(looks_ahead=False).plan(*given_(poisoned))
    assert SolverReplan(looks_ahead=False).plan(*given_(forecast)).rule is not None
    assert (SolverReplan().clairvoyant, OracleReplan().clairvoyant) == (False, True)
    assert (SolverReplan().name, OracleReplan().name) == ("solver+replan", "oracle+replan")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [0.4, 0.6, 0.8])
def test_with_known_lengths_and_free_moves_re_planning_is_no_worse_than_doing_nothing(seed, weight):
    """In its own currency: actor-seconds plus the price of the makespan."""
    truth, _ = truth_and_forecast(seed=seed)
    plan = OracleReplan(looks_ahead=False).plan(*given_(truth, latency=FREE, objective=Objective(weight)))
    price = plan.rule.price
    moving, still = (executed(p, truth, FREE) for p in (plan, replace(plan, rule=None)))
    value = [actor_seconds(r) + price * r.makespan_s for r in (moving, still)]
    assert value[0] <= value[1] * 1.002  # the moves of a look are one response per sender: that much may be missed


def test_forecasts_and_then_the_truth_are_worth_something():
    """Sum over steps of cost plus priced time: with the truth below with scenarios, with scenarios below without."""
    values = np.zeros(3)
    for seed in range(4):
        truth, forecast = truth_and_forecast(seed=seed)
        plans = [
            OracleReplan(looks_ahead=False).plan(*given_(truth, seed=seed)),
            SolverReplan(looks_ahead=False).plan(*given_(forecast, seed=seed)),
            SolverReplan(from_batch, looks_ahead=False).plan(*given_(forecast, seed=seed)),
        ]
        price = plans[1].rule.price
        for k, plan in enumerate(plans):
            record = executed(replace(plan, rule=replace(plan.rule, price=price)), truth)
            values[k] += actor_seconds(record) + price * record.makespan_s
    assert values[0] < values[1] < values[2]


def test_without_history_the_batch_itself_is_the_forecast():
    truth, _ = truth_and_forecast()
    blind = truth.with_response_tokens(np.full(len(truth), LIMIT // 2))
    plan = SolverReplan(looks_ahead=False).plan(*given_(blind))
    assert type(plan.rule.remaining).__name__ == "BatchLengths"
    record = executed(plan, truth)
    assert len(record.completions) == len(truth)
    assert record.rule.remaining.observed > 0
    assert plan.rule.remaining.observed == 0, "the plan is as it was"


def test_a_wider_objective_sets_the_price_of_time():
    _, forecast = truth_and_forecast()

    def priced(**changes: object) -> float:
        return SolverReplan(looks_ahead=False).plan(*given_(forecast, **changes)).rule.price

    prices = [priced(objective=Objective(w)) for w in (0.3, 0.6, 0.9)]
    assert prices[0] < prices[1] < prices[2]
    learner = priced(objective=Objective(0.6), phases=NonGenerationPhases(0, 0, 64))
    assert learner > prices[1]
    tight, loose = (priced(objective=Objective(deadline_s=t)) for t in (4.5, 9.0))
    assert tight > loose
    poor, rich = (priced(objective=Objective(budget_gpu_s=c)) for c in (14.0, 30.0))
    assert poor < rich


def test_nothing_to_trade_leaves_the_plan_as_it_is():
    _, forecast = truth_and_forecast()
    no_base = replace(LATENCY, base_s=0.0, per_response_s=1e-3)
    for changes in ({"objective": Objective(1.0)}, {"latency": no_base}):
        plan = SolverReplan(looks_ahead=False).plan(*given_(forecast, **changes))
        assert plan.rule is None
        assert plan.policy == "solver+replan"
    with refused(PlanningError, "0.200"):
        SolverReplan(looks_ahead=False).plan(*given_(forecast, objective=Objective(deadline_s=0.2)))


def test_one_actor_and_one_response_need_no_rule_to_act():
    one = Workload([5], [0], [40], max_response_tokens=LIMIT)
    record, seen = watched(OracleReplan(looks_ahead=False).plan(*given_(one)), one)
    assert len(record.completions) == 1
    assert all(not d for _, d in seen)


# --- looking ahead ----------------------------------------------------------------------------------------------------------


def without_prompts(seed: int = 0) -> tuple[Workload, Workload]:
    """The same workloads with prompts of no tokens: nothing is prefilled unless a response moves and is recomputed."""
    return tuple(  # type: ignore[return-value]
        Workload(0 * w.prompt_tokens, w.prompt_of, w.response_tokens if s is None else s, max_response_tokens=LIMIT)
        for w in truth_and_forecast(seed=seed)
        for s in [w.scenarios]
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("weight", [0.3, 0.7])
def test_where_moves_cannot_pay_the_plan_is_a_static_one_no_worse_than_the_splits(seed, weight):
    """Transfers and recomputing that take longer than the step: no rule, and at least as good as random and spread on the
    lengths that were drawn."""
    dear = replace(LATENCY, transfer_base_s=1e3, prefill_base_s=1e3, max_batch=160)  # nobody waits
    truth, forecast = without_prompts(seed)
    asked = given_(forecast, latency=dear, objective=Objective(weight), seed=seed)
    plan = SolverReplan().plan(*asked)
    assert plan.rule is None
    assert executed(plan, truth, dear).moves == 0
    left = drawn_lengths(from_scenarios(forecast), forecast, seed)
    drawn = forecast.with_response_tokens(left.astype(int))

    def value(p: Plan) -> float:
        found = evaluate(p, PlanningProblem(drawn, CLUSTER, dear))
        return found.makespan_s**weight * found.gpu_seconds ** (1 - weight)

    assert value(plan) <= 1.005 * min(value(Spread().plan(*asked)), value(Random().plan(*asked)))


def test_short_steps_are_not_worse_than_spread():
    """About 100 tokens of 3.4 ms, moves of 5 ms or a prefill that everyone waits for: within 1 % of spread."""
    latency = load_profile("h100-qwen2.5-3b-tp1")
    outcome = np.zeros((2, 2))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        mean = rng.normal(4.5, 0.5, (64, 1))
        tokens, *scenarios = np.clip(np.exp(mean + rng.normal(0, 0.4, (9, 64, 8))), 1, 320).astype(int)
        truth = Workload.grid(rng.integers(10, 60, 64), tokens, max_response_tokens=320)
        flat = np.array(scenarios).reshape(8, -1)
        forecast = Workload(truth.prompt_tokens, truth.prompt_of, flat, max_response_tokens=320)
        asked = (
            PlanningProblem(forecast, Cluster(2, 8, 1), latency, Objective(0.7)),
            PlanningOptions(seed=seed),
        )
        for k, policy in enumerate((SolverReplan(), Spread())):
            record = executed(policy.plan(*asked), truth, latency)
            outcome[k] += record.makespan_s, actor_seconds(record)
    values = outcome[:, 0] ** 0.7 * outcome[:, 1] ** 0.3
    assert values[0] <= 1.01 * values[1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("price", [None, 3.0, 10.0])
def test_what_is_foreseen_is_what_the_engines_do_with_the_same_lengths(seed, price):
    _, forecast = truth_and_forecast(prompts=48, seed=seed)
    remaining = from_scenarios(forecast)
    left = drawn_lengths(remaining, forecast, seed)
    plan = Spread().plan(*given_(forecast, seed=seed))
    groups = [np.array(a.responses) for a in plan.actors]
    busy, moved = simulated_busy_s(groups, left, remaining, forecast, LATENCY, price)
    rule = None if price is None else Replan(remaining, LATENCY, price)
    record = executed(replace(plan, rule=rule), forecast.with_response_tokens(left.astype(int)))
    accuracy = 0.02 if price is None else 0.04  # a few wait for slots
    assert busy.max() + LATENCY.start_s == pytest.approx(record.makespan_s, rel=accuracy)
    assert busy.sum() + LATENCY.start_s * len(groups) == pytest.approx(actor_seconds(record), rel=accuracy)
    assert (moved > 0) == (record.moves > 0)


def test_drawn_lengths_follow_the_forecast():
    truth, forecast = truth_and_forecast()
    np.testing.assert_allclose(drawn_lengths(known_lengths(truth), truth, 0), truth.response_tokens, atol=LIMIT / 96 + 1)
    remaining = from_scenarios(forecast)
    everyone = np.arange(len(forecast))
    drawn = np.mean([drawn_lengths(remaining, forecast, seed) for seed in range(20)], axis=0)
    assert drawn.max() <= LIMIT
    assert drawn.mean() == pytest.approx(remaining.expected_tokens(everyone, np.zeros(len(forecast))).mean(), rel=0.02)
    assert np.corrcoef(drawn, forecast.scenarios.mean(axis=0))[0, 1] > 0.8


def test_links_send_one_response_at_a_time_between_looks_too():
    truth, forecast = truth_and_forecast(prompts=48)
    plan = SolverReplan(looks_ahead=False).plan(*given_(forecast))
    _, seen = watched(plan, truth)
    free: dict[int, float] = {}
    for state, decisions in seen:
        where = {r: v.actor for v in state.actors for r in v.unfinished}
        for m in decisions:
            if state.generated_tokens[m.response] > 0:
                assert free.get(where[m.response], 0.0) <= state.now_s + 1e-9
                free[where[m.response]] = state.now_s + 0.9 * LATENCY.transfer_base_s
    assert any(decisions for _, decisions in seen)


# --- square-root folding by draining ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [24, 64])
@pytest.mark.parametrize("seed", range(4))
def test_draining_keeps_links_slots_and_every_response(seed, slots):
    truth, forecast = truth_and_forecast(seed=seed)
    latency = replace(LATENCY, max_batch=slots, per_response_s=3e-4)
    plan = Fold().plan(*given_(forecast, latency=latency, seed=seed))
    record, seen = watched(plan, truth, latency)
    assert sorted(record.completions) == list(range(len(truth)))
    assert any(decisions for _, decisions in seen)
    busy: dict[int, float] = {}
    for state, decisions in seen:
        where = {r: v.actor for v in state.actors for r in v.unfinished}
        views = {v.actor: v for v in state.actors}
        for m in decisions:
            sender = where[m.response]
            assert sender != m.to_actor
            assert busy.get(sender, 0.0) <= state.now_s + 1e-9  # one response at a time on every link
            busy[sender] = state.now_s + latency.transfer_s(float(state.generated_tokens[m.response]))
        for actor, view in views.items():
            assert sum(m.to_actor == actor for m in decisions) <= view.free_slots


def test_draining_folds_to_the_square_root_and_evens_out_what_stays():
    """nu b n / a = 4: two of three actors stay, the thinnest leaves, the fullest gives one to the other that stays."""
    latency = LatencyModel("x", 1, 0.01, 0.001)
    rule = DrainingFold(nu=4 * 10 / 33, latency=latency, total=33, actors=3)
    sizes = [20, 9, 4]
    ids = np.split(np.arange(33), np.cumsum(sizes)[:-1])
    views = tuple(ActorView(k, 1, n, 0, tuple(i.tolist()), (), (), 50) for k, (n, i) in enumerate(zip(sizes, ids, strict=True)))
    state = StepState.of(1.0, views, np.full(33, 5), (False,) * 33, np.zeros(33, np.int64))
    moves = rule.decide(1.0, state)
    assert moves == [Move(29, 1), Move(0, 1)]
    assert rule.decide(1.0, state) == moves  # transfers without length: the links are free at once
