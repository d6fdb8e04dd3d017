"""What each part of planning moves, by class of problems: one GPU kind, 20 to 2,000 responses.

    python tests/benchmarks/solver_moves.py [--json FILE] [--tiny] [--markdown]

Lengths are lognormal (median 270 tokens), actors two GPUs. Iterations cost what Qwen2.5-3B takes on two L40S, or mostly what
their tokens take. With slots, an eighth of the responses fits into a batch. Four actors or twenty can be started. Deadlines are
halfway between the bound on the makespan and the fastest plan, or 2 % above that plan; budgets 0.2 or 5 % above the cheapest
plan. Scenarios have errors of sd 0.2. "Packing" is three actors whose tokens fill a deadline exactly.

The OR-Tools model is asked everywhere here. ``class_model.is_asked`` chooses the problems in which planning asks it: "asked"
counts them, and what the model moved elsewhere stands beside it. Planning stops by counted work. Moves are relative to the
value of the plan.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import ortools
from planning_speed import packing

import solver
from rlhfless.latency import load_profile
from solver.planning.single_kind import class_model

SIZES = (20, 60, 200, 600, 2000)
PARTS = ("exchanges", "CP-SAT", "exchanges after CP-SAT")
MODEL_MOVES = ("CP-SAT", 0), ("exchanges after CP-SAT", 0), ("CP-SAT", 1)
MOVED = 1e-5  # relative: less counts as nothing


def latency(name: str, slots: int) -> solver.LatencyModel:
    """Iterations whose time is mostly their base (the L40S profile), or mostly that of their tokens."""
    if name == "tokens":
        return solver.LatencyModel("tokens", 2, 1e-4, 1e-4, max_batch=slots)
    profile = load_profile("l40s-qwen2.5-3b-tp2", prefill="separate").affine
    return replace(profile, max_batch=slots, kv_capacity_tokens=1 << 50)


def plan_of(problem: solver.PlanningProblem, time_limit_s: float = 1.0) -> solver.Plan | None:
    """The plan by counted work; None if none was found within the limit."""
    try:
        return solver.plan_generation(problem, time_limit_s=time_limit_s, deterministic=True)
    except solver.PlanningError:
        return None


def goals(problem: solver.PlanningProblem) -> Iterator[tuple[str, solver.Objective]]:
    """Objectives of a problem, with the name of their class."""
    for weight in (0.3, 0.7, 1.0):
        yield "weight", solver.Objective(weight)
    fastest = plan_of(replace(problem, objective=solver.Objective(1.0)), 0.15)
    cheapest = plan_of(replace(problem, objective=solver.Objective(0.0)), 0.15)
    assert fastest is not None
    assert fastest.reference is not None
    assert fastest.lower_bound is not None
    assert cheapest is not None
    middle_s = (fastest.reference.time_s * fastest.lower_bound + fastest.makespan_s) / 2
    for deadline_s in (middle_s, 1.02 * fastest.makespan_s):
        yield "deadline", solver.Objective(deadline_s=deadline_s)
    for factor in (1.002, 1.05):
        yield "budget", solver.Objective(budget_gpu_s=factor * cheapest.gpu_seconds)


def problems(sizes: tuple[int, ...], packings: int) -> Iterator[tuple[dict[str, str], solver.PlanningProblem]]:
    """The problems, each with its class."""
    for size, name, slots, actors in itertools.product(sizes, ("base", "tokens"), (False, True), (4, 20)):
        tokens = np.clip(np.random.default_rng(0).lognormal(5.6, 0.7, size), 1, 2048).astype(int)
        work = solver.Workload([50] * size, range(size), tokens)
        model = latency(name, max(4, size // 8) if slots else 1 << 30)
        problem = solver.PlanningProblem(work, solver.Cluster(actors, 2, 2), model)
        band = "20-200" if size <= 200 else f"{size:,}"
        for goal, objective in goals(problem):
            case = {"goal": goal, "responses": band, "slots": "yes" if slots else "no", "actors": f"up to {actors}"}
            yield case, replace(problem, objective=objective)
        scenarios = np.clip(tokens * np.random.default_rng(1).lognormal(0, 0.2, (8, size)), 1, 2048).astype(int)
        uncertain = solver.Workload([50] * size, range(size), tokens, scenarios=scenarios)
        for weight in (0.7, 1.0) if size <= 200 else ():
            case = {**case, "goal": "weight, 8 scenarios"}
            yield case, replace(problem, workload=uncertain, objective=solver.Objective(weight))
    for seed in range(packings):
        yield {"goal": "packing", "responses": "12", "slots": "no", "actors": "up to 3"}, packing(seed)


def measure(problem: solver.PlanningProblem) -> dict[str, Any]:
    """What each part moved in one problem, relative to the value, and whether the rule asks the model."""
    asked: list[bool] = []
    rule = class_model.is_asked

    def always(*arguments: Any) -> bool:
        asked.append(rule(*arguments))
        return True

    class_model.is_asked = always
    try:
        plan = plan_of(problem)
    finally:
        class_model.is_asked = rule
    row: dict[str, Any] = {"asked": any(asked), "refused": plan is None, "gap": None if plan is None else plan.gap}
    for moved in plan.moved() if plan else ():
        if moved.solver in PARTS:
            row[moved.solver] = [moved.value_by / plan.value, moved.bound_by / plan.value]
    return row


def moves(rows: list[dict[str, Any]], part: str, which: int) -> str:
    """In how many of ``rows`` a part moved the value (0) or the bound (1), with median and maximum of these."""
    by = [row[part][which] for row in rows if row.get(part, (0.0, 0.0))[which] > MOVED]
    found, finite = sum(map(math.isinf, by)), [x for x in by if math.isfinite(x)]
    words = [f"{len(finite)} ({statistics.median(finite):.3%}, {max(finite):.3%})"] if finite else []
    return ", ".join([*words, *([f"first plan in {found}"] if found else [])]) or "0"


def table(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A line per class of problems."""
    lines: list[tuple[str, ...]] = [
        ("goal", "responses", "slots", "actors", "problems", "refused", "value: exchanges", "asked", "value: CP-SAT",
         "value: exchanges after it", "bound: CP-SAT", "not asked: value", "exchanges after it", "bound")
    ]  # fmt: skip
    keys = ("goal", "responses", "slots", "actors")
    for key in dict.fromkeys(tuple(row[k] for k in keys) for row in rows):
        group = [row for row in rows if tuple(row[k] for k in keys) == key]
        asked, others = [row for row in group if row["asked"]], [row for row in group if not row["asked"]]
        modelled = [moves(part, name, which) for part in (asked, others) for name, which in MODEL_MOVES]
        refused = str(sum(row["refused"] for row in group))
        lines.append((*key, str(len(group)), refused, moves(group, "exchanges", 0), str(len(asked)), *modelled))
    return lines


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path)
    options.add_argument("--tiny", action="store_true", help="few small problems: tries the script, its numbers say little")
    options.add_argument("--markdown", action="store_true", help="print the table of details/planning.md")
    given = options.parse_args()
    rows = [{**case, **measure(problem)} for case, problem in problems(*(((20,), 2) if given.tiny else (SIZES, 40)))]
    lines = table(rows)
    if given.markdown:
        lines.insert(1, ("---",) * len(lines[0]))
    for line in lines:
        print("| " + " | ".join(line) + " |" if given.markdown else "; ".join(line))
    if given.json:
        versions = {"python": platform.python_version(), "ortools": ortools.__version__, "numpy": np.__version__}
        given.json.write_text(json.dumps({**versions, "cpu": cpu(), "rows": rows}, indent=1) + "\n")


def cpu() -> str:
    """The processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
