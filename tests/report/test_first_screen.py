"""The first screen of a report about a logged run, and what to change: amounts, unknowns, order, no advice that is so."""

from __future__ import annotations

import html
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_figures import figures_json

from rlhfless.analysis import Change, configuration_lines, ranked
from rlhfless.analysis.own_times import FAR
from rlhfless.latency import load_profile, read_profile
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.export.packed import packed, unpacked
from rlhfless.report.amounts import Amounts
from rlhfless.report.changes import changes_of, list_changes
from rlhfless.report.first_screen import (
    FAR_POINTS,
    NEAR_POINTS,
    assumptions,
    cost_by_gpus,
    first_screen,
    in_short,
    of_other_hardware,
)
from rlhfless.report.not_stated import (
    DEFAULT_PROFILE,
    PRICE,
    PROFILE,
    PROFILE_HOW,
    profile_assumed,
    profile_in_words,
)
from rlhfless.report.progress import progress_bar
from rlhfless.report.savings import merged
from rlhfless.report.study import Assumptions, LoggedRunFindings, study_log
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, open_log
from solver.model.cluster import Cluster

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TABLE = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "table" / "log.csv"
SETTING = SimulationConfig(
    Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3600.0), load_profile("l40s-qwen2.5-3b-tp2"), time_limit_s=0.05, bound_work=0
)  # a dollar per GPU-second
SHARES = st.floats(-0.2, 0.9)


@pytest.fixture(scope="module")
def log() -> OpenedLog:
    """Two steps with logged times, as if verl had written them."""
    read = open_log(TABLE)
    return OpenedLog(read.trace, read.scalars, "verl", read.summary)


@pytest.fixture(scope="module")
def found(log: OpenedLog) -> LoggedRunFindings:
    return study_log(log, SETTING, Assumptions(learner_gpus=0), 2).findings


