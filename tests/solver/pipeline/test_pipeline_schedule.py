"""Schedules of pipelines: the published instances at their bound, and random problems with an independent evaluator."""

from __future__ import annotations

import pytest
from pipeline_samples import peak_memory, random_problem, start_times

from rlhfless.paper.fused_pipelines import FusedInstance, rlhfuse_instances
from solver.pipeline import (
    Chain,
    PipelinePlan,
    PipelineProblem,
    evaluate_pipeline,
    fused,
    schedule_pipeline,
    serial,
)

INSTANCES = rlhfuse_instances()
FAST = [one for one in INSTANCES if one.name in ("0", "1", "5", "7", "8", "11")]
LONG = [one for one in INSTANCES if one not in FAST]
SERIAL = (813, 477, 309, 819, 483, 315, 708, 420, 276, 711, 423, 279)


def check(plan: PipelinePlan) -> None:
    """Its latency, peak memory and starts are those of an evaluator that shares no code with the solver's."""
    spans = start_times(plan.problem, plan.orders)
    assert spans is not None
    assert plan.latency == max(end for _, end in spans.values())
    assert plan.peak_memory == pytest.approx(peak_memory(plan.problem, plan.orders))
    assert plan.latency_bound <= plan.latency
    assert plan.memory_bound <= plan.peak_memory * (1 + 1e-9)
    chains = {chain.name: number for number, chain in enumerate(plan.problem.chains)}
    rows = plan.table()
    keys = zip(rows["chain"].map(chains), rows["operation"], rows["stage"], rows["micro_batch"], strict=True)
    assert dict(zip(keys, zip(rows["start"], rows["end"], strict=True), strict=True)) == spans


@pytest.mark.parametrize("instance", FAST, ids=lambda one: one.name)
def test_published_instances_reach_their_bound(instance: FusedInstance) -> None:
    _reaches_its_bound(instance)


@pytest.mark.full
@pytest.mark.parametrize("instance", LONG, ids=lambda one: one.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_published_instances_that_take_longer_reach_their_bound(instance: FusedInstance, seed: int) -> None:
    _reaches_its_bound(instance, seed)


def _reaches_its_bound(instance: FusedInstance, seed: int = 0) -> None:
    plan = schedule_pipeline(instance.problem(), seed=seed)
    assert plan.latency == plan.latency_bound <= instance.paper_latency
    assert plan.status == "optimal"
    check(plan)


def test_serial_training_is_the_published_baseline_but_for_the_overlap_of_devices() -> None:
    for instance, published in zip(INSTANCES, SERIAL, strict=True):
        problem = instance.problem()
        alone = [serial(PipelineProblem([chain], problem.devices)) for chain in problem.chains]
        assert alone[0].latency + alone[1].latency == published
        one_after_the_other = serial(problem)
        assert max(plan.latency for plan in alone) < one_after_the_other.latency < published
        assert one_after_the_other.peak_memory == max(plan.peak_memory for plan in alone)


def test_one_forward_one_backward_holds_as_many_micro_batches_as_stages_follow() -> None:
    plan = serial(PipelineProblem([Chain("actor", range(4), 8, 1, 2, activation=1)]))
    check(plan)
    assert (plan.latency, plan.status) == ((8 + 4 - 1) * 3, "optimal")
    assert plan.peak_memory == plan.memory_bound == 4
    assert plan.actions()[3] == [f"3{kind}{k}" for k in range(8) for kind in "FB"]
    assert plan.actions()[0][:5] == ["0F0", "0F1", "0F2", "0F3", "0B0"]


@pytest.mark.parametrize("split", [False, True])
def test_random_problems_have_valid_schedules(split: bool) -> None:
    _are_valid(range(12), split)


@pytest.mark.full
@pytest.mark.parametrize("split", [False, True])
def test_two_hundred_random_problems_have_valid_schedules(split: bool) -> None:
    _are_valid(range(100, 200), split)


def _are_valid(seeds: range, split: bool) -> None:
    for seed in seeds:
        problem = random_problem(seed, split=split)
        check(schedule_pipeline(problem, time_limit_s=0.01, seed=seed))
        check(serial(problem))


def test_memory_limits_hold_and_cost_time() -> None:
    for seed in range(6):
        problem = random_problem(seed)
        free = schedule_pipeline(problem, time_limit_s=0.02)
        needed = [0.0] * problem.devices
        for chain in problem.chains:
            held = [0.0] * problem.devices
            for device, activation in zip(chain.route, chain.activation, strict=True):
                held[device] += activation
            needed = list(map(max, needed, held))
        tight = schedule_pipeline(problem, memory=[max(1.0, need) for need in needed], time_limit_s=0.02)
        check(tight)
        assert tight.peak_memory <= max(needed) + 1e-9
        assert tight.latency >= free.latency_bound


def test_the_same_seed_and_limit_give_the_same_plan() -> None:
    problem = INSTANCES[5].problem()
    assert schedule_pipeline(problem, seed=1) == schedule_pipeline(problem, seed=1)
    orders = {schedule_pipeline(problem, seed=seed).orders for seed in range(3)}
    assert len(orders) > 1


@pytest.mark.parametrize("split", [False, True])
def test_plans_survive_json_bit_for_bit(split: bool) -> None:
    for problem in (random_problem(0, split=split), fused((4, 0.1, 6), (2, 0.07, 3), split_backward=split)):
        plan = schedule_pipeline(problem, time_limit_s=0.02)
        again = PipelinePlan.from_json(plan.to_json())
        assert again == plan
        assert again.to_json() == plan.to_json()
        assert evaluate_pipeline(problem, plan.orders).latency == plan.latency


def test_split_backward_is_faster_than_the_unsplit_bound() -> None:
    for number in (0, 1, 8):
        whole, split = (INSTANCES[number].problem(split_backward=split) for split in (False, True))
        plan = schedule_pipeline(split, time_limit_s=1.0)
        assert plan.latency == plan.latency_bound < schedule_pipeline(whole, time_limit_s=0.1).latency_bound


def test_actions_of_several_chains_name_the_chain_and_split_passes() -> None:
    plan = schedule_pipeline(fused((2, 1, 1), (2, 1, 1), split_backward=True), time_limit_s=0.01)
    actions = [action for row in plan.actions() for action in row]
    assert {("actor", "0F0"), ("critic", "1I0"), ("actor", "1W0")} <= set(actions)
    assert len(actions) == len(set(actions)) == 12


def test_a_plan_prints_itself() -> None:
    plan = schedule_pipeline(fused((4, 2, 8), (2, 1, 4)))
    assert "actor (4 x 8), critic 0 (2 x 4), critic 1 (2 x 4)" in repr(plan)
    assert f"<td>{plan.latency:g}, proven optimal (bound {plan.latency_bound:g})</td>" in plan._repr_html_()
