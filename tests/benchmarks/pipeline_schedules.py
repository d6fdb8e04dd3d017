"""RLHFuse's 12 published pipelines: latency and memory, their bounds, and CPU seconds.

    python tests/benchmarks/pipeline_schedules.py [--json FILE] [--time-limit 10] [--seeds 3] [--tiny] [--markdown]

The latency alone is searched with several seeds, in plain Python. Memory is then searched at that latency, with the first seed
and with numba if it is installed; the time limit is of counted work. The published instances took 20 to 4,979 s on 512 CPUs.
Split backward passes are searched for latency only. CPU seconds are of this process, without imports.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

from rlhfless.paper.fused_pipelines import FusedInstance, ScheduledInstance, rlhfuse_instances, schedule_instance

TINY = ("2", "5")


def latencies(instances: list[FusedInstance], seeds: int) -> list[dict[str, Any]]:
    """CPU seconds of all instances together, by seed, and how many reach the bound."""
    rows = []
    for seed in range(seeds):
        began = time.process_time()
        found = [schedule_instance(one, seed=seed) for one in instances]
        optimal = sum(one.plan.latency_is_optimal for one in found)
        longest = max(one.cpu_s for one in found)
        rows.append({"seed": seed, "optimal": optimal, "cpu_s": time.process_time() - began, "longest_cpu_s": longest})
    return rows


def row(one: ScheduledInstance, split: ScheduledInstance) -> dict[str, Any]:
    """What is found for an instance, beside the bounds and the paper."""
    plan = one.plan
    return {
        "instance": one.instance.name, "latency": plan.latency, "latency_bound": plan.latency_bound,
        "paper_latency": one.instance.paper_latency, "peak_memory": plan.peak_memory, "memory_bound": plan.memory_bound,
        "paper_memory": one.instance.paper_memory, "status": plan.status, "cpu_s": one.cpu_s,
        "memory_search_share": plan.search.memory_share, "compiled": plan.search.compiled,
        "split_latency": split.plan.latency, "split_latency_bound": split.plan.latency_bound,
    }  # fmt: skip


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table."""
    lines = [
        "| instance | latency | bound | paper | memory | bound | paper | status | CPU s | split backward | bound |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r["instance"], *(f"{r[name]:g}" for name in ("latency", "latency_bound", "paper_latency", "peak_memory"))]
        cells += [f"{r['memory_bound']:g}", f"{r['paper_memory']:g}", r["status"], f"{r['cpu_s']:.1f}"]
        cells += [f"{r['split_latency']:g}", f"{r['split_latency_bound']:g}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    instances = [one for one in rlhfuse_instances() if not options.tiny or one.name in TINY]
    limit_s = 0.5 if options.tiny else options.time_limit
    by_seed = latencies(instances, 1 if options.tiny else options.seeds)
    for of_seed in by_seed:
        of = f"{of_seed['optimal']} of {len(instances)}"
        print(f"seed {of_seed['seed']}: {of} at the bound, {of_seed['cpu_s']:.2f} CPU s together")
    rows = []
    for instance in instances:
        split = schedule_instance(instance, split_backward=True, time_limit_s=min(limit_s, 5.0))
        rows.append(row(schedule_instance(instance, memory=True, time_limit_s=limit_s), split))
        print(json.dumps(rows[-1]), flush=True)
    if options.markdown:
        print(markdown(rows))
    if options.json:
        found = {"python": platform.python_version(), "time_limit_s": limit_s, "latency_by_seed": by_seed, "instances": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
