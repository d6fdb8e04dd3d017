"""Waits for tools: named before the tail, left out of the engine's pace, and of no use to an order of responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rlhfless.diagnosis import Stated, diagnose
from rlhfless.diagnosis.diagnose import collect
from rlhfless.diagnosis.logged_run import LoggedRun
from rlhfless.diagnosis.numbers import Collected

TOOLS, SLOWEST = "timing_s/agent_loop/tool_calls", "timing_s/agent_loop/slowest/tool_calls"
STEP = {
    "step_s": 500.0, "generate_s": 400.0, "learn_s": 90.0, "request_s_mean": 20.0, "request_s_max": 80.0,
    "response_tokens_mean": 1000.0, "response_tokens_max": 8000.0, f"{TOOLS}/mean": 40.0, f"{TOOLS}/max": 350.0,
}  # fmt: skip


def found_in(**columns: Any) -> Collected:
    """Return what is found in one step of verl with 64 responses on 8 GPUs."""
    return collect(
        LoggedRun("log", "verl", pd.DataFrame([{"step": 1, **columns}]), stated=Stated(gpus=8, responses_per_step=64))
    )


@pytest.mark.parametrize("slowest", [{}, {SLOWEST: 350.0}])
def test_the_slowest_request_of_verl_waits_for_tools(slowest: dict[str, float]) -> None:
    found = found_in(**STEP, **slowest)
    (tools,) = [one for one in found.findings if "Tools" in one.sentence]
    assert "350.0 of 400.0 s" in tools.sentence
    assert "80.0 s" in tools.sentence, "decoding alone takes so long"
    assert (tools.at_stake, tools.of) == (pytest.approx(320 / 500), "time")
    assert not [one for one in found.findings if one.kind in ("tail", "engine")], "lengths do not tell when responses end"
    assert not [one for one in found.levers if one.kind == "assignment"]
    assert any(SLOWEST in text for text in found.cannot_say) == (not slowest)


def test_few_seconds_of_tools_are_a_number_and_the_tail_stays() -> None:
    found = found_in(**{**STEP, f"{TOOLS}/max": 10.0, f"{TOOLS}/mean": 0.5})
    assert found.numbers["tools_s"].value == 10
    assert not [one for one in found.findings if "Tools" in one.sentence]
    assert [one for one in found.findings if one.kind == "tail"]
    assert "tools_s" not in found_in(**{**STEP, f"{TOOLS}/max": 0.0, f"{TOOLS}/mean": 0.0}).numbers, "a run without tools"


def test_more_seconds_of_tools_than_of_generation_are_not_used() -> None:
    found = found_in(**STEP, **{SLOWEST: 900.0})
    assert "tools_s" not in found.numbers
    assert any("not used" in note for note in found.notes)


def turns(folder: Path, *, ends: bool) -> Path:
    """Write a table of turns: the second sample waits 300 s for a tool, and both decode 100 tokens in 2 s a turn."""
    rows = [("a", 0, 0, 5.0, 0.0), ("a", 0, 1, 0.0, 7.0), ("a", 1, 0, 300.0, 0.0), ("a", 1, 1, 0.0, 302.0)]
    frame = pd.DataFrame(rows, columns=["prompt_id", "sample", "turn", "tool_wait_s", "start_s"])
    frame = frame.assign(step=0, prompt_tokens=50, response_tokens=100 + frame["sample"], end_s=frame["start_s"] + 2.0)
    path = folder / "turns.csv"
    (frame if ends else frame.drop(columns=["start_s", "end_s"])).to_csv(path, index=False)
    return path


def test_waits_between_turns_are_no_slow_engine(tmp_path: Path) -> None:
    said = diagnose(turns(tmp_path, ends=True))
    assert said.numbers["ms_per_token"].value == pytest.approx(1000 * 4 / 201, rel=0.01)
    assert "engine" not in [one.kind for one in said.findings]
    assert said.verdict[0].kind == "waiting"
    assert "300.0 of 304.0 s" in said.verdict[0].sentence
    assert "4.0 s" in said.verdict[0].sentence, "each decodes two turns"
    assert not [one for one in said.levers if one.kind == "assignment"]


def test_waits_without_times_are_a_number_and_no_share(tmp_path: Path) -> None:
    said = diagnose(turns(tmp_path, ends=False))
    assert said.numbers["tools_s"].value == 300
    assert "waiting" not in [one.kind for one in said.findings]
    assert any("300.0 s" in text for text in said.cannot_say)
