"""Partial rollout and over-sampling at every setting of their knobs, beside what a diagnosis says of the same settings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from hypothesis import given, settings
from hypothesis import strategies as st
from what_if_loops import Steps
from what_if_runs import small_run, small_steps

from rlhfless.analysis import PhaseSeconds
from rlhfless.analysis.what_ifs import as_logged, over_sampling, partial_rollout, tail_release
from rlhfless.analysis.what_ifs.compare import compare_ways
from rlhfless.analysis.what_ifs.named import own_schedule
from rlhfless.analysis.what_ifs.outcome import RunToChange
from rlhfless.diagnosis.completion import completions, in_one_unit
from rlhfless.diagnosis.knobs import (
    FACTORS,
    MOST_UNFINISHED,
    SHARES,
    STARTED,
    UNFINISHED,
    StepEnds,
    carried_over,
    over_sampled,
    released,
    smallest_enough,
)
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.errors import InputError
from rlhfless.simulate import Comparison
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


@settings(max_examples=15)
@given(small_steps().filter(several), st.sampled_from([*SHARES, 0.4]), st.integers(1, 3))
def test_with_an_exact_profile_released_replicas_save_no_more_than_the_arithmetic_says(
    steps: Steps, share: float, replicas: int
) -> None:
    run = small_run(steps, replicas, PhaseSeconds(), latency=ONE_SPEED)
    outcome, own = tail_release.way(run, share), as_logged.way(run)
    assert 1 - outcome.gpu_s / own.gpu_s <= released(executed_ends(run), share, replicas).at_most + 1e-9
    assert outcome.time_s >= own.time_s * (1 - 1e-9)
    assert outcome.data.on_policy


def test_one_long_response_on_one_of_two_replicas_needs_no_other() -> None:
    """Eight responses of 10 tokens and one of 100: 5 s on both replicas, and 45 s on one."""
    run = small_run([[(1, [10])] * 8 + [(1, [100])]], 2, PhaseSeconds(), latency=ONE_SPEED)
    outcome = tail_release.way(run, 0.1)
    assert (outcome.time_s, outcome.gpu_s) == pytest.approx((50.0, 2 * 5.0 + 45.0))
    assert 1 - outcome.gpu_s / 100 == pytest.approx(released(executed_ends(run), 0.1, 2).at_most)


def test_replicas_of_a_learner_are_paid_for_throughout() -> None:
    run = small_run(
        [[(1, [10])] * 8 + [(1, [100])]], 2, PhaseSeconds(0.0, 7.0, 0.5, "stated"), latency=ONE_SPEED, learner_gpus=3
    )
    outcome = tail_release.way(run, 0.1)
    assert outcome.gpu_s == pytest.approx(2 * 5.0 + 45.0 + 3 * outcome.time_s)


@pytest.mark.parametrize("share", [0, 1, -0.1, "half"])
def test_wrong_shares_are_refused(share: object) -> None:
    with refused(InputError, "unfinished", str(share)):
        tail_release.way(exact_run(smooth()), share)  # type: ignore[arg-type]


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
def compared() -> Comparison:
    return compare_ways(exact_run(smooth()))


def test_the_row_of_a_way_is_the_setting_that_the_rule_says(compared: Comparison) -> None:
    table = compared.knobs
    assert set(table["variant"]) == {"partial rollout", "over-sampling", "over-sampling, rest kept", "released in the tail"}
    saved = {way: dict(zip(rows["value"], rows["time_saved"], strict=True)) for way, rows in table.groupby("variant")}
    few = {share: value for share, value in saved["partial rollout"].items() if share <= MOST_UNFINISHED}
    wanted = {"partial rollout": smallest_enough(few)}
    wanted |= {way: smallest_enough(saved[way], max(few.values())) for way in ("over-sampling", "over-sampling, rest kept")}
    cost = table[(table["variant"] == "released in the tail") & (table["value"] <= MOST_UNFINISHED)]
    wanted["released in the tail"] = smallest_enough(dict(zip(cost["value"], cost["cost_saved"], strict=True)))
    rows = compared.means().set_index("variant")
    for way in wanted:
        (shown,) = table[(table["variant"] == way) & table["shown"]].itertuples()
        assert compared.parameters[way] == {shown.knob: shown.value}
        assert shown.value == wanted[way]
        numbers = ["time_s", "gpu_seconds", "time_saved", "cost_saved"]
        assert [getattr(shown, name) for name in numbers] == pytest.approx(rows.loc[way, numbers].tolist())
        assert shown.data == rows.loc[way, "data"]
        assert "smallest" in rows.loc[way, "change"]
    assert set(table.loc[table["variant"] == "partial rollout", "value"]) == set(SHARES)
    assert set(table.loc[table["variant"] == "over-sampling", "value"]) == set(FACTORS)


def test_every_setting_that_a_diagnosis_names_was_simulated(compared: Comparison) -> None:
    run = exact_run(smooth())
    base = as_logged.way(run)
    saved = compared.knobs.set_index(["variant", "knob", "value"])
    for share in SHARES:
        taken_s = partial_rollout.way(run, unfinished=share).time_s
        assert saved.loc[("partial rollout", UNFINISHED, share), "time_saved"] == pytest.approx(1 - taken_s / base.time_s)
        gpu_s = tail_release.way(run, share).gpu_s
        found = saved.loc[("released in the tail", UNFINISHED, share), "cost_saved"]
        assert found == pytest.approx(1 - gpu_s / base.gpu_s, abs=1e-9)
    for factor in FACTORS:
        taken_s = over_sampling.way(run, factor).time_s
        assert saved.loc[("over-sampling", STARTED, factor), "time_saved"] == pytest.approx(1 - taken_s / base.time_s)


def test_settings_that_mean_the_same_are_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six responses in six prompts, 0.5 to 10 % are one response, and 1.01 to 1.1 times the prompts are seven of them."""
    run, counted = exact_run([[(1, [k + 1]) for k in range(6)]] * 2), []
    of_steps = partial_rollout.collected
    for module in (partial_rollout, over_sampling):
        monkeypatch.setattr(module, "collected", lambda *args, **more: counted.append(1) or of_steps(*args, **more))
    outcomes = [partial_rollout.best(run, 1.0), over_sampling.best(run, 1.0, None)]
    assert [len(outcome.swept) for outcome in outcomes] == [len(SHARES), len(FACTORS)]
    assert len(counted) == 1 + 3
