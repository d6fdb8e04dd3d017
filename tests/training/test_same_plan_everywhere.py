"""One step, one plan: a training run, ``run.plan``, ``explore`` and the command line let policy ``solver`` plan it alike."""

from __future__ import annotations

import json
from pathlib import Path

from command_line import run_rlhfless
from training_samples import config

import rlhfless as rl
from rlhfless.analysis import Assumptions
from rlhfless.training.loop import train

Responses = list[list[int]]


def of(actors: list[dict[str, object]]) -> Responses:
    return [list(actor["responses"]) for actor in actors]  # type: ignore[call-overload]


def test_training_run_plan_explore_and_the_command_plan_a_step_alike(model: Path, tmp_path: Path) -> None:
    trained = train(config(steps=4), tmp_path / "run", model=model)
    step = trained.steps[-1]
    assert step >= 2, "its prompts were seen before"
    planned = next(plan for plan in trained.plans if plan["step"] == step)
    run = rl.load(trained, assumptions=Assumptions(calibrate=False), verbose=False)
    own = run.plan(step).plan
    scaled = rl.load(tmp_path / "run", verbose=False).plan(step).plan
    explorer = run.explore(step)
    assert explorer.wait(300)
    assert explorer.error is None
    assert explorer.planned is not None
    shown = run_rlhfless("plan", str(tmp_path / "run"), "--step", str(step), "--format", "json")
    assert shown.exit_code == 0, shown.output
    command = json.loads(shown.stdout)
    plans = [of(planned["actors"]), of([vars(a) for a in own.actors])]
    plans.append(of([vars(a) for a in explorer.planned.plan.actors]))
    assert plans == [plans[0]] * 3
    whys = {plan["notes"]["why"] for plan in (planned, own.to_dict(), explorer.planned.plan.to_dict())}
    assert len(whys) == 1
    assert of(command["actors"]) == of([vars(a) for a in scaled.actors]), "the command scales the profile to the run's times"
    assert command["notes"]["why"] == scaled.notes["why"]
