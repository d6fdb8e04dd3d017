"""Plans of `gpu_engine.py`'s part `replay`: made there by the profile measured there, or before, by `--prepare`, as JSON.

Knows plans, their rules and the profile that they were made with; nothing of engines or of what is measured. A file has plans
for several numbers of prompts, because how many there is time and memory for is seen on the GPU only. What a written plan takes
there is worked out there, with the profile that was measured there (`solver.evaluate`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gpu_workload import PROJECT, step_of

from rlhfless.latency import load_profile, read_profile
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.scheduling.rules import LocalCut
from solver import Cluster, LatencyModel, Objective, Plan, Workload, evaluate
from solver.model.plan import ActorPlan
from solver.model.problem import PlanningProblem
from solver.model.runtime_rules import RuntimeRule

POLICIES = ("static", "random", "rlhfless", "solver")
PREPARED = PROJECT / "out" / "gpu_plans.json"
PROFILE = "h100-qwen2.5-3b-tp1"
FEWER = (1, 2, 4, 8, 16)  # divisors of the step's prompts for which there are plans


def cluster_of(kind: str) -> Cluster:
    """16 GPUs, one for each actor."""
    return Cluster(2, 8, 1, kind=kind)


def prepare(lengths: np.ndarray, where: str, profile: str = PROFILE, out: Path = PREPARED) -> Path:
    """Plans of every policy for (prompts, samples) ``lengths`` and parts of them, with a profile by name or file."""
    latency, facts = load_profile(profile), read_profile(profile)
    plans: dict[str, dict[str, Any]] = {}
    for prompts in prompts_of(lengths):
        workload = step_of(lengths[:prompts], 2).workload
        plans[str(prompts)] = {name: written(planned(name, workload, latency)) for name in POLICIES}
    made_with = {"name": facts["name"], "origin": facts["origin"], "date": facts["date"]}
    found = {"profile": made_with, "lengths": where, "samples": lengths.shape[1], "plans": plans}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, default=list) + "\n")
    return out


def planned(policy: str, workload: Workload, latency: LatencyModel) -> Plan:
    """The plan of a policy for a step."""
    problem = PlanningProblem(workload, cluster_of(latency.kind), latency, Objective(0.7))
    return make_policy(policy).plan(problem, PlanningOptions())


def made_here(policies: Sequence[str], workload: Workload, latency: LatencyModel) -> tuple[dict[str, Plan], dict[str, str]]:
    """Plans of a step by policy; of the others, the package that planning with them needs and that is not installed."""
    plans, lacking = dict[str, Plan](), dict[str, str]()
    for name in policies:
        try:
            plans[name] = planned(name, workload, latency)
        except ImportError as error:
            lacking[name] = f"planning with it needs {(error.name or str(error)).split('.')[0]}, which is not installed"
    return plans, lacking


def prompts_of(lengths: np.ndarray) -> list[int]:
    """Numbers of prompts for which there are plans, most first."""
    return sorted({max(1, len(lengths) // fewer) for fewer in FEWER}, reverse=True)


def written(plan: Plan) -> dict[str, Any]:
    """A plan with all that its rule needs.

    Raises:
        TypeError: the rule is none that ``read`` knows.
    """
    if plan.rule is not None and not isinstance(plan.rule, LocalCut):
        raise TypeError(f"the rule {plan.rule.name!r} cannot be written; only the local cut of rlhfless can")
    return {**plan.to_dict(), "rule": None if plan.rule is None else {"name": plan.rule.name, "tau": plan.rule.tau}}


def read(plan: Mapping[str, Any], workload: Workload, latency: LatencyModel) -> Plan:
    """A written plan for actors of ``latency``, whose numbers are what it takes by that model.

    Raises:
        ValueError: its rule is unknown.
    """
    actors = tuple(
        ActorPlan(**{name: tuple(value) if isinstance(value, list) else value for name, value in actor.items()})
        for actor in plan["actors"]
    )
    actors = tuple(replace(a, kind=latency.kind, max_batch=min(a.max_batch, latency.max_batch)) for a in actors)
    found = Plan(actors, plan["policy"], 0.0, 0.0, 0.0, status=plan["status"], rule=_rule(plan["rule"]), notes=plan["notes"])
    takes = evaluate(found, PlanningProblem(workload, cluster_of(latency.kind), latency))
    return replace(found, makespan_s=takes.makespan_s, gpu_seconds=takes.gpu_seconds, cost_usd=takes.cost_usd)


def _rule(rule: Mapping[str, Any] | None) -> RuntimeRule | None:
    if rule is None:
        return None
    if rule["name"] != LocalCut(1.0).name:
        raise ValueError(f"the rule {rule['name']!r} of a plan is unknown; plans have none or the local cut")
    return LocalCut(rule["tau"])


def read_file(path: Path, lengths: np.ndarray, where: str, policies: Sequence[str]) -> dict[str, Any]:
    """What ``prepare`` wrote for these lengths, which come from ``where``.

    Raises:
        FileNotFoundError: there is no such file. ValueError: it is of another step, or has not all policies.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there; `gpu_engine.py --prepare` writes it, beside the public logs")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    sizes, expected = {int(n) for n in found["plans"]}, set(prompts_of(lengths))
    lacking = [name for name in policies if any(name not in plans for plans in found["plans"].values())]
    if sizes != expected or (found["samples"], found["lengths"]) != (lengths.shape[1], where) or lacking:
        raise ValueError(f"{path} is of another step or policy; `gpu_engine.py --prepare` writes it anew")
    return found
