"""Middle-sized planning problems that several tests ask: two kinds on three pools, and lengths in scenarios."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from solver_strategies import l40s

import solver


def several_kinds(slots: int) -> tuple[solver.MixedCluster, dict[tuple[str, int], solver.LatencyModel]]:
    """Two kinds on three pools, one in two sizes."""
    wide = l40s(max_batch=slots, kind="slow", kv_capacity_tokens=1_500_000)
    one, fast = replace(wide, gpus_per_actor=1, base_s=8e-3), replace(wide, kind="fast", base_s=3e-3)
    pools = [
        solver.GpuPool("slow", 2, 8, 3.0),
        solver.GpuPool("fast", 1, 4, 7.0),
        solver.GpuPool("fast", 1, 2, 3.0, "preemptible"),
    ]
    return solver.MixedCluster(pools), {("slow", 1): one, ("slow", 2): wide, ("fast", 2): fast}


def over_scenarios(workload: solver.Workload, count: int, sd_log: float = 0.3) -> solver.Workload:
    """The workload with scenarios around its lengths."""
    factor = np.random.default_rng(1).lognormal(0, sd_log, (count, len(workload)))
    sampled = np.clip(workload.response_tokens * factor, 1, 2048).astype(int)
    tokens = workload.response_tokens
    return solver.Workload(workload.prompt_tokens, workload.prompt_of, tokens, max_response_tokens=2048, scenarios=sampled)


def facts(plan: solver.Plan) -> str:
    """All of a plan but the seconds that planning took."""
    read = json.loads(plan.to_json())
    read.pop("solve_s")
    for line in read["history"]:
        line.pop("at_s")
    return json.dumps(read, sort_keys=True)