def words_of(findings: LoggedRunFindings) -> tuple[str, str]:
    """The first screen's words, and its figures as JSON."""
    page = Page("", "")
    first_screen(page, findings)
    text = page.render("")
    body = text[text.index("<h2") : text.index("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split()), figures_json(text)


@pytest.mark.full
def test_cost_idle_gpus_and_the_largest_change_are_one_sentence(log: OpenedLog, found: LoggedRunFindings) -> None:
    rows = log.trace.rollouts.groupby("step")
    gpu_s = 8 * float((rows["end_s"].max() - rows["start_s"].min()).sum())
    first = changes_of(found)[0]
    assert found.cost.usd == pytest.approx(gpu_s)
    assert found.cost.all_logged
    sentence = next(in_short(found))
    assert sentence.startswith(f"Your 2 steps cost {gpu_s:.0f} USD ({gpu_s:.0f} GPU-seconds); ")
    assert re.search(r"; [\d.]+( to [\d.]+)? USD \([\d.]+%( to [\d.]+%)?\) of it went to idle GPUs; ", sentence)
    saved = float(re.findall(r"save about ([\d.]+) USD \([\d.]+%\)\.", sentence)[0])
    assert first.high - first.low < 0.02 * first.high, "a narrow range is told as one amount"
    assert saved == pytest.approx((first.low + first.high) / 2 * gpu_s, rel=0.01)
    assert f"; {first.what} ({first.lines[0].partition('#')[0].strip()}) and save" in sentence
    words, figures = words_of(found)
    assert "Where the GPU" in figures or "were idle" in figures
    words = re.sub("rlhfless (report|profile)", "", words)  # commands
    assert not re.search(r"\b(random|static|solver|fold|rlhfless|oracle)\b", words)


def test_a_wide_range_has_both_ends_and_a_narrow_one_is_one_amount() -> None:
    priced = Amounts(10.0, 100.0)
    assert priced.between(0.2, 0.3) == "20.0 to 30.0 USD"
    assert priced.between(0.2, 0.2) == "20.0 USD"
    assert priced.between(0.2, 0.203) == "about 20.2 USD"
    assert Amounts(10.0, 100.0, is_known=False).between(0.2, 0.3) == "20% to 30%"


def test_a_range_that_says_little_is_called_so(found: LoggedRunFindings) -> None:
    """Of drawn lengths only: the sentence says what would tell more."""
    lines = found.account.lines
    busy, idle = (replace(found.account, lines=lines.assign(idle=value)) for value in (False, True))
    wide = replace(found, account=busy, shuffled=(idle,), drawn="Lengths are drawn.")
    assert "its scalars do not tell how much of it went to idle GPUs (0.0% to" in next(in_short(wide)), "no amount is led with"
    assert "what was idle is so wide that it says little" in words_of(wide)[0]
    assert "says little" not in words_of(replace(wide, drawn=""))[0]
    assert "says little" not in words_of(replace(wide, shuffled=()))[0]


@pytest.mark.parametrize("factor", [1.0, 3.4, 0.3, 3.6, 33.6, 0.1])
def test_a_profile_of_other_hardware_is_warned_of(found: LoggedRunFindings, factor: float) -> None:
    """By a profile that is scaled more than profiles of one class of hardware differ; what that means, and what to do."""
    changed = replace(found, calibrated=replace(found.calibrated, factor=factor))
    sure = next(sentence for sentence in in_short(changed) if sentence.startswith("How sure"))
    assert ("Warning: " in sure) == of_other_hardware(changed.calibrated) == (factor in (3.6, 33.6, 0.1))
    if factor == 33.6:
        assert "is 33.6 times as slow as profile l40s-qwen2.5-3b-tp2 (Qwen2.5-3B on L40S" in sure
        assert "37 times apart and more, by 32 to 44." in sure
        assert "rlhfless profile" in sure
    if factor == 0.1:
        assert "is 10.0 times as fast as" in sure
    assert "Warning" not in " ".join(in_short(replace(changed, calibrated=replace(changed.calibrated, steps=0))))


def test_what_the_warning_says_was_measured() -> None:
    said = json.loads((BENCHMARKS / "results" / "scaled_profiles.json").read_text())["summary"]
    assert said["near"]["factor"] < FAR < said["far"]["factor"]
    assert round(100 * said["near"]["error"]) == NEAR_POINTS
    assert tuple(round(100 * error) for error in said["far"]["errors"]) == FAR_POINTS


def test_waits_that_are_simulated_by_a_profile_that_nothing_was_compared_with_are_called_so(found: LoggedRunFindings) -> None:
    apart = replace(found, calibrated=replace(found.calibrated, steps=0, checked=None))
    assert "What was idle and savings are simulated by profile l40s" in " ".join(in_short(apart))
    assert "was not compared" not in " ".join(in_short(found))


@pytest.mark.parametrize("missing", [{PRICE}, {PROFILE, PRICE}])
def test_where_the_price_of_the_gpus_is_not_stated_there_is_a_curve_and_no_dollar(
    found: LoggedRunFindings, missing: set[str]
) -> None:
    unstated = replace(found, not_stated=dict.fromkeys(sorted(missing), "assumed, because it was not given"))
    assert "USD" not in " ".join(in_short(unstated))
    words, figures = words_of(unstated)
    assert "What the run costs by its number of GPUs" in figures
    options = {PRICE: "--usd-per-gpu-hour", PROFILE: "--profile"}
    assert all(options[name] in words for name in missing)


def test_a_profile_that_is_assumed_is_enough_only_for_logged_times(found: LoggedRunFindings) -> None:
    assumed = replace(found, not_stated={PROFILE: "times of a profile"})
    assert " USD " in next(in_short(assumed))
    untimed = replace(assumed, cost=replace(found.cost, logged_steps=0))
    assert "is not known" in next(in_short(untimed))
    assert (f"times of a profile; its times are scaled to those in the log; {PROFILE_HOW}", "--profile") in list(
        assumptions(untimed)
    )


def test_the_assumed_profile_is_named_with_its_model_and_gpus() -> None:
    shipped = read_profile(DEFAULT_PROFILE)
    assert profile_in_words(DEFAULT_PROFILE) == f"profile {DEFAULT_PROFILE} (Qwen2.5-3B on L40S, 2 GPUs per replica)"
    assert (shipped["model"], shipped["kind"], shipped["gpus_per_actor"]) == ("Qwen2.5-3B", "l40s", 2)
    assert "Qwen2.5-3B on L40S GPUs, 2 per replica" in profile_assumed(DEFAULT_PROFILE)
    assert profile_in_words("own.json") == "profile own.json"


def test_more_gpus_take_less_time(found: LoggedRunFindings) -> None:
    assert cost_by_gpus(found)["hours"].is_monotonic_decreasing


def test_changes_are_sorted_and_none_is_made_already(found: LoggedRunFindings) -> None:
    changes = changes_of(found)
    assert changes
    assert [change.mean for change in changes] == sorted((change.mean for change in changes), reverse=True)
    already = set(configuration_lines("verl", 4, 2, 8))
    assert not any(already & set(change.lines) for change in changes)
    own = found.gpu_counts[0]
    assert not any("replica" in one.what for one in changes_of(replace(found, gpu_counts=(own,))))
    more = Change("do something else", ("a.line=1",), 0.98, 0.98, 0.98, 0.0)
    assert changes_of(replace(found, further=(more,)))[0] is more


def test_a_run_that_learns_while_it_generates_has_no_idle_gpus_and_no_fewer_replicas(found: LoggedRunFindings) -> None:
    asynchronous = replace(found, setup=replace(found.setup, synchronous=False))
    assert "what was idle is not known" in next(in_short(asynchronous))
    assert not any("replica" in change.what for change in changes_of(asynchronous))


def test_other_numbers_of_replicas_take_what_a_cluster_of_that_size_takes(log: OpenedLog, found: LoggedRunFindings) -> None:
    for count in found.gpu_counts[1:]:
        latency = replace(found.setting.latency, name="same")
        cluster = Cluster(1, count.gpus, 2, kind="l40s")
        steps = simulate(log.trace.rollouts, replace(found.setting, cluster=cluster, latency=latency), ["static"]).steps
        assert count.time_s["static"] == pytest.approx(steps["time_s"].to_numpy())
        low, mean, high = count.saved(found.gpu_counts[0])
        assert low <= mean <= high
        assert mean == pytest.approx(1 - count.gpu_s / found.gpu_counts[0].gpu_s)


@given(st.lists(st.tuples(SHARES, SHARES, SHARES), max_size=8))
@settings(max_examples=40)
def test_advice_gains_in_its_whole_range_and_is_sorted(shares: list[tuple[float, float, float]]) -> None:
    changes = [Change(str(i), (), *sorted(three), 0.0) for i, three in enumerate(shares)]
    kept = ranked(changes)
    assert all(change.low >= 0.0005 for change in kept), "none reads as 0.0 %"
    sure = [change.mean for change in changes if change.low >= 0.0005 and change.mean >= 0.005]
    assert [change.mean for change in kept] == sorted(sure, reverse=True)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.sampled_from("xy"))), st.integers(0, 2))
