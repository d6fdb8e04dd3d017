"""Work items inside a step on the virtual clock: where the list scheduler puts them, billed once, one holder of a GPU."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from error_messages import refused
from executor_samples import Restless, Step, execute, plan_of, random_step, run, trace_of, uniform_step
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_samples import factory, torch_requests, torch_step

from rlhfless.executor import Gpus, StepFailed, StepRecord, WorkItem, run_step
from rlhfless.executor.step import work_items
from rlhfless.executor.step.work_rows import OVERLAP_S
from rlhfless.trace.schema import tables
from solver import Cluster, NonGenerationPhases, Plan, PlanningError
from solver.timing.work_schedule import NO_GATE, WorkItems, schedule_work

seeds = st.integers(0, 10_000)
GROUPS = [[0, 1], [2, 3], [4]]


def group_work(step: Step, rng: np.random.Generator, released: bool) -> list[WorkItem]:
    """Every response is prepared, every group learned from once all of it is prepared, and the optimizer steps last."""
    responses, prompts = len(step.truth), len(step.truth.prompt_tokens)
    preparing = Gpus(released=True) if released else Gpus.beside(step.cluster, "prepare", servers=int(rng.integers(1, 4)))
    learner = Gpus.beside(step.cluster, "learner", 2, first=8)
    owners = step.truth.prompt_of
    work = [
        WorkItem("prepare", float(rng.choice([0.0, 0.01, 0.05])), gpus=preparing, responses=(r,), priority=int(rng.integers(2)))
        for r in range(responses)
    ]
    for p in range(prompts):
        group = tuple(np.flatnonzero(owners == p).tolist())
        work.append(WorkItem("learn", float(rng.uniform(0, 0.2)), gpus=learner, items=group))
    last = tuple(range(responses, len(work)))
    work.append(WorkItem("learn", 0.1, gpus=learner, items=last, after_s=float(rng.choice([0.0, 1.0])), call="optimizer"))
    return work


def scheduled(record: StepRecord, work: list[WorkItem], step: Step, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of the items by ``schedule_work`` on the trace's completions and releases, put together anew."""
    trace = trace_of(record, step)
    done = trace.rollouts["end_s"].to_numpy()
    every = list(dict.fromkeys(item.gpus for item in work))
    free, place = [], []
    for number, gpus in enumerate(every):
        for server in gpus.servers(plan):
            holding = [i for i, actor in enumerate(plan.actors) if set(actor.gpu_ids) & set(server.gpu_ids)]
            free.append(max([done_of(record, plan, i) for i in holding], default=-math.inf))
            place.append(number)
    waiting = [i for i, item in enumerate(work) if item.items]
    counts = [(before, gate) for gate, i in enumerate(waiting) for before in work[i].items]
    items = WorkItems(
        [item.seconds for item in work],
        [max([record.start_s + item.after_s, *(done[list(item.responses)])]) for item in work],
        waits_for=[waiting.index(i) if i in waiting else NO_GATE for i in range(len(work))],
        counts_for=counts,
        place=[every.index(item.gpus) for item in work],
        priority=[item.priority for item in work],
    )
    schedule = schedule_work(items, free, place)
    return schedule.start_s, schedule.end_s


def done_of(record: StepRecord, plan: Plan, actor: int) -> float:
    """When an actor was done: its last completion or span, or the decision that took its last response."""
    holder = f"actor-{actor}"
    spans = [s["end_s"] for s in record.spans if s["holder"] == holder]
    completions = [c.time_s for i, c in record.completions.items() if record.actor_of[i] == holder]
    decisions = [e["time_s"] for e in record.events if e["holder"] == holder and e["name"] in ("move", "cut")]
    start_s = record.start_s + plan.actors[actor].start_s
    return max([start_s, *spans, *completions, *decisions])


def assert_billed_once(record: StepRecord, step: Step) -> None:
    """One holder of a GPU at a time, everything that runs is within an allocation of its holder, and the trace is valid."""
    trace_of(record, step)
    by_gpu: dict[int, list[tuple[float, float]]] = {}
    for a in record.allocations:
        for gpu in a["gpu_ids"]:
            by_gpu.setdefault(gpu, []).append((a["start_s"], a["end_s"]))
    for held in by_gpu.values():
        assert all(end <= start + OVERLAP_S for (_, end), (start, _) in itertools.pairwise(sorted(held)))
    for ran in record.work:
        held_s = [(a["start_s"], a["end_s"]) for a in record.allocations if a["holder"] == ran.holder]
        if ran.end_s > ran.start_s:
            assert any(begin - 1e-9 <= ran.start_s and ran.end_s <= end + 1e-9 for begin, end in held_s), ran
    holders = {ran.holder for ran in record.work}
    spans = [s for s in record.spans if s["phase"] in ("prepare", "learn") and s["holder"] in holders]
    assert sum(s["end_s"] - s["start_s"] for s in spans) == pytest.approx(sum(r.end_s - r.start_s for r in record.work))
    assert record.end_s >= max(r.end_s for r in record.work)


