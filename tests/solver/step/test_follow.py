"""Preparation and learning of a step: against an event simulation, and the lower bounds against executed schedules."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from solver import Cluster, LatencyModel, PlanningError, PlanningProblem, Workload, random_split
from solver.bounds.schedules import ScheduleBound
from solver.step.bound import phase_bound_s, whole_step_bound
from solver.step.charges import Charges
from solver.step.follow import follow
from solver.step.work import BESIDE_DECODING, Learner, StepWork
from solver.timing.evaluate import actor_busy_s, admission_of, ready_s
from solver.timing.work_schedule import WorkItems, schedule_work

Spans = dict[tuple[str, int], tuple[float, float]]  # start and end by kind and response
seeds = st.integers(0, 2**32 - 1)


def random_case(seed: int) -> tuple[np.ndarray, np.ndarray, StepWork, Learner]:
    """Completions, free times, work and learner of a small step; whole seconds, so that ties occur."""
    rng = np.random.default_rng(seed)
    responses, actors = int(rng.integers(1, 10)), int(rng.integers(1, 4))
    completion = rng.integers(0, 12, responses).astype(float)
    free = rng.integers(0, 14, actors).astype(float)
    work = StepWork(
        rng.integers(0, 4, responses), rng.integers(0, 4, responses), rng.integers(0, 3, responses),
        unlock=str(rng.choice(["response", "group"])),
    )  # fmt: skip
    return completion, free, work, random_learner(rng)


def random_learner(rng: np.random.Generator) -> Learner:
    """A learner of 0 to 2 servers, whose start is a whole second."""
    own = int(rng.integers(0, 3))
    return Learner(
        own, float(rng.integers(0, 9)) if own and rng.random() < 0.5 else 0.0, bool(rng.random() < 0.5) or not own,
        bool(rng.random() < 0.7), bool(rng.random() < 0.8), str(rng.choice(["released", "beside", "learner"])),
    )  # fmt: skip


def by_event_simulation(completion: np.ndarray, free: np.ndarray, work: StepWork, learner: Learner) -> Spans:
    """Start at each whole second what may start: preparation first, then what is ready for longest, then by index."""
    grows = learner.grows and learner.own > 0
    released = free.tolist()
    own = [learner.from_s] * learner.own
    learns_on = [*own, *(released if grows else [])] or released
    prepares_on = {"released": released, "beside": [0.0] * len(released), "learner": learns_on}[learner.place]
    prepares_on = learns_on if grows and learner.place == "released" else prepares_on
    if not own:
        learns_on = prepares_on
    unlock = work.unlock if learner.streams else "batch"
    completion = completion if learner.overlaps else np.full(len(completion), completion.max())
    pools = [prepares_on] if learns_on is prepares_on else [prepares_on, learns_on]
    idle_from = [list(pool) for pool in pools]
    found: dict[tuple[str, int], tuple[float, float]] = {}
    responses = range(len(work))

    def ready_since(kind: str, r: int) -> float:
        if kind == "prepare":
            return float(completion[r])
        waits = {"response": [r], "group": [q for q in responses if work.group[q] == work.group[r]], "batch": list(responses)}
        ends = [found[("prepare", q)][1] if ("prepare", q) in found else np.inf for q in waits[unlock]]
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
    completion, free, work, learner = random_case(seed)
    work = replace(work, prepare_s=work.prepare_s + 1, learn_s=work.learn_s + 1)
    schedule, expected = follow(completion, free, work, learner), by_event_simulation(completion, free, work, learner)
    assert {(row.kind, row.response): (row.start_s, row.end_s) for row in schedule.rows} == expected, seed
    assert schedule.step_s == max(free.max(), *(end for _, end in expected.values())), seed
    prepared = max(end for (kind, _), (_, end) in expected.items() if kind == "prepare")
    assert schedule.prepare_end_s == max(free.max(), prepared), seed


@given(seeds)
@settings(deadline=None, max_examples=100)
def test_no_server_works_twice_at_once_or_before_it_is_free(seed: int) -> None:
    completion, free, work, learner = random_case(seed)
    schedule = follow(completion, free, work, learner)
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
    completion, free, work, learner = random_case(seed)
    schedule, expected = follow(completion, free, work, learner), 0.0
    first = len(schedule.actor) - learner.own
    for server in range(len(schedule.actor)):
        rows = [row for row in schedule.rows if row.server == server and row.end_s > row.start_s]
        if server >= first:
            expected += max(0.0, schedule.step_s - learner.from_s)
        elif rows:
            expected += rows[-1].end_s - rows[0].start_s
    assert schedule.gpu_s == pytest.approx(expected)


@given(seeds)
@settings(deadline=None, max_examples=100)
def test_beside_with_learning_at_the_end_is_the_plain_list_schedule(seed: int) -> None:
    completion, free, work, _ = random_case(seed)
    schedule = follow(completion, free, work, Learner(overlaps=True, place="beside"))
    prepared = schedule_work(WorkItems(work.prepare_s, completion), np.zeros(len(free)))
    learned = schedule_work(WorkItems(work.learn_s, prepared.finished_s), np.zeros(len(free)))
    starts = {(row.kind, row.response): row.start_s for row in schedule.rows}
    assert [starts[("prepare", r)] for r in range(len(work))] == prepared.start_s.tolist()
    assert schedule.step_s == pytest.approx(max(learned.finished_s, completion.max(), free.max()))


@given(seeds)
@settings(deadline=None, max_examples=200)
def test_the_bound_is_never_above_the_schedule(seed: int) -> None:
    rng = np.random.default_rng(seed)
    completion, free, work, learner = random_case(seed)
    charges = Charges.by_formula(6, 1, float(rng.choice([0.0, 0.3])), *rng.integers(0, 3, 2).astype(float).tolist())
    work = replace(work, charges=charges)
    assert phase_bound_s(completion, free, work, learner) <= follow(completion, free, work, learner).step_s + 1e-9


def test_divisible_work_on_one_learner_meets_the_bound() -> None:
    work, learner = StepWork([0.5] * 6, [1.5] * 6, [0, 0, 1, 1, 2, 2], "response"), replace(BESIDE_DECODING, own=1, grows=False)
    given = [1, 1, 9, 9.5, 10, 11], [11.0], work, learner
    assert phase_bound_s(*given) == pytest.approx(follow(*given).step_s)
    assert phase_bound_s(*given) == pytest.approx(9 + 4 * 2)


def random_step(seed: int) -> tuple[PlanningProblem, StepWork, Learner]:
    """A small step whose lengths are long-tailed, with preparation and learning by tokens."""
    rng = np.random.default_rng(seed)
    responses, gpus = int(rng.integers(2, 30)), int(rng.integers(1, 3))
    lengths = np.maximum(1, rng.lognormal(4, 1, responses).astype(int))
    latency = LatencyModel(
        "mine", gpus, base_s=5e-3, per_response_s=float(rng.choice([0, 1e-3])), per_kv_token_s=1e-6, prefill_per_token_s=1e-4,
        start_s=0.5, sync_s=0.1, max_batch=8, kv_capacity_tokens=8 * 2100,
    )  # fmt: skip
    workload = Workload([20] * responses, range(responses), lengths)
    per_token_s, learner = float(rng.choice([1e-4, 2e-3])), random_learner(rng)
    charges = Charges.by_formula(6, 1, *(float(rng.choice([0.0, most])) for most in (0.2, 0.3, 0.3)))
    if rng.random() < 0.3:  # in no order
        charges = Charges(*(tuple(rng.uniform(low, high, 6).tolist()) for low, high in ((1, 2), (0, 0.4), (0, 0.4))))
    work = StepWork(
        lengths * per_token_s, 3 * lengths * per_token_s, rng.integers(0, 4, responses),
        str(rng.choice(["response", "group"])), gpus, charges,
    )  # fmt: skip
    return PlanningProblem(workload, Cluster(1, 4 * gpus, gpus), latency), work, learner


def executed(problem: PlanningProblem, work: StepWork, learner: Learner, actors: int) -> tuple[float, float]:
    """Time and GPU-seconds of the random split's step, where every response completes with its actor."""
    plan = random_split(problem, actors=actors)
    cluster, latency = problem.one_kind
    completion, free = np.zeros(len(work)), np.zeros(len(plan.actors))
    for i, actor in enumerate(plan.actors):
        ready = actor.start_s + ready_s(latency, actor.prewarmed)
        admission = admission_of(latency, actor.max_batch, problem.admission)
        free[i] = ready + actor_busy_s(problem.workload, actor, latency, admission)
        completion[list(actor.responses)] = free[i]
    schedule = follow(completion, free, work, learner)
    return schedule.step_s, cluster.gpus_per_actor * float(free.sum()) + schedule.gpu_s


