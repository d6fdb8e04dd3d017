"""Runs whose responses wait for tools: by hand, and against actors that are run one iteration at a time."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import BRUTE
from what_if_runs import TWO_STEPS, rollouts_of, small_run

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.what_ifs import as_logged, multi_turn
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.errors import InputError
from rlhfless.simulate import logged_steps


def run_with(turns: list[list[tuple[int, float]] | None], actors: int = 1, **changes: object) -> RunToChange:
    """One step with a prompt of 4 tokens for each response."""
    lengths = [sum(tokens for tokens, _ in of) if of else 5 for of in turns]
    rows = rollouts_of([[(4, [length]) for length in lengths]])
    rows["turns"] = [None if of is None else json.dumps(of) for of in turns]
    return replace(small_run(actors=actors, phases=PhaseSeconds()), logged=list(logged_steps(rows)), **changes)


def iterations_s(batches: list[list[int]]) -> float:
    """Seconds of iterations, by the contexts of their batches."""
    return sum(BRUTE.base_s + BRUTE.per_response_s * len(of) + BRUTE.per_kv_token_s * sum(of) for of in batches)


def test_one_response_by_hand() -> None:
    """Two tokens, 3 seconds, one token; the second turn joins again, and recomputes 6 tokens if they were dropped."""
    run = run_with([[(2, 3.0), (1, 9.0)]])
    start = BRUTE.start_s + BRUTE.sync_s + BRUTE.join_s + BRUTE.prefill_s(4)
    kept = start + iterations_s([[4], [5]]) + 3.0 + BRUTE.join_s + iterations_s([[6]])
    assert multi_turn.way(run).time_s == pytest.approx(kept)
    assert multi_turn.way(run, keeps_kv=False).time_s == pytest.approx(kept + BRUTE.prefill_s(6))


def test_a_slot_that_is_kept_makes_others_wait() -> None:
    one_slot = replace(BRUTE, max_batch=1)
    run = run_with([[(1, 50.0), (1, 0.0)], None])
    run = replace(run, setting=replace(run.setting, latency=one_slot))
    kept, dropped = multi_turn.way(run), multi_turn.way(run, keeps_kv=False)
    assert kept.time_s > dropped.time_s + 2.0  # the second response is decoded during the wait
    assert dropped.time_s > 50.0


@settings(max_examples=4)
@given(
    st.lists(
        st.none() | st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 1.5, 8.0])), min_size=1, max_size=3),
        min_size=1, max_size=5,
    ),
    st.integers(1, 3), st.booleans(),
)  # fmt: skip
def test_waits_lose_no_response_and_stay_above_the_bound(
    turns: list[list[tuple[int, float]] | None], actors: int, keeps_kv: bool
) -> None:
    run = run_with([*turns, [(2, 1.0), (3, 0.0)]], actors)
    outcome, base = multi_turn.way(run, keeps_kv), as_logged.way(run)
    assert outcome.data == base.data
    waits = max(sum(wait_s for _, wait_s in of[:-1]) for of in [*turns, [(2, 1.0), (3, 0.0)]] if of)
    assert waits < outcome.least_time_s <= outcome.time_s * (1 + 1e-9)
    assert outcome.time_s >= base.least_time_s


def test_a_log_without_turns_is_refused() -> None:
    with refused(InputError, "no turns"):
        multi_turn.way(run_with([None, None]))


@pytest.mark.parametrize("turns", ["7", "[[1]]", "[[1, -1], [4, 0]]", "[[2, 0.0], [2, 0.0]]", '[["a", 0], [5, 0]]'])
def test_turns_of_another_form_are_refused(turns: str) -> None:
    rows = rollouts_of([[(4, [5])]]).assign(turns=turns)
    with refused(InputError, "turns"):
        multi_turn.way(replace(small_run(TWO_STEPS), logged=list(logged_steps(rows))))
