"""Times of steps from spans and responses: sums that a reader adds up, and nothing where a log does not tell them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_samples import rollouts, step

from rlhfless.trace import Trace, with_step_times

NONE = pd.DataFrame({"step": []})


def recorded(*did: tuple[Any, ...], steps: int = 1, more: dict[str, Any] | None = None) -> Trace:
    """Steps of six responses, and spans: step, phase, start, end."""
    names = ("step", "phase", "start_s", "end_s")
    spans = [{"holder": f"h{i}", **dict(zip(names, row, strict=True))} for i, row in enumerate(did)]
    rows = [row for number in range(steps) for row in rollouts(number)]
    return Trace(pd.DataFrame(rows).assign(**(more or {})), spans=pd.DataFrame(spans))


def timed(*times: tuple[float, float]) -> Trace:
    """Steps of two responses, of which one takes all of the step and one its middle."""
    rows = []
    for number, (begin, end) in enumerate(times):
        one, other = rollouts(number, prompts=2, samples=1)
        middle = (begin + end) / 2
        rows += [{**one, "start_s": begin, "end_s": middle}, {**other, "start_s": middle, "end_s": end}]
    return Trace(pd.DataFrame(rows))


def test_spans_of_a_phase_count_where_at_least_one_covers() -> None:
    found = with_step_times(
        NONE,
        recorded(
            (0, "decode", 0.0, 4.0), (0, "decode", 2.0, 6.0), (0, "prefill", 7.0, 8.0), (0, "prepare", 7.5, 10.0),
            (0, "learn", 10.0, 13.0), (0, "sync", 13.0, 13.5), (1, "decode", 20.0, 21.0), steps=2,
        ),
    )  # fmt: skip
    assert not found.overlapping
    assert found.scalars["step"].tolist() == [0, 1]
    first, second = found.scalars.drop(columns="step").to_dict("records")
    assert first == {"generate_s": 7.0, "learn_s": 3.0, "prepare_s": 2.0, "sync_s": 0.5}
    assert second["generate_s"] == 1.0
    assert np.isnan(second["learn_s"]), "unknown is not nothing"


def test_what_ran_behind_other_work_does_not_count() -> None:
    spans = pd.DataFrame(
        [{"step": 0, "holder": "a", "phase": "learn", "start_s": 0.0, "end_s": 5.0, "background": True},
         {"step": 0, "holder": "a", "phase": "decode", "start_s": 0.0, "end_s": 2.0}]
    )  # fmt: skip
    found = with_step_times(NONE, Trace(pd.DataFrame(rollouts()), spans=spans.fillna({"background": False})))
    assert found.scalars.to_dict("records") == [{"step": 0, "generate_s": 2.0}]


def test_responses_tell_generation_where_no_span_does() -> None:
    found = with_step_times(NONE, timed((0.0, 4.0), (10.0, 16.0)))
    assert found.scalars.to_dict("list") == {"step": [0, 1], "generate_s": [4.0, 6.0]}
    spanned = recorded((0, "decode", 0.0, 7.0), more={"start_s": 1.0, "end_s": 2.0})
    assert with_step_times(NONE, spanned).scalars["generate_s"].tolist() == [7.0]
    learned = recorded((0, "learn", 2.0, 7.0), more={"start_s": 1.0, "end_s": 2.0})
    assert with_step_times(NONE, learned).scalars.to_dict("records") == [{"step": 0, "generate_s": 1.0, "learn_s": 5.0}]


def test_a_step_with_a_response_without_times_has_a_lower_bound() -> None:
    trace = timed((0.0, 4.0), (10.0, 16.0), (20.0, 29.0))
    trace.rollouts.loc[3, "end_s"] = np.nan
    trace.rollouts.loc[4, "start_s"] = np.nan
    found = with_step_times(NONE, trace)
    assert found.scalars.to_dict("list") == {"step": [0], "generate_s": [4.0]}
    assert found.at_least_s.to_dict() == {1: 3.0, 2: 4.5}
    told = with_step_times(pd.DataFrame({"step": [0], "generate_s": [3.0]}), trace)
    assert told.at_least_s.empty, "the scalars have the column"


def test_a_lower_bound_needs_two_known_times_and_a_step_of_its_own() -> None:
    trace = timed((0.0, 4.0), (10.0, 16.0), (11.0, 15.0))
    trace.rollouts.loc[[0, 3], "end_s"] = np.nan
    trace.rollouts.loc[1, ["start_s", "end_s"]] = np.nan
    found = with_step_times(NONE, trace)
    assert found.at_least_s.empty
    assert found.overlapping == (1, 2)
    assert found.scalars is NONE
    only_ends = Trace(timed((0.0, 4.0)).rollouts.drop(columns="start_s"))
    assert with_step_times(NONE, only_ends).at_least_s.to_dict() == {0: 2.0}


def test_steps_without_spans_take_the_times_of_their_responses() -> None:
    trace = timed((0.0, 4.0), (10.0, 16.0))
    spans = pd.DataFrame([{"step": 0, "holder": "h", "phase": "decode", "start_s": 0.0, "end_s": 3.0}])
    assert with_step_times(NONE, Trace(trace.rollouts, spans=spans)).scalars["generate_s"].tolist() == [3.0, 6.0]


def test_steps_that_generate_at_the_same_time_are_left_out_and_counted() -> None:
    found = with_step_times(NONE, timed((0.0, 4.0), (3.0, 8.0), (8.0, 9.0), (20.0, 30.0), (22.0, 23.0)))
    assert found.scalars.to_dict("list") == {"step": [2], "generate_s": [1.0]}
    assert found.overlapping == (0, 1, 3, 4)
    spans = recorded((0, "decode", 0.0, 4.0), (1, "decode", 2.0, 6.0), (1, "learn", 6.0, 7.0), steps=2)
    assert with_step_times(NONE, spans).scalars.to_dict("list") == {"step": [1], "learn_s": [1.0]}


@given(st.lists(st.tuples(st.floats(0.5, 20), st.floats(0, 5)), min_size=1, max_size=8), st.randoms())
def test_steps_one_after_another_have_their_own_times(parts: list[tuple[float, float]], random: Any) -> None:
    ends = np.cumsum(np.array(parts).sum(axis=1))
    times = [(float(end - sum(part)), float(end - part[1])) for end, part in zip(ends, parts, strict=True)]
    random.shuffle(times)
    found = with_step_times(NONE, timed(*times))
    assert not found.overlapping
    assert found.scalars["generate_s"].to_numpy() == pytest.approx([end - begin for begin, end in times])


def test_what_the_scalars_say_stays() -> None:
    trace = recorded((0, "decode", 0.0, 4.0), (0, "learn", 4.0, 6.0), (2, "learn", 9.0, 10.0), steps=3)
    scalars = pd.DataFrame({"step": [0, 1], "generate_s": [np.nan, 9.0], "learn_s": np.nan, "loss": [0.5, 0.25]})
    found = with_step_times(scalars, trace).scalars
    assert found["step"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(found["generate_s"], [np.nan, 9.0, np.nan])
    np.testing.assert_array_equal(found["learn_s"], [2.0, np.nan, 1.0])
    np.testing.assert_array_equal(found["loss"], [0.5, 0.25, np.nan])
    told = pd.DataFrame({"step": [0, 1], "generate_s": [3.0, 9.0]})
    asynchronous = with_step_times(told, timed((0.0, 4.0), (3.0, 8.0)))
    assert asynchronous.scalars is told
    assert not asynchronous.overlapping, "nobody asked"


def test_an_executed_trace_and_several_runs_add_nothing() -> None:
    one = step()
    executed = Trace(*(pd.DataFrame(one[table]) for table in ("rollouts", "allocations", "spans", "events")))
    assert with_step_times(NONE, executed).scalars is NONE
    both = pd.concat([timed((0.0, 4.0)).rollouts, timed((0.0, 4.0)).rollouts.assign(run="other")])
    assert with_step_times(NONE, Trace(both)).scalars is NONE
    assert with_step_times(NONE, recorded()).scalars is NONE
