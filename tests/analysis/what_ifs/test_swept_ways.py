"""Partial rollout and over-sampling at every setting of their knobs, beside what a diagnosis says of the same settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import Steps
from what_if_runs import small_run, small_steps

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.what_ifs import as_logged, over_sampling, partial_rollout
from rlhfless.analysis.what_ifs.compare import WaysCompared, compare_ways, own_schedule
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.diagnosis.completion import completions, in_one_unit
from rlhfless.diagnosis.knobs import FACTORS, MOST_UNFINISHED, SHARES, StepEnds, carried_over, over_sampled, smallest_enough
from rlhfless.diagnosis.logged_run import LoggedRun
from solver.model.latency import LatencyModel

ONE_SPEED = LatencyModel("one speed", 1, base_s=1 / 2, per_response_s=0.0, max_batch=1000)
"""Every response takes half a second per token, however many others there are; nothing else takes time."""


def exact_run(steps: Steps) -> RunToChange:
    """A run of one replica whose profile is exact, of generation alone."""
    return small_run(steps, 1, PhaseSeconds(), latency=ONE_SPEED)


def executed_ends(run: RunToChange) -> list[StepEnds]:
    """What the log of this run says of the ends of its responses."""
    rows, _ = own_schedule(run)
    return in_one_unit(completions(LoggedRun("log", "", pd.DataFrame({"step": []}), rows)))


def several(steps: Steps) -> bool:
    """Whether every step has two responses: a diagnosis leaves the others out."""
    return all(sum(len(lengths) for _, lengths in step) > 1 for step in steps)


@settings(max_examples=15)
@given(small_steps().filter(several), st.sampled_from([*FACTORS, 2.0]))
def test_with_an_exact_profile_over_sampling_saves_what_the_arithmetic_says(steps: Steps, factor: float) -> None:
    run = exact_run(steps)
    saved = 1 - over_sampling.way(run, factor).time_s / as_logged.way(run).time_s
    assert max(0.0, saved) == pytest.approx(over_sampled(executed_ends(run), factor).at_most)


@settings(max_examples=15)
@given(small_steps().filter(several), st.sampled_from([*SHARES, 0.4]))
def test_with_an_exact_profile_partial_rollout_saves_no_more_than_the_arithmetic_says(steps: Steps, share: float) -> None:
    run = exact_run(steps)
    saved = 1 - partial_rollout.way(run, unfinished=share).time_s / as_logged.way(run).time_s
    assert saved <= carried_over(executed_ends(run), share).at_most + 1e-9


@settings(max_examples=10)
@given(small_steps().filter(several), st.sampled_from([*SHARES, 0.4]))
def test_where_more_responses_are_slower_partial_rollout_saves_less(steps: Steps, share: float) -> None:
    """One replica: a response that is carried over takes time from the others, and may wait for a slot."""
    run = small_run(steps, 1)
    run = replace(run, phases=PhaseSeconds())
    saved = 1 - partial_rollout.way(run, unfinished=share).time_s / as_logged.way(run).time_s
    assert saved <= carried_over(executed_ends(run), share).at_most + 1e-9


def smooth() -> Steps:
    """Four steps of forty responses whose lengths are at even distances."""
    return [[(1, [2 * (k + 1)]) for k in range(40)]] * 4


def test_on_a_smooth_curve_savings_grow_with_the_knob() -> None:
    run = exact_run(smooth())
    own_s = as_logged.way(run).time_s
    for outcome in (
        partial_rollout.best(run, own_s), over_sampling.best(run, own_s, None), over_sampling.best(run, own_s, None, keep=True)
    ):  # fmt: skip
        times = [one.time_s for one in outcome.swept]
        assert np.all(np.diff(times) <= 0)
        assert times[-1] < times[0] < own_s
        changed = [one.data.stale_tokens + one.data.dropped_tokens for one in outcome.swept]
        assert np.all(np.diff(changed) >= 0)


@pytest.fixture(scope="module")
def compared() -> WaysCompared:
    return compare_ways(exact_run(smooth()))


def test_the_row_of_a_way_is_the_setting_that_the_rule_says(compared: WaysCompared) -> None:
    table = compared.knobs()
    assert set(table["way"]) == {"partial rollout", "over-sampling", "over-sampling, rest kept"}
    saved = {way: dict(zip(rows["value"], rows["time_saved"], strict=True)) for way, rows in table.groupby("way")}
    few = {share: value for share, value in saved["partial rollout"].items() if share <= MOST_UNFINISHED}
    wanted = {"partial rollout": smallest_enough(few)}
    wanted |= {way: smallest_enough(saved[way], max(few.values())) for way in ("over-sampling", "over-sampling, rest kept")}
    rows = compared.to_frame().set_index("way")
    for way in compared.ways:
        if way.swept:
            (shown,) = table[(table["way"] == way.name) & table["shown"]].itertuples()
            assert way.parameters == {way.knob: shown.value}
            assert shown.value == wanted[way.name]
            assert shown.time_s == rows.loc[way.name, "time_s"]
            assert shown.data == rows.loc[way.name, "data"]
            assert "smallest" in way.change
    assert set(table.loc[table["way"] == "partial rollout", "value"]) == set(SHARES)
    assert set(table.loc[table["way"] == "over-sampling", "value"]) == set(FACTORS)


def test_every_setting_that_a_diagnosis_names_was_simulated(compared: WaysCompared) -> None:
    way = next(way for way in compared.ways if way.name == "partial rollout")
    for share in SHARES:
        saved = compared.saved_at("partial rollout", "unfinished_responses_share", share)
        assert saved == pytest.approx(
            1 - partial_rollout.way(exact_run(smooth()), unfinished=share).time_s / compared.base.time_s
        )
    assert compared.saved_at("partial rollout", way.knob, way.parameters[way.knob]) == pytest.approx(compared.saved(way)[0])
    for unknown in (("partial rollout", way.knob, 0.123), ("partial rollout", "another", 0.01), ("nothing", way.knob, 0.01)):
        assert compared.saved_at(*unknown) is None


def test_settings_that_mean_the_same_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six responses in six prompts, 0.5 to 10 % are one response, and 1.01 to 1.1 times the prompts are seven of them."""
    run, counted = exact_run([[(1, [k + 1]) for k in range(6)]] * 2), []
    of_steps = partial_rollout.collected
    for module in (partial_rollout, over_sampling):
        monkeypatch.setattr(module, "collected", lambda *args, **more: counted.append(1) or of_steps(*args, **more))
    outcomes = [partial_rollout.best(run, 1.0), over_sampling.best(run, 1.0, None)]
    assert [len(outcome.swept) for outcome in outcomes] == [len(SHARES), len(FACTORS)]
    assert len(counted) == 1 + 3
