"""The comparison of most figures: the naive system, right-sizing, published systems, this project, the oracle, the bound.

``rlhfless.simulate`` runs every policy; this file adds the cost of whole steps and the share of the headroom. All policies plan
generation alone, which is what schedules decide. Preparation and learning follow and are the same for all, with two
exceptions: GPUs that are held through them, and ``ELASTIC``, whose learner has all GPUs.

There are two bounds of whole steps. That of the naive learner covers all schedules of generation, followed by preparation and
learning on as many GPUs as in the naive system. That of all GPUs is the same with a learner on up to all GPUs, at perfect
scaling at best. It needs less time and has the same least cost, as learning then takes the same GPU-seconds. Neither covers
plans whose learning starts before generation is over. Shares of the headroom are of the first.

Sums are over the evaluated steps, ratios are of sums, as in tests/benchmarks/policy_comparison.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from rlhfless.paper.machine import KEPT_PER_DOUBLING, Machine
from rlhfless.paper.workloads import LengthHistory
from rlhfless.plots.palette import BOUND, POLICY_STYLES, PURPLE, PolicyStyle
from rlhfless.predict import Predictor
from rlhfless.scheduling import SchedulingPolicy, make_policy
from rlhfless.scheduling.baselines import Static
from rlhfless.scheduling.rlhfuse import RLHFuse
from rlhfless.simulate import Comparison, SimulationConfig, simulate
from solver.bounds.headroom import Curve, curve_of, share_of_headroom, summed_bounds
from solver.model.objective import NonGenerationPhases, Objective

WEIGHT = 0.7  # lambda of the paper, and of our objective
SCOPES = ("step", "generation")
POLICIES = (
    "static", "static-generation", "random", "rlhfuse", "rlhfless", "solver", "solver+replan", "oracle", "oracle+replan",
)  # fmt: skip
ELASTIC = {"elastic": 1.0, "elastic-90": KEPT_PER_DOUBLING}
"""Elastic naive: the naive system's generation, whose actors give their GPUs back when it is over, then preparation and
learning on all GPUs. Name to what each GPU keeps of its work per doubling of the learner's GPUs (``Machine.on_all_gpus``)."""
ELASTIC_TEXT = (
    "Elastic naive generates as the naive system does, releases all GPUs when generation is over, then prepares and learns on "
    "all of them. Perfect scaling means the same GPU-seconds on any number of GPUs, which is optimistic. Starting the larger "
    "learner is not charged."
)
NOT_BOUND = "Neither bound covers plans whose learning starts before generation is over."


class InFigures(NamedTuple):
    """Label and marker of a policy or a bound in the figures; ``held``: whether its actors keep their GPUs until learning is
    over, but for those that the learner needs."""

    label: str
    style: PolicyStyle
    held: bool = False


def _as(policy: str, label: str, *, held: bool = False, **changes: str) -> InFigures:
    """Return a policy with the figures' words, and the marker of the table of policies, or one that is changed."""
    return InFigures(label, POLICY_STYLES[policy]._replace(**changes), held)


