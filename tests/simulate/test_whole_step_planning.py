"""Planning whole steps takes counted work, also of large steps, and its timelines are about those of the executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_step_runs import visited_twice

import solver
from rlhfless.latency import load_profile
from rlhfless.scheduling.assignments import Spread
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.simulate import LoggedStep, SimulationConfig, WholeStep, logged_steps
from rlhfless.simulate.whole_steps import generations, sized_step, step_part
from rlhfless.simulate.whole_steps.assignments import RANDOM, Assignment
from rlhfless.simulate.whole_steps.candidates import WholeStepCandidates
from rlhfless.simulate.whole_steps.generated import executed, requests_of
from rlhfless.simulate.whole_steps.generations import Generation, WholeStepPlan, expected
from rlhfless.simulate.whole_steps.step_part import MOST_STEPS, STEP, best_actors
from solver import LatencyModel, Objective, PlanningProblem, Workload
from solver.lengths.forecast import LengthForecast
from solver.model.step_levers import CONSOLIDATION, lever_bits
from solver.step.charges import Charges
from solver.step.choose import StepChoice, StepTable, choose
from solver.step.follow import Generated
from solver.step.work import Learner, TokenWork


def logged_step(
    responses: int, profile: str, limit: int = 2000, nodes: int = 2, seed: int = 0, kv_tokens: int | None = None
) -> WholeStep:
    """A step on nodes of 8 GPUs whose lengths are about those of the step before."""
    rng = np.random.default_rng(seed)
    tokens = np.random.default_rng(seed + 1).lognormal(5.5, 0.9, responses)
    rows = pd.DataFrame([
        {"run": "log", "step": visit, "epoch": visit, "prompt_id": f"p{i // 4}", "sample": i % 4, "prompt_tokens": 200,
         "finish_reason": "stop", "response_tokens": int(np.clip(mean * rng.lognormal(0, 0.1), 1, limit))}
        for visit in (0, 1) for i, mean in enumerate(tokens)
    ])  # fmt: skip
    (logged,) = logged_steps(rows, max_response_tokens=limit, steps=[1])
    costs = TokenWork(2e-4, 8e-4, charges=Charges.by_formula(4 * nodes, 4, 0.1, 0.2, 0.1))
    latency = load_profile(profile)
    latency = latency if kv_tokens is None else replace(latency, kv_capacity_tokens=kv_tokens)
    setting = SimulationConfig(solver.Cluster(nodes, 8, 2, kind="l40s"), latency, bound_work=0)
    return WholeStep(logged, setting, costs)


def value(time_s: float, gpu_s: float) -> float:
    return time_s**0.7 * gpu_s**0.3


@pytest.mark.full
def test_a_plan_simulates_a_counted_number_of_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """11 per number of actors on the typical scenario, and only those that are kept on the 7 others."""
    timed: list[bool] = []

    def counting(*args: object) -> Generated:
        timed.append(isinstance(args[0], solver.Plan) and isinstance(args[0].rule, GlobalCut | None))
        return expected(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(generations, "expected", counting)
    step = logged_step(1024, "l40s-qwen2.5-3b-tp2")
    choice = step.plan(Objective(0.7))
    assert choice.plan.levers
    assert timed.count(False) <= 1, "folding is executed, the others are timed by arrays"
    kept = {plan.generation.assignment for plan in step.candidates().plans}
    assert len(timed) <= 11 * step.own.servers + 1 + 7 * len(kept) <= 400


@given(st.integers(0, 10**6), st.lists(st.sampled_from([0.0, 0.3, 0.7, 1.0]), min_size=2, max_size=4, unique=True))
@settings(max_examples=100, deadline=None)
def test_a_choice_does_not_depend_on_the_choices_before_it(seed: int, weights: list[float]) -> None:
    """Plans that consolidate are estimated. What they take exactly counts in the choice that asked for it, and in no other."""
    estimated, exact = np.random.default_rng(seed).uniform(1, 2, (2, 6, 2, 4))
    used = [frozenset([CONSOLIDATION]) if number % 2 else frozenset[str]() for number in range(6)]
    plans = tuple(
        WholeStepPlan(Generation(None, Assignment(RANDOM, 1 + i), levers), Learner(), levers)  # type: ignore[arg-type]
        for i, levers in enumerate(used)
    )

    def fresh() -> WholeStepCandidates:
        table = StepTable(np.array([lever_bits(one) for one in used]), *estimated.swapaxes(0, 1).copy())
        return WholeStepCandidates(plans, table)

    def chosen(among: WholeStepCandidates, weight: float) -> tuple[StepChoice, list[float]]:
        choice, table = among.confirm(lambda one: choose(one, Objective(weight)), lambda plan: exact[plans.index(plan)].T)
        for one in (choice.best, *choice.without.values()):
            totals = exact[one] if used[one] else estimated[one]
            assert (np.stack([table.times_s[one], table.gpu_s[one]]) == totals).all()
        return choice, table.times_s[choice.best].tolist()

    alone = {weight: chosen(fresh(), weight) for weight in weights}
    found = fresh()
    assert {weight: chosen(found, weight) for weight in weights} == alone
    assert {weight: chosen(found, weight) for weight in reversed(weights)} == alone


def test_a_plan_for_one_objective_is_the_same_whatever_was_asked_before() -> None:
    def fresh() -> WholeStep:
        setting = SimulationConfig(solver.Cluster(1, 8, 1, kind="h100"), load_profile("h100-qwen2.5-3b-tp1"), bound_work=0)
        return WholeStep(visited_twice(200, 6, 1.2, 2000), setting, TokenWork(1e-6, 4e-6, charges=Charges.by_formula(8, 2)))

    def asked(objectives: list[Objective]) -> dict[Objective, tuple[object, ...]]:
        step, found = fresh(), {}
        assert any(CONSOLIDATION in plan.levers for plan in step.candidates().plans)
        for objective in objectives:
            one = step.plan(objective)
            found[objective] = (one.plan.generation.assignment, one.plan.learner, one.time_s, one.gpu_seconds, one.saves)
        return found

    first, second = Objective(1.0), Objective(0.0)
    alone = asked([first]) | asked([second])
    assert asked([first, second]) == asked([second, first]) == alone


@pytest.mark.parametrize("nodes", [2, pytest.param(8, marks=pytest.mark.full)])
def test_planning_a_larger_step_simulates_no_more(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned on a part, and the plan is about as good as one that is planned on all of it."""
    of_all = logged_step(48 * nodes, "l40s-qwen2.5-3b-tp2", nodes=nodes)
    best = value(*of_all.execute(of_all.plan(Objective(0.7)).plan))
    monkeypatch.setattr(step_part, "PART_SERVERS", 4)
    timed = []
    monkeypatch.setattr(generations, "expected", lambda *args: timed.append(args[0]) or expected(*args))
    step = logged_step(48 * nodes, "l40s-qwen2.5-3b-tp2", nodes=nodes)
    choice = step.plan(Objective(0.7))
    part = step.own.part
    assert part is not None
    assert (len(part.logged.predicted), part.ratio) == (48, nodes)
    of_part = [plan for plan in timed if len(plan.actors) <= 4]
    assert len(of_part) <= 11 * 4 + 1 + 7 * len(step.candidates().plans)
    scenarios = len(step.own.cases)
    assert len(timed) - len(of_part) <= (2 * MOST_STEPS + 1) * scenarios, "the chosen plan, with other numbers of actors"
    actors = len(choice.plan.generation.plan.actors)
    assert 4 * nodes / 8 <= actors + choice.plan.learner.own <= 4 * nodes
    time_s, gpu_s = step.execute(choice.plan)
    assert value(time_s, gpu_s) <= 1.1 * best
    assert step.bound().gpu_seconds(time_s) <= gpu_s
    assert step.record(choice.plan).end_s == pytest.approx(time_s, rel=1e-9)
    assert value(time_s, gpu_s) < value(*step.execute(step.plain(Objective(0.7)).plan))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_a_plan_of_a_part_is_no_worse_than_elastic_plain(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors have little KV memory, so that some actors of the whole step have less room than any of the part."""
    monkeypatch.setattr(step_part, "PART_SERVERS", 4)
    step = logged_step(192, "l40s-qwen2.5-3b-tp2", nodes=4, seed=seed, kv_tokens=12_000)
    assert step.own.part is not None
    choice, plain = step.plan(Objective(0.7)), step.plain(Objective(0.7))
    (time_s, gpu_s), (plain_s, plain_gpu_s) = step.execute(choice.plan), step.execute(plain.plan)
    assert value(time_s, gpu_s) <= value(plain_s, plain_gpu_s)
    assert time_s <= 1.03 * plain_s


@pytest.mark.parametrize("nodes", [16, 32])
@given(st.sampled_from([0.3, 0.7, 1.0]), st.integers(0, 1000))
@settings(max_examples=2, deadline=None)
def test_a_plan_of_a_part_takes_on_the_whole_step_what_it_says(nodes: int, weight: float, seed: int) -> None:
    """64 and 128 servers; simulated engines decode the lengths of every scenario, and the learner pays by its own size."""
    step = logged_step(32 * nodes, "l40s-qwen2.5-3b-tp2", nodes=nodes, seed=seed)
    assert step.own.part is not None
    choice = step.plan(Objective(weight))
    plan, size = choice.plan.generation.plan, step.own
    runs = [executed(plan, requests_of(case), size.setting) for case in size.cases]
    totals = [run.step_totals(work, choice.plan.learner) for run, work in zip(runs, size.works, strict=True)]
    assert np.mean(totals, axis=0) == pytest.approx([choice.time_s, choice.gpu_seconds], rel=0.03)


@pytest.mark.parametrize(("checked", "followed"), [(1, 1), (192, 1), (193, 2), (600, 4), (10**6, 8)])
def test_a_plan_is_followed_on_as_many_scenarios_as_have_about_so_many_responses(
    checked: int, followed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On those it takes there what a plan that is followed on all scenarios does."""
    size = logged_step(192, "l40s-qwen2.5-3b-tp2").own
    generation, learner = size.generations(None).of(Assignment(RANDOM, 3)), Learner()
    every = size.followed(generation, learner)
    assert len(every) == len(size.cases) == 8
    monkeypatch.setattr(sized_step, "CHECKED_RESPONSES", checked)
    np.testing.assert_array_equal(size.followed(generation, learner), every[:followed])


@given(st.integers(4, 60), st.integers(2, 30), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_a_part_has_the_longest_prompt_and_one_of_every_length_between(prompts: int, of_part: int, seed: int) -> None:
    tokens = np.random.default_rng(seed).integers(1, 5000, prompts)
    whole = Workload(np.full(prompts, 9), np.repeat(np.arange(prompts), 2), np.repeat(tokens, 2), max_response_tokens=5000)
    logged = LoggedStep(0, pd.DataFrame(index=range(2 * prompts)), whole, whole, True, LengthForecast(whole.response_tokens))
    part = step_part._some(logged, min(prompts, of_part)).predicted
    chosen, least = np.sort(part.response_tokens[::2])[::-1], np.sort(tokens)[::-1]
    assert chosen[0] == tokens.max()
    places = np.searchsorted(-least, -chosen)
    assert np.diff(places, append=prompts).max() <= np.ceil(1.5 * prompts / len(chosen)) + 1


def test_a_part_of_a_step_has_whole_prompts_and_the_longest_one() -> None:
    whole = logged_step(384, "l40s-qwen2.5-3b-tp2", nodes=16)
    part = whole.own.part
    assert part is not None
    tokens = [np.bincount(one.predicted.prompt_of, one.predicted.response_tokens) for one in (whole.logged, part.logged)]
    assert len(tokens[1]) == len(tokens[0]) / part.ratio == 48
    assert tokens[1].max() == tokens[0].max()
    assert set(tokens[1]) <= set(tokens[0])
    assert part.logged.truth.response_tokens.sum() * part.ratio == pytest.approx(
        whole.logged.truth.response_tokens.sum(), rel=0.1
    )
    assert part.token_work.charges.slower(8) == whole.own.token_work.charges.slower(round(8 * part.ratio))


def test_a_cut_keeps_as_many_actors_as_have_room() -> None:
    """Slots are few, so more actors are kept than the plan names; times and costs are about those of the executed steps."""
    costs = np.zeros((20, 2))
    for seed, row in enumerate(costs):
        rng = np.random.default_rng(seed)
        slots, lengths = int(rng.integers(6, 12)), rng.lognormal(3.5, 0.9, 32).astype(int) + 1
        latency = LatencyModel("few slots", 1, 0.02, 5e-4, 1e-6, max_batch=slots, transfer_base_s=1e-3)
        problem = PlanningProblem(Workload([5] * 8, np.repeat(np.arange(8), 4), lengths), solver.Cluster(2, 2, 1), latency)
        plan = replace(
            Spread(actors=4).plan(problem, PlanningOptions()), rule=GlobalCut(int(rng.integers(slots, 17)), 32, keep=1)
        )
        setting = SimulationConfig(solver.Cluster(2, 2, 1), latency)
        timed = expected(plan, problem.workload, setting, latency)
        run = executed(plan, requests_of(problem.workload), setting)
        assert timed.makespan_s == pytest.approx(run.makespan_s, rel=0.05)
        row[:] = timed.gpu_seconds, run.gpu_seconds
    assert costs[:, 0].sum() == pytest.approx(costs[:, 1].sum(), rel=0.05)


@given(st.integers(20, 400), st.floats(0.8, 1.25))
@settings(max_examples=20, deadline=None)
def test_actors_are_added_or_taken_away_until_nothing_is_gained(actors: int, best: float) -> None:
    def plan(count: int) -> WholeStepPlan:
        generation = Generation(None, Assignment("random", count), frozenset())  # type: ignore[arg-type]
        return WholeStepPlan(generation, Learner(), frozenset())

    def away(one: WholeStepPlan) -> float:
        return abs(np.log(one.generation.assignment.actors / (best * actors)))

    found = best_actors(plan(actors), plan, away)
    assert away(found) <= min(away(plan(actors)), np.log(STEP) / 2 + 1 / actors)
