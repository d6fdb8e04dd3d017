"""Seconds per step of logs without phases, and hours, GPU-hours and dollars of the whole run."""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd
import pytest

from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.logged_run import LoggedRun, Stated
from rlhfless.diagnosis.numbers import BOUND, Collected, Part
from rlhfless.diagnosis.phases import phases
from rlhfless.diagnosis.whole_run import whole_run
from rlhfless.trace.importers.names import NAMES


def found_in(facts: dict[str, float] | None = None, framework: str = "", steps: Any = None, **stated: Any) -> Part:
    """Return what is said of a run with these facts, after its phases."""
    columns = pd.DataFrame({"step": []} if steps is None else steps)
    run = LoggedRun("log", framework, columns, facts=facts or {}, stated=Stated(**stated))
    found = Collected()
    found.add(phases(run, found))
    return whole_run(run, found)


def numbers_of(part: Part) -> dict[str, float]:
    """Return the numbers by key."""
    return {one.key: one.value for one in part.numbers}


def test_a_progress_bar_gives_hours_gpu_hours_and_dollars_of_the_run_as_planned() -> None:
    bar = {"planned_steps": 1200, "steps_done": 1, "elapsed_s": 240, "seconds_per_step": 240.3}
    numbers = numbers_of(found_in(bar, gpus=8, usd_per_gpu_hour=2.5))
    assert numbers["bar_step_s"] == 240.3, "the bar's elapsed time is in whole seconds"
    assert numbers["run_hours"] == pytest.approx(1200 * 240.3 / 3600)
    assert numbers["gpu_hours"] == pytest.approx(8 * 1200 * 240.3 / 3600)
    assert numbers["usd"] == pytest.approx(20 * 1200 * 240.3 / 3600)
    assert not {"gpu_hours", "usd"} & set(numbers_of(found_in(bar))), "without GPUs there is no cost"
    assert "usd" not in numbers_of(found_in(bar, gpus=8)), "without a price there are no dollars"


def test_two_rates_of_a_bar_that_disagree_are_a_range() -> None:
    part = found_in({"planned_steps": 100, "steps_done": 50, "elapsed_s": 5000, "seconds_per_step": 80})
    (bar,) = [one for one in part.numbers if one.key == "bar_step_s"]
    assert (bar.low, bar.high) == (80, 100)
    (hours,) = [one for one in part.numbers if one.key == "run_hours"]
    assert (hours.low, hours.high) == pytest.approx((8000 / 3600, 10_000 / 3600))


def test_the_end_of_a_log_tells_what_the_run_took() -> None:
    numbers = numbers_of(found_in({"run_s": 7200, "steps_per_s": 0.05, "planned_steps": 360, "gpus": 4}))
    assert numbers == pytest.approx({"bar_step_s": 20, "run_hours": 2, "gpu_hours": 8})
    assert numbers_of(found_in({"run_s": 7200, "steps_done": 360}))["bar_step_s"] == 20
    assert numbers_of(found_in({"run_s": 7200})) == {"run_hours": 2}


def test_rounded_steps_per_second_are_a_range() -> None:
    """A log's end has three decimals: 0.002 is anything from 400 to 667 s a step."""
    (step, _) = found_in({"run_s": 18_000, "steps_per_s": 0.002}).numbers
    assert (step.low, step.high) == pytest.approx((1 / 0.0025, 1 / 0.0015))
    assert numbers_of(found_in({"run_s": 18_000, "steps_per_s": 0.002, "planned_steps": 30}))["bar_step_s"] == 600
    early = found_in({"run_s": 18_000, "steps_per_s": 0.5, "planned_steps": 30}).numbers[0]
    assert early.high == pytest.approx(2, rel=0.01), "a plan that the rate contradicts is not what was done"
    assert "bar_step_s" not in numbers_of(found_in({"run_s": 18_000, "steps_per_s": 0.0004})), "it may be 0"


@pytest.mark.parametrize("framework", ["trl", "prime-rl", ""])
def test_a_run_without_seconds_of_phases_says_what_would_tell(framework: str) -> None:
    for part in (found_in({"seconds_per_step": 60}, framework), found_in(None, framework, {"step": [1], "step_s": [60.0]})):
        (missing,) = part.cannot_say
        assert missing.startswith("Where the seconds of a step go")
    assert not found_in(None, framework, {"step": [1], "step_s": [60.0], "learn_s": [20.0]}).cannot_say
    assert not found_in({"kv_cache_tokens": 9e5}, framework).cannot_say, "a log of an engine alone has no steps"


@pytest.mark.parametrize("framework", NAMES)
def test_the_line_that_would_tell_the_seconds_is_the_frameworks_own(framework: str) -> None:
    (missing,) = found_in(None, framework, {"step": [1], "step_s": [60.0]}).cannot_say
    assert missing not in found_in(None, "", {"step": [1], "step_s": [60.0]}).cannot_say
    words = re.findall(r"[\w/]+", missing)
    of_the_console = {"trl": "profiling/Time", "nemo-rl": "generation"}
    names = {name for column in ("step_s", "generate_s", "wait_s") for name in NAMES[framework].own(column)}
    assert of_the_console.get(framework) in words or names & set(words)


def test_one_row_of_a_table_of_runs_is_a_run() -> None:
    row = {"step": [0], "run_s": [7200.0], "steps_done": [60.0], "gpus": [4.0]}
    assert numbers_of(found_in(steps=row)) == pytest.approx({"bar_step_s": 120, "run_hours": 2, "gpu_hours": 8})


