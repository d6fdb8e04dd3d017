"""A fused pipeline executed by processes beside the same one in series: planned and measured latency, and exact gradients.

    python tests/benchmarks/fused_pipeline.py [--json FILE] [--unit-s 0.05] [--repeats 5] [--tiny] [--plot FILE]

Actor and critic are tiny models on 4 CPU processes, and every pass sleeps until it has taken its planned time. So the schedule
and its messages are measured, not the speed of the models. The first step, which opens connections, is not counted. Both
schedules run in turn in the same processes. Gradients are compared with those of whole models in this process.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from typing import Any

import torch

from rlhfless import plots
from rlhfless.training import try_plans
from solver.pipeline import PipelinePlan, fused, schedule_pipeline, serial

CASES = {"critic on 4 stages": ((4, 2, 16), (4, 1, 16)), "critic on 2 stages, 2 copies": ((4, 2, 16), (2, 1, 8))}
TINY = {"critic on 1 stage, 2 copies": ((2, 1, 4), (1, 1, 2))}


def measure(name: str, case: Any, unit_s: float, repeats: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rows of both schedules of a case; and the plan of the fused one with its fastest execution."""
    problem = fused(*case, activations=(1, 1))
    plans: dict[str, PipelinePlan] = {"serial": serial(problem), "fused": schedule_pipeline(problem)}
    tried = try_plans(plans, unit_s, repeats)
    rows = []
    for label, runs in tried.items():
        plan, measured, first = plans[label], [round(one.executed.latency, 1) for one in runs], runs[0]
        median = statistics.median(measured)
        gradients = {"tensors": first.tensors, "equal": first.equal, "largest_relative_difference": first.largest_difference}
        rows.append({
            "case": name, "schedule": label, "planned": plan.latency, "bound": plan.latency_bound, "unit_s": unit_s,
            "measured": measured, "in_flight": max(one.in_flight for one in runs), "planned_in_flight": plan.peak_memory,
            "gradients": gradients, "median": median, "over_plan": median / plan.latency - 1,
        })  # fmt: skip
    fastest = min(tried["fused"], key=lambda one: one.executed.latency)
    return rows, {"planned": plans["fused"], "measured": fastest.executed}


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--unit-s", type=float, default=0.05)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--plot", type=Path, help="draw the first case: the plan above its fastest execution")
    options = parser.parse_args()
    rows, load = [], os.getloadavg()[0]
    for name, case in (TINY if options.tiny else CASES).items():
        found, drawn = measure(name, case, 0.002 if options.tiny else options.unit_s, 1 if options.tiny else options.repeats)
        for row in found:
            print(json.dumps(row), flush=True)
        print(f"{name}: fused takes {found[1]['median'] / found[0]['median']:.2f} of serial's time, measured")
        if options.plot and not rows:
            plots.save(plots.plot_pipeline(drawn), options.plot)
        rows += found
    if options.json:
        machine = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cores": os.cpu_count(),
            "load_before": load,
        }
        options.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