def check_step(seed: int) -> None:
    """No split of this step is faster or cheaper than the bound."""
    problem, work, learner = random_step(seed)
    bound = whole_step_bound(ScheduleBound(problem), work, learner)
    for actors in (1, 2, 4):
        time_s, gpu_s = executed(problem, work, learner, min(actors, len(work)))
        assert bound.shortest_s() <= time_s * (1 + 1e-9), seed
        assert bound.gpu_seconds(time_s * (1 + 1e-9)) <= gpu_s * (1 + 1e-9), seed


def test_the_bound_with_a_given_learner_is_never_above_a_step() -> None:
    for seed in range(6):
        check_step(seed)


@pytest.mark.nightly
def test_the_bound_with_a_given_learner_is_never_above_many_steps() -> None:
    for seed in range(6, 707):
        check_step(seed)


def test_no_step_is_shorter_than_the_bound() -> None:
    problem, work, learner = random_step(1)
    bound = whole_step_bound(ScheduleBound(problem), work, learner)
    assert bound.gpu_seconds(bound.shortest_s() * 0.9) == np.inf
    assert 0 < bound.gpu_seconds(bound.shortest_s() * 1.1) < np.inf


def _work(**changes: Any) -> StepWork:
    return StepWork(**{"prepare_s": [1.0, 2.0], "learn_s": [1.0, 2.0], "group": [0, 1], **changes})


