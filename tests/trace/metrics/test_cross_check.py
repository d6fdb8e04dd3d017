"""What a log measured beside what is counted or simulated: differences, tolerances, contradictions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from rlhfless.trace.importers.scalars import STANDARD
from rlhfless.trace.metrics.cross_check import QUANTITIES, checks_frame, counted_steps, cross_check

LOGGED = pd.DataFrame({"step": [1, 2, 3], "generate_s": [10.0, 20.0, 30.0], "response_tokens_mean": [50.0, 50.0, np.nan]})


def rollouts() -> pd.DataFrame:
    rows = [(1, 10, "stop", 1.0), (1, 30, "length", 0.0), (2, 20, None, 1.0), (2, 20, "length", None)]
    table = pd.DataFrame(rows, columns=["step", "response_tokens", "finish_reason", "reward"])
    return table.assign(prompt_tokens=[4, 6, 5, 5])


def test_what_is_compared_are_standard_columns() -> None:
    """Of the others nothing is counted or simulated."""
    assert QUANTITIES.keys() < STANDARD.keys()


def test_counts_are_those_of_the_responses_and_unknown_where_some_are() -> None:
    counted = counted_steps(rollouts())
    assert counted.loc[1].to_dict() == {
        "responses": 2, "response_tokens_mean": 20, "response_tokens_min": 10, "response_tokens_max": 30,
        "truncation_rate": 0.5, "prompt_tokens_mean": 5, "reward_mean": 0.5,
    }  # fmt: skip
    assert np.isnan(counted.loc[2, ["truncation_rate", "reward_mean"]].to_numpy(dtype=float)).all()


def test_simulated_times_are_judged_by_their_mean() -> None:
    ours = pd.DataFrame({"generate_s": [15.0, 19.0, 27.0, 99.0]}, index=[1, 2, 3, 4])
    (check,) = cross_check(LOGGED, ours, "simulated")
    assert (check.steps, check.logged, check.ours) == (3, 20.0, pytest.approx(61 / 3))
    assert (check.worst_step, check.worst_logged, check.worst_ours) == (1, 10.0, 15.0)
    assert not check.contradicts
    assert check.relative == pytest.approx(1 / 60)
    (off,) = cross_check(LOGGED, 1.2 * ours, "simulated")
    assert off.contradicts
    assert str(off) == "generation of a step: 20 s in the log, 24.4 s simulated (+22.0%; step 1: 10 s and 18 s)"


def test_counts_are_judged_in_every_step() -> None:
    ours = pd.DataFrame({"response_tokens_mean": [49.0, 51.5, 7.0]}, index=[1, 2, 3])
    (check,) = cross_check(LOGGED, ours, "counted", every_step=True)
    assert (check.steps, check.worst_step, check.contradicts) == (2, 2, True)
    (check,) = cross_check(LOGGED, ours, "counted")
    assert not check.contradicts


def test_a_part_of_what_was_logged_may_be_less() -> None:
    for seconds, contradicts in ((1.0, False), (40.0, True)):
        ours = pd.DataFrame({"generate_s": seconds}, index=[1, 2, 3])
        (check,) = cross_check(LOGGED, ours, "a part", lower_bound="ours")
        assert check.contradicts is contradicts


def test_a_lower_bound_in_the_log_contradicts_only_what_is_less() -> None:
    for seconds, contradicts in ((1.0, True), (17.0, True), (19.0, False), (400.0, False)):
        ours = pd.DataFrame({"generate_s": seconds}, index=[1, 2, 3])
        (check,) = cross_check(LOGGED, ours, "simulated", lower_bound="logged")
        assert check.contradicts is contradicts
    (check,) = cross_check(LOGGED[:1], pd.DataFrame({"generate_s": 2.0}, index=[1]), "simulated", lower_bound="logged")
    assert str(check) == "generation of a step: at least 10 s in the log, 2 s simulated (-80.0%)"
    assert checks_frame([check]).loc[0, ["lower_bound", "tolerance"]].tolist() == ["logged", "at most 10% less"]


def test_shares_differ_by_points_and_nothing_in_common_is_no_check() -> None:
    logged = pd.DataFrame({"step": [1], "truncation_rate": [0.031]})
    (check,) = cross_check(logged, pd.DataFrame({"truncation_rate": [0.0]}, index=[1]), "counted", every_step=True)
    assert check.contradicts
    assert str(check) == "responses cut off by the limit: 3.1% in the log, 0.0% counted (-3.1 points)"
    table = checks_frame([check])
    assert table.loc[0, ["tolerance", "contradicts"]].tolist() == ["0.5 points", True]
    (none,) = cross_check(logged.assign(truncation_rate=0.0), pd.DataFrame({"truncation_rate": [0.0]}, index=[1]), "counted")
    assert np.isnan(none.relative)
    assert not none.contradicts
    assert not list(cross_check(logged, pd.DataFrame({"truncation_rate": [0.0]}, index=[2]), "counted"))
    assert checks_frame([]).empty
