"""A step beside TRL's: what phases are told to have taken adds up to the step."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from training_samples import config

from rlhfless.training.rewards import Response

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import trl_step_time as script


def test_phases_and_their_shares_add_up_to_the_step(untrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of our trainer, with a reference model, whose passes are preparation; and every response gets the reward drawn for it."""
    made = script.TimedTrainer(config(steps=2, kl_coef=0.1), model=untrained, progress=False)
    monkeypatch.setattr(script.TimedTrainer, "continue_from", lambda *_, **__: made)
    monkeypatch.setattr(script, "read_trace", lambda _: None)
    names = [problem.prompt_id for problem in made.task.problems]
    watch = script.Stopwatch()
    script.ours(2, {(name, i): 5 for name in names for i in range(3)}, {}, watch)
    own = script.summary("engine", [{"engine": watch.steps[1], "trl, one thread": watch.steps[1]}])
    assert own["over_cpu_s"] == own["over_step_s"] == {"ratio": 1.0}
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


def test_rewards_are_those_of_the_prompt_whatever_group_is_judged_first() -> None:
    rewards = script.TimedRewards([1.0, 2.0, 3.0, 4.0], ["a", "b"], script.Stopwatch())
    asked = {name: [Response(SimpleNamespace(prompt_id=name), "")] * 2 for name in ("a", "b")}
    assert rewards.judge(asked["b"]).values.tolist() == [3.0, 4.0]
    assert rewards.judge(asked["a"]).values.tolist() == [1.0, 2.0]


def test_the_table_tells_ratios_and_shares() -> None:
    row = {"contender": "engine", "step_s": 4.0, "generation": 2.0, "preparation": 0.5, "learning": 1.0, "rest": 0.5}
    shares = {f"{phase}_share": row[phase] / 4.0 for phase in script.PHASES}  # type: ignore[operator]
    ratios = {"over_cpu_s": {"ratio": 2.0, "low": 1.5, "high": 2.5}, "over_step_s": {"ratio": 3.0}}
    head, _, ours = script.markdown([{**row, **shares, **ratios, "cpu_s": 3.0}]).splitlines()
    assert head == (
        "| way | s per step | CPU s | TRL / this, CPU | TRL / this, clock | generation | preparation | learning | rest |"
    )
    assert ours == "| engine | 4.00 | 3.00 | 2.00 (1.50 to 2.50) | 3.00 | 50% | 12% | 25% | 12% |"