@given(seeds, st.booleans(), st.sampled_from(["done", "generation", "step"]), st.sampled_from(["none", "restless", "fold"]))
@settings(max_examples=60, deadline=None)
def test_items_run_when_the_list_scheduler_says(seed: int, released: bool, release: str, rule: str) -> None:
    step, rng = random_step(seed), np.random.default_rng(seed)
    work = group_work(step, rng, released)
    groups = [list(range(k, len(step.truth), 4)) for k in range(4)]
    if rule == "fold":
        record = execute(step, "fold", seed=seed, work=work, start_s=3.0)
    else:
        plan = plan_of(groups, Restless(seed) if rule == "restless" else None, release=release)
        record = run(step, plan, work=work, migration="move")
    start_s, end_s = scheduled(record, work, step, record.plan)
    np.testing.assert_allclose([r.start_s for r in record.work], start_s, atol=1e-9, rtol=0)
    np.testing.assert_allclose([r.end_s for r in record.work], end_s, atol=1e-9, rtol=0)
    assert [r.item for r in record.work] == work
    assert_billed_once(record, step)


@given(seeds, st.booleans())
@settings(max_examples=20, deadline=None)
def test_work_changes_nothing_of_generation(seed: int, released: bool) -> None:
    step = random_step(seed)
    plan = plan_of([list(range(k, len(step.truth), 4)) for k in range(4)], Restless(seed), release="generation")
    without = run(step, plan)
    record = run(step, plan, work=group_work(step, np.random.default_rng(seed), released))
    assert {i: c.time_s for i, c in record.completions.items()} == {i: c.time_s for i, c in without.completions.items()}
    assert [s for s in record.spans if s["holder"].startswith("actor")] == without.spans
    cost = [sum((a["end_s"] - a["start_s"]) * len(a["gpu_ids"]) for a in r.allocations if min(a["gpu_ids"]) < 4)
            for r in (record, without)]  # fmt: skip
    assert cost[0] >= cost[1] - 1e-9, "GPUs of the cluster are held at least as long"


def by_brute_force(ready_s: list[float], seconds: list[float], free_s: list[float]) -> float:
    """The least time at which all items can have ended, over all orders and servers."""
    best = math.inf
    for order in itertools.permutations(range(len(seconds))):
        for servers in itertools.product(range(len(free_s)), repeat=len(seconds)):
            at_s = list(free_s)
            for item, server in zip(order, servers, strict=True):
                at_s[server] = max(at_s[server], ready_s[item]) + seconds[item]
            best = min(best, max(at_s))
    return best


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.lists(st.integers(1, 8), min_size=4, max_size=4))
@settings(max_examples=25, deadline=None)
def test_small_cases_are_within_grahams_factor_of_the_best(lengths: list[int], takes: list[int]) -> None:
    """On two released GPUs: never before the best of all orders, and at most twice as late.

    While an item waits, every GPU decodes or works, so it starts at most the best time after it is ready.
    """
    step = uniform_step(lengths)
    plan = plan_of([list(range(0, len(lengths), 2)), list(range(1, len(lengths), 2))])
    seconds = [takes[i] / 2 for i in range(len(lengths))]
    work = [WorkItem("prepare", s, responses=(i,)) for i, s in enumerate(seconds)]
    record = run(step, plan, work=work)
    ready_s = [record.completions[i].time_s for i in range(len(lengths))]
    free_s = [done_of(record, plan, actor) for actor in range(2)]
    best_s = by_brute_force(ready_s, seconds, free_s)
    assert best_s - 1e-9 <= record.end_s <= 2 * best_s + 1e-9
    assert record.end_s == pytest.approx(max(r.end_s for r in record.work))


