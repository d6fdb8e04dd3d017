"""A step beside TRL's: what phases are told to have taken adds up to the step."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_samples import config

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import trl_step_time as script


def test_phases_and_their_shares_add_up_to_the_step(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our trainer, with a reference model, whose passes are preparation."""
    made = script.TimedTrainer(config(steps=2, kl_coef=0.1), model=untrained, progress=False)
    monkeypatch.setattr(script.TimedTrainer, "continue_from", lambda *_, **__: made)
    monkeypatch.setattr(script, "read_trace", lambda _: None)
    names = [problem.prompt_id for problem in made.task.problems]
    rows = script.ours(2, {(name, i): 5 for name in names for i in range(3)}, {}, "virtual")  # type: ignore[arg-type]
    own = script.summary("engine", rows)
    assert all(own[phase] > 0 for phase in script.PHASES)
    assert sum(own[phase] for phase in script.PHASES) == pytest.approx(own["step_s"])
    assert sum(own[f"{phase}_share"] for phase in script.PHASES) == pytest.approx(1)
    assert own["tokens"] == 12 * 5


def test_what_trl_does_between_generation_and_learning_is_preparation() -> None:
    pytest.importorskip("trl", reason="TRL is not installed: pip install 'trl>=1.16'")
    from trl_trainer import EveryStep

    watch = script.Stopwatch()
    told: Any = EveryStep(SimpleNamespace(watch=watch, tokens=7.0))  # type: ignore[arg-type]
    told.on_step_begin()
    with watch.timed("all before learning"):
        with watch.timed("generation"):
            time.sleep(0.02)
        time.sleep(0.01)
    time.sleep(0.03)
    told.on_step_end()
    step = watch.steps[0]
    assert step["generation"] >= 0.02
    assert step["preparation"] >= 0.01
    assert step["learning"] >= 0.03
    assert sum(step[phase] for phase in script.PHASES) == pytest.approx(step["step_s"])


def test_the_table_tells_seconds_and_shares() -> None:
    row = {"contender": "engine", "step_s": 4.0, "generation": 2.0, "preparation": 0.5, "learning": 1.0, "rest": 0.5}
    shares = {f"{phase}_share": row[phase] / 4.0 for phase in script.PHASES}  # type: ignore[operator]
    head, _, ours, theirs = script.markdown(
        [{**row, **shares, "cpu_s": 3.0}, {**row, **shares, "contender": "trl"}]
    ).splitlines()
    assert head == "| contender | s per step | CPU s | generation, s | preparation, s | learning, s | rest, s |"
    assert ours == "| engine | 4.00 | 3.00 | 2.00 (50%) | 0.50 (12%) | 1.00 (25%) | 0.50 (12%) |"
    assert theirs.startswith("| trl | 4.00 |  | 2.00")
