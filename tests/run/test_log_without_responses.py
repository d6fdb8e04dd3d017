"""``rl.load`` of a log without responses: what limits the run is said, and what needs responses is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from error_messages import refused

import rlhfless as rl
from rlhfless.run import Run
from rlhfless.trace import ImportedLog, LogWithoutResponses, import_log

STEP = {
    "response_length/mean": 300.0, "response_length/max": 2048.0, "prompt_length/mean": 100.0, "timing_s/gen": 60.0,
    "timing_s/step": 100.0, "timing_s/update_actor": 30.0,
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Four steps of scalars, as verl's file logger writes them."""
    path = tmp_path / "steps.jsonl"
    lines = [json.dumps({"step": step, "data": {**STEP, "timing_s/gen": 60.0 + step}}) for step in (3, 4, 5, 6)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_what_limits_the_run_is_said_without_responses(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rl.load(path)
    assert capsys.readouterr().out == f"{run.diagnosis()}\n"
    assert isinstance(run.log, ImportedLog)
    assert run.steps == [3, 4, 5, 6]
    assert run.diagnosis().numbers["response_tokens_mean"].value == pytest.approx(300.0)
    assert "simulated" not in repr(run)
    assert "<table" in run._repr_html_()
    imported = rl.load(import_log(path), verbose=False)
    assert imported.diagnosis().to_dict() == run.diagnosis().to_dict()


NEEDS_RESPONSES: dict[str, Callable[[Run], Any]] = {
    "trace": lambda run: run.trace, "rollouts": lambda run: run.rollouts, "times": lambda run: run.times,
    "calibrated": lambda run: run.calibrated, "plan": Run.plan, "plan_step": Run.plan_step, "simulate": Run.simulate,
    "search": Run.search, "explore": Run.explore, "what_ifs": Run.what_ifs,
    "sweep": Run.sweep,
}  # fmt: skip


@pytest.mark.parametrize("stated", [{}, {"gpus": 8}])
@pytest.mark.parametrize("name", NEEDS_RESPONSES)
def test_what_needs_responses_is_refused_with_what_to_give(name: str, stated: dict[str, Any], path: Path) -> None:
    run = rl.load(path, verbose=False, **stated)
    with refused(LogWithoutResponses, "steps.jsonl", "no responses", "rollout log", "run.diagnosis()"):
        NEEDS_RESPONSES[name](run)


def test_what_is_stated_of_its_gpus_reaches_the_diagnosis(path: Path) -> None:
    run = rl.load(
        path, 8, "h100-qwen2.5-3b-tp1", hardware=rl.Hardware(usd_per_gpu_hour=2.5), max_response_tokens=4096, verbose=False
    )
    stated = run.stated
    assert (stated.gpus, stated.gpu, stated.usd_per_gpu_hour, stated.max_response_tokens) == (8, "h100", 2.5, 4096)
    assert (stated.model, stated.tensor_parallel) == ("Qwen2.5-3B", 1)
    nothing = rl.load(path, verbose=False).stated
    assert set(vars(nothing).values()) == {None}, "a stand-in profile, list prices and defaults are not stated"


def test_its_page_is_the_diagnosis(path: Path, tmp_path: Path) -> None:
    page = rl.load(path, gpus=8, verbose=False).report(tmp_path / "page.html", verbose=False).read_text("utf-8")
    assert "What limits this run" in page
    assert "The log has no responses, so no schedule is simulated." in page
