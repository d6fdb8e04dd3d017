"""Asynchronous generation, against loops that run one decode iteration at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from error_messages import refused
from hypothesis import example, given, settings
from hypothesis import strategies as st
from what_if_loops import Loop, Steps
from what_if_runs import small_run, small_steps

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.what_ifs import as_logged, asynchronous
from rlhfless.analysis.what_ifs.asynchronous import update_seconds, with_interrupts
from rlhfless.analysis.what_ifs.compare import compare_ways
from rlhfless.errors import InputError

STALENESS = st.integers(0, 3)
LEARN_S = st.sampled_from([0.25, 8.0, 40.0])

UPDATED_BEFORE_THE_START: Steps = [[(1, [1])], [(1, [1])], [(1, [2])]]


@pytest.mark.full
@example(UPDATED_BEFORE_THE_START, 1, 2, 0.25)
@settings(max_examples=40)
@given(small_steps(5), st.integers(1, 3), STALENESS, LEARN_S)
def test_a_division_is_the_loop(steps: Steps, actors: int, staleness: int, learn_s: float) -> None:
    """Four GPUs learn in ``learn_s`` where they all do; beside actors, fewer of them take longer."""
    run = small_run(steps, 4, PhaseSeconds(0.0, learn_s, 0.5, "stated"))
    loop = Loop(steps, actors, learn_s * 4 / (4 - actors), 0.5)
    time_s = loop.with_interrupts(staleness)
    outcome = asynchronous.way(run, staleness, actors)
    assert outcome.time_s == pytest.approx(time_s, rel=1e-9)
    assert outcome.gpu_s == pytest.approx(4 * time_s, rel=1e-9)
    change = loop.change()
    assert {name: getattr(outcome.data, name) for name in change} == change
    assert outcome.data.most_stale_steps <= staleness
    assert outcome.data.waiting_responses == outcome.data.dropped_responses == 0
    assert outcome.least_time_s <= outcome.time_s * (1 + 1e-9)
    assert outcome.parameters == {"staleness": staleness, "generator_gpus": actors, "trainer_gpus": 4 - actors}


@settings(max_examples=8)
@given(small_steps(), STALENESS, LEARN_S, st.sampled_from([0, 2]))
def test_the_best_division_is_reported(steps: Steps, staleness: int, learn_s: float, learner_gpus: int) -> None:
    """A division that a bound excludes is never faster; the learner's own GPUs are divided, too."""
    run = small_run(steps, 3, PhaseSeconds(0.0, learn_s, 0.5, "stated"), learner_gpus=learner_gpus)
    every = [
        with_interrupts(run, actors, staleness, update_seconds(run, actors)).time_s for actors in range(1, 3 + learner_gpus)
    ]
    assert asynchronous.way(run, staleness).time_s == min(every)


@pytest.mark.parametrize("dispatch", ["static", "least-loaded"])
def test_no_staleness_takes_turns(dispatch: str) -> None:
    """With a learner of its own, the run's own division without staleness is the run itself."""
    run = small_run(actors=2, learner_gpus=3, dispatch=dispatch)
    own, outcome = as_logged.way(run), asynchronous.way(run, 0, 2)
    assert outcome.time_s == pytest.approx(own.time_s, rel=1e-12)
    assert outcome.least_time_s == pytest.approx(own.least_time_s, rel=1e-5)
    assert outcome.data.on_policy
    assert outcome.fill_s == 0
    assert outcome.parameters["trainer_gpus"] == 3


@pytest.mark.parametrize(("staleness", "lengths"), [(2, [9]), (1, [40, 40])])
def test_a_longer_run_fills_its_pipeline_once(staleness: int, lengths: list[int]) -> None:
    """Four equal steps, taken as a part of 12, cost what 12 simulated ones cost; per step they would cost more.

    Interrupted steps repeat a pattern of several steps, so they are off by up to 1 %.
    """
    part, whole = (
        asynchronous.way(small_run([[(1, lengths)]] * steps, 2, PhaseSeconds(0.0, 10.0, 0.0, "stated")), staleness)
        for steps in (4, 12)
    )
    assert part.over(12) == pytest.approx((whole.time_s, whole.gpu_s), rel=0.01)
    assert part.over(4) == pytest.approx((part.time_s, part.gpu_s))
    assert part.time_s / 4 * 12 > whole.time_s


def test_a_comparison_has_the_means_over_the_whole_run() -> None:
    phases = PhaseSeconds(0.0, 10.0, 0.0, "stated")
    run = small_run([[(1, [40, 40])]] * 4, 2, phases)
    way, base = asynchronous.way(run), as_logged.way(run)
    assert way.fill_s > 0
    for all_steps, steps in ((12, 12), (None, 4)):
        compared = compare_ways(replace(run, all_steps=all_steps))
        mean = compared.means().set_index("variant").loc[way.name]
        assert mean["time_s"] == pytest.approx(way.over(steps)[0] / steps)
        assert mean["time_saved"] == pytest.approx(1 - way.over(steps)[0] / base.over(steps)[0])
        assert ("all 12 steps" in repr(compared)) == (all_steps == 12)
        assert f"{way.name} in {way.fill_s:.3g} s" in repr(compared)


def test_learning_of_unknown_seconds() -> None:
    outcome = asynchronous.way(small_run(phases=PhaseSeconds()), 2)
    assert math.isnan(outcome.time_s)
    assert math.isnan(outcome.least_time_s)
    assert "unknown" in outcome.unknown
    assert outcome.data.most_stale_steps == 2
    assert not outcome.data.on_policy


def test_an_unknown_learner_keeps_its_gpus() -> None:
    """Where nobody knows how many GPUs learn, the actors' are all that is counted and stay what they are."""
    run = small_run(learner_gpus=1)
    unknown = replace(run, setup=replace(run.setup, learner_gpus=0))
    outcome = asynchronous.way(unknown, 1)
    assert outcome.parameters == {"staleness": 1, "generator_gpus": 2}
    assert outcome.gpu_s == pytest.approx(2 * outcome.time_s)
    assert outcome.time_s == asynchronous.way(run, 1, generator_actors=2).time_s


def test_wrong_arguments() -> None:
    run = small_run()
    for staleness in (-1, 0.5, "1"):
        with refused(InputError, "staleness", str(staleness)):
            asynchronous.way(run, staleness)  # type: ignore[arg-type]
    for actors in (0, 2, "1"):
        with refused(InputError, "generator_actors", str(actors)):
            asynchronous.way(run, 1, generator_actors=actors)  # type: ignore[arg-type]
    with refused(InputError, "1 GPU"):
        asynchronous.way(small_run(actors=1), 1)
