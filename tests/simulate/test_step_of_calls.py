"""Whole steps that choose actors' sizes and layouts, too: against brute force, as executed, and above the bound."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from error_messages import refused
from whole_step_runs import visited_twice

from rlhfless.latency import CallTable, StepBatch, generation_latency
from rlhfless.simulate import SimulationConfig, StepOfCalls, step_of_calls
from rlhfless.simulate.whole_steps.call_layouts import call_layouts
from rlhfless.simulate.whole_steps.candidates import candidates
from rlhfless.simulate.whole_steps.generations import Generation
from rlhfless.simulate.whole_steps.sized_step import SizedStep
from solver import Cluster, Objective, PlanningError
from solver.layouts import Layout, Mesh, Strategy, grpo, ppo, remax
from solver.layouts.layout import strategies
from solver.model.step_levers import ACTOR_SIZE, LAYOUTS, SHARED_PREFILL
from solver.step.choose import choose
from solver.step.work import Learner

ROLES = ("actor", "reference", "reward", "critic")
OBJECTIVE = Objective(0.7)


def table(model: str = "qwen2.5-3b", batch: StepBatch | None = None, kind: str = "h100", node: int = 4) -> CallTable:
    return CallTable(kind, dict.fromkeys(ROLES, model), batch or StepBatch(24, 40, 700), gpus_per_node=node)


@pytest.fixture(scope="module")
def small() -> StepOfCalls:
    logged = visited_twice(16, 6, 1.0, 4000)
    costs = table()
    setting = SimulationConfig(Cluster(1, 4, 2, kind="h100"), generation_latency(costs)[2], bound_work=0)
    return step_of_calls(logged, setting, grpo(), costs)


def test_actors_of_every_size_and_layouts_are_variants(small: StepOfCalls) -> None:
    assert small.step.own.gpus_per_actor == 2
    found = {(one.setting.cluster.gpus_per_actor, one.levers) for one in small.step.variants}
    assert {levers for _, levers in found} == {frozenset({ACTOR_SIZE}), frozenset({LAYOUTS}), frozenset({ACTOR_SIZE, LAYOUTS})}
    assert {size for size, levers in found if ACTOR_SIZE in levers} == {1, 4}
    assert {ACTOR_SIZE, LAYOUTS} <= set(small.step.levers())
    assert small.step.plain(OBJECTIVE).plan.levers <= {SHARED_PREFILL}


def test_no_combination_is_much_better_than_the_best_candidate(small: StepOfCalls) -> None:
    """An independent loop over sizes, layouts, generations and learners, timed exactly on the typical scenario."""
    step, found = small.step, small.step.candidates()

    def exact(one: SizedStep, generation: Generation, learner: Learner) -> float:
        return OBJECTIVE.value(*generation.on(0).step_totals(one.works[0], learner))

    kept = min(exact(step.of_plan(plan), plan.generation, plan.learner) for plan in found.plans)
    least, combinations = np.inf, 0
    for one in [step.own, *(SizedStep(step.logged, variant.setting, variant.token_work) for variant in step.variants)]:
        for generation in one.generations(None).candidates():
            actors, makespan_s = len(generation.plan.actors), generation.makespan_s
            for own, grows, (streams, overlaps), share in product(
                range(one.servers - actors + 1), (True, False), ((False, False), (False, True), (True, True)), (0.0, 0.55, 1.0)
            ):
                learner = Learner(own, share * makespan_s if own else 0.0, grows or not own, streams, overlaps)
                if one.token_work.charges.fits(learner.servers(actors)):
                    least, combinations = min(least, exact(one, generation, learner)), combinations + 1
    assert combinations > 500
    assert kept <= least * 1.02, "merged timing, and what is not tried, may lose 2 % of T^w C^(1-w)"
    choice, values = step.plan(OBJECTIVE), OBJECTIVE.values(found.table.times_s, found.table.gpu_s).mean(axis=1)
    assert OBJECTIVE.value(choice.time_s, choice.gpu_seconds) <= values.min() * 1.05, "what is not sure to save is left out"


@pytest.mark.parametrize("objective", [OBJECTIVE, Objective(0.2), Objective(1.0)], ids=lambda one: f"{one.time_weight:g}")
def test_sizes_that_are_searched_together_are_as_good_as_one_by_one(small: StepOfCalls, objective: Objective) -> None:
    """One by one each size keeps pairs of its own, folds, and is executed on every scenario to be timed."""
    step, every = small.step, None
    for number, size in enumerate([step.own, *(SizedStep(step.logged, of.setting, of.token_work) for of in step.variants)]):
        generations = size.generations(None)
        generations.of(generations.assignments.folded).unfolded = None  # not estimated
        found = candidates([size], [step.variants[number - 1].levers if number else frozenset()], None)
        every = found if every is None else every.joined(found)
    best = choose(every.table, objective).best
    exhaustive = objective.value(every.table.times_s[best].mean(), every.table.gpu_s[best].mean())
    choice = step.plan(objective)
    assert len(step.candidates().plans) < len(every.plans)
    assert objective.value(choice.time_s, choice.gpu_seconds) <= 1.005 * exhaustive


def test_plans_of_every_variant_are_executed_as_recorded_and_above_the_bound(small: StepOfCalls) -> None:
    step, bound = small.step, small.step.bound()
    candidates = step.candidates()
    found = sorted({plan.variant for plan in candidates.plans})
    assert found[0] == 0 < len(found) - 1
    for number in found:
        plan = next(one for one in candidates.plans if one.variant == number)
        time_s, gpu_s = step.execute(plan)
        record = step.record(plan)
        assert record.end_s == pytest.approx(time_s, rel=1e-9)
        assert sum(len(row["gpu_ids"]) * (row["end_s"] - row["start_s"]) for row in record.allocations) == pytest.approx(gpu_s)
        assert bound.gpu_seconds(time_s * (1 + 1e-9)) <= gpu_s
        size = len(plan.generation.plan.actors[0].gpu_ids)
        assert f"x {size} GPUs decode as 1x{size}x1" in small.words(plan)


def test_all_levers_are_planned_no_worse_than_none_or_than_one_left_out(small: StepOfCalls) -> None:
    choice, plain = small.step.plan(OBJECTIVE), small.step.plain(OBJECTIVE)
    assert OBJECTIVE.value(choice.time_s, choice.gpu_seconds) <= OBJECTIVE.value(plain.time_s, plain.gpu_seconds)
    assert set(choice.saves) == set(choice.plan.levers)
    for lever, other in choice.without.items():
        assert lever not in other.levers
        assert choice.saves[lever] > 0


@pytest.mark.parametrize(("kind", "model", "size"), [("l40s", "qwen2.5-7b", 4), ("h100", "qwen2.5-3b", 2)])
@pytest.mark.parametrize("graph", [grpo(), ppo()], ids=lambda graph: graph.name)
def test_layouts_are_the_fastest_that_fit(kind: str, model: str, size: int, graph: object) -> None:
    batch = StepBatch(256, 128, 384)
    costs, cluster = table(model, batch, kind, 8), Cluster(2, 8, size, kind)
    trainings = [call for call in graph.calls if call.kind == "train"]  # type: ignore[attr-defined]
    passes = [call for call in graph.calls if call.kind == "inference"]  # type: ignore[attr-defined]
    actors = Layout(Mesh(0, 16), Strategy(16 // size, size, 1))

    def learned(servers: int, cut: Strategy, prepare: Strategy) -> float:
        """Return the seconds of trainings on so many servers, infinite where memory is short."""
        layout = Layout(Mesh(0, servers * size), Strategy(servers * cut.dp, cut.tp, cut.pp))
        every = [(call, costs.memory(call, layout)) for call in trainings]
        beside = [(call, costs.memory(call, Layout(Mesh(0, size), prepare))) for call in passes]
        trained = {call.role for call in trainings}
        needed = sum(one.kept for _, one in every) + max(one.working for _, one in every + beside)
        needed += sum(one.copy for call, one in beside if call.role not in trained or prepare != cut)
        seconds = sum(costs.seconds(call, layout) for call in trainings) + costs.reallocate("actor", layout, actors)[0]
        return seconds if needed <= costs.gpu_memory_bytes else np.inf

    for own in (False, True):
        found = call_layouts(graph, costs, cluster, own=own)  # type: ignore[arg-type]
        possible = strategies(size) if own else (Strategy(1, size, 1),)
        for servers, chosen in enumerate(found.learn, 1):
            by_layout = {cut: learned(servers, cut, found.prepare) for cut in possible}
            assert (chosen is None) == (not np.isfinite(min(by_layout.values())))
            if chosen is not None:
                assert by_layout[chosen] == pytest.approx(min(by_layout.values()))
                tokens = batch.responses * batch.tokens
                of_item = found.token_work.learn_per_token_s * found.token_work.charges.slower(servers) / servers * tokens
                assert of_item + found.token_work.charges.finish_s(servers) == pytest.approx(by_layout[chosen])
        if not own and found.learn[-1] is not None:  # nothing is sent where all GPUs have the actors' layout
            updates = [costs.updates(call, actors) for call in trainings]
            assert found.token_work.charges.finish_s(16 // size) == pytest.approx(
                sum(count * each_s for count, each_s in updates)
            )


def test_steps_that_cannot_be_planned_are_refused(small: StepOfCalls) -> None:
    cluster = Cluster(1, 4, 2, kind="h100")
    with refused(PlanningError, "remax does not generate exactly once"):
        call_layouts(remax(), table(), cluster, own=True)
    with refused(PlanningError, "load_bytes_per_s is 0"):
        call_layouts(grpo(), table(), cluster, own=True, load_bytes_per_s=0)
    with refused(PlanningError, "fit on no number of servers of 2 x h100"):
        call_layouts(grpo(), table(), cluster, own=True, memory_bytes=1e9)
    with refused(PlanningError, "fit on no number of servers of 4 x h100"):
        step_of_calls(small.step.logged, small.step.own.setting, grpo(), table(), memory_bytes=1e9)
