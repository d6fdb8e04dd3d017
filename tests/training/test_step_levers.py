"""The levers of a real run: chosen by its own steps, said in its trace, and without a change of weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from error_messages import refused
from training_samples import config, farthest

from rlhfless.plots.export.html_page import Page
from rlhfless.report.executed_run import executed_section
from rlhfless.scheduling.baselines import Random
from rlhfless.scheduling.replan import SolverReplan
from rlhfless.trace import read_trace
from rlhfless.training.config import TrainError
from rlhfless.training.loop import Trainer
from rlhfless.training.step_levers import StepLevers
from solver.model.drafting import Drafting

SHIPPED = Path(__file__).parents[2] / "data" / "traces" / "reasoning-static"
WALL: dict[str, Any] = {"executor": "local", "levers": "measured", "gpus": 2, "gpus_per_node": 2, "idle_timeout_s": 600.0}


def levers(**changes: Any) -> StepLevers:
    return StepLevers(config(**{**WALL, **changes}), SolverReplan(), Drafting(), measures=True)


def test_only_levers_that_the_options_name_are_tried() -> None:
    assert list(levers().trials) == ["planning", "drafts"]
    assert list(levers(learning="stream", learner_gpus="auto").trials) == ["planning", "drafts", "pieces"]
    plain = StepLevers(config(**WALL), Random(), None, measures=True)
    assert plain.trials == {}
    given = StepLevers(config(**{**WALL, "levers": "given"}), SolverReplan(), Drafting(), measures=True)
    given.begin(pd.DataFrame(), [])
    assert (given.trials, given.planner.name, given.drafting) == ({}, "solver+replan", Drafting())
    with refused(TrainError, "levers", "measured", "virtual"):
        config(levers="measured")


def test_a_step_uses_what_pays_and_tries_one_lever_at_most() -> None:
    """Costs are counted: planning takes 1.1 of them, drafts 0.8. Nothing is drafted before a prompt comes again."""
    chosen, used = levers(steps=40), []
    earlier, problems = pd.DataFrame({"prompt_id": ["p"]}), [type("Problem", (), {"prompt_id": "p"})()]
    for step in range(12):
        chosen.begin(pd.DataFrame() if step < 4 else earlier, problems)
        planning, drafts = isinstance(chosen.planner, SolverReplan), chosen.drafting is not None
        used.append((planning, drafts))
        cost = (1.1 if planning else 1.0) * (0.8 if drafts else 1.0)
        for name, state in (("planning", planning), ("drafts", drafts)):
            other = {"planning": drafts != chosen.trials["drafts"].on, "drafts": planning != chosen.trials["planning"].on}[name]
            if not other:
                chosen.trials[name].note(state, cost)
    assert used[0] == (False, False), "a step without any is measured first"
    assert np.sum([planning for planning, _ in used]) == 1
    assert not any(drafts for _, drafts in used[:4])
    assert all(drafts for _, drafts in used[4:])


def test_the_report_says_how_often_a_lever_was_used() -> None:
    planning = {"used": True, "pays": False, "measured_saving": -0.05}
    said = [{"planning": planning}, {"planning": {**planning, "used": False}, "drafts": {**planning, "measured_saving": None}}]
    trace = read_trace(SHIPPED)
    tables = {
        name: table[table["step"] == 0].head(200) for name in ("rollouts", "allocations") if len(table := getattr(trace, name))
    }
    trace = replace(trace, **tables, spans=trace.spans.head(0), plans=trace.plans[:1])
    events = [
        {"step": k, "time_s": float(k), "name": "levers", "holder": None, "detail": json.dumps(one)}
        for k, one in enumerate(said)
    ]
    page = Page("Run", "")
    executed_section(page, replace(trace, events=pd.DataFrame(events)))
    html = page.render("")
    assert "Levers, chosen by what the run" in html
    for told in ("1 of 2 steps", "-5.0%", "not compared"):
        assert told in html


@pytest.mark.full
def test_a_run_says_what_it_used_and_learns_the_same(tmp_path: Path, model: Path) -> None:
    with Trainer(config(steps=4, prompts=4, gpus=2, gpus_per_node=2), model=model, progress=False) as plain:
        plain.run()
        expected = plain.model.state_dict()
    given = config(**WALL, steps=4, prompts=4, policy="solver+replan", drafts=True)
    with Trainer(given, tmp_path / "run", model=model, progress=False) as trainer:
        steps = list(trainer)
        assert farthest(trainer.model.state_dict(), expected) == 0
    said = [json.loads(e["detail"]) for step in steps for e in step.record.events if e["name"] == "levers"]
    assert len(said) == 4
    assert all(set(one) == {"planning", "drafts"} for one in said)
    assert not any(lever["used"] for one in said[:2] for lever in one.values()), (
        "first a step that starts processes, then one without"
    )
    assert said[2]["planning"]["used"]
    assert said[3]["planning"]["measured_saving"] is not None
    assert all(step.record.engine_s and min(step.record.engine_s.values()) > 0 for step in steps)