IN_FIGURES = {
    "static": _as("static", "naive static, 3 actors, held through the step", held=True),
    "static-generation": _as("static", "naive static, held through generation", symbol="circle-open"),
    "elastic": _as("static", "elastic naive: naive static, then learning on all GPUs", colour=PURPLE, symbol="pentagon"),
    "elastic-90": _as("static", "elastic naive, 10 % lost per doubling of the learner", colour=PURPLE,
                      symbol="pentagon-open"),
    "random": _as("random", "right-sized random, released when done"),
    "static-all": _as("static", "naive static, all actors that fit, held through the step", held=True, symbol="square"),
    "rlhfuse": _as("rlhfuse", "RLHFuse's cut, 3 actors"),
    "rlhfuse-all": _as("rlhfuse", "RLHFuse's cut, all actors that fit"),
    "rlhfless": _as("rlhfless", "RLHFless (paper's rule)"),
    "rlhfless, 3 actors": _as("rlhfless", "RLHFless on 3 actors", symbol="triangle-down-open"),
    "solver": _as("solver", "ours: solver"),
    "solver+replan": _as("solver+replan", "ours: solver, re-planning"),
    "oracle": _as("oracle", "oracle: true lengths"),
    "oracle+replan": _as("oracle+replan", "oracle, re-planning"),
    "bound": InFigures("bound: least time and cost together", PolicyStyle(BOUND, "line-ew")),
    "bound-on-all": InFigures("bound: the same with a learner on all GPUs", PolicyStyle(PURPLE, "line-ew")),
}  # fmt: skip
"""Policies as the figures run them, and bounds, in the order of legends."""
HELD = frozenset(name for name, shown in IN_FIGURES.items() if shown.held)
COLUMNS = ["policy", "step", "actors", "moves", "generation_s", "generation_gpu_s", "generation_idle_gpu_s",
           "step_s", "step_gpu_s", "step_idle_gpu_s"]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Outcome:
    """Results of the policies for one history on one machine.

    Attributes:
        phases: preparation and learning of a step. learner_gpu_s: their cost. phases_on_all: the same on all GPUs, at perfect
            scaling.
        steps: ``COLUMNS``, one row per policy and step. simulation: the source of these rows.
    """

    history: LengthHistory
    machine: Machine
    algorithm: str
    phases: NonGenerationPhases
    learner_gpu_s: float
    phases_on_all: NonGenerationPhases
    steps: pd.DataFrame
    simulation: Comparison

    @property
    def planning(self) -> pd.DataFrame:
        """``policy, step, planning_s``: seconds that planning took on this machine."""
        return self.simulation.table[["policy", "step", "planning_s"]]

    @cached_property
    def curves(self) -> dict[int, Curve]:
        """Step to the bound of its generation, as a curve."""
        logged, bounds = self.simulation.logged, self.simulation.bounds
        return {step.step: curve_of(bound) for step, bound in zip(logged, bounds, strict=True)}

    @cached_property
    def min_gpu_s(self) -> dict[tuple[int, float], float]:
        """(step, generation time of a policy) to the least GPU-seconds that any policy takes in that time."""
        bounds = {step.step: bound for step, bound in zip(self.simulation.logged, self.simulation.bounds, strict=True)}
        taken = set(zip(self.steps["step"], self.steps["generation_s"], strict=True))
        return {(step, time_s): bounds[step].gpu_seconds(time_s * (1 + 1e-9)) for step, time_s in taken}


def label_of(policy: str) -> str:
    """Return the name of a policy in legends and captions."""
    return IN_FIGURES[policy].label if policy in IN_FIGURES else policy


def policy_named(name: str, static_actors: int, tau: float = 0.7) -> SchedulingPolicy:
    """Return a policy of ``IN_FIGURES``.

    Raises:
        PolicyError: the name is unknown.
    """
    policies_of_paper: dict[str, SchedulingPolicy] = {
        **{same: Static(static_actors, name=same) for same in ("static-generation", *ELASTIC)},
        "static-all": Static(name=name),
        "rlhfuse-all": RLHFuse(name=name),
    }
    if name in policies_of_paper:
        return policies_of_paper[name]
    return make_policy(name, tau=tau, static_actors=static_actors)


def phases_of(history: LengthHistory, machine: Machine, algorithm: str, steps: Sequence[int]) -> NonGenerationPhases:
    """Return preparation and learning of a step of mean size among these."""
    rows = history.rollouts[history.rollouts["step"].isin(steps)]
    tokens = float(rows["response_tokens"].sum()) + float(rows["prompt_tokens"].fillna(0).sum())
    return machine.phases(algorithm, tokens / len(steps))


def compare(
    history: LengthHistory,
    machine: Machine,
    algorithm: str,
    policies: Sequence[str | SchedulingPolicy] = POLICIES,
    *,
    held: frozenset[str] = HELD,
    predictor: Predictor | None = None,
    max_steps: int | None = None,
    seed: int = 0,
) -> Outcome:
    """Run the policies on the history's steps, each predicted from all earlier ones.

    Args:
        algorithm: ``PPO`` or ``GRPO``: sets the time of preparation and learning.
        policies: names of ``POLICIES`` or policy objects.
        held: names of the policies whose actors keep their GPUs until learning is over; with the learner's GPUs they never
            exceed the cluster.
        max_steps: only the last so many steps with history.
    """
    steps = history.evaluated if max_steps is None else history.last(max_steps)
    phases = phases_of(history, machine, algorithm, steps)
    setting = SimulationConfig(
        machine.cluster,
        machine.latency,
        Objective(WEIGHT),
        max_response_tokens=history.max_response_tokens,
        admission=machine.admission,
        seed=seed,
    )
    chosen = [policy_named(p, machine.static_actors) if isinstance(p, str) else p for p in policies]
    result = simulate(history.rollouts, setting, chosen, predictor, steps)
    learner_gpu_s = machine.learner_gpus * phases.seconds
    table = result.table.rename(
        columns={"time_s": "generation_s", "gpu_seconds": "generation_gpu_s", "idle_gpu_seconds": "generation_idle_gpu_s"}
    )
    free = machine.cluster.gpus - machine.learner_gpus  # a learner takes its GPUs from actors where no others are left
    holding = np.minimum(table["actors"].astype(float) * machine.latency.gpus_per_actor, free)
    waiting_gpu_s = np.where(table["policy"].isin(held), holding, 0.0) * phases.seconds
    elastic_s = {name: machine.on_all_gpus(phases, kept).seconds for name, kept in ELASTIC.items()}
    on_all_s = table["policy"].map(elastic_s)
    table["step_s"] = table["generation_s"] + on_all_s.fillna(phases.seconds)
    learning_gpu_s = (on_all_s * machine.gpus).fillna(learner_gpu_s)
    table["step_gpu_s"] = table["generation_gpu_s"] + waiting_gpu_s + learning_gpu_s
    table["step_idle_gpu_s"] = table["generation_idle_gpu_s"] + waiting_gpu_s
    return Outcome(
        history, machine, algorithm, phases, learner_gpu_s, machine.on_all_gpus(phases), table[COLUMNS].reset_index(drop=True),
        result,
    )  # fmt: skip


