"""How fast and how well mixed clusters are planned: time of the first plan, gaps after 0.1, 2 and 10 seconds, what improved.

    python tests/benchmarks/mixed_clusters.py [--json FILE] [--quick] [--markdown] [--tiny]

Six offers: L40S and H100 on demand and H100 preemptible, each with one and two GPUs per actor. Profiles: the shipped ones of
Qwen2.5-3B for l40s tp2, h100 tp1 and h100 tp2. There is none for l40s tp1, so it is derived: every time of l40s tp2 times the
ratio of h100 tp1 to h100 tp2, its KV memory likewise. Prices are those of the price table, preemptible GPUs at 40 % of it
(assumed). Pools: 2 nodes of 8 L40S, one node of 4 H100, one preemptible node of 2 H100. Slots: as shipped (256), and 1,024.

Workloads: 512 prompts x 4 samples, lognormal lengths (median 403 tokens, sd of log 0.7, at most 2,048, seed 0), and the second
visit of 128 prompts x 8 samples of a public GRPO log on GSM8K where it lies beside the checkout.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

import solver
from rlhfless.latency import load_profile, usd_per_gpu_hour
from solver.model.cluster import GpuPool, MixedCluster

LOG = Path(__file__).parents[2].parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
TIMES = ("base_s", "per_response_s", "per_kv_token_s", "prefill_base_s", "prefill_per_token_s", "start_s", "sync_s")
WEIGHTS = (0.3, 0.5, 0.7)


def six_offers(slots: int | None) -> tuple[MixedCluster, dict[tuple[str, int], solver.LatencyModel]]:
    """The pools and latency models of the module docstring, with other ``slots`` when given."""
    one, two, slow = (load_profile(name) for name in ("h100-qwen2.5-3b-tp1", "h100-qwen2.5-3b-tp2", "l40s-qwen2.5-3b-tp2"))
    derived = dataclasses.replace(
        slow.affine, name="l40s-qwen2.5-3b-tp1 (derived)", gpus_per_actor=1,
        kv_capacity_tokens=int(slow.kv_capacity_tokens * one.kv_capacity_tokens / two.kv_capacity_tokens),
        **{time: getattr(slow, time) * getattr(one, time) / (getattr(two, time) or 1.0) for time in TIMES},
    )  # fmt: skip
    models = {("l40s", 1): derived, ("l40s", 2): slow, ("h100", 1): one, ("h100", 2): two}
    if slots is not None:
        models = {key: dataclasses.replace(model, max_batch=slots) for key, model in models.items()}
    cluster = MixedCluster(
        [
            GpuPool("l40s", 2, 8, usd_per_gpu_hour("l40s")),
            GpuPool("h100", 1, 4, usd_per_gpu_hour("h100")),
            GpuPool("h100", 1, 2, 0.4 * usd_per_gpu_hour("h100"), "preemptible"),
        ]
    )
    return cluster, models


def lognormal(prompts: int = 512) -> solver.Workload:
    """Prompts x 4 samples with a long tail."""
    rng = np.random.default_rng(0)
    tokens = np.clip(rng.lognormal(6.0, 0.7, (prompts, 4)), 1, 2048).astype(int)
    return solver.Workload.grid(rng.integers(50, 200, prompts), tokens, max_response_tokens=2048)


def gsm8k() -> solver.Workload | None:
    """The second visit of the public log, or None when it is not there."""
    if not LOG.is_file():
        return None
    with LOG.open(newline="") as file:
        log = [row for row in csv.DictReader(file) if row["visit"] == "1"]
    owner = np.array([int(row["prompt_index"]) for row in log])
    return solver.Workload(np.full(owner.max() + 1, 100), owner, [int(row["response_tokens"]) for row in log], 0, 512)


def measure(
    workload: solver.Workload, slots: int | None, objective: solver.Objective, limits: tuple[float, ...]
) -> dict[str, Any]:
    """One row: a run of its own for every time limit."""
    cluster, models = six_offers(slots)
    row: dict[str, Any] = {"slots": models["h100", 1].max_batch, "weight": objective.time_weight, "cost": objective.cost}
    for limit in limits:
        plan = solver.plan_generation(solver.PlanningProblem(workload, cluster, models, objective), time_limit_s=limit)
        row[f"gap_{limit:g}s"], row[f"solve_{limit:g}s"] = plan.gap, plan.solve_s
        row["value"], row["stopped_by"] = plan.value, plan.notes["stopped_by"]
    better = [line for line in plan.history if line.value < plan.history[0].value]
    row["split_s"] = plan.history[0].at_s
    row["first_s"] = better[0].at_s if better else None
    row["actors"] = [f"{a.kind} x {len(a.gpu_ids)} {a.market}: {len(a.responses)}" for a in plan.actors]
    row["history"] = [vars(line) for line in plan.history]
    names = [line.solver for before, line in zip(plan.history, plan.history[1:], strict=False) if line.value < before.value]
    row["improved_by"] = {name: names.count(name) for name in dict.fromkeys(names)}
    return row


def markdown(rows: list[dict[str, Any]], limits: tuple[float, ...]) -> str:
    """The table of ``details/planning.md``: one line per workload, slots and cost, gaps by time weight; then the aims met."""
    shown = [limit for limit in limits if limit >= 1.0] or list(limits)
    head = ["workload", "slots", "cost", "first plan"]
    head += [f"gap at {limit:g} s (w = {', '.join(map(str, WEIGHTS))})" for limit in shown]
    lines = []
    for own in (rows[i : i + len(WEIGHTS)] for i in range(0, len(rows), len(WEIGHTS))):
        first = [1e3 * row["first_s"] for row in own if row["first_s"] is not None]
        cells = [own[0]["workload"], f"{own[0]['slots']:,}", "USD" if own[0]["cost"] == "usd" else "GPU-seconds"]
        cells.append(f"{min(first):.0f} to {max(first):.0f} ms" if first else "the split is best")
        lines.append(cells + [", ".join(f"{row[f'gap_{limit:g}s']:.1%}" for row in own) for limit in shown])
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))
    said = [f"- the first plan within 100 ms in {sum((r['first_s'] or r['split_s']) <= 0.1 for r in rows)} of {len(rows)} rows"]
    for limit, aim in ((2.0, 0.03), (10.0, 0.02)):
        met = [row for row in rows if row.get(f"gap_{limit:g}s", 1.0) <= aim]
        if limit in limits:
            by = ", ".join(f"{sum(r['slots'] == s for r in met)} with {s:,} slots" for s in sorted({r["slots"] for r in rows}))
            said.append(f"- a gap of at most {aim:.0%} in {limit:g} s in {len(met)} of {len(rows)} rows ({by})")
    return "\n".join([table, "", *said])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows, with their histories, to this file")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/planning.md in the end")
    parser.add_argument("--quick", action="store_true", help="leave out the runs of 10 seconds")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    limits = (0.1,) if options.tiny else (0.1, 2.0) if options.quick else (0.1, 2.0, 10.0)
    works = (
        {"lognormal 8 x 4": lognormal(8)} if options.tiny else {"lognormal 512 x 4": lognormal(), "GSM8K log 128 x 8": gsm8k()}
    )
    # loads what is loaded once per process
    solver.plan_generation(solver.PlanningProblem(lognormal(8), *six_offers(None)), time_limit_s=0.05)
    print(f"Python {platform.python_version()}, {platform.machine()}; one process, one thread")
    rows = []
    for name, workload in works.items():
        if workload is None:
            print(f"{name}: skipped, the public log is not beside this checkout")
            continue
        for slots in (None, 1024):
            for cost in ("gpu_s", "usd"):
                for weight in WEIGHTS:
                    row = {"workload": name, **measure(workload, slots, solver.Objective(weight, cost=cost), limits)}
                    rows.append(row)
                    gaps = ", ".join(f"{row[f'gap_{limit:g}s']:.2%} at {limit:g} s" for limit in limits)
                    first = "-" if row["first_s"] is None else f"{row['first_s'] * 1e3:.0f} ms"
                    print(
                        f"{name}, {row['slots']:4d} slots, {cost:5s}, w {weight}: split {row['split_s'] * 1e3:.0f} ms, "
                        f"first plan {first}, gap {gaps}, value {row['value']:.4f}, {len(row['actors'])} actors, "
                        f"{row['improved_by']}",
                        flush=True,
                    )
    if options.markdown:
        print(f"\n{markdown(rows, limits)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, default=float))


if __name__ == "__main__":
    main()
