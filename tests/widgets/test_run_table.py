"""Runs beside each other: sums over the steps that they share, and marks where one is better or worse than the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused
from log_samples import log, rollouts

from rlhfless.plots.style import number
from rlhfless.simulate import simulate
from rlhfless.trace import Limits, Trace, TraceError
from rlhfless.widgets import Settings, compare, compared, zoom


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    setting = Settings("cpu-tiny-qwen2", gpus=8, time_weight=0.7, usd_per_gpu_hour=1.0).setting
    return simulate(log(prompts=24, samples=8).rollouts, setting, ["static", "random", "oracle"]).traces


def test_numbers_are_sums_over_the_steps_and_marks_say_better_or_worse(traces: dict[str, Trace]) -> None:
    shown = compared(traces)
    assert shown.steps == [0, 1, 2]
    for name, trace in traces.items():
        held = trace.allocations
        gpu_s = ((held["end_s"] - held["start_s"]) * held["gpu_ids"].map(len)).sum()
        assert shown.table.loc[name, "gpu_seconds"] == pytest.approx(gpu_s)
        change = gpu_s / shown.table.loc["static", "gpu_seconds"] - 1
        assert shown.relative.loc[name, "gpu_seconds"] == pytest.approx(change)
        mark = shown.marks.loc[name, "gpu_seconds"]
        assert mark == ("" if abs(change) <= 0.005 else "better" if change < 0 else "worse")
    assert shown.marks.loc["oracle", "gpu_seconds"] == "better"
    assert (shown.marks.loc["static"] == "").all()
    assert shown.differs == {"policy": ["static", "random", "oracle"]}


def test_one_step_alone_and_steps_that_are_not_shared(traces: dict[str, Trace]) -> None:
    one = compared(traces, 1)
    assert one.steps == [1]
    assert (one.table["time_s"] < compared(traces).table["time_s"]).all()
    with refused(TraceError, "step 7"):
        compared(traces, 7)
    later = Trace(rollouts().assign(step=lambda rows: rows["step"] + 9))
    with refused(TraceError):
        compared({"a": traces["static"], "b": later})
    with refused(TraceError):
        compared({})


def test_logs_without_gpus_are_compared_by_what_they_tell() -> None:
    shown = compared({"a": log(), "b": log(seed=1)})
    assert shown.table["time_s"].isna().all()
    assert shown.table["response_tokens_mean"].notna().all()
    assert shown.marks.loc["b", "response_tokens_mean"] == "differs"
    assert (shown.marks["time_s"] == "").all()


def test_folders_have_limits_that_may_be_raised(tmp_path: Path) -> None:
    folder = log().save(tmp_path / "log")
    few, enough = Limits(rows=len(rollouts()) - 1), Limits(rows=len(rollouts()))
    for show in (compared, compare):
        with refused(TraceError, str(folder), "RLHFLESS_LIMITS=max_rows", "Limits(rows=...)"):
            show({"a": folder}, limits=few)
    with refused(TraceError, "RLHFLESS_LIMITS=max_rows"):
        zoom(folder, limits=few)
    assert compared({"a": folder}, limits=enough).steps == [0, 1, 2]


def test_several_runs_in_a_trace_are_refused() -> None:
    two = Trace(pd.concat([rollouts(), rollouts().assign(run="other")]))
    with refused(TraceError):
        compared({"a": two})


def test_the_dashboard_shows_them_step_by_step_and_escapes_names(traces: dict[str, Trace]) -> None:
    shown = compare({"<b>first</b>": traces["static"], "<script>": traces["oracle"]})
    html = shown.panes.pane_numbers
    assert "<script" not in html
    assert "<b>first" not in html
    assert 'class="better"' in html
    assert "GPU timelines of one step under 2 schedules" in shown.panes.pane_timelines
    shown.step.value = 1
    assert "step 1" in shown.panes.pane_numbers
    with refused(TraceError):
        compare([traces["static"]])  # type: ignore[arg-type]


def test_whole_numbers_of_actors_and_responses_have_no_decimals(traces: dict[str, Trace]) -> None:
    shown = compare(traces)
    shown.step.value = 1
    first = shown.shown.table.iloc[0]
    for name in ("actors", "responses"):
        assert f">{int(first[name])}</td>" in shown.panes.pane_numbers
        assert f">{number(first[name], digits=4)}<" not in shown.panes.pane_numbers


def test_folders_are_compared_like_their_traces(traces: dict[str, Trace], tmp_path: Path) -> None:
    folder = traces["random"].save(tmp_path / "random")
    given = {"static": traces["static"], "random": folder}
    expected = compared({name: traces[name] for name in given})
    pd.testing.assert_frame_equal(compared(given).table, expected.table)


@pytest.mark.parametrize("how", [compare, compared])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"mine": None}, ("NoneType",)),
        ({"mine": rollouts()}, ("DataFrame",)),
        ({"mine": "no/such"}, ("no/such",)),
        (["no/such"], ()),
        ({}, ()),
    ],
)
def test_what_is_no_run_is_refused_in_a_sentence(how: Callable[..., object], given: object, said: tuple[str, ...]) -> None:
    with refused(TraceError, *said):
        how(given)


def test_a_trace_of_lengths_alone_is_compared_by_its_lengths(traces: dict[str, Trace]) -> None:
    shown = compare({"run": traces["static"], "log": log(prompts=24, samples=8)})
    assert shown.shown.table.loc["log", "responses"] == shown.shown.table.loc["run", "responses"]
