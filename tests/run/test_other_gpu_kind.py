"""A profile of another kind of GPUs than the run's is used as it is: times of one kind say nothing of another's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from error_messages import refused

import rlhfless as rl
from rlhfless.errors import InputError
from rlhfless.trace import OpenedLog, Trace, read_trace

OTHER = "l40s-qwen2.5-3b-tp2"


@pytest.fixture(scope="module")
def executed() -> Trace:
    """Two steps that H100 executed."""
    trace = read_trace(Path(rl.example()))
    steps = trace.steps[:2]
    of = {name: getattr(trace, name) for name in ("rollouts", "allocations", "spans", "events")}
    assert trace.meta["cluster"]["kind"] == "h100"
    return replace(trace, **{name: table[table["step"].isin(steps)] for name, table in of.items()}, plans=())


def slower(trace: Trace, times: float) -> Trace:
    """The same run, with every span, allocation and response taking so many times as long."""
    tables = {name: getattr(trace, name) for name in ("rollouts", "allocations", "spans")}
    moments = ("start_s", "first_token_s", "end_s")
    longer = {
        name: table.assign(**{moment: table[moment] * times for moment in moments if moment in table})
        for name, table in tables.items()
    }
    return replace(trace, **longer)


@pytest.mark.parametrize("times", [1.0, 2.0])
def test_an_executed_run_does_not_scale_a_profile_of_another_kind(executed: Trace, times: float) -> None:
    other = rl.load(slower(executed, times), profile=OTHER, verbose=False)
    assert other.calibrated.latency is other.setting.latency
    assert (other.times.scale.factor, other.times.scale.steps, other.times.checks) == (1.0, 0, ())
    own = rl.load(slower(executed, times), verbose=False)
    assert own.times.scale.factor == pytest.approx(times, rel=0.02)


def test_a_plan_of_another_kind_takes_as_long_whatever_the_run_took(executed: Trace) -> None:
    plans = [rl.load(slower(executed, times), profile=OTHER, verbose=False).plan(step=-1).plan for times in (1.0, 3.0)]
    assert plans[0].makespan_s == plans[1].makespan_s


def test_whoever_asks_is_told(executed: Trace) -> None:
    run = rl.load(executed, profile=OTHER, verbose=False)
    assert "h100" in run.times.scale.words()
    assert any("h100" in line and OTHER in line for line in run.times.lines)
    assert any("h100" in sentence for sentence in run.times.setup.assumed)
    assert rl.load(executed, verbose=False).times.not_used == ()


def test_other_ways_are_not_compared_with_times_of_another_kind(executed: Trace) -> None:
    with refused(InputError, "h100", OTHER):
        rl.load(executed, profile=OTHER, verbose=False).what_ifs()
    assert rl.load(executed, verbose=False).what_ifs().means()["way"].iloc[0] == "as executed"


def test_a_logged_trace_of_another_kind_scales_nothing_either(executed: Trace) -> None:
    scalars = pd.DataFrame({"step": executed.steps, "generate_s": [50.0, 60.0]})
    rows = executed.rollouts.drop(columns=["start_s", "end_s", "actor"])
    logged = OpenedLog(Trace(rows, meta={"cluster": executed.meta["cluster"]}), scalars, "verl")
    other = rl.load(logged, profile=OTHER, verbose=False)
    assert other.calibrated.latency is other.setting.latency
    assert any("h100" in line for line in other.times.lines)
    own = rl.load(logged, profile=executed.meta["profile"], verbose=False)
    assert own.times.scale.steps == 2