def test_logged_steps_are_not_taken_for_the_whole_run() -> None:
    steps = {"step": [1, 2], "step_s": [100.0, 140.0]}
    assert numbers_of(found_in(steps=steps, gpus=16)) == pytest.approx(
        {"gpu_hours_per_step": 16 * 120 / 3600, "logged_hours": 240 / 3600, "gpu_hours": 16 * 240 / 3600}
    )
    assert numbers_of(found_in({"planned_steps": 30}, steps=steps))["run_hours"] == pytest.approx(1)


def test_steps_that_validate_are_paid_for_although_a_step_is_an_ordinary_one() -> None:
    testing = [math.nan, 60.0] * 5
    within = {"step": range(10), "step_s": [100.0, 160.0] * 5, "generate_s": 80.0, "timing_s/testing": testing}
    beside = {**within, "step_s": [100.0] * 10, "generate_s": 99.5}
    for steps in (within, beside):
        numbers = numbers_of(found_in(steps=steps, framework="verl", gpus=8))
        assert numbers["gpu_hours_per_step"] == pytest.approx(8 * 100 / 3600)
        assert numbers["gpu_hours"] == pytest.approx(8 * 1300 / 3600)
        assert numbers_of(found_in({"planned_steps": 100}, "verl", steps))["run_hours"] == pytest.approx(13_000 / 3600)


def test_a_first_step_that_compiles_is_paid_once() -> None:
    steps = {"step": range(1, 11), "step_s": [500.0, *[100.0] * 9], "generate_s": 50.0}
    numbers = numbers_of(found_in({"planned_steps": 100}, steps=steps))
    assert numbers["run_hours"] == pytest.approx((500 + 99 * 100) / 3600)


def test_seconds_of_a_generation_are_those_of_all_its_optimizer_steps() -> None:
    """TRL plans optimizer steps. A row has the seconds of all steps that learn from its generation."""
    steps = {"step": [1, 3], "step_s": [759.98, 759.98]}
    numbers = numbers_of(found_in({"planned_steps": 1562, "steps_per_generation": 2}, "trl", steps=steps))
    assert numbers["run_hours"] == pytest.approx(1562 * 379.99 / 3600)


def test_gpus_that_wait_while_few_generate_are_a_bound_in_the_unknown_share() -> None:
    part = found_in({"planned_steps": 10, "seconds_per_step": 60}, "trl", gpus=8, gpus_generate=1)
    (unknown,) = part.cannot_say
    assert "0.875 x g" in unknown
    assert "44%" in unknown
    assert "report_to" in unknown, "the line of TRL's logger that would tell"
    assert not [one for one in part.numbers if "idle" in one.key]
    known = found_in(steps={"step": [1], "step_s": [100.0], "generate_s": [40.0], "learn_s": [55.0]}, gpus=8, gpus_generate=2)
    (idle,) = [one for one in known.numbers if "idle" in one.key]
    assert (idle.value, idle.evidence) == (pytest.approx(0.75 * 0.4), BOUND)
    assert not known.cannot_say


@pytest.mark.parametrize("stated", [{}, {"gpus": 8}, {"gpus_generate": 1}, {"gpus": 8, "gpus_generate": 8}])
def test_no_idle_gpus_are_said_where_nobody_stated_the_split(stated: dict[str, int]) -> None:
    part = found_in({"planned_steps": 10, "seconds_per_step": 60}, "trl", **stated)
    assert not any("idles" in sentence for sentence in part.cannot_say)
    assert not [one for one in part.numbers if "idle" in one.key or "others" in one.key]


def test_training_beside_generation_has_no_such_idle_gpus() -> None:
    steps = {"step": [1], "step_s": [100.0], "wait_s": [40.0]}
    assert not found_in(steps=steps, gpus=8, gpus_generate=2).cannot_say
    part = found_in(steps={"step": [1], "step_s": [100.0], "off_policy_steps": [0.0]}, gpus=8, gpus_generate=2)
    assert not any("idles" in sentence for sentence in part.cannot_say)
    assert not [one for one in part.numbers if "idle" in one.key or "others" in one.key]


@pytest.mark.parametrize("wrong", [0.0, -5.0, math.inf, math.nan, 1e300])
def test_impossible_facts_are_named_and_not_used(wrong: float) -> None:
    part = found_in({"planned_steps": 100, "seconds_per_step": wrong})
    assert not part.numbers
    assert any("seconds_per_step" in note for note in part.notes)
    assert not found_in({"planned_steps": wrong, "run_s": wrong}).numbers


def test_gpus_of_the_log_stand_in_for_stated_ones() -> None:
    steps = {"step": [1, 2], "step_s": [90.0, 90.0], "gpus_generate": [6.0, 6.0], "gpus_train": [2.0, math.nan]}
    assert numbers_of(found_in(steps=steps))["gpu_hours_per_step"] == pytest.approx(8 * 90 / 3600)
    varying = {"step": [1, 2], "step_s": [90.0, 90.0], "gpus": [8.0, 16.0]}
    assert "gpu_hours" not in numbers_of(found_in(steps=varying)), "which of the two it is, is unknown"


def test_the_time_of_a_step_is_the_verdict_only_where_nothing_else_is() -> None:
    steps = pd.DataFrame({"step": [1], "step_s": [60.0]})
    (alone,) = collect(LoggedRun("log", "", steps, facts={"planned_steps": 30.0})).findings
    assert (alone.kind, alone.proof) == ("cannot say", ("step_s", "run_hours"))
    assert "60.0 s" in alone.sentence
    assert "0.5 hours" in alone.sentence
    kinds = [one.kind for one in collect(LoggedRun("log", "", steps.assign(truncation_rate=0.5))).findings]
    assert kinds == ["limit"]
    assert not collect(LoggedRun("log", "", steps.assign(generate_s=0.1, learn_s=0.1, prepare_s=0.1).iloc[:0])).findings
