"""CPU seconds of a plan with its proof, and how large the gap is: one GPU kind, 80 actors, warm, imports left out.

    python tests/benchmarks/planning_speed.py [--json FILE] [--repeats 3] [--tiny] [--markdown]
    python tests/benchmarks/planning_speed.py --prefill [--tiny]
    python tests/benchmarks/planning_speed.py --passes [--tiny]

Lengths are lognormal around a lognormal mean per prompt (seed 0), prompts 50 to 300 tokens, Qwen2.5-3B on two L40S. "no
limits" takes slots and KV memory away; "256 slots" is the profile as it is, where a plan of few actors refills its slots.
Medians over repeats of the CPU seconds of this process, with the full setting and the quick one. "Moved by" is from
``plan.moved()``: which parts moved value and bound, by which share of the value. Peak memory is that of a process of its own
that plans once.

``--prefill`` plans the smallest workload with 256 slots instead, with separate and with mixed prefill, ``--passes`` with and
without drafts. 40 deadlines of 12 responses on 3 actors that only a perfect packing keeps are counted, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import solver
from rlhfless.latency import load_profile

SIZES = ((512, 4), (4096, 4), (12_500, 8))
TINY = ((8, 4),)
CLUSTER = solver.Cluster(20, 8, 2)
FEW_ITEMS, PACKINGS = "few items", 40


def workload(prompts: int, samples: int) -> solver.Workload:
    """A step with a long tail between prompts and a shorter one within."""
    rng = np.random.default_rng(0)
    mean = rng.lognormal(5.6, 0.6, prompts)
    tokens = np.clip(mean[:, None] * rng.lognormal(0, 0.35, (prompts, samples)), 1, 2048).astype(int)
    return solver.Workload.grid(rng.integers(50, 300, prompts), tokens)


def latency(limits: bool) -> solver.LatencyModel:
    """The L40S profile, with its slots and memory or without."""
    profile = load_profile("l40s-qwen2.5-3b-tp2")
    return profile if limits else replace(profile.affine, max_batch=1 << 30, kv_capacity_tokens=1 << 50, token_budget=1 << 30)


def measure(work: solver.Workload, limits: bool, together: bool, quick: bool, repeats: int) -> dict[str, Any]:
    """Median CPU seconds of planning, and what the plan promises."""
    problem = solver.PlanningProblem(work, CLUSTER, latency(limits), keep_together=together)
    took = []
    for _ in range(repeats):
        began = time.process_time()
        plan = solver.plan(problem, quick=quick)
        took.append(time.process_time() - began)
    return {
        "responses": len(work),
        "limits": "256 slots" if limits else "no limits",
        "samples": "together" if together else "split",
        "setting": "quick" if quick else "full",
        "cpu_s": statistics.median(took),
        "actors": len(plan.actors),
        "value": plan.value,
        "gap": plan.gap,
        "status": plan.status,
        "history": [(line.solver, line.value, line.lower_bound) for line in plan.history],
        "moved": [(row.solver, row.value_by / plan.value, row.bound_by / plan.value) for row in plan.moved()],
    }


def packing(seed: int) -> solver.PlanningProblem:
    """A small step whose deadline only a perfect packing keeps.

    Three actors, without a base time, take as long as their tokens; twelve responses are three times 60 tokens cut in four.
    """
    model, tight = solver.LatencyModel("packing", 1, 0.0, 1e-3), solver.Objective(deadline_s=0.06 + 1e-6)
    rng = np.random.default_rng(seed)
    cuts = [np.sort(rng.choice(np.arange(1, 60), 3, replace=False)) for _ in range(3)]
    lengths = np.concatenate([np.diff([0, *cut, 60]) for cut in cuts])
    work = solver.Workload([0] * 12, range(12), rng.permutation(lengths))
    return solver.PlanningProblem(work, solver.Cluster(3, 1, 1), model, tight)


def packings_kept(count: int) -> tuple[int, int]:
    """Of ``count`` such steps: how many plans keep the deadline before single responses are assigned (CP-SAT), and after it."""
    kept = [0, 0]
    for seed in range(count):
        try:
            plan = solver.plan(packing(seed))
        except solver.PlanningError:
            continue
        names = [line.solver for line in plan.history if math.isfinite(line.value)]
        kept[0] += names[0] != FEW_ITEMS
        kept[1] += 1
    return kept[0], kept[1]


def moved_by(row: dict[str, Any]) -> str:
    """Which parts moved value and bound, and by which share of the value, in words."""
    parts = []
    for part, value, bound in row["moved"]:
        shares = [f"{name}{share:.2%}" for name, share in (("value -", value), ("bound +", bound)) if share >= 5e-5]
        parts += [f"{part}: {', '.join(shares)}"] if shares else []
    return "; ".join(parts) or "nothing"


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of ``details/planning.md``: a line per workload, with the runs of both settings."""
    head = "responses", "slots", "samples", "actors", "CPU s", "gap", "CPU s, quick", "gap, quick", "moved by"
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for full, quick in zip(rows[::2], rows[1::2], strict=True):
        slots = "256" if full["limits"].startswith("256") else "no limits"
        cells = (
            f"{full['responses']:,}", slots, full["samples"], full["actors"], f"{full['cpu_s']:.2f}", f"{full['gap']:.2%}",
            f"{quick['cpu_s']:.2f}", f"{quick['gap']:.2%}", moved_by(full),
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def prefill_table(work: solver.Workload) -> str:
    """How plans with 256 slots differ by how prompts are prefilled."""
    lines = ["| prefill | samples | actors | makespan (s) | GPU-seconds | gap |", "|---|---|---|---|---|---|"]
    for together, prefill in itertools.product((False, True), ("separate", "mixed")):
        model = load_profile("l40s-qwen2.5-3b-tp2", prefill=prefill)
        problem = solver.PlanningProblem(work, CLUSTER, model, keep_together=together)
        plan = solver.plan(problem)
        cells = (prefill, "together" if together else "split", len(plan.actors), f"{plan.makespan_s:.2f}",
                 f"{plan.gpu_seconds:.0f}", f"{plan.gap:.2%}")  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def with_passes(work: solver.Workload) -> solver.Workload:
    """The same step with eight drafted tokens in every pass. Responses accept 2.4 of them in the mean, some more, some less."""
    committed = np.clip(3.4 * np.random.default_rng(1).lognormal(0, 0.35, len(work)), 1, 9)
    lengths = work.response_tokens
    return solver.Workload(
        work.prompt_tokens, work.prompt_of, lengths, passes=lengths / committed, fed_per_pass=np.full(len(work), 9.0)
    )


def passes_table(work: solver.Workload, repeats: int) -> str:
    """Plans of a step with passes and without, in turns."""
    lines = ["| slots | passes | CPU s | actors | gap |", "|---|---|---|---|---|"]
    cases = {"without": work, "with": with_passes(work)}
    for limits in (False, True):
        rows: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
        for name in [*cases] * repeats:
            rows[name].append(measure(cases[name], limits, False, False, 1))
        for name, own in rows.items():
            cpu_s = statistics.median(row["cpu_s"] for row in own)
            cells = ("256" if limits else "no limits", name, f"{cpu_s:.2f}", own[0]["actors"], f"{own[0]['gap']:.2%}")
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def peak_memory_gb(tiny: bool) -> float:
    """Peak resident memory of a new process that plans the largest workload once."""
    command = [sys.executable, __file__, "--plan-once", *(["--tiny"] if tiny else [])]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options.add_argument("--markdown", action="store_true", help="print the table of details/planning.md, too")
    options.add_argument("--prefill", action="store_true", help="compare separate with mixed prefill, and nothing else")
    options.add_argument("--passes", action="store_true", help="compare plans with and without passes, and nothing else")
    options.add_argument("--plan-once", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    sizes = TINY if given.tiny else SIZES
    if given.plan_once:
        solver.plan(solver.PlanningProblem(workload(*sizes[-1]), CLUSTER, latency(True)))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
        return
    if given.prefill:
        print(prefill_table(workload(*sizes[0])))
        return
    if given.passes:
        print(passes_table(workload(*sizes[0]), given.repeats))
        return
    rows = []
    head = ("responses", "limits", "samples", "setting", "CPU s", "actors", "gap")
    print("{:>9} {:>9} {:>8} {:>7} {:>6} {:>6} {:>8}  moved by".format(*head))
    measure(workload(*TINY[0]), True, False, False, 1)  # loads what is loaded once per process
    for prompts, samples in sizes:
        work = workload(prompts, samples)
        for limits in (False, True):
            for together in (False, True):
                for quick in (False, True):
                    row = measure(work, limits, together, quick, given.repeats)
                    rows.append(row)
                    names = "responses", "limits", "samples", "setting", "cpu_s", "actors", "gap"
                    line = "{:>9,} {:>9} {:>8} {:>7} {:>6.2f} {:>6} {:>8.3%}".format(*(row[name] for name in names))
                    print(f"{line}  {moved_by(row)} ({row['status']})", flush=True)
    count = 2 if given.tiny else PACKINGS
    alone, kept = packings_kept(count)
    print(f"{count} deadlines that only a perfect packing keeps: {alone} are kept before CP-SAT, {kept} after it")
    memory = peak_memory_gb(given.tiny)
    print(f"peak memory of a process that plans {sizes[-1][0] * sizes[-1][1]:,} responses: {memory:.2f} GB")
    if given.markdown:
        print(markdown(rows))
    if given.json:
        machine = {"machine": platform.machine(), "python": platform.python_version(), "numpy": np.__version__}
        given.json.write_text(
            json.dumps({**machine, "peak_memory_gb": memory, "packings_kept": [count, alone, kept], "rows": rows}, indent=1)
            + "\n"
        )


if __name__ == "__main__":
    main()
