"""What every plot shows of the shipped run and of simulated ones, by its info function. See ``produce.py``."""

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
from rlhfless.trace import step_metrics
from solver import Objective, Plan
from solver.generation.pareto_front import Front
from solver.timing.evaluate import Evaluation


def info_frames() -> Any:
    """What every plot shows, by the name of its info function."""
    return plain({name: make() for name, make in INFOS.items()}, NAMES)


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
INFOS: dict[str, Callable[[], Any]] = {
    "before_after_info": lambda: plots.before_after_info(
        {name: simulated(name, "plain").traces[name] for name in ("static", "solver+replan")}, bound=least
    ),
    "curves_info": lambda: plots.curves_info(step_metrics(first_steps(8))),
    "front_info": lambda: plots.front_info(front(), weights(), taken(True), least),
    "gap_info": lambda: plots.gap_info(weights(), dict.fromkeys(weights(), front())),
    "kinds_info": lambda: plots.kinds_info(mixed_plans(), steps_of("plain")[-1].predicted),
    "learning_info": lambda: plots.learning_info(json.loads((DATA / "learning" / "curves.json").read_text())["runs"]),
    "lengths_info": lambda: plots.lengths_info(shipped_run(), 59),
    "overview_info": lambda: plots.overview_info(account(first_steps(8)).lines.drop(columns="basis")),
    "plan_bars_info": lambda: plots.plan_bars_info(
        weights(), steps_of("plain")[-1].predicted, settings()["plain"][0].latency
    ),
    "plane_info": lambda: plots.plane_info(results(RUNS), front(), least),
    "planned_steps_info": lambda: plots.planned_steps_info(
        plan_every_step(shipped_run().rollouts, settings()["plain"][0], STEPS[:4])
    ),
    "prefill_info": lambda: plots.prefill_info(deduplicated(), 160),
    "responses_info": lambda: plots.responses_info(shipped_run()),
    "side_by_side_info": lambda: plots.side_by_side_info(results(RUNS).groupby("policy")[["time_s", "gpu_seconds"]].sum()),
    "steps_info": lambda: plots.steps_info(shipped_run()),
    "time_weight_info": lambda: plots.time_weight_info(weights(), front()),
    "timeline_info": lambda: plots.timeline_info(shipped_run(), 30),
    "timelines_info": lambda: plots.timelines_info({name: simulated(name, "plain").traces[name] for name in RUNS}),
    "value_of_information_info": lambda: plots.value_of_information_info(informed()),
    "waterfall_info": lambda: plots.waterfall_info(results(RUNS)),
}  # fmt: skip
