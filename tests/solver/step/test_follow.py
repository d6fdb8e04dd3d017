"""Preparation and learning of a step: against an event simulation, and the lower bounds against executed schedules."""

from __future__ import annotations

import itertools
from typing import Any, cast

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Cluster, LatencyModel, PlanningError, PlanningProblem, Workload, random_split
from solver.step.bound import phase_bound_s, step_bound
from solver.step.follow import follow
from solver.step.work import PhaseWork
from solver.timing.evaluate import actor_busy_s, admission_of, ready_s
from solver.timing.work_schedule import WorkItems, schedule_work

Spans = dict[tuple[str, int], tuple[float, float]]  # start and end by kind and response
seeds = st.integers(0, 2**32 - 1)


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray, PhaseWork]:
    """Completions, free times and work of a small step; whole seconds, so that ties occur."""
    rng = np.random.default_rng(seed)
    responses, actors = int(rng.integers(1, 10)), int(rng.integers(1, 4))
    completion = rng.integers(0, 12, responses).astype(float)
    free = rng.integers(0, 14, actors).astype(float)
    learner = int(rng.integers(0, 3))
    place = str(rng.choice(["freed", "beside", "learner"] if learner else ["freed", "beside"]))
    work = PhaseWork(
        rng.integers(0, 4, responses), rng.integers(0, 4, responses), rng.integers(0, 3, responses),
        unlock=str(rng.choice(["response", "group", "batch"])), learner_gpus=learner, place=place,
        learner_from_s=float(rng.integers(0, 9)) if learner and rng.random() < 0.5 else None,
        learner_grows=bool(learner and rng.random() < 0.5),
    )  # fmt: skip
    return completion, free, work


def by_event_simulation(completion: np.ndarray, free: np.ndarray, work: PhaseWork) -> Spans:
    """Start at each whole second what may start: preparation first, then what is ready for longest, then by index."""
    together = work.learner_grows and work.place == "freed"
    freed = free.tolist()
    learner = [work.learner_from_s or 0.0] * work.learner_gpus
    learns_on = [*learner, *(freed if work.learner_grows else [])]
    prepares_on = {"freed": freed, "beside": [0.0] * len(freed), "learner": learns_on}[work.place]
    prepares_on = learns_on if together else prepares_on
    if not learner:
        learns_on = prepares_on
    pools = [prepares_on] if learns_on is prepares_on else [prepares_on, learns_on]
    idle_from = [list(pool) for pool in pools]
    found: dict[tuple[str, int], tuple[float, float]] = {}
    responses = range(len(work))

    def ready_since(kind: str, r: int) -> float:
        if kind == "prepare":
            return float(completion[r])
        waits = {"response": [r], "group": [q for q in responses if work.group[q] == work.group[r]], "batch": list(responses)}
        ends = [found[("prepare", q)][1] if ("prepare", q) in found else np.inf for q in waits[work.unlock]]
        return max(float(completion[r]), max(ends))

    now = 0.0
    while len(found) < 2 * len(work):
        started = True
        while started:
            started = False
            items = [(kind, r) for kind in ("prepare", "learn") for r in responses if (kind, r) not in found]
            ready = [(k != "prepare", ready_since(k, r), r, k) for k, r in items if ready_since(k, r) <= now]
            for later, _, r, kind in sorted(ready):
                pool = idle_from[len(pools) - 1 if later else 0]
                server = next((s for s, at_s in enumerate(pool) if at_s <= now), None)
                if server is not None:
                    length = float((work.learn_s if later else work.prepare_s)[r])
                    found[(kind, r)] = (now, now + length)
                    pool[server] = now + length
                    started = started or length == 0
                    if length == 0:
                        break  # it may have unlocked others
        now += 1.0
    return found


def test_it_does_what_a_simulation_event_by_event_does() -> None:
    for seed in range(60):
        check_case(seed)


@pytest.mark.nightly
def test_it_does_what_a_simulation_does_on_many_cases() -> None:
    for seed in range(60, 560):
        check_case(seed)


def check_case(seed: int) -> None:
    """Compare ends of the step, which do not depend on ties, and every start where no item takes 0 seconds."""
    completion, free, work = random_case(seed)
    work = PhaseWork(
        work.prepare_s + 1, work.learn_s + 1, work.group, work.unlock, work.learner_gpus, work.learner_from_s,
        work.learner_grows, work.place,
    )  # fmt: skip
    schedule, expected = follow(completion, free, work), by_event_simulation(completion, free, work)
    assert {(row.kind, row.response): (row.start_s, row.end_s) for row in schedule.rows} == expected, seed
    assert schedule.step_s == max(free.max(), *(end for _, end in expected.values())), seed
    prepared = max(end for (kind, _), (_, end) in expected.items() if kind == "prepare")
    assert schedule.prepare_end_s == max(free.max(), prepared), seed