def totals(outcome: Outcome, weight: float = WEIGHT, naive: str = "static") -> pd.DataFrame:
    """Return one row per scope and policy, and the bound's.

    Args:
        naive: the policy that all others are compared with.

    Returns:
        ``scope, policy, steps, time_s, gpu_s, idle_gpu_s, bound_gpu_s`` (the least in the policy's own time of generation),
        ``speedup`` and ``cost_saved`` (against ``naive``), ``value`` (``T^w C^(1-w)`` over that of ``naive``), ``share`` (of
        the headroom with the naive learner, so it may be above 1 for ``ELASTIC``), ``most_speedup`` (of any schedule with the
        naive learner, at any cost), ``most_speedup_on_all`` (the same with a learner on all GPUs), ``most_cost_saved`` (of
        both, at any time).
    """
    curves, rows, value = list(outcome.curves.values()), [], Objective(weight).value

    for scope in SCOPES:
        phases_s, phases_gpu_s = (outcome.phases.seconds, outcome.learner_gpu_s) if scope == "step" else (0.0, 0.0)
        best = summed_bounds(curves, weight, phases_s, phases_gpu_s)
        on_all_s = best.shortest_s - len(curves) * (phases_s - (outcome.phases_on_all.seconds if scope == "step" else 0.0))
        of = dict(iter(outcome.steps.groupby("policy", sort=False)))
        naive_s, naive_gpu_s = float(of[naive][f"{scope}_s"].sum()), float(of[naive][f"{scope}_gpu_s"].sum())
        start = value(naive_s, naive_gpu_s)
        most_gained = {
            "most_speedup": naive_s / best.shortest_s, "most_speedup_on_all": naive_s / on_all_s,
            "most_cost_saved": 1 - best.min_gpu_s / naive_gpu_s,
        }  # fmt: skip
        for name, of_policy in of.items():
            time_s, gpu_s = float(of_policy[f"{scope}_s"].sum()), float(of_policy[f"{scope}_gpu_s"].sum())
            bound_gpu_s = sum(
                outcome.min_gpu_s[key] + phases_gpu_s for key in zip(of_policy["step"], of_policy["generation_s"], strict=True)
            )
            rows.append(
                {
                    "scope": scope, "policy": name, "steps": len(of_policy), "time_s": time_s, "gpu_s": gpu_s,
                    "idle_gpu_s": float(of_policy[f"{scope}_idle_gpu_s"].sum()), "bound_gpu_s": bound_gpu_s,
                    "speedup": naive_s / time_s, "cost_saved": 1 - gpu_s / naive_gpu_s, "value": value(time_s, gpu_s) / start,
                    "share": share_of_headroom(value(time_s, gpu_s), start, best.value), **most_gained,
                }
            )  # fmt: skip
        rows.append(
            {
                "scope": scope, "policy": "bound", "steps": len(curves), "time_s": best.time_s, "gpu_s": best.gpu_s,
                "idle_gpu_s": np.nan, "bound_gpu_s": best.gpu_s, "speedup": naive_s / best.time_s,
                "cost_saved": 1 - best.gpu_s / naive_gpu_s, "value": best.value / start, "share": 1.0, **most_gained,
            }
        )  # fmt: skip
    return pd.DataFrame(rows)