WRONG = {
    "negative": (lambda: _work(prepare_s=[1.0, -2.0]), ("prepare_s[1]", "-2")),
    "infinite": (lambda: _work(learn_s=[np.inf, 1.0]), ("learn_s[0]", "inf")),
    "text": (lambda: _work(learn_s=["a", "b"]), ("learn_s",)),
    "another length": (lambda: _work(learn_s=[1.0]), ("learn_s", "(1,)")),
    "group of another length": (lambda: _work(group=[0, 1, 2]), ("group", "(3,)", "2 responses")),
    "half a group": (lambda: _work(group=[0, 0.5]), ("group[1]", "0.5")),
    "unlock": (lambda: _work(unlock="prompt"), ("'prompt'", "group")),
    "charges": (lambda: _work(charges=0.1), ("charges is 0.1", "Charges")),
    "no GPUs per actor": (lambda: _work(gpus_per_actor=0), ("gpus_per_actor",)),
    "place": (lambda: Learner(place="cloud"), ("'cloud'", "released")),
    "negative learner": (lambda: Learner(-1), ("own", "-1")),
    "part of a server": (lambda: Learner(cast(Any, 1.5)), ("own is 1.5", "whole number")),
    "start before the step": (lambda: Learner(1, -1.0), ("from_s", "-1")),
    "start of no server": (lambda: Learner(from_s=5.0), ("from_s is 5", "own")),
    "no GPUs to learn on": (lambda: Learner(grows=False), ("grows is False", "own")),
    "no GPUs to learn on while they are released": (lambda: Learner(grows=False, place="released"), ("grows is False", "own")),
    "no flag": (lambda: Learner(1, grows=cast(Any, "yes")), ("grows", "'yes'")),
    "completions": (lambda: follow([1.0], [1.0], _work(), Learner()), ("completion_s", "2 responses")),
    "no completion": (lambda: follow([1.0, np.nan], [1.0], _work(), Learner()), ("completion_s[1]", "nan")),
    "no actor": (lambda: follow([1.0, 2.0], [], _work(), Learner()), ("free_s", "one actor")),
    "no work": (lambda: follow([1.0], [1.0], cast(Any, None), Learner()), ("None", "StepWork")),
    "no learner": (lambda: follow([1.0, 2.0], [1.0], _work(), cast(Any, None)), ("None", "Learner")),
    "a size that cannot learn": (
        lambda: follow([1.0, 2.0], [1.0], _work(charges=Charges((1.0,), (0.0,), (0.0,))), Learner(1)), ("2 servers",)
    ),
    "other responses": (
        lambda: whole_step_bound(ScheduleBound(random_step(1)[0]), _work(), Learner()), ("2 responses",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence(case: str) -> None:
    make, named = WRONG[case]
    with refused(PlanningError, *named):
        make()
