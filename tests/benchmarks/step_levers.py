"""How much shorter planned steps are with levers (drafts, stage fusion, streaming) than without, and what planning takes.

    python tests/benchmarks/step_levers.py [--tiny] [--json FILE]

Responses of the last step of shipped logs, with their true lengths, on shipped tables of measured operators. The plan without
levers has generation planned, too, with GPUs freed early. Drafts are weak (MATH-500). Both plans run on the virtual clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pandas as pd

from rlhfless.executor import run_step_plan
from rlhfless.latency import CallTable, StepBatch, generation_latency
from rlhfless.simulate import logged_steps
from rlhfless.simulate.drafts import WEAK
from rlhfless.trace import read_trace
from solver import Cluster, Workload
from solver.dataflow import StepGeneration, WithLevers, grpo, plan_step, ppo
from solver.model.step_levers import CALL_LEVERS

TRACES = Path(__file__).parents[2] / "data" / "traces"
GRAPHS = {"grpo": grpo, "ppo": ppo}
SETTINGS = [
    (kind, model, algorithm, gpus, log)
    for kind, model in (("h100", "qwen2.5-7b"), ("l40s", "qwen2.5-3b"))
    for algorithm in ("grpo", "ppo")
    for gpus in (8, 16)
    for log in ("arithmetic-grpo", "reasoning-static")
]
WORK = 200_000  # partial plans that are bounded at most


def last_step(log: str) -> Workload:
    """The last step of a shipped log."""
    rows = read_trace(TRACES / log).rollouts
    return next(logged_steps(rows, steps=[int(rows["step"].max())])).truth


def row_of(kind: str, model: str, algorithm: str, gpus: int, log: str, work: int = WORK) -> dict[str, Any]:
    """Both plans of a setting, and their executed periods."""
    workload, graph = last_step(log), GRAPHS[algorithm]()
    means = (workload.prompt_tokens[workload.prompt_of].mean(), workload.response_tokens.mean())
    batch = StepBatch(len(workload), *(max(1, round(float(mean))) for mean in means))
    node = min(8, gpus)
    costs = CallTable(kind, {call.role: model for call in graph.calls}, batch, gpus_per_node=node)
    latency = {tp: one.affine for tp, one in generation_latency(costs).items()}
    generation, cluster = StepGeneration(workload, latency, drafts=WEAK), Cluster(gpus // node, node, 1, kind)
    asked: dict[str, Any] = {"generation": generation, "memory_bytes": costs.gpu_memory_bytes, "work": work}
    began = time.process_time()
    without = plan_step(graph, cluster, costs, **asked)
    without_cpu_s = time.process_time() - began
    plan = plan_step(graph, cluster, costs, **asked | {"generation": WithLevers(generation)})
    cpu_s = time.process_time() - began - without_cpu_s
    executed = [run_step_plan(one, cluster, generation=generation, steps=2).period_s for one in (without, plan)]
    saves = {lever.name: lever.share for lever in plan.levers}
    return {
        "setting": f"{kind} {model} {algorithm} {gpus} {log}",
        "responses": len(workload),
        "without_s": without.period_s,
        "with_s": plan.period_s,
        "ratio": without.period_s / plan.period_s,
        "bound_s": plan.lower_bound_s,
        **{name: saves[name] for name in CALL_LEVERS},
        "apart_s": max(abs(executed[0] - without.period_s), abs(executed[1] - plan.period_s)),
        "cpu_s": cpu_s,
        "cpu_over_without": cpu_s / without_cpu_s,
    }


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="one setting with little work, which says nothing")
    parser.add_argument("--json", type=Path, help="file of the results")
    given = parser.parse_args()
    settings = [("h100", "qwen2.5-7b", "grpo", 4, "arithmetic-grpo")] if given.tiny else SETTINGS
    rows = []
    for setting in settings:
        rows.append(row_of(*setting, work=2_000 if given.tiny else WORK))
        print(rows[-1]["setting"], f"{rows[-1]['ratio']:.3f}", flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, float_format="%.3f"))


if __name__ == "__main__":
    main()