@settings(max_examples=40)
def test_equal_schedules_are_one_row_and_none_is_lost(rows: list[tuple[str, str, str]], name: int) -> None:
    found = merged(rows, name)
    rests = [(*row[:name], *row[name + 1 :]) for row in found]
    assert len(set(rests)) == len(rests)
    apart = [(*row[:name], one, *row[name + 1 :]) for row in found for one in row[name].split(", ")]
    assert sorted(apart) == sorted(rows)


@given(st.text(max_size=40))
@settings(max_examples=15)
def test_what_is_packed_is_unpacked(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert unpacked(packed(text)) == text
    assert not set(packed(text)) & set("<>&\"'")


def test_a_change_without_known_gpus_is_a_share_and_one_that_takes_longer_says_so() -> None:
    page, change = Page("", ""), Change("wait", (), 0.1, 0.2, 0.3, -0.25)
    list_changes(page, [change], Amounts(100.0, math.nan, is_known=False))
    list_changes(page, [change], Amounts(100.0, 500.0))
    text = page.render("")
    assert "1. Wait: saves 10% to 30%, takes 25% more time" in text
    assert "1. Wait: saves 50.0 to 150 USD (10% to 30%), takes 25% more time" in text


def test_no_bar_is_shown_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(2) as begin:
        for part in ("one", "two", "three"):
            begin(part)
    assert capsys.readouterr() == ("", "")


def test_steps_without_a_logged_time_take_the_mean_of_the_others(log: OpenedLog, found: LoggedRunFindings) -> None:
    from rlhfless.analysis import generation_s, run_cost

    scalars = log.scalars.assign(step_s=np.nan) if len(log.scalars) else log.scalars
    untimed = log.trace.rollouts.drop(columns=["start_s", "end_s"])
    without = OpenedLog(replace(log.trace, rollouts=untimed), scalars, "verl", log.summary)
    own = simulate(untimed, found.setting, ["static", "least-loaded"])
    taken = generation_s(own, found.setup.candidates)
    cost = run_cost(without, found.account, taken, found.setup, found.phases, 1.0)
    assert cost.logged_steps == 0
    assert cost.time_s == pytest.approx(found.account.steps["generation_s"].sum() + 2 * found.phases.seconds)
    assert cost.low_s <= cost.time_s <= cost.high_s
    assert 0 <= cost.idle_share == pytest.approx(found.account.idle_share)
