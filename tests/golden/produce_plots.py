"""What every plot draws of the shipped run and of simulated ones: the table of its figure. See ``produce.py``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from plain import plain
from produce import (
    ASKED,
    DATA,
    NAMES,
    STEPS,
    deduplicated,
    first_steps,
    mixed_plans,
    settings,
    shipped_run,
    simulated,
    steps_of,
)

import solver
from rlhfless import plots
from rlhfless.analysis import account, plan_every_step
from rlhfless.analysis.value_of_information import ValueOfInformation
from rlhfless.plots import DataFigure
from rlhfless.trace import step_metrics
from solver import Objective, Plan
from solver.generation.pareto_front import Front
from solver.timing.evaluate import Evaluation


def info_frames() -> Any:
    """The table of every plot, by its name."""
    return plain({name: make().table for name, make in FIGURES.items()}, NAMES)


@cache
def weights() -> Mapping[float, Plan]:
    """Plans of one step by time weight."""
    setting, one = settings()["plain"][0], steps_of("plain")[-1]
    return {
        weight: solver.plan(solver.PlanningProblem(one.predicted, setting.cluster, setting.latency, Objective(weight)))
        for weight in (0.0, 0.5, 1.0)
    }


@cache
def front() -> Front:
    """The front of the same step."""
    setting, one = settings()["plain"][0], steps_of("plain")[-1]
    return solver.pareto_front(solver.PlanningProblem(one.predicted, setting.cluster, setting.latency), points=8)


@cache
def taken(true: bool) -> Mapping[float, Evaluation]:
    """What these plans take with the true lengths, or over the scenarios."""
    setting, one = settings()["plain"][0], steps_of("plain")[-1]
    return {
        w: solver.evaluate(p, solver.PlanningProblem(one.truth if true else one.predicted, setting.cluster, setting.latency))
        for w, p in weights().items()
    }


def informed() -> ValueOfInformation:
    """Two policies with two forecasts, twice each."""
    names = [(f, p, d) for f in ("last visit", "truth") for p in ("random", "solver") for d in (0, 1)]
    runs = pd.DataFrame(names, columns=["forecast", "policy", "draw"])
    runs = runs.assign(value=[1.0, 1.02, 0.9, 0.91, 1.0, 1.02, 0.8, 0.8], planning_s=0.1, moves=0, actors=2)
    limits = pd.DataFrame({"forecast": ["last visit", "truth"], "value": [0.85, 0.75]})
    return ValueOfInformation(runs, limits, 0.7, ("last visit", "truth"))


def results(policies: Sequence[str]) -> pd.DataFrame:
    """Sums of policies over the steps of a setting."""
    return pd.concat([simulated(name, "plain").table.drop(columns=ASKED) for name in policies], ignore_index=True)


def least(time_s: float) -> float:
    """A curve below all plans."""
    return 400.0 / time_s


RUNS = ("static", "fold", "solver+replan")
FIGURES: dict[str, Callable[[], DataFigure]] = {
    "plot_before_after": lambda: plots.plot_before_after(
        {name: simulated(name, "plain").traces[name] for name in ("static", "solver+replan")}, bound=least
    ),
    "plot_curves": lambda: plots.plot_curves(step_metrics(first_steps(8))),
    "plot_front": lambda: plots.plot_front(front(), weights(), taken(True), least),
    "plot_gap_history": lambda: plots.plot_gap_history(weights(), dict.fromkeys(weights(), front())),
    "plot_kinds": lambda: plots.plot_kinds(mixed_plans(), steps_of("plain")[-1].predicted),
    "plot_curves, several seeds": lambda: plots.plot_curves(
        json.loads((DATA / "learning" / "curves.json").read_text())["runs"]
    ),
    "plot_lengths": lambda: plots.plot_lengths(shipped_run(), 59),
    "plot_overview": lambda: plots.plot_overview(account(first_steps(8)).lines.drop(columns="basis")),
    "plot_plan_bars": lambda: plots.plot_plan_bars(
        weights(), steps_of("plain")[-1].predicted, settings()["plain"][0].latency
    ),
    "plot_plane": lambda: plots.plot_plane(results(RUNS), front(), least),
    "plot_steps, planned": lambda: plots.plot_steps(
        plan_every_step(shipped_run().rollouts, settings()["plain"][0], STEPS[:4])
    ),
    "plot_prefill": lambda: plots.plot_prefill(deduplicated(), 160),
    "plot_responses": lambda: plots.plot_responses(shipped_run()),
    "plot_side_by_side": lambda: plots.plot_side_by_side(
        results(RUNS).groupby("policy")[["time_s", "gpu_seconds"]].sum(), "Policies", "s, GPU-seconds"
    ),
    "plot_steps": lambda: plots.plot_steps(shipped_run()),
    "plot_timeline": lambda: plots.plot_timeline(shipped_run(), 30),
    "plot_timelines": lambda: plots.plot_timelines({name: simulated(name, "plain").traces[name] for name in RUNS}),
    "plot_value_of_information": lambda: plots.plot_value_of_information(informed()),
    "plot_waterfall": lambda: plots.plot_waterfall(results(RUNS)),
}  # fmt: skip
