"""``Run.plan_step``: one plan over all levers, which says what each is expected to save and what it saved."""

from __future__ import annotations

import html
import math

import pandas as pd
import pytest
from error_messages import refused

import rlhfless as rl
from rlhfless.analysis import account
from rlhfless.errors import InputError
from rlhfless.latency import ProfileError
from rlhfless.plots.before_after import percent
from rlhfless.plots.export.html_page import Page
from rlhfless.report.where_time_went import time_section
from rlhfless.run import PlannedWholeStep, Run
from rlhfless.run.planned_whole_step import SECONDS_OF
from rlhfless.simulate import WEAK, DrawnDrafts
from solver import Objective
from solver.model.errors import PlanningError
from solver.model.step_levers import DRAFTS, LEVERS


@pytest.fixture(scope="module")
def run() -> Run:
    log = pd.DataFrame([
        {"step": step, "prompt_id": prompt, "sample": sample, "response_tokens": 60 + 97 * prompt % 700 + 5 * sample + step}
        for step in range(2) for prompt in range(8) for sample in range(2)
    ])  # fmt: skip
    return rl.load(log, gpus=4, profile="h100-qwen2.5-3b-tp1", verbose=False)


@pytest.fixture(scope="module")
def planned(run: Run) -> PlannedWholeStep:
    return run.plan_step()


def test_every_lever_has_a_line_before_and_after_the_step_is_executed(planned: PlannedWholeStep) -> None:
    lines, used = planned.lines(), planned.choice.plan.levers
    assert [line.split(":")[0] for line in lines] == [lever for lever in LEVERS if lever != DRAFTS]
    for line in lines:
        assert (line.split(":")[0] in used) == ("expected to save" in line)
    assert planned.savings["lever"].tolist() == [line.split(":")[0] for line in lines]
    for lever in used:
        assert f"  {lever}: expected to save" in repr(planned)
    shown = planned._repr_html_()
    assert "Each optimisation left out alone" in shown
    for text in (*planned.savings["meaning"], SECONDS_OF):
        assert html.escape(text) in shown


def test_what_a_lever_saved_is_the_executed_step_beside_the_best_without_it(planned: PlannedWholeStep) -> None:
    step, savings = planned.of_calls.step, planned.savings.set_index("lever")
    own = planned.objective.value(*step.execute(planned.choice.plan))
    for lever, without in planned.choice.without.items():
        assert savings.loc[lever, "saved"] == pytest.approx(1 - own / planned.objective.value(*step.execute(without)))


def test_the_trace_has_the_step_and_what_each_lever_saved(planned: PlannedWholeStep) -> None:
    trace, last = planned.trace, planned.results.iloc[-1]
    assert trace.allocations["end_s"].max() == pytest.approx(last["time_s"])
    assert [one["lever"] for one in trace.meta["levers"]] == planned.savings["lever"].tolist()
    assert (planned.results["bound_gpu_s"] <= planned.results["gpu_s"]).all()
    figure = planned.plot()
    assert len(figure.data)
    saved = 1 - planned.results["gpu_s"].iloc[1] / planned.results["gpu_s"].iloc[0]
    assert f"costs {percent(saved)} " in figure.layout.title.text
    assert "decoding alone, as drawn" in figure.layout.title.text
    assert any(heading.text == "<b>Cost of decoding</b>" for heading in figure.layout.annotations)
    page = Page("Step", "")
    time_section(page, trace, account(trace), None)
    assert "What each optimisation of the plan saves" in page.render("")


def test_fewer_levers_and_other_objectives_are_kept(run: Run, planned: PlannedWholeStep) -> None:
    few = PlannedWholeStep(planned.of_calls, planned.objective, levers=["overlap", "layouts"])
    assert few.choice.plan.levers <= {"overlap", "layouts"}
    assert not PlannedWholeStep(planned.of_calls, planned.objective, levers="none").choice.plan.levers
    dear = PlannedWholeStep(planned.of_calls, Objective(budget_gpu_s=1e-3))
    assert "no plan with these optimisations is expected to keep within 0.001 GPU-seconds" in repr(dear)


def test_under_a_limit_no_saving_has_the_penalty_in_it(planned: PlannedWholeStep) -> None:
    """Plans that miss a limit are compared by what is limited, plans that keep it by what is minimised."""
    step = planned.of_calls.step
    late = PlannedWholeStep(planned.of_calls, Objective(deadline_s=1e-3))
    time_s = step.execute(late.choice.plan)[0]
    saved = late.savings.set_index("lever")["saved"]
    for lever, without in late.choice.without.items():
        assert saved[lever] == pytest.approx(1 - time_s / step.execute(without)[0])
    assert "what each optimisation saves is a share of the seconds" in repr(late)
    fastest_s = late.choice.time_s
    tight = PlannedWholeStep(planned.of_calls, Objective(deadline_s=fastest_s * (1 + 1e-6)))
    needed = [lever for lever, share in tight.choice.saves.items() if math.isnan(share)]
    assert needed, "a deadline that only the fastest plan keeps"
    for lever in needed:
        assert f"{lever}: not within the limit without it" in tight.lines()
        assert f"  {lever}: not within the limit without it, " in repr(tight)
        row = next(one for one in tight.trace.meta["levers"] if one["lever"] == lever)
        assert row["expected"] is None
    page = Page("Step", "")
    time_section(page, tight.trace, account(tight.trace), None)
    assert "not within the limit without it" in page.render("")


def test_what_cannot_be_planned_is_refused(run: Run) -> None:
    with refused(InputError, "algorithm is 'dpo'"):
        run.plan_step(algorithm="dpo")
    with refused(InputError, "drafts is 'often'"):
        run.plan_step(drafts="often")
    with refused(InputError, "levers name drafts"):
        run.plan_step(levers="drafts")
    with refused(PlanningError, "levers name 'faster'"):
        run.plan_step(levers="faster", drafts=DrawnDrafts(WEAK))
    with refused(ProfileError, "'gpt-9' has no table"):
        run.plan_step(models="gpt-9")
    with refused(InputError, "step is 9"):
        run.plan_step(9)
