"""Deferred and token-aware dispatch against loops of one iteration at a time; drafts, overlaps, released GPUs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import BRUTE, Actor, Group, Loop, Response, Steps
from what_if_runs import TWO_STEPS, small_run, small_steps

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.phase_savings import PhaseSavings
from rlhfless.analysis.what_ifs import as_logged, deferred_dispatch, drafts, overlaps, released, token_aware
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.errors import InputError

ACTORS = st.integers(1, 3)
READY_S = BRUTE.start_s + BRUTE.sync_s


def all_iterations_s(actors: list[Actor]) -> float:
    """When the last response of these actors is complete."""
    now_s = 0.0
    for actor in actors:
        while actor.end_s < math.inf:
            now_s = max(now_s, actor.end_s)
            actor.commit(0)
    return now_s


def with_one_queue_s(responses: list[Response], count: int, slots: int) -> float:
    """The same where responses wait in one queue, and each goes to an actor when that has a free slot."""
    first: list[list[Response]] = [[] for _ in range(count)]
    waiting = list(responses)
    while waiting and min(map(len, first)) < slots:
        min(first, key=len).append(waiting.pop(0))
    actors, now_s = [Actor(mine, READY_S) for mine in first if mine], 0.0
    while (now_s_next := min(actor.end_s for actor in actors)) < math.inf:
        now_s = now_s_next
        due = [actor for actor in actors if actor.end_s == now_s]
        stays = {id(a): [r for r in a.running if len(r.versions) + 1 < r.length] for a in actors}
        in_flight = {id(a): len(stays[id(a)] if a in due else a.running) for a in actors}
        while waiting and (free := [a for a in actors if in_flight[id(a)] < slots]):
            actor = min(free, key=lambda a: in_flight[id(a)])
            actor.queue = [*actor.queue, waiting.pop(0)]
            in_flight[id(actor)] += 1
        for actor in due:
            actor.commit(0)
    return now_s


def whole_s(loop: Loop, generated_s: Callable[[int, list[Group]], float]) -> float:
    return sum(generated_s(number, step) + loop.update_s(step) + loop.sync_s for number, step in enumerate(loop.groups))


def check_on_policy(outcome: WayOutcome, run: RunToChange) -> None:
    """All responses are learned from, none is stale, and no bound is above the time."""
    assert outcome.data == as_logged.way(run).data
    assert outcome.data.on_policy
    assert outcome.least_time_s <= outcome.time_s * (1 + 1e-9)


@settings(max_examples=6)
@given(small_steps(), ACTORS, st.integers(1, 3))
def test_deferred_dispatch_is_the_loop(steps: Steps, actors: int, in_flight: int) -> None:
    run, loop = small_run(steps, actors), Loop(steps, actors, 8.0, 0.5)
    outcome = deferred_dispatch.way(run, in_flight)
    expected = whole_s(loop, lambda _, step: with_one_queue_s([one for group in step for one in group], actors, in_flight))
    assert outcome.time_s == pytest.approx(expected, rel=1e-9)
    check_on_policy(outcome, run)


@settings(max_examples=4)
@given(small_steps(), ACTORS, st.sampled_from(["predicted", "prompt"]))
def test_token_aware_routing_is_the_loop(steps: Steps, actors: int, counted: str) -> None:
    run, loop = small_run(steps, actors), Loop(steps, actors, 8.0, 0.5)

    def generated_s(number: int, step: list[Group]) -> float:
        predicted = iter(run.logged[number].predicted.response_tokens.tolist())
        dealt: list[list[Response]] = [[] for _ in range(actors)]
        tokens = [0] * actors
        for one in (one for group in step for one in group):
            actor = min(range(actors), key=lambda a: (tokens[a], len(dealt[a]), a))
            dealt[actor].append(one)
            tokens[actor] += one.prompt_tokens + (next(predicted) if counted == "predicted" else 0)
        return all_iterations_s([Actor(mine, READY_S) for mine in dealt if mine])

    outcome = token_aware.way(run, counted)
    assert outcome.time_s == pytest.approx(whole_s(loop, generated_s), rel=1e-9)
    check_on_policy(outcome, run)


def test_deferred_dispatch_with_room_for_all_deals_single_responses() -> None:
    """Six responses to two actors of three slots: nobody waits, and the groups are spread."""
    plan = deferred_dispatch.DeferredDispatch().plan(*small_run().logged[0].inputs(small_run().setting, True))
    assert [actor.responses for actor in plan.actors] == [(0, 2, 4), (1, 3, 5)]


def test_memory_that_is_reserved_limits_what_is_in_flight() -> None:
    small = replace(BRUTE, kv_capacity_tokens=20)  # a response of the first step reserves up to 7 + 12
    run = small_run(latency=small, actors=1)
    plan = deferred_dispatch.DeferredDispatch().plan(*run.logged[0].inputs(run.setting, True))
    assert [actor.responses for actor in plan.actors] == [(0, 1, 2, 3, 4, 5)]
    one_by_one = deferred_dispatch.way(run, in_flight=1)
    assert deferred_dispatch.way(run).time_s == pytest.approx(one_by_one.time_s)


@settings(max_examples=3)
@given(small_steps(2), ACTORS, st.sampled_from(["random", "fold"]), st.integers(0, 2))
def test_released_gpus_are_paid_while_they_generate_or_learn(steps: Steps, actors: int, policy: str, learner_gpus: int) -> None:
    run = small_run(steps, actors, learner_gpus=learner_gpus)
    outcome = released.way(run, policy)
    held = (actors + learner_gpus) * outcome.time_s
    learns_s = (actors if not learner_gpus else 0) * 8.5 * len(steps) + learner_gpus * outcome.time_s
    assert learns_s < outcome.gpu_s <= held * (1 + 1e-9)
    check_on_policy(outcome, run)


def test_overlaps_scale_the_run_as_logged() -> None:
    base = as_logged.way(small_run())
    streaming = overlaps.way(base, PhaseSavings(True, 0.1, 0.2, 0.25))
    assert (streaming.name, streaming.data) == ("streaming learning", base.data)
    assert (streaming.time_s, streaming.gpu_s) == pytest.approx((0.8 * base.time_s, 0.8 * base.gpu_s))
    assert streaming.parameters == {"low": 0.1, "high": 0.25}


@settings(max_examples=3)
@given(small_steps(2), st.integers(1, 8), st.floats(-0.2, 0.0))
def test_drafts_that_save_nothing_are_above_their_bound(steps: Steps, draft_tokens: int, saved: float) -> None:
    run = small_run(steps)
    base = as_logged.way(run)
    steps_s = [base.time_s / len(steps) - 8.5] * len(steps)
    outcome = drafts.way(run, steps_s, saved, draft_tokens, measured=True)
    assert outcome.time_s >= base.time_s * (1 - 1e-9)
    assert outcome.least_time_s <= base.least_time_s * (1 + 1e-6)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_wrong_numbers_in_flight_are_refused(wrong: object) -> None:
    with refused(InputError, "in_flight"):
        deferred_dispatch.way(small_run(), wrong)  # type: ignore[arg-type]


def test_wrong_arguments_of_ways_are_refused() -> None:
    run = small_run(TWO_STEPS, phases=PhaseSeconds())
    with refused(InputError, "counted"):
        token_aware.way(run, "tokens")
    with refused(InputError, "policy"):
        released.way(run, "solver")
    with refused(InputError, "saved"):
        drafts.way(run, [1.0, 1.0], 1.0, 4, measured=True)
    with refused(InputError, "draft_tokens"):
        drafts.way(run, [1.0, 1.0], 0.1, 0, measured=True)
    with refused(InputError, "saved"):
        overlaps.way(as_logged.way(run), PhaseSavings(True, 0.1, 1.0, 1.0))
