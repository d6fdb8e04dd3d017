"""RLHFuse's 12 published pipelines: latency and memory, their bounds, and CPU seconds.

    python tests/benchmarks/pipeline_schedules.py [--json FILE] [--time-limit 20] [--seeds 3] [--jobs 2] [--tiny] [--markdown]

The latency alone is searched with several seeds. Memory is then searched at that latency, with the first seed and with numba
if it is installed; the time limit is of counted work. The published instances took 20 to 4,979 s on 512 CPUs. Split backward
passes are searched for latency only, 5 s each. A large instance (32 stages, 256 micro-batches) is searched for latency, and one
(4) for memory in plain Python. Latency and memory of every schedule are checked by an evaluator that shares no code with the
search. CPU seconds are of the process that searches, without imports; compiled code is read from disk after its first use.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from pipeline_samples import peak_memory, start_times

from rlhfless.paper.fused_pipelines import FusedInstance, ScheduledInstance, rlhfuse_instances, schedule_instance
from solver.pipeline import PipelinePlan
from solver.pipeline.kernels import compiled_kernels

TINY = ("2", "5")
LARGE = FusedInstance("32 stages x 256", (32, 2, 256), (32, 1, 256))
PLAIN = "4"  # whose memory is searched without numba, too
SPLIT_S = 5.0


def checked(one: ScheduledInstance) -> ScheduledInstance:
    """The instance, if an evaluator that shares no code with the search finds the same latency and memory."""
    plan: PipelinePlan = one.plan
    spans = start_times(plan.problem, plan.orders)
    assert spans is not None, "no operation waits for a later one of its device"
    assert plan.latency == max(end for _, end in spans.values())
    assert abs(plan.peak_memory - peak_memory(plan.problem, plan.orders)) < 1e-6
    return one


def latencies(instances: list[FusedInstance], seeds: int) -> list[dict[str, Any]]:
    """CPU seconds of all instances together, by seed, and how many reach the bound."""
    rows = []
    for seed in range(seeds):
        found = [checked(schedule_instance(one, seed=seed)) for one in instances]
        optimal = sum(one.plan.latency_is_optimal for one in found)
        longest = max(one.cpu_s for one in found)
        rows.append({"seed": seed, "optimal": optimal, "cpu_s": sum(one.cpu_s for one in found), "longest_cpu_s": longest})
    return rows


def searched(task: tuple[FusedInstance, float]) -> dict[str, Any]:
    """What is found for an instance, beside the bounds and the paper."""
    instance, limit_s = task
    compiled_kernels()  # not part of the instance's seconds
    one = checked(schedule_instance(instance, memory=True, time_limit_s=limit_s))
    split = checked(schedule_instance(instance, split_backward=True, time_limit_s=min(limit_s, SPLIT_S)))
    plan = one.plan
    return {
        "instance": instance.name, "latency": plan.latency, "latency_bound": plan.latency_bound,
        "paper_latency": instance.paper_latency, "peak_memory": plan.peak_memory, "memory_bound": plan.memory_bound,
        "paper_memory": instance.paper_memory, "status": plan.status, "cpu_s": one.cpu_s,
        "memory_search_share": plan.search.memory_share, "compiled": plan.search.compiled,
        "split_latency": split.plan.latency, "split_latency_bound": split.plan.latency_bound,
    }  # fmt: skip


def large() -> dict[str, Any]:
    """Latency of the large instance after 5 counted seconds."""
    one = checked(schedule_instance(LARGE))
    return {"instance": LARGE.name, "latency_gap": one.plan.latency_gap, "cpu_s": one.cpu_s}


def plain_python(instance: FusedInstance, limit_s: float) -> dict[str, Any]:
    """Memory of an instance that a search without numba finds."""
    sys.modules["numba"] = None  # type: ignore[assignment]
    compiled_kernels.cache_clear()
    one = checked(schedule_instance(instance, memory=True, time_limit_s=limit_s))
    assert not one.plan.search.compiled
    return {"instance": instance.name, "peak_memory": one.plan.peak_memory, "cpu_s": one.cpu_s}


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
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    instances = [one for one in rlhfuse_instances() if not options.tiny or one.name in TINY]
    limit_s = 0.3 if options.tiny else options.time_limit
    found: dict[str, Any] = {"python": platform.python_version(), "time_limit_s": limit_s}
    found["latency_by_seed"] = latencies(instances, 1 if options.tiny else options.seeds)
    for of_seed in found["latency_by_seed"]:
        of = f"{of_seed['optimal']} of {len(instances)}"
        print(f"seed {of_seed['seed']}: {of} at the bound, {of_seed['cpu_s']:.2f} CPU s together", flush=True)
    began, rows = time.perf_counter(), []
    with ProcessPoolExecutor(1 if options.tiny else options.jobs) as pool:
        for row in pool.map(searched, [(one, limit_s) for one in instances]):
            rows.append(row)
            print(json.dumps(row), flush=True)
    found |= {"instances": rows, "jobs": options.jobs, "wall_s": time.perf_counter() - began}
    if options.markdown:
        print(markdown(rows))
    if not options.tiny:
        found["large"] = large()
        found["plain_python"] = plain_python(next(one for one in instances if one.name == PLAIN), limit_s)
        print(json.dumps([found["large"], found["plain_python"]]))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
