"""Partial rollout and over-sampling, against loops that run one decode iteration at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import Loop, Steps
from what_if_runs import TWO_STEPS, small_run, small_steps

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.what_ifs import as_logged, over_sampling, partial_rollout
from rlhfless.analysis.what_ifs.outcome import RunToChange, WayOutcome
from rlhfless.errors import InputError
from rlhfless.latency import load_profile
from rlhfless.latency.effects import Effects
from solver.model.objective import NonGenerationPhases

ACTORS = st.integers(1, 3)


def check(outcome: WayOutcome, loop: Loop, time_s: float, run: RunToChange) -> None:
    """The outcome is what the loop did, no response is lost, and no bound is above its time."""
    assert outcome.time_s == pytest.approx(time_s, rel=1e-9)
    assert outcome.gpu_s == pytest.approx(run.setting.cluster.gpus * time_s, rel=1e-9)
    change = loop.change()
    assert {name: getattr(outcome.data, name) for name in change} == change
    assert outcome.least_time_s <= outcome.time_s * (1 + 1e-9)
    started = [one for group in loop.started for one in group]
    data = outcome.data
    waited = sum(len(group) for group in loop.earlier)
    assert data.learned_responses + data.dropped_responses + data.waiting_responses == waited + len(started)
    assert data.started_mean_tokens == (pytest.approx(sum(one.length for one in started) / len(started)) if started else None)


@settings(max_examples=8)
@given(small_steps(), ACTORS, st.sampled_from([0.0, 0.25, 0.5, 0.9]))
def test_partial_rollout_is_the_loop(steps: Steps, actors: int, carried: float) -> None:
    run, loop = small_run(steps, actors), Loop(steps, actors, 8.0, 0.5)
    time_s = loop.collected(
        lambda wanted, _: wanted, lambda wanted, left: left + wanted - math.floor(carried * wanted), keep=True
    )
    check(partial_rollout.way(run, carried), loop, time_s, run)


@settings(max_examples=8)
@given(small_steps(), ACTORS, st.sampled_from([0.0, 0.01, 0.25, 0.6]))
def test_a_stop_at_few_unfinished_responses_is_the_loop(steps: Steps, actors: int, unfinished: float) -> None:
    run, loop = small_run(steps, actors), Loop(steps, actors, 8.0, 0.5)
    time_s = loop.stopped(lambda responses: max(1, math.floor(unfinished * responses)) if unfinished else 0)
    check(partial_rollout.way(run, unfinished=unfinished), loop, time_s, run)


@settings(max_examples=8)
@given(small_steps(), ACTORS, st.integers(1, 13))
def test_a_budget_of_tokens_is_the_loop(steps: Steps, actors: int, token_budget: int) -> None:
    run, loop = small_run(steps, actors), Loop(steps, actors, 8.0, 0.5)
    time_s = loop.budgeted(token_budget)
    outcome = partial_rollout.way(run, token_budget=token_budget)
    check(outcome, loop, time_s, run)
    assert outcome.steps == len(steps)


@settings(max_examples=8)
@given(small_steps(), ACTORS, st.sampled_from([1.0, 1.5, 2.0, 3.25]), st.booleans())
def test_over_sampling_is_the_loop(steps: Steps, actors: int, factor: float, keep: bool) -> None:
    run, loop = small_run(steps, actors), Loop(steps, actors, 8.0, 0.5)
    time_s = loop.collected(lambda wanted, left: max(0, math.ceil(factor * wanted) - left), lambda wanted, _: wanted, keep=keep)
    outcome = over_sampling.way(run, factor, keep)
    check(outcome, loop, time_s, run)
    assert outcome.data.dropped_responses == 0 or not keep
    assert keep or outcome.data.on_policy


@pytest.mark.parametrize("dispatch", ["static", "least-loaded"])
def test_what_changes_nothing_is_as_logged(dispatch: str) -> None:
    """Also with a response of no tokens, and with a learner that has GPUs of its own."""
    run = small_run([[(4, [0, 9]), (2, [5, 5])], *TWO_STEPS], 2, learner_gpus=1, dispatch=dispatch)
    own = as_logged.way(run)
    assert own.data.on_policy
    assert own.gpu_s == pytest.approx(3 * own.time_s)
    for same in (
        partial_rollout.way(run, 0),
        partial_rollout.way(run, unfinished=0),
        partial_rollout.way(run, token_budget=12),
        over_sampling.way(run, 1),
    ):
        assert (same.time_s, same.gpu_s) == pytest.approx((own.time_s, own.gpu_s), rel=1e-12)
        assert same.least_time_s == pytest.approx(own.least_time_s, rel=1e-5)
        assert replace(same.data, started_mean_tokens=None) == own.data


def test_what_is_dropped_is_long() -> None:
    """Two prompts of four tokens and two of forty: half as many again are started, and the long ones never count."""
    steps = [[(1, [4]), (1, [40]), (1, [4]), (1, [40])]] * 3
    run = small_run(steps, 4)
    dropped, kept = over_sampling.way(run, 2.0), over_sampling.way(run, 2.0, keep=True)
    assert dropped.data.learned_tokens == 12 * 4
    assert dropped.data.learned_length_ratio == pytest.approx(4 / 22)
    assert (dropped.data.dropped_responses, dropped.data.waiting_responses) == (12, 0)
    assert (kept.data.dropped_responses, kept.data.waiting_responses) == (0, 4)


def test_what_waits_is_paid_for() -> None:
    """Of equal steps, as much is learned as in the log, and as many responses wait before them as after."""
    run = small_run([[(1, [3]), (1, [9]), (1, [3]), (1, [30])]] * 4, 4)
    own = as_logged.way(run)
    for outcome in (
        partial_rollout.way(run, 0.25), partial_rollout.way(run, unfinished=0.25), partial_rollout.way(run, token_budget=10),
        over_sampling.way(run, 1.5, keep=True),
    ):  # fmt: skip
        assert (outcome.data.learned_responses, outcome.data.learned_tokens) == (16, own.data.learned_tokens)
        assert outcome.data.waiting_responses > 0
        assert outcome.seconds_per_token < own.seconds_per_token


def test_learning_follows_tokens_and_may_be_unknown() -> None:
    """Steps of one long response and of one short one: their learning adds up to two average steps."""
    run = small_run([[(10, [30])], [(10, [10])]], 1)
    without = small_run([[(10, [30])], [(10, [10])]], 1, PhaseSeconds())
    assert as_logged.way(run).time_s - as_logged.way(without).time_s == pytest.approx(2 * 8.5)
    assert partial_rollout.way(without, 0.5).time_s == pytest.approx(as_logged.way(without).time_s)


@pytest.mark.full
@settings(max_examples=4)
@given(small_steps(), st.sampled_from([0.5, 1.0]))
def test_no_bound_is_above_a_way_with_mixed_prefill(steps: Steps, scale: float) -> None:
    """A measured table, and prompts in chunks."""
    run = small_run(steps, 2, PhaseSeconds(0.0, scale, 0.1, "stated"), latency=load_profile("h100-qwen2.5-3b-tp1"))
    ways = [as_logged.way(run), partial_rollout.way(run, 0.5), partial_rollout.way(run, token_budget=4)]
    for outcome in [*ways, over_sampling.way(run, 1.5), over_sampling.way(run, 2.0, keep=True)]:
        assert 0 < outcome.least_time_s <= outcome.time_s * (1 + 1e-9)


def test_wrong_arguments() -> None:
    run = small_run()
    for carried in (1, -0.1, "half", float("nan")):
        with refused(InputError, "carried", str(carried)):
            partial_rollout.way(run, carried)  # type: ignore[arg-type]
        with refused(InputError, "unfinished", str(carried)):
            partial_rollout.way(run, unfinished=carried)  # type: ignore[arg-type]
    for budget in (0, 2.5, "8"):
        with refused(InputError, "token_budget", str(budget)):
            partial_rollout.way(run, token_budget=budget)  # type: ignore[arg-type]
    with refused(InputError, "carried and token_budget"):
        partial_rollout.way(run, 0.5, 8)
    with refused(InputError, "carried", "token_budget", "unfinished"):
        partial_rollout.way(run)
    for factor in (0.5, 17, None):
        with refused(InputError, "factor", str(factor)):
            over_sampling.way(run, factor)  # type: ignore[arg-type]


def test_runs_that_cannot_be_changed() -> None:
    run = small_run()
    with refused(InputError, "RunToChange"):
        as_logged.way([])  # type: ignore[arg-type]
    with refused(InputError, "no steps"):
        as_logged.way(replace(run, logged=[]))
    with refused(InputError, "effects"):
        as_logged.way(replace(run, setting=replace(run.setting, effects=Effects())))
    with refused(InputError, "phases"):
        as_logged.way(replace(run, setting=replace(run.setting, phases=NonGenerationPhases(learn_s=1.0, learner_gpus=2))))
