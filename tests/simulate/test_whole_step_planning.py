"""Planning whole steps takes counted work, and its quick timings are those of the list scheduler and of the executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import solver
from rlhfless.latency import load_profile
from rlhfless.scheduling.assignments import Spread
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.rlhfuse import GlobalCut
from rlhfless.simulate import Aim, LoggedStep, SimulationConfig, WholeStep, logged_steps
from rlhfless.simulate.whole_steps import generation_plans, step_part
from rlhfless.simulate.whole_steps.candidates import WholeStepPlan
from rlhfless.simulate.whole_steps.generated import GeneratedStep, executed, requests_of
from rlhfless.simulate.whole_steps.generation_plans import GenerationPlan, expected
from rlhfless.simulate.whole_steps.generation_way import GenerationWay
from rlhfless.simulate.whole_steps.merged_timing import MergedStep, merged_totals
from rlhfless.simulate.whole_steps.resized import MOST_STEPS, STEP, best_actors
from solver import LatencyModel, PlanningProblem, Workload
from solver.lengths.forecast import LengthForecast
from solver.step.charges import Charges
from solver.step.work import Learner, StepWork, TokenWork
from solver.timing.work_schedule import NO_GATE, WorkItems, schedule_work

SERVERS = 6
seeds = st.integers(0, 2**32 - 1)


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

    def counting(*args: object) -> GeneratedStep:
        timed.append(isinstance(args[0], solver.Plan) and isinstance(args[0].rule, GlobalCut | None))
        return expected(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(generation_plans, "expected", counting)
    step = logged_step(1024, "l40s-qwen2.5-3b-tp2")
    choice = step.plan(Aim(time_weight=0.7))
    assert choice.plan.levers
    assert timed.count(False) <= 1, "folding is executed, the others are timed by arrays"
    kept = {id(plan.generation) for plan in step.candidates().plans}
    assert len(timed) <= 11 * step.most + 1 + 7 * len(kept) <= 400


@pytest.mark.parametrize("nodes", [2, pytest.param(8, marks=pytest.mark.full)])
def test_planning_a_larger_step_simulates_no_more(nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is planned on a part, and the plan is about as good as one that is planned on all of it."""
    of_all = logged_step(48 * nodes, "l40s-qwen2.5-3b-tp2", nodes=nodes)
    best = value(*of_all.execute(of_all.plan(Aim(time_weight=0.7)).plan))
    monkeypatch.setattr(step_part, "PART_SERVERS", 4)
    timed = []
    monkeypatch.setattr(generation_plans, "expected", lambda *args: timed.append(args[0]) or expected(*args))
    step = logged_step(48 * nodes, "l40s-qwen2.5-3b-tp2", nodes=nodes)
    choice = step.plan(Aim(time_weight=0.7))
    assert step.part is not None
    assert (len(step.part.logged.predicted), step.part.ratio) == (48, nodes)
    of_part = [plan for plan in timed if len(plan.actors) <= 4]
    assert len(of_part) <= 11 * 4 + 1 + 7 * len(step.candidates().plans)
    scenarios = len(step.cases)
    assert len(timed) - len(of_part) <= (2 * MOST_STEPS + 1) * scenarios, "the chosen plan, with other numbers of actors"
    actors = len(choice.plan.generation.plan.actors)
    assert 4 * nodes / 8 <= actors + choice.plan.way.own <= 4 * nodes
    time_s, gpu_s = step.execute(choice.plan)
    assert value(time_s, gpu_s) <= 1.1 * best
    assert step.bound().gpu_seconds(time_s) <= gpu_s
    assert step.record(choice.plan).end_s == pytest.approx(time_s, rel=1e-9)
    assert value(time_s, gpu_s) < value(*step.execute(step.plain(0.7).plan))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_a_plan_of_a_part_is_no_worse_than_elastic_plain(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors have little KV memory, so that some actors of the whole step have less room than any of the part."""
    monkeypatch.setattr(step_part, "PART_SERVERS", 4)
    step = logged_step(192, "l40s-qwen2.5-3b-tp2", nodes=4, seed=seed, kv_tokens=12_000)
    assert step.part is not None
    choice, plain = step.plan(Aim(time_weight=0.7)), step.plain(0.7)
    (time_s, gpu_s), (plain_s, plain_gpu_s) = step.execute(choice.plan), step.execute(plain.plan)
    assert value(time_s, gpu_s) <= value(plain_s, plain_gpu_s)
    assert time_s <= 1.03 * plain_s


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
    part = whole.part
    assert part is not None
    tokens = [np.bincount(one.predicted.prompt_of, one.predicted.response_tokens) for one in (whole.logged, part.logged)]
    assert len(tokens[1]) == len(tokens[0]) / part.ratio == 48
    assert tokens[1].max() == tokens[0].max()
    assert set(tokens[1]) <= set(tokens[0])
    assert part.logged.truth.response_tokens.sum() * part.ratio == pytest.approx(
        whole.logged.truth.response_tokens.sum(), rel=0.1
    )
    assert part.costs.charges.slower(8) == whole.costs.charges.slower(round(8 * part.ratio))


@given(seeds, st.sampled_from([1, 2, 4]))
@settings(max_examples=12, deadline=None)
def test_ways_timed_together_are_those_of_the_list_scheduler(seed: int, together: int) -> None:
    rng = np.random.default_rng(seed)
    charges = Charges.by_formula(SERVERS, 2, 0.1, float(rng.choice([0, 0.3])), float(rng.choice([0, 0.2])))
    costs = TokenWork(1.0, 1.0, charges=charges)
    count, cases = int(rng.integers(1, 40)), []
    for _ in range(3):
        actors = int(rng.integers(1, SERVERS))
        completion_s, free_s = rng.exponential(5, count), rng.exponential(5, actors)
        free_s[0] = completion_s.max()
        work = StepWork(
            rng.exponential(0.1, count), rng.exponential(0.3, count), rng.integers(0, 4, count), "group", gpus_per_actor=2
        )
        step = MergedStep(GeneratedStep(None, completion_s, free_s, 7.0), work, together=together)  # type: ignore[arg-type]
        for _ in range(4):
            own = together * int(rng.integers(0, (SERVERS - actors) // together + 1))
            streams, from_s = bool(rng.random() < 0.5), float(rng.choice([0.0, 3.0])) if own else 0.0
            way = Learner(own, from_s, bool(rng.random() < 0.5), streams, streams or bool(rng.random() < 0.5))
            cases.append((step, way))
    found = merged_totals(cases, costs)
    for (step, way), totals in zip(cases, found, strict=True):
        assert totals == pytest.approx(listed(step, way, costs), rel=1e-9)


def listed(step: MergedStep, way: Learner, costs: TokenWork) -> tuple[float, float]:
    """Return the totals by ``schedule_work``: preparation of all items, if it overlaps, and then the rest."""
    servers = way.servers(step.actors)
    load_s = costs.charges.loading_s(servers)
    own = way.own // step.together
    freed = [at_s + load_s for at_s in step.free_s] if way.grows or not way.own else []
    free_s = np.array([way.from_s + load_s if way.from_s else 0.0] * own + freed)
    prepare_s, learn_s = step.unlocked[1] / step.together, step.unlocked[2] * costs.charges.slower(servers) / step.together
    first_s, prepared_s = np.full(len(free_s), np.inf), step.makespan_s
    items = WorkItems(prepare_s + learn_s, step.unlocked[0] if way.streams else prepared_s)
    if way.overlaps and not way.streams:
        count = len(learn_s)
        seconds = np.concatenate([step.completed[1] / step.together, learn_s])
        ready = np.concatenate([step.completed[0], np.full(count, step.makespan_s)])
        waits, counts = np.repeat([NO_GATE, 0], count), np.repeat([0, NO_GATE], count)
        items = WorkItems(seconds, ready, waits_for=waits, counts_for=counts)
    schedule = schedule_work(items, free_s)
    np.minimum.at(first_s, schedule.server, schedule.start_s)
    finish_s = costs.charges.finish_s(servers)
    end_s = max(schedule.finished_s, float(free_s.max())) + finish_s
    held_s = way.own * (end_s - way.from_s)
    started = np.isfinite(first_s[own:])
    freed_s = np.where(started, end_s - np.where(started, first_s[own:], 0.0), finish_s) + load_s
    held_s += float(freed_s.sum()) * step.actors / len(step.free_s)
    return end_s, step.generation_gpu_s + step.size * held_s


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
        generation = GenerationPlan(GenerationWay("random", count), frozenset(), None, None)  # type: ignore[arg-type]
        return WholeStepPlan(generation, Learner(), frozenset())

    def away(one: WholeStepPlan) -> float:
        return abs(np.log(one.generation.way.actors / (best * actors)))

    found = best_actors(plan(actors), plan, away)
    assert away(found) <= min(away(plan(actors)), np.log(STEP) / 2 + 1 / actors)