def test_gpus_that_an_actor_would_hold_are_handed_over_and_paid_once() -> None:
    """Three actors hold to the end of the step; what is prepared on the first one's GPUs is its own holder's until then."""
    step = uniform_step([10, 20, 30])
    plan = plan_of([[0], [1], [2]], release="step")
    work = [WorkItem("prepare", 0.5, responses=(0,)), WorkItem("learn", 2.0, responses=(0, 1, 2))]
    record = run(step, plan, work=work)
    held = {(a["holder"], a["role"]): (round(a["start_s"], 9), round(a["end_s"], 9)) for a in record.allocations}
    assert held == {
        ("actor-0", "decode"): (0.0, 1.0), ("actor-1", "decode"): (0.0, 5.0), ("actor-2", "decode"): (0.0, 5.0),
        ("released-0", "prepare"): (1.0, 3.0), ("released-0", "learner"): (3.0, 5.0),
    }  # fmt: skip
    assert record.end_s == pytest.approx(5.0)


def test_items_follow_the_measured_times() -> None:
    """Where iterations are measured, items are placed on the retimed record, and their functions run once."""
    step, calls = torch_step(3), []

    def called(completions: tuple[Any, ...], results: tuple[Any, ...]) -> int:
        calls.append(completions[0].response)
        return len(completions[0].token_ids)

    learner = Gpus.beside(step.cluster, "learner")
    work = [WorkItem("prepare", 0.01, called, responses=(r,)) for r in range(len(step.truth))]
    work.append(WorkItem("learn", 0.5, gpus=learner, items=tuple(range(len(work)))))
    plan = plan_of([list(range(k, len(step.truth), 4)) for k in range(4)], Restless(3))
    record = run_step(plan, torch_requests(step), factory(), step.latency, step.cluster, charging="measured", work=work)
    start_s, end_s = scheduled(record, work, step, record.plan)
    np.testing.assert_allclose([r.start_s for r in record.work], start_s, atol=1e-9, rtol=0)
    np.testing.assert_allclose([r.end_s for r in record.work], end_s, atol=1e-9, rtol=0)
    assert [r.result for r in record.work[:-1]] == [record.completions[r].response_tokens for r in range(len(step.truth))]
    assert sorted(calls) == list(range(len(step.truth)))
    assert_billed_once(record, step)


def test_servers_on_gpus_of_actors_wait_for_all_of_them() -> None:
    step = uniform_step([10, 20])
    both = Gpus("learner", (0, 1))
    record = run(step, plan_of([[0], [1]]), work=[WorkItem("learn", 1.0, gpus=both, responses=(0,))])
    assert (record.work[0].start_s, record.work[0].end_s) == (pytest.approx(2.0), pytest.approx(3.0))
    assert_billed_once(record, step)


def test_functions_really_run_with_what_they_wait_for() -> None:
    """Their results are handed on and handed back; where the seconds are given these are charged."""
    step = uniform_step([3, 5])
    seen: list[str] = []

    def count(completions: tuple[Any, ...], results: tuple[Any, ...]) -> int:
        seen.append("count")
        return sum(c.response_tokens for c in completions)

    def add(completions: tuple[Any, ...], results: tuple[Any, ...]) -> int:
        seen.append("add")
        return sum(results)

    learner = Gpus.beside(step.cluster, "learner")
    work = [
        WorkItem("learn", 0.25, add, gpus=learner, items=(1, 2)),
        WorkItem("prepare", None, count, gpus=learner, responses=(1,)),
        WorkItem("prepare", None, count, gpus=learner, responses=(0,)),
    ]
    record = run(step, plan_of([[0, 1]]), work=work)
    assert [r.result for r in record.work] == [8, 5, 3]
    assert seen == ["count", "count", "add"]
    assert record.work[0].end_s - record.work[0].start_s == pytest.approx(0.25)
    assert record.work[1].end_s > record.work[1].start_s


def test_a_function_that_fails_ends_the_step_with_its_item() -> None:
    def fail(completions: Any, results: Any) -> None:
        raise ValueError("no such token")

    step = uniform_step([3])
    with refused(StepFailed, "work item 1", "learn", "no such token") as failed:
        run(step, plan_of([[0]]), work=[WorkItem("prepare", 1.0), WorkItem("learn", run=fail)])
    record = failed.value.record
    assert len(record.completions) == 1
    assert {a["holder"] for a in record.allocations} == {"actor-0"}


def test_phases_and_items_are_written_in_one_step() -> None:
    step = uniform_step([10, 20])
    work = [WorkItem("prepare", 0.5, responses=(0,))]
    record = run(step, plan_of([[0], [1]]), work=work, phases=NonGenerationPhases(1.0, 2.0, 1))
    assert record.end_s == pytest.approx(5.0)
    assert [(a["holder"], a["role"]) for a in record.allocations] == [
        ("actor-0", "decode"), ("actor-1", "decode"), ("released-0", "prepare"), ("learner", "learner"),
    ]  # fmt: skip
    assert_billed_once(record, step)


