"""How many GPUs generate and how many train: the recursion against a loop that ticks, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import BRUTE, Steps
from what_if_runs import small_run, small_steps

from rlhfless.analysis import PhaseSeconds, split
from rlhfless.analysis.split import (
    APART,
    DIVIDED,
    LENT,
    SHARED,
    TOGETHER,
    Learning,
    check_staleness,
    learning_of,
    own_split,
    sent_times,
    splits,
    steady_step_s,
    totals_of,
)
from rlhfless.analysis.what_ifs import as_logged
from rlhfless.analysis.what_ifs.asynchronous import with_interrupts
from rlhfless.errors import InputError
from rlhfless.simulate import execute_steps
from solver.model.cluster import Cluster

SECONDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7)
STALENESS = st.integers(0, 4)


def ticked(generate: list[int], learn: list[int], sync: int, staleness: int, lent: int = 1) -> list[int]:
    """When the weights of every update have been sent, one tick after another; each side works, waits or sends in a tick.

    Learning does ``lent`` units of work in a tick in which generation waits for new weights.
    """
    now, complete, sending, generated, learned, sent = 0, 0, 0, 0, 0, []

    def may_generate() -> bool:
        return complete < len(generate) and complete <= len(sent) + staleness

    def settle() -> None:
        """What takes no time: the end of batches and updates, and weights that are sent at once."""
        nonlocal complete, generated, learned, sending
        while not sending and len(sent) < len(learn):
            if may_generate() and generated >= generate[complete]:
                complete, generated = complete + 1, 0
            elif len(sent) < complete and learned >= learn[len(sent)]:
                learned, sending = 0, sync
                if not sync:
                    sent.append(now)
            else:
                return

    settle()
    while len(sent) < len(learn):
        now += 1
        if sending:
            sending -= 1
            if not sending:
                sent.append(now)
        else:
            if len(sent) < complete:
                learned += 1 if may_generate() else lent
            generated += may_generate()
        settle()
    return sent


@settings(max_examples=300)
@given(SECONDS, st.integers(0, 3), STALENESS)
def test_the_recursion_is_the_loop(seconds: list[tuple[int, int]], sync: int, staleness: int) -> None:
    generate, learn = ([one[side] for one in seconds] for side in (0, 1))
    assert sent_times(generate, learn, sync, staleness) == ticked(generate, learn, sync, staleness)


@settings(max_examples=150)
@given(SECONDS.map(lambda seconds: seconds[:4]), st.integers(0, 3), STALENESS)
def test_the_recursion_with_lent_gpus_is_the_loop(seconds: list[tuple[int, int]], sync: int, staleness: int) -> None:
    """Twice as fast while generation waits, in ticks that are fine enough; generation has more batches than are learned."""
    fine = 2 ** len(seconds)
    generate, learn = ([fine * one[side] for one in seconds] for side in (0, 1))
    longer = [*generate, *[fine] * (staleness + 1)]
    assert sent_times(longer, learn, fine * sync, staleness, 2) == ticked(longer, learn, fine * sync, staleness, 2)


@given(SECONDS, st.integers(0, 3), STALENESS, st.integers(0, 6))
def test_nothing_faster_makes_a_step_slower(seconds: list[tuple[int, int]], sync: int, staleness: int, at: int) -> None:
    generate, learn = ([one[side] for one in seconds] for side in (0, 1))
    own = steady_step_s(generate, learn, sync, staleness)

    def faster(values: list[int]) -> list[int]:
        return [max(0, value - (place == at % len(values))) for place, value in enumerate(values)]

    assert steady_step_s(faster(generate), learn, sync, staleness) <= own + 1e-9
    assert steady_step_s(generate, faster(learn), sync, staleness) <= own + 1e-9
    assert steady_step_s(generate, learn, sync, staleness + 1) <= own + 1e-9
    assert steady_step_s(generate, learn, sync, staleness, 2.0) <= own + 1e-9
    unbounded = steady_step_s(generate, learn, sync, None)
    assert max(np.mean(generate), np.mean(learn)) + sync == pytest.approx(unbounded)
    assert unbounded <= own + 1e-9


@given(SECONDS, st.integers(0, 3))
def test_steps_that_take_turns_add_up(seconds: list[tuple[int, int]], sync: int) -> None:
    generate, learn = ([one[side] for one in seconds] for side in (0, 1))
    together = (sum(generate) + sum(learn)) / len(seconds) + sync
    assert steady_step_s(generate, learn, sync, 0) == pytest.approx(together)
    if sum(generate):
        assert steady_step_s(generate, learn, sync, 0, 2.0) == pytest.approx(together - sum(learn) / 2 / len(seconds))


def test_a_longer_bound_on_staleness_hides_ragged_steps() -> None:
    """Generation of 1 and 9 s, learning of 5 s: one batch ahead waits for the long one, more of them hide it."""
    steps = [steady_step_s([1, 9], [5, 5], 0, staleness) for staleness in (0, 1, 2, 3)]
    assert steps == [10, 7, 5, 5]


LEARN_S = st.sampled_from([0.25, 8.0, 40.0])


def table_of(steps: Steps, gpus: int, learn_s: float, staleness: int | None, **changed: bool) -> pd.DataFrame:
    """All divisions of actors of one and of two GPUs; two learn twice as fast as one, and decode 1.5 times as fast."""
    run = small_run(steps, gpus, PhaseSeconds(0.0, learn_s, 0.5, "stated"))
    two = replace(BRUTE, gpus_per_actor=2, base_s=BRUTE.base_s / 1.5, per_response_s=BRUTE.per_response_s / 1.5)
    return splits(run, [BRUTE, two], learning_of(run), [gpus], staleness, **changed)


@settings(max_examples=15)
@given(small_steps(4), LEARN_S, st.sampled_from([0, 1, 3, None]))
def test_every_division_has_a_bound_below_it(steps: Steps, learn_s: float, staleness: int | None) -> None:
    table = table_of(steps, 4, learn_s, staleness, lend_idle=True)
    assert (table["least_step_s"] <= table["step_s"]).all()
    divided = table[table["way"] == DIVIDED]
    assert sorted(zip(divided["gpus_per_actor"], divided["actors"], strict=True)) == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert (divided["gpus_generate"] + divided["gpus_train"] == 4).all()
    lent = table[table["way"] == LENT].reset_index()
    assert (lent["step_s"] <= divided.reset_index()["step_s"] + 1e-9).all()
    assert (table["gpu_s"] == 4 * table["step_s"]).all()
    assert table["usd"].isna().all()


@settings(max_examples=10)
@given(small_steps(4), LEARN_S, st.integers(2, 5))
def test_a_gpu_more_to_learn_is_never_slower(steps: Steps, learn_s: float, gpus: int) -> None:
    """At the same actors; and looser bounds on staleness are never slower at the same division."""
    run = small_run(steps, 2, PhaseSeconds(0.0, learn_s, 0.5, "stated"))
    learning = learning_of(run)
    by_bound = []
    for staleness in (0, 1, 2, None):
        table = splits(run, [BRUTE], learning, [gpus, gpus + 1], staleness)
        fewer, more = (
            table[(table["gpus"] == one) & (table["way"] == DIVIDED)].set_index("actors") for one in (gpus, gpus + 1)
        )
        assert (more["step_s"].reindex(fewer.index) <= fewer["step_s"] + 1e-9).all()
        by_bound.append(fewer["step_s"])
    for tight, loose in pairwise(by_bound):
        assert (loose <= tight + 1e-9).all()


@settings(max_examples=10)
@given(small_steps(3), LEARN_S, st.integers(1, 3))
def test_batches_that_run_together_are_the_loop_of_the_what_if(steps: Steps, learn_s: float, staleness: int) -> None:
    """What the steps add to a run that has filled its pipeline; never less than the bound, and in turns the same as apart."""
    run = small_run(steps, 3, PhaseSeconds(0.0, learn_s, 0.5, "stated"))
    learning = learning_of(run)
    table = splits(run, [BRUTE], learning, [3], staleness, batches=TOGETHER)
    assert (table["least_step_s"] <= table["step_s"]).all()
    laps = 1 + -(-staleness // len(steps))
    for row in table[table["way"] == DIVIDED].itertuples():
        fewer, more = (
            with_interrupts(
                replace(run, logged=[*run.logged] * n), row.actors, staleness, np.tile(learning.on(row.gpus_train), n)
            ).time_s
            for n in (laps, laps + 1)
        )
        assert row.step_s == pytest.approx(max((more - fewer) / len(steps), row.least_step_s))
    turns = [splits(run, [BRUTE], learning, [3], 0, batches=how)["step_s"].tolist() for how in (APART, TOGETHER)]
    assert turns[0] == turns[1]


@pytest.mark.parametrize("dispatch", ["static", "least-loaded"])
@settings(max_examples=10)
@given(steps=small_steps(2), learn_s=LEARN_S, staleness=st.integers(0, 2))
def test_actors_beyond_the_prompts_change_nothing(dispatch: str, steps: Steps, learn_s: float, staleness: int) -> None:
    """So divisions of very many GPUs are simulated on as many actors as there are prompts, and have the same rows."""
    run = small_run(steps, 3, PhaseSeconds(0.0, learn_s, 0.5, "stated"), dispatch=dispatch)
    learning, gpus = learning_of(run), 3 * 4 * 2 + 2
    for batches in (APART, TOGETHER):
        table = splits(run, [BRUTE], learning, [gpus], staleness, batches=batches)
        for row in table[table["way"] == DIVIDED].tail(12).itertuples():
            setting = replace(run.setting, cluster=Cluster(row.actors, 1, 1))
            (executed,) = execute_steps(run.logged, setting, [dispatch]).values()
            generate_s = [record.end_s - record.start_s for record, _ in executed]
            assert row.generate_s == pytest.approx(np.mean(generate_s), rel=1e-12)
            learn = learning.on(row.gpus_train)
            step_s = steady_step_s(generate_s, learn.tolist(), 0.5, staleness)
            if batches == TOGETHER and staleness:
                laps = 1 + -(-staleness // len(steps))
                fewer, more = (
                    with_interrupts(
                        replace(run, logged=[*run.logged] * n, setting=setting), row.actors, staleness, np.tile(learn, n)
                    ).time_s
                    for n in (laps, laps + 1)
                )
                step_s = max((more - fewer) / len(steps), row.least_step_s)
            assert row.step_s == pytest.approx(step_s, rel=1e-12)


def test_ten_thousand_gpus_are_simulated_as_often_as_there_are_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = []
    execute = split.execute_steps
    monkeypatch.setattr(split, "execute_steps", lambda *given: simulated.append(given[1].cluster.max_actors) or execute(*given))
    run = small_run()
    table = splits(run, [BRUTE], learning_of(run), [10_000], 1)
    assert len(table) > 20
    assert sorted(simulated) == [1, 3]


def test_a_straggler_delays_less_where_batches_run_together() -> None:
    """One response of 60 tokens among short ones, and learning that takes less: the next batch decodes beside it."""
    steps: Steps = [[(1, [60]), *[(1, [3])] * 3]] * 3
    run = small_run(steps, 2, PhaseSeconds(0.0, 4.0, 0.0, "stated"))
    apart, together = (
        splits(run, [BRUTE], learning_of(run), [2], 2, batches=how).set_index("way").loc[DIVIDED, "step_s"]
        for how in (APART, TOGETHER)
    )
    assert together < 0.8 * apart


def test_shared_gpus_are_the_run_as_logged() -> None:
    run = small_run(actors=3)
    own = own_split(run, splits(run, [BRUTE], learning_of(run), [3], 0))
    assert own is not None
    assert own["way"] == SHARED
    assert own["step_s"] == pytest.approx(as_logged.way(run).time_s / len(run.logged))
    apart = small_run(actors=2, learner_gpus=3)
    own = own_split(apart, splits(apart, [BRUTE], learning_of(apart), [5], 0))
    assert own is not None
    assert own["way"] == DIVIDED
    assert (own["gpus_generate"], own["gpus_train"]) == (2, 3)
    assert own["step_s"] == pytest.approx(as_logged.way(apart).time_s / len(apart.logged))
    assert own_split(apart, splits(apart, [BRUTE], learning_of(apart), [4], 0)) is None


def test_learning_is_data_parallel_down_to_an_efficiency() -> None:
    run = small_run(actors=4)
    linear, less = learning_of(run), learning_of(run, 16.0, 0.75)
    assert linear.seconds.mean() == pytest.approx(8.0)
    assert linear.on(8) * 8 == pytest.approx(linear.seconds * 4)
    assert less.seconds.mean() == pytest.approx(16.0)
    assert less.on(8) == pytest.approx(less.seconds / 1.5)
    assert less.on(2) == pytest.approx(less.seconds * 1.5)
    assert learning_of(run, 16.0, 0.5).on(64) == pytest.approx(less.seconds)


def test_wrong_arguments() -> None:
    run = small_run(actors=2)
    for wrong in (-1, 0.5, "1", True, float("nan")):
        with refused(InputError, "staleness", str(wrong)):
            check_staleness(wrong)
    for gpus, named in ((0, "0"), ("8", "8"), (2.5, "2.5"), ([8, 0], "has 0"), (True, "True")):
        with refused(InputError, "gpus", named):
            totals_of(gpus, run)
    with refused(InputError, "gpus", "[]"):
        totals_of([], run)
    for seconds in (0, -1.0, "20", float("nan"), float("inf")):
        with refused(InputError, "learn_s", str(seconds)):
            learning_of(run, seconds)  # type: ignore[arg-type]
    for efficiency in (0.4, 1.1, "1", float("nan")):
        with refused(InputError, "efficiency", str(efficiency)):
            learning_of(run, 1.0, efficiency)  # type: ignore[arg-type]
    with refused(InputError, "learn_s", "unknown"):
        learning_of(small_run(phases=PhaseSeconds()))
    apart = small_run(learner_gpus=1)
    with refused(InputError, "GPUs that learn", "learner_gpus"):
        learning_of(replace(apart, setup=replace(apart.setup, learner_gpus=0)))
    two = replace(BRUTE, gpus_per_actor=2)
    with refused(InputError, "gpus", "2 GPUs per actor"):
        splits(run, [two], learning_of(run), [1], 1)
    assert isinstance(learning_of(run), Learning)
    assert check_staleness(None) is None
    assert totals_of(None, run) == [2]
