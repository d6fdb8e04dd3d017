#!/usr/bin/env python3
"""How exact is the latency model with drafts? The time of a step on it, against the same step executed pass by pass.

A step of 512 responses is split at random over 4, 8 and 12 actors. It is executed on simulated engines that verify drafts of
adaptive length (three seeds of acceptance), and on engines without drafts that take the seconds of ``solver.drafted``.
Responses accept alike, or their survival is raised to a power with a standard deviation of 0.35 of its logarithm.

    python tests/benchmarks/drafted_latency.py --markdown
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import solver
from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.accepted_runs import SPREAD, DrawnRuns
from rlhfless.engine.simulated.drafted import DraftedEngineFactory
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile

PROFILE = "l40s-qwen2.5-3b-tp2"
ACCEPTANCES = {  # shares of passes that accept each drafted token
    "weak": [0.45, 0.22, 0.11, 0.09, 0.04, 0.035, 0.03, 0.025],
    "strong": [0.78, 0.67, 0.50, 0.44, 0.36, 0.31, 0.27, 0.22],
}
CLUSTER, SEEDS = solver.Cluster(4, 8, 2), 3


def workload(prompts: int) -> solver.Workload:
    """A step with the long tail of real logs."""
    lengths = np.clip(np.random.default_rng(0).lognormal(5.0, 0.6, (prompts, 4)), 1, 1000).astype(int)
    return solver.Workload.grid(np.full(prompts, 120), lengths, max_response_tokens=1000)


def executed(problem: solver.PlanningProblem, plan: solver.Plan, engine: Any, latency: solver.LatencyModel) -> np.ndarray:
    """Seconds and GPU-seconds of one step."""
    work = problem.workload
    requests = [
        Request(i, p, work.max_response_tokens, target_tokens=n)
        for i, (p, n) in enumerate(zip(work.prompt_tokens[work.prompt_of].tolist(), work.response_tokens.tolist(), strict=True))
    ]
    record = run_step(plan, requests, engine, latency, CLUSTER, admission=problem.admission)
    gpu_s = sum(len(a["gpu_ids"]) * (a["end_s"] - a["start_s"]) for a in record.allocations)
    return np.array([record.makespan_s, gpu_s])


def measure(work: solver.Workload, name: str, spread: float, actors: int, seeds: int) -> dict[str, Any]:
    """By how much the effective model is off, relative to the mean of the executed steps."""
    latency, acceptance = load_profile(PROFILE), solver.Acceptance(ACCEPTANCES[name])
    problem = solver.PlanningProblem(work, CLUSTER, latency, admission="preempt")
    plan = solver.random_split(problem, actors=actors)
    effective = executed(problem, plan, SimulatedEngine, solver.drafted(latency, acceptance))
    drafting = solver.Drafting(max_draft_tokens=acceptance.max_draft_tokens)
    factories = [DraftedEngineFactory(drafting, DrawnRuns(acceptance, seed=k, spread=spread)) for k in range(seeds)]
    passes = np.mean([executed(problem, plan, factory, latency) for factory in factories], axis=0)
    time_error, cost_error = effective / passes - 1
    return {"acceptance": name, "spread": spread, "actors": actors, "time_error": time_error, "cost_error": cost_error}


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path)
    options.add_argument("--tiny", action="store_true", help="a tiny step: tries the script, its numbers say nothing")
    options.add_argument("--markdown", action="store_true", help="print the table of details/planning.md")
    given = options.parse_args()
    work, seeds, counts = (workload(8), 1, (2,)) if given.tiny else (workload(128), SEEDS, (4, 8, 12))
    rows = [measure(work, name, spread, n, seeds) for name in ACCEPTANCES for spread in (0.0, SPREAD) for n in counts]
    if given.markdown:
        print("| drafts | responses accept | actors | time | GPU-seconds |\n|---|---|---|---|---|")
    for row in rows:
        alike = "differently" if row["spread"] else "alike"
        cells = (row["acceptance"], alike, row["actors"], f"{row['time_error']:+.1%}", f"{row['cost_error']:+.1%}")
        print("| " + " | ".join(map(str, cells)) + " |")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