@given(seeds)
@settings(deadline=None, max_examples=100)
def test_no_server_works_twice_at_once_or_before_it_is_free(seed: int) -> None:
    completion, free, work = random_case(seed)
    schedule = follow(completion, free, work)
    assert sorted((row.kind, row.response) for row in schedule.rows) == sorted(
        (kind, r) for kind in ("prepare", "learn") for r in range(len(work))
    )
    for server, actor in enumerate(schedule.actor):
        rows = [row for row in schedule.rows if row.server == server]
        assert all(a.end_s <= b.start_s for a, b in itertools.pairwise(rows))
        assert actor < 0 or all(row.start_s >= free[actor] for row in rows)
    assert sum(one.end_s - one.start_s for one in schedule.busy) == pytest.approx(work.total_s)


@given(seeds)
@settings(deadline=None, max_examples=100)
def test_gpu_seconds_are_those_of_the_rows(seed: int) -> None:
    completion, free, work = random_case(seed)
    schedule, expected = follow(completion, free, work), 0.0
    learner = len(schedule.actor) - work.learner_gpus
    for server in range(len(schedule.actor)):
        rows = [row for row in schedule.rows if row.server == server and row.end_s > row.start_s]
        if server >= learner:
            expected += max(0.0, schedule.step_s - (work.learner_from_s or 0.0))
        elif rows:
            expected += rows[-1].end_s - rows[0].start_s
    assert schedule.gpu_s == pytest.approx(expected)


@given(seeds)
@settings(deadline=None, max_examples=100)
def test_beside_with_learning_at_the_end_is_the_plain_list_schedule(seed: int) -> None:
    completion, free, work = random_case(seed)
    beside = PhaseWork(work.prepare_s, work.learn_s, work.group, "batch", place="beside")
    schedule = follow(completion, free, beside)
    prepared = schedule_work(WorkItems(work.prepare_s, completion), np.zeros(len(free)))
    learned = schedule_work(WorkItems(work.learn_s, prepared.finished_s), np.zeros(len(free)))
    starts = {(row.kind, row.response): row.start_s for row in schedule.rows}
    assert [starts[("prepare", r)] for r in range(len(work))] == prepared.start_s.tolist()
    assert schedule.step_s == pytest.approx(max(learned.finished_s, completion.max(), free.max()))


@given(seeds)
@settings(deadline=None, max_examples=200)
def test_the_bound_is_never_above_the_schedule(seed: int) -> None:
    completion, free, work = random_case(seed)
    assert phase_bound_s(completion, free, work) <= follow(completion, free, work).step_s


def test_divisible_work_on_one_learner_meets_the_bound() -> None:
    work = PhaseWork([0.5] * 6, [1.5] * 6, [0, 0, 1, 1, 2, 2], "response", learner_gpus=1, place="learner")
    completion = [1, 1, 9, 9.5, 10, 11]
    assert phase_bound_s(completion, [11.0], work) == pytest.approx(follow(completion, [11.0], work).step_s)
    assert phase_bound_s(completion, [11.0], work) == pytest.approx(9 + 4 * 2)


def random_step(seed: int) -> tuple[PlanningProblem, PhaseWork]:
    """A small step whose lengths are long-tailed, with preparation and learning by tokens."""
    rng = np.random.default_rng(seed)
    responses, gpus, learner = int(rng.integers(2, 30)), int(rng.integers(1, 3)), int(rng.integers(0, 3))
    lengths = np.maximum(1, rng.lognormal(4, 1, responses).astype(int))
    latency = LatencyModel(
        "mine", gpus, base_s=5e-3, per_response_s=float(rng.choice([0, 1e-3])), per_kv_token_s=1e-6, prefill_per_token_s=1e-4,
        start_s=0.5, sync_s=0.1, max_batch=8, kv_capacity_tokens=8 * 2100,
    )  # fmt: skip
    workload = Workload([20] * responses, range(responses), lengths)
    place = str(rng.choice(["freed", "beside", "learner"] if learner else ["freed", "beside"]))
    per_token_s = float(rng.choice([1e-4, 2e-3]))
    work = PhaseWork(
        lengths * per_token_s, 3 * lengths * per_token_s, rng.integers(0, 4, responses),
        str(rng.choice(["response", "group", "batch"])), learner * gpus, learner_grows=bool(learner and rng.random() < 0.5),
        place=place, gpus_per_actor=gpus,
    )  # fmt: skip
    return PlanningProblem(workload, Cluster(1, 4 * gpus, gpus), latency), work


