"""How well mixed clusters are planned, and in which CPU time: gaps with the full and the quick setting, and what improved.

    python tests/benchmarks/mixed_clusters.py [--json FILE] [--markdown] [--tiny]

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
import itertools
import json
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np

import solver
from rlhfless.latency import load_profile, usd_per_gpu_hour
from solver.model.cluster import GpuPool, MixedCluster

LOG = Path(__file__).parents[2].parent / "shared" / "data" / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv"
TIMES = ("base_s", "per_response_s", "per_kv_token_s", "prefill_base_s", "prefill_per_token_s", "start_s", "sync_s")
WEIGHTS = (0.3, 0.5, 0.7)
SETTINGS = ("quick", "full")  # the last one is shown
AIM = 0.03  # gap


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


def measure(workload: solver.Workload, slots: int | None, objective: solver.Objective) -> dict[str, Any]:
    """One row: a run of each setting."""
    cluster, models = six_offers(slots)
    problem = solver.PlanningProblem(workload, cluster, models, objective)
    row: dict[str, Any] = {"slots": models["h100", 1].max_batch, "weight": objective.time_weight, "cost": objective.cost}
    for setting in SETTINGS:
        began = time.process_time()
        plan = solver.plan(problem, quick=setting == "quick")
        row[f"cpu_s_{setting}"], row[f"gap_{setting}"] = time.process_time() - began, plan.gap
        row[f"value_{setting}"] = plan.value
    row["actors"] = [f"{a.kind} x {len(a.gpu_ids)} {a.market}: {len(a.responses)}" for a in plan.actors]
    row["history"] = [vars(line) for line in plan.history]
    row["improved_by"] = {part.solver: part.value_by / plan.value for part in plan.moved() if part.value_by > 0}
    return row


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of ``details/planning.md``: one line per workload, slots and cost, by time weight; then what improved."""
    weights = f"(w = {', '.join(map(str, WEIGHTS))})"
    head = ["workload", "slots", "cost", f"gap {weights}", "gap, quick", "quick / full value", "CPU s", "CPU s, quick"]
    lines = []
    for own in (rows[i : i + len(WEIGHTS)] for i in range(0, len(rows), len(WEIGHTS))):
        cells = [own[0]["workload"], f"{own[0]['slots']:,}", "USD" if own[0]["cost"] == "usd" else "GPU-seconds"]
        cells += [", ".join(f"{row[f'gap_{setting}']:.1%}" for row in own) for setting in ("full", "quick")]
        cells.append(", ".join(f"{row['value_quick'] / row['value_full']:.3f}" for row in own))
        cells += [", ".join(f"{row[f'cpu_s_{setting}']:.2f}" for row in own) for setting in ("full", "quick")]
        lines.append(cells)
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *lines))
    parts = dict.fromkeys(part for row in rows for part in row["improved_by"])
    said = []
    for part in parts:
        shares = [row["improved_by"].get(part, 0.0) for row in rows]
        moved = sum(share > 0 for share in shares)
        said.append(f"- `{part}` lowers {moved} of {len(rows)} values, by {sum(shares) / len(rows):.2%} in the mean of all")
    met = [row for row in rows if row["gap_full"] <= AIM]
    by = ", ".join(f"{sum(r['slots'] == s for r in met)} with {s:,} slots" for s in sorted({r["slots"] for r in rows}))
    return "\n".join([table, "", *said, f"- a gap of at most {AIM:.0%} in {len(met)} of {len(rows)} rows ({by})"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the rows, with their histories, to this file")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/planning.md in the end")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    works = (
        {"lognormal 8 x 4": lognormal(8)} if options.tiny else {"lognormal 512 x 4": lognormal(), "GSM8K log 128 x 8": gsm8k()}
    )
    solver.plan(solver.PlanningProblem(lognormal(8), *six_offers(None)))  # loads what is loaded once per process
    print(f"Python {platform.python_version()}, {platform.machine()}; CPU seconds of one process")
    rows = []
    for name, workload in works.items():
        if workload is None:
            print(f"{name}: skipped, the public log is not beside this checkout")
            continue
        for slots, cost, weight in itertools.product((None, 1024), ("gpu_s", "usd"), WEIGHTS):
            row = {"workload": name, **measure(workload, slots, solver.Objective(weight, cost=cost))}
            rows.append(row)
            by_setting = "; ".join(
                f"{setting}: value {row[f'value_{setting}']:.4f}, gap {row[f'gap_{setting}']:.2%}, "
                f"{row[f'cpu_s_{setting}']:.2f} s"
                for setting in SETTINGS
            )
            moved = ", ".join(f"{part} {share:.2%}" for part, share in row["improved_by"].items())
            print(
                f"{name}, {row['slots']:4d} slots, {cost:5s}, w {weight}: {by_setting}; {len(row['actors'])} actors; {moved}",
                flush=True,
            )
    if options.markdown:
        print(f"\n{markdown(rows)}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, default=float))


if __name__ == "__main__":
    main()
