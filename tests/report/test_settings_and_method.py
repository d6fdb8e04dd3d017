"""Other settings of a logged run, warnings of a profile, and what is assumed: compared once, in the framework's own words."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhfless.analysis import Assumptions, counts_frame
from rlhfless.analysis.own_times import FAR
from rlhfless.latency import load_profile, read_profile
from rlhfless.latency.profile import DEFAULT_PROFILE
from rlhfless.plots.export.html_page import Page
from rlhfless.plots.export.packed import packed, unpacked
from rlhfless.report.method import assumptions
from rlhfless.report.not_stated import (
    PRICE,
    PROFILE,
    PROFILE_HOW,
    profile_assumed,
    profile_in_words,
)
from rlhfless.report.progress import progress_bar
from rlhfless.report.savings import merged
from rlhfless.report.settings import prices_table, settings_part
from rlhfless.report.simulated import FAR_POINTS, NEAR_POINTS, is_of_other_hardware, schedules_section
from rlhfless.report.study import Findings, study
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import OpenedLog, open_log
from solver.model.cluster import Cluster

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TABLE = Path(__file__).parents[1] / "trace" / "importers" / "golden" / "table" / "log.csv"
SETTING = SimulationConfig(
    Cluster(1, 8, 2, kind="l40s", usd_per_gpu_hour=3600.0), load_profile("l40s-qwen2.5-3b-tp2"), bound_work=0
)  # a dollar per GPU-second


@pytest.fixture(scope="module")
def log() -> OpenedLog:
    """Two steps with logged times, as if verl had written them."""
    read = open_log(TABLE)
    return OpenedLog(read.trace, read.scalars, "verl", read.summary)


@pytest.fixture(scope="module")
def found(log: OpenedLog) -> Findings:
    return study(log, SETTING, Assumptions(learner_gpus=0), 2)


def words_of(page: Page) -> str:
    text = page.render("")
    body = text[text.index("<h2") : text.index("<script>")]
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).split())


def schedules_of(found: Findings) -> str:
    page = Page("", "")
    schedules_section(page, found)
    return words_of(page)


def settings_of(found: Findings) -> str:
    page = Page("", "")
    page.section("settings")
    settings_part(page, found)
    return words_of(page)


@pytest.mark.full
@pytest.mark.parametrize("factor", [1.0, 3.4, 3.6, 33.6, 0.1])
def test_a_profile_of_other_hardware_is_warned_of(found: Findings, factor: float) -> None:
    """By a profile that is scaled more than profiles of one class of hardware differ; what that means, and what to do."""
    changed = replace(found, times=replace(found.times, calibrated=replace(found.times.calibrated, factor=factor)))
    said = schedules_of(changed)
    assert ("Warning: " in said) == is_of_other_hardware(changed.times.calibrated) == (factor in (3.6, 33.6, 0.1))
    if factor == 33.6:
        assert "is 33.6 times as slow as profile l40s-qwen2.5-3b-tp2 (Qwen2.5-3B on L40S" in said
        assert "rlhfless profile" in said
    if factor == 0.1:
        assert "is 10.0 times as fast as" in said


def test_a_profile_that_nothing_was_compared_with_is_called_so(found: Findings) -> None:
    apart = replace(found, times=replace(found.times, calibrated=replace(found.times.calibrated, steps=0, checked=None)))
    said = schedules_of(apart)
    assert "was not compared with the run" in said
    assert "Warning" not in said
    assert "was not compared" not in schedules_of(found)


def test_what_the_warning_says_was_measured() -> None:
    said = json.loads((BENCHMARKS / "results" / "scaled_profiles.json").read_text())["summary"]
    assert said["near"]["factor"] < FAR < said["far"]["factor"]
    assert round(100 * said["near"]["error"]) == NEAR_POINTS
    assert tuple(round(100 * error) for error in said["far"]["errors"]) == FAR_POINTS


def test_what_is_assumed_has_the_option_that_states_it(found: Findings) -> None:
    assert "--profile" not in {option for _, option in assumptions(found)}
    assumed = dict.fromkeys((PROFILE, PRICE), "assumed, because it was not given")
    options = {option: text for text, option in assumptions(replace(found, not_stated=assumed))}
    assert {"--profile", "--usd-per-gpu-hour"} <= set(options)
    assert "its times are scaled to those of the run" in options["--profile"]
    assert PROFILE_HOW in options["--profile"]


def test_the_assumed_profile_is_named_with_its_model_and_gpus() -> None:
    shipped = read_profile(DEFAULT_PROFILE)
    assert profile_in_words(DEFAULT_PROFILE) == f"profile {DEFAULT_PROFILE} (Qwen2.5-3B on L40S, 2 GPUs per replica)"
    assert (shipped["model"], shipped["kind"], shipped["gpus_per_actor"]) == ("Qwen2.5-3B", "l40s", 2)
    assert "Qwen2.5-3B on L40S GPUs, 2 per replica" in profile_assumed(DEFAULT_PROFILE)
    assert profile_in_words("own.json") == "profile own.json"


def test_more_replicas_of_the_same_size_take_less_time(found: Findings) -> None:
    counts = counts_frame(found.gpu_counts)
    own = counts.iloc[0]
    same = counts[(counts["kind"] == own["kind"]) & (counts["gpus_per_actor"] == own["gpus_per_actor"])]
    assert len(same) > 2
    assert same.sort_values("replicas")["time_s"].is_monotonic_decreasing


def test_lines_of_the_configuration_are_those_that_change(found: Findings) -> None:
    said = settings_of(found)
    assert "trainer.n_gpus_per_node=2 trainer.nnodes=1" in said
    assert "trainer.n_gpus_per_node=8 trainer.nnodes=1" not in said.replace("h100", ""), "the run has it already"
    unknown = settings_of(replace(found, times=replace(found.times, setup=replace(found.times.setup, framework="table"))))
    assert "trainer." not in unknown
    assert "no lines of its configuration" in unknown


def test_a_run_that_learns_while_it_generates_is_not_compared_with_fewer_replicas(found: Findings) -> None:
    said = settings_of(replace(found, times=replace(found.times, setup=replace(found.times.setup, synchronous=False))))
    assert "learns while it generates" in said
    assert "time saved" not in said


def test_prices_are_those_of_the_table_and_the_readers_own() -> None:
    page = Page("", "")
    page.section("prices")
    prices_table(page, "The run's 10.0 GPU-hours", 10.0, "l40s", {"ours": 1.5}, named=True)
    said = words_of(page)
    assert "on-demand 3.77 USD 37.7 USD" in said
    assert "ours 1.50 USD 15.0 USD stated by you" in said
    assert "no spot price" in said


def test_other_numbers_of_replicas_take_what_a_cluster_of_that_size_takes(log: OpenedLog, found: Findings) -> None:
    own, *others = counts_frame(found.gpu_counts).itertuples()
    for count in (one for one in others if (one.kind, one.gpus_per_actor) == (own.kind, own.gpus_per_actor)):
        latency = replace(found.times.setting.latency, name="same")
        cluster = Cluster(1, count.gpus, 2, kind="l40s")
        steps = simulate(log.trace.rollouts, replace(found.times.setting, cluster=cluster, latency=latency), ["static"]).table
        rows = found.gpu_counts.table
        rows = rows[(rows["gpus"] == count.gpus) & (rows["gpu_kind"] == "l40s") & (rows["policy"] == "static")]
        assert rows["time_s"].tolist() == pytest.approx(steps["time_s"].tolist())
        assert count.cost_saved_low <= count.cost_saved_mean <= count.cost_saved_high
        assert count.cost_saved_mean == pytest.approx(1 - count.gpu_s / own.gpu_s)


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


def test_no_bar_is_shown_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(2) as begin:
        for part in ("one", "two", "three"):
            begin(part)
    assert capsys.readouterr() == ("", "")


def test_long_work_is_said_before_it_begins_and_has_a_line_per_part(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(work="simulating many responses") as begin:
        assert capsys.readouterr().err == "rlhfless: simulating many responses\n"
        for part in ("one", "two"):
            begin(part)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"rlhfless: one, after \d+ s\nrlhfless: two, after \d+ s\n", err)


def test_a_learner_with_gpus_of_its_own_is_compared_with_other_divisions(log: OpenedLog, found: Findings) -> None:
    assert found.splits.empty
    assert "How many GPUs" not in settings_of(found)
    apart = study(log, SETTING, Assumptions(learner_gpus=4, learn_s=2.0), 2)
    text = settings_of(apart)
    assert "How many GPUs generate and how many train" in text
    assert "4 (the run)" in text
    assert set(apart.splits["gpus"]) == {12}
    assert set(apart.splits["staleness"]) == {0, 1}
    turns, ahead = (apart.splits[apart.splits["staleness"] == bound].set_index(["way", "actors"]) for bound in (0, 1))
    assert (ahead["step_s"] <= turns["step_s"] + 1e-9).all()
    assert (apart.splits["least_step_s"] <= apart.splits["step_s"]).all()
    assert "GPUs include the 4 of the learner" in text
    assert "trainer." not in text, "those lines are of a learner on the actors' GPUs"
    assert len(json.loads(apart.to_json())["splits"]) == len(apart.splits)


def test_unknown_learning_says_which_option_tells_it(log: OpenedLog) -> None:
    asynchronous = OpenedLog(log.trace, log.scalars[["step"]], "areal", log.summary)
    assert "--learner-gpus" in settings_of(study(asynchronous, SETTING, None, 2))
    assert "--learn-s" in settings_of(study(asynchronous, SETTING, Assumptions(learner_gpus=4), 2))