def executed(problem: PlanningProblem, work: PhaseWork, actors: int) -> tuple[float, float]:
    """Time and GPU-seconds of the random split's step, where every response completes with its actor."""
    plan = random_split(problem, actors=actors)
    cluster, latency = problem.one_kind
    completion, free = np.zeros(len(work)), np.zeros(len(plan.actors))
    for i, actor in enumerate(plan.actors):
        ready = actor.start_s + ready_s(latency, actor.prewarmed)
        admission = admission_of(latency, actor.max_batch, problem.admission)
        free[i] = ready + actor_busy_s(problem.workload, actor, latency, admission)
        completion[list(actor.responses)] = free[i]
    schedule = follow(completion, free, work)
    return schedule.step_s, cluster.gpus_per_actor * float(free.sum()) + schedule.gpu_s


def check_step(seed: int) -> None:
    """No split of this step is faster or cheaper than the bound."""
    problem, work = random_step(seed)
    bound = step_bound(problem, work)
    for actors in (1, 2, 4):
        time_s, gpu_s = executed(problem, work, min(actors, len(work)))
        assert bound.time_s <= time_s * (1 + 1e-9), seed
        assert bound.gpu_seconds(time_s * (1 + 1e-9)) <= gpu_s * (1 + 1e-9), seed


def test_the_step_bound_is_never_above_a_step() -> None:
    for seed in range(6):
        check_step(seed)


@pytest.mark.nightly
def test_the_step_bound_is_never_above_many_steps() -> None:
    for seed in range(6, 707):
        check_step(seed)


def test_no_step_is_shorter_than_the_bound() -> None:
    problem, work = random_step(1)
    bound = step_bound(problem, work)
    assert bound.gpu_seconds(bound.time_s * 0.9) == np.inf
    assert 0 < bound.gpu_seconds(bound.time_s * 1.1) < np.inf


def _work(**changes: Any) -> PhaseWork:
    return PhaseWork(**{"prepare_s": [1.0, 2.0], "learn_s": [1.0, 2.0], "group": [0, 1], **changes})


WRONG = {
    "negative": (lambda: _work(prepare_s=[1.0, -2.0]), ("prepare_s[1]", "-2")),
    "infinite": (lambda: _work(learn_s=[np.inf, 1.0]), ("learn_s[0]", "inf")),
    "text": (lambda: _work(learn_s=["a", "b"]), ("learn_s",)),
    "another length": (lambda: _work(learn_s=[1.0]), ("learn_s", "(1,)")),
    "group of another length": (lambda: _work(group=[0, 1, 2]), ("group", "(3,)", "2 responses")),
    "half a group": (lambda: _work(group=[0, 0.5]), ("group[1]", "0.5")),
    "unlock": (lambda: _work(unlock="prompt"), ("'prompt'", "group")),
    "place": (lambda: _work(place="cloud"), ("'cloud'", "freed")),
    "no learner": (lambda: _work(place="learner"), ("learner_gpus", "1 or more")),
    "negative learner": (lambda: _work(learner_gpus=-1), ("learner_gpus", "-1")),
    "part of a server": (lambda: _work(learner_gpus=3, gpus_per_actor=2), ("learner_gpus is 3", "2 GPUs")),
    "no GPUs per actor": (lambda: _work(gpus_per_actor=0), ("gpus_per_actor",)),
    "start before the step": (lambda: _work(learner_gpus=1, learner_from_s=-1.0), ("learner_from_s", "-1")),
    "start without a learner": (lambda: _work(learner_from_s=1.0), ("learner_from_s", "no GPUs")),
    "no flag": (lambda: _work(learner_gpus=1, learner_grows="yes"), ("learner_grows", "'yes'")),
    "completions": (lambda: follow([1.0], [1.0], _work()), ("completion_s", "2 responses")),
    "no completion": (lambda: follow([1.0, np.nan], [1.0], _work()), ("completion_s[1]", "nan")),
    "no actor": (lambda: follow([1.0, 2.0], [], _work()), ("free_s", "one actor")),
    "no work": (lambda: follow([1.0], [1.0], cast(Any, None)), ("None", "PhaseWork")),
    "other responses": (lambda: step_bound(random_step(1)[0], _work()), ("2 responses",)),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make()
