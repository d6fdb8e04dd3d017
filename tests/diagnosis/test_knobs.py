"""Levers of the long tail at several settings: replayed by brute force, in order, and as the diagnosis names them."""

from __future__ import annotations

import json
import math
from itertools import cycle, islice

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhfless.diagnosis import Stated, diagnose
from rlhfless.diagnosis.completion import completions, in_one_unit
from rlhfless.diagnosis.knobs import (
    FACTORS,
    MOST_UNFINISHED,
    SHARES,
    StepEnds,
    carried_over,
    over_sampled,
    released,
    smallest_enough,
    unfinished_at,
)
from rlhfless.diagnosis.logged_run import LoggedRun

Groups = list[list[int]]
"""Ends of the responses of each prompt, in seconds."""

GROUPS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=2, max_size=6)
RUNS = st.lists(GROUPS, min_size=1, max_size=3)


def log(steps: list[Groups]) -> pd.DataFrame:
    """The log of these steps, 1,000 s apart; a response has a hundred tokens per second."""
    rows = [
        {"step": step, "prompt_id": f"{step}-{prompt}", "sample": sample, "response_tokens": 100 * end,
         "start_s": 1000.0 * step, "end_s": 1000.0 * step + end}
        for step, groups in enumerate(steps) for prompt, ends in enumerate(groups) for sample, end in enumerate(ends)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def ends_of(steps: list[Groups]) -> list[StepEnds]:
    return in_one_unit(completions(LoggedRun("log", "", pd.DataFrame({"step": []}), log(steps))))


def share_saved(steps: list[Groups], spent_s: float) -> float:
    return max(0.0, 1 - spent_s / sum(max(max(group) for group in groups) for groups in steps))


@given(RUNS, st.sampled_from([*SHARES, 0.34, 0.6]))
def test_carrying_over_stops_when_so_few_are_left(steps: list[Groups], share: float) -> None:
    spent = late = waiting = 0
    for groups in steps:
        ends = [end for group in groups for end in group]
        allowed = max(1, math.floor(share * len(ends)))
        stop = next(now for now in range(31) if sum(end > now for end in ends) <= allowed)
        spent += stop
        late += sum(end > stop for end in ends)
        waiting += sum(len(group) for group in groups if max(group) > stop)
    knob = carried_over(ends_of(steps), share)
    responses = len(log(steps))
    assert knob.at_most == pytest.approx(share_saved(steps, spent))
    assert knob.data["late_responses_share"] == pytest.approx(late / responses)
    assert knob.data["late_with_groups_share"] == pytest.approx(waiting / responses)


@given(RUNS, st.sampled_from([*FACTORS, 2.0]))
def test_over_sampling_takes_prompts_in_order_and_keeps_those_that_are_complete_first(
    steps: list[Groups], factor: float
) -> None:
    endless = cycle([group for groups in steps for group in groups])
    spent, dropped, started = 0, 0, 0
    learned: list[int] = []
    seen: list[int] = []
    for groups in steps:
        window = list(islice(endless, math.ceil(factor * len(groups) - 1e-9)))
        ranked = sorted(window, key=max)
        spent += max(ranked[len(groups) - 1])
        dropped += sum(len(group) for group in ranked[len(groups) :])
        started += sum(len(group) for group in window)
        learned += [end for group in ranked[: len(groups)] for end in group]
        seen += [end for group in window for end in group]
    knob = over_sampled(ends_of(steps), factor)
    assert knob.at_most == pytest.approx(share_saved(steps, spent))
    assert knob.data["dropped_responses_share"] == pytest.approx(dropped / started)
    assert knob.data["learned_length_ratio"] == pytest.approx(np.mean(learned) / np.mean(seen))


@given(RUNS, st.sampled_from(SHARES), st.sampled_from([1, 2, 8]))
def test_released_replicas_are_no_longer_held(steps: list[Groups], share: float, replicas: int) -> None:
    held = 0.0
    for groups in steps:
        ends = [end for group in groups for end in group]
        left = max(1, math.floor(share * len(ends)))
        held += sum(replicas if sum(end > now for end in ends) > left else 1 for now in range(max(ends)))
    knob = released(ends_of(steps), share, replicas)
    assert knob.at_most == pytest.approx(share_saved(steps, held / replicas))
    assert released(ends_of(steps), share, 1).at_most == 0.0


@given(RUNS)
def test_the_own_way_saves_nothing_and_larger_shares_save_no_less(steps: list[Groups]) -> None:
    of = ends_of(steps)
    assert carried_over(of, 0).at_most == over_sampled(of, 1).at_most == released(of, 0, 8).at_most == 0.0
    assert carried_over(of, 0).data["late_responses_share"] == over_sampled(of, 1).data["dropped_responses_share"] == 0.0
    saved = [carried_over(of, share).at_most for share in SHARES]
    assert saved == sorted(saved)
    assert all(0 <= one < 1 for one in saved)


def test_on_a_smooth_curve_every_lever_saves_more_up_to_its_last_setting() -> None:
    """Ends at even distances: the last tenth takes a tenth of the step, and the price grows with what is saved."""
    of = ends_of([[[10 * (k + 1)] for k in range(1000)]])
    carried = [carried_over(of, share) for share in SHARES]
    assert [one.at_most for one in carried] == pytest.approx(SHARES)
    assert [one.data["late_responses_share"] for one in carried] == pytest.approx(SHARES)
    sampled = [over_sampled(of, factor) for factor in FACTORS]
    for knobs, price in ((carried, "late_responses_share"), (sampled, "dropped_responses_share")):
        assert np.all(np.diff([one.at_most for one in knobs]) > 0)
        assert np.all(np.diff([one.data[price] for one in knobs]) > 0)
    assert np.all(np.diff([one.data["learned_length_ratio"] for one in sampled]) < 0)


def test_the_diagnosis_names_the_smallest_setting_that_saves_nearly_as_much_as_the_last_tenth() -> None:
    """Of 1,000 responses, 990 end evenly until 40 s and ten late ones at 112 to 120 s."""
    ends = [[round(40 * (k + 1) / 990)] for k in range(990)] + [[112 + k] for k in range(9)] + [[120]]
    said = diagnose(log([[[max(1, end) for end in group] for group in ends]]), Stated(gpus_generate=8))
    levers = {lever.kind: lever for lever in said.levers}
    assert (levers["partial rollout"].value, levers["release"].value) == (0.01, 0.01)
    table = said.knobs()
    for kind in ("partial rollout", "over-sampling", "release"):
        rows, lever = table[table["kind"] == kind], levers[kind]
        (named,) = rows.loc[rows["named"], "at_most"]
        assert named == lever.at_most
        assert rows["value"].is_monotonic_increasing
    of = {one.value: one.at_most for one in levers["over-sampling"].swept}
    tenth = {one.value: one.at_most for one in levers["partial rollout"].swept}[MOST_UNFINISHED]
    assert levers["over-sampling"].value == smallest_enough(of, tenth)
    told = next(lever for lever in json.loads(said.to_json())["levers"] if lever["kind"] == "partial rollout")
    assert (told["knob"], told["knob_value"]) == ("unfinished_responses_share", 0.01)
    assert [one["knob_value"] for one in told["swept"]] == list(SHARES)
    assert all({"at_most_share", "late_responses_share", "late_with_groups_share"} <= set(one) for one in told["swept"])


def test_longer_steps_count_more() -> None:
    """A step of 100 s whose last half has one response, and one of 10 s without a tail."""
    short = [[10]] * 10
    said = diagnose(log([[[50]] * 9 + [[100]], short]))
    assert said.numbers["tail_share_of_generation"].value == pytest.approx(50 / 110)
    assert said.numbers["tail_s"].value == pytest.approx(25.0)
    assert {one.kind: one.at_most for one in said.levers}["partial rollout"] == pytest.approx(50 / 110)


def test_where_every_step_has_one_prompt_nothing_is_carried_over() -> None:
    """Nothing could be learned from before that prompt is complete."""
    assert carried_over(ends_of([[[1, 2, 3, 100]]]), 0.2).at_most == 0.0
    assert carried_over(ends_of([[[1, 2, 3, 100]], [[1], [2]]]), 0.2).at_most == pytest.approx(1 - 4 / 102)


@pytest.mark.parametrize(
    ("share", "responses", "unfinished"), [(0, 100, 0), (0.005, 100, 1), (0.05, 100, 5), (0.29, 100, 29), (0.2, 3, 1)]
)
def test_shares_of_responses_are_whole_numbers(share: float, responses: int, unfinished: int) -> None:
    assert unfinished_at(share, responses) == unfinished


def test_where_no_setting_saves_the_least_bad_one_is_named() -> None:
    assert smallest_enough({0.01: -0.3, 0.1: -0.1, 0.2: -0.2}) == 0.1