TWO = Cluster(2, 2, 1)
LEARNER = Gpus.beside(TWO, "learner")
OTHER = Gpus.beside(TWO, "other")
WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "kind": (lambda: [WorkItem("dream", 1.0)], ("'dream'", "prepare, learn, transfer, decode")),
    "nothing": (lambda: [WorkItem("learn")], ("seconds", "function")),
    "negative": (lambda: [WorkItem("learn", -1.0)], ("-1.0",)),
    "after": (lambda: [WorkItem("learn", 1.0, after_s=math.nan)], ("after_s", "nan")),
    "priority": (lambda: [WorkItem("learn", 1.0, priority=math.inf)], ("priority", "inf")),
    "no function": (lambda: [WorkItem("learn", run=3)], ("run", "3")),  # type: ignore[arg-type]
    "response": (lambda: [WorkItem("learn", 1.0, responses=(9,))], ("work item 0", "response 9")),
    "item": (lambda: [WorkItem("learn", 1.0, items=(4,))], ("work item 0", "item 4")),
    "circle": (lambda: [WorkItem("learn", 1.0, items=(1,)), WorkItem("learn", 1.0, items=(0,))], ("circle",)),
    "no item": (lambda: ["learn"], ("item 0", "'learn'")),
    "holder twice": (
        lambda: [WorkItem("learn", 1.0, gpus=LEARNER), WorkItem("learn", 1.0, gpus=replace(LEARNER, from_s=1.0))],
        ("'learner'",),
    ),
    "one GPU, two holders": (
        lambda: [WorkItem("learn", 1.0, gpus=LEARNER), WorkItem("learn", 1.0, gpus=OTHER)],
        ("GPU 4", "'learner'", "'other'"),
    ),
    "held for the step": (
        lambda: [WorkItem("learn", 1.0, gpus=replace(LEARNER, held_all_step=True)), WorkItem("learn", 1.0, gpus=OTHER)],
        ("GPU 4", "'learner'", "whole step"),
    ),
    "held": (lambda: replace(LEARNER, held_all_step="ever"), ("held_all_step", "'ever'")),
    "no ids": (lambda: Gpus("x"), ("'x'", "ids", "released=True")),
    "shared": (lambda: Gpus("x", ((7,), (7,))), ("GPU 7",)),
    "GPU": (lambda: Gpus("x", [[-7]]), ("'x'", "-7")),  # type: ignore[list-item]
    "an actor's name": (lambda: Gpus("actor-0", (7,)), ("'actor-0'",)),
    "the actors' name": (lambda: Gpus("actor", released=True), ("'actor'",)),
    "in process": (lambda: WorkItem("learn", 1.0, in_process=2), ("in_process", "2")),  # type: ignore[arg-type]
    "some in process": (
        lambda: [WorkItem("learn", 1.0, gpus=LEARNER, in_process=True), WorkItem("learn", 1.0, gpus=LEARNER)],
        ("work item 1", "in_process", "'learner'"),
    ),
    "role": (lambda: WorkItem("learn", 1.0, role="poet"), ("'poet'", "reference")),
    "no GPUs": (lambda: [WorkItem("learn", 1.0, gpus="learner")], ("'learner'", "Gpus")),  # type: ignore[arg-type]
    "one response": (lambda: [WorkItem("learn", 1.0, responses=3)], ("responses", "3")),  # type: ignore[arg-type]
    "beside": (lambda: Gpus.beside(TWO, "x", -1), ("'x'", "-1")),
}  # fmt: skip


def test_roles_are_those_of_the_trace() -> None:
    assert set(work_items.ROLES) < set(tables.ROLES)
    assert set(work_items.KINDS) < set(tables.PHASES)


@pytest.mark.parametrize("case", WRONG)
def test_bad_work_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    step = uniform_step([3, 5])
    with refused((PlanningError, StepFailed), *named):
        run(step, plan_of([[0], [1]]), work=make())


def test_half_an_actor_is_no_server() -> None:
    step = uniform_step([3], max_batch=8)
    plan = plan_of([[0]])
    two = replace(plan, actors=(replace(plan.actors[0], gpu_ids=(0, 1)),))
    half = Gpus("half", (1,))
    with refused(PlanningError, "'half'", "GPU 1", "GPU 0"):
        run(step, two, work=[WorkItem("learn", 1.0, gpus=half)])
