"""Clusters far larger than ours: a 70B model on up to 20 nodes of eight H100, and plans and simulated steps on up to 1,000.

    python tests/benchmarks/large_clusters.py [--only PART ...] [--nodes N ...] [--limits TOKENS ...] [--jobs N] [--json FILE]
    [--resume] [--markdown] [--tiny]

Model: Llama-2-70B's shape, two H100 per actor, the shipped profile (modelled from measured operators). Lengths are no log's:
a prompt's median is lognormal around 0.3 times the response limit (sd of log 0.6), its samples around that (0.3), 4 % longer
every epoch, cut at the limit; prompts have 128 to 512 tokens; four samples per prompt; three epochs of one step each, the
first of which has no history. Admission is by ``preempt``: reserving the limit would leave most of the little KV memory
unused.

Parts: ``memory``, what an actor holds. ``planning``, seconds that a plan takes, in one process with nothing beside it but
what the machine does anyway. ``scaling``, the same batch of 512 on smaller clusters. ``policies``, all of them on the largest
one. ``admission``, reserving against preempting, with more and less KV memory. ``stress``, solver and simulator up to 1,000
nodes with 6.4 responses per actor, as the batch of 512 has on 20 nodes, and up to 16 times as many. ``effects``, on the network
and with actors that nobody planned for, one at a time but for the last.

Numbers are sums over the steps with history. Every row is a process of its own (``--jobs`` at a time), so its peak memory and
its seconds of CPU, planning by the policy included, are its own; plans do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from large_cluster_tables import markdown, shown

from rlhfless.latency import load_profile, read_profile, usd_per_gpu_hour
from rlhfless.latency.effects import (
    Contention,
    Effects,
    Network,
    Outages,
    StartDelays,
    Stragglers,
)
from rlhfless.scheduling import POLICIES, make_policy
from rlhfless.scheduling.timed import TimedPolicy
from rlhfless.simulate import SimulationConfig, logged_steps, simulate
from rlhfless.trace import validate
from solver import Cluster

PROFILE, GPUS_PER_NODE, GPUS_PER_ACTOR = "h100-llama2-70b-tp2", 8, 2
NODES, LIMITS, BATCH = (2, 5, 10, 20), (2048, 4096, 8192), 512
STRESS = ((20, 512), (20, 8192), (100, 2560), (300, 7680), (1000, 25600))
SAMPLES, EPOCHS = 4, 3
SCALED = ("static", "random", "rlhfless", "fold", "solver+replan", "oracle+replan")
STRESSED = ("least-loaded", "random", "solver")
PLANNED = ("random", "rlhfless", "fold", "solver", "solver+replan")
AFFECTED = ("random", "rlhfless", "solver+replan")
PARTS = ("memory", "planning", "scaling", "policies", "admission", "stress", "effects")
NETWORK_RATIO = 9.0  # 450 GB/s of NVLink against 50 GB/s of a network card per GPU
Row = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One row: a policy on one cluster. ``label`` says what is special about it; ``how`` are arguments of ``setting``."""

    part: str
    nodes: int
    limit: int
    batch: int
    policy: str
    label: str = ""
    how: Mapping[str, Any] = field(default_factory=dict)


def rollouts(batch: int, limit: int, seed: int = 0) -> pd.DataFrame:
    """Three epochs of a batch of responses by the length model above."""
    prompts, draw = batch // SAMPLES, np.random.default_rng(seed)
    median = 0.3 * limit * np.exp(0.6 * draw.standard_normal(prompts))
    prompt_tokens = draw.integers(128, 513, prompts)
    rows = []
    for epoch in range(EPOCHS):
        tokens = median[:, None] * 1.04**epoch * np.exp(0.3 * draw.standard_normal((prompts, SAMPLES)))
        tokens = np.clip(tokens.astype(np.int64), 1, limit)
        frame = {
            "step": epoch,
            "epoch": epoch,
            "prompt_id": np.repeat(np.arange(prompts), SAMPLES).astype(str),
            "sample": np.tile(np.arange(SAMPLES), prompts),
            "prompt_tokens": np.repeat(prompt_tokens, SAMPLES),
            "response_tokens": tokens.ravel(),
            "finish_reason": np.where(tokens.ravel() >= limit, "length", "stop"),
        }
        rows.append(pd.DataFrame(frame))
    return validate("rollouts", pd.concat(rows, ignore_index=True).assign(run="length-model"))


def setting(
    nodes: int,
    limit: int,
    effects: Effects | None = None,
    network: Network | None = None,
    admission: str = "preempt",
    memory: float = 1.0,
    prefill: str | None = None,
) -> SimulationConfig:
    """A cluster of so many nodes, with so many times the profile's KV memory, and its prefill or another."""
    latency = load_profile(PROFILE, prefill=prefill)
    cluster = Cluster(nodes, GPUS_PER_NODE, GPUS_PER_ACTOR, latency.kind, usd_per_gpu_hour(latency.kind))
    latency = latency if network is None else network.applied(latency)
    latency = replace(latency, kv_capacity_tokens=int(memory * latency.kv_capacity_tokens))
    return SimulationConfig(
        cluster, latency, max_response_tokens=limit, admission=admission, effects=effects, deterministic=True
    )


def memory(limits: Sequence[int]) -> list[Row]:
    """What the memory of an actor holds, by the profile and with less set aside."""
    capacity = read_profile(PROFILE)["kv_capacity"]
    weights, per_token = capacity["weight_bytes"], capacity["kv_bytes_per_token"]
    all_s = capacity["gpus"] * capacity["memory_bytes_per_gpu"] - weights
    kept = {"as the profile has it": capacity["tokens"], "all that the weights leave": int(all_s / per_token)}
    return [
        {
            "memory": name,
            "kv_gb": tokens * per_token / 1e9,
            "kv_tokens": tokens,
            "slots_at_limit": {limit: tokens // (limit + 512) for limit in limits},
        }
        for name, tokens in kept.items()
    ]


def key(part: str, row: Row) -> tuple[Any, ...]:
    """What tells a row from all others."""
    return (part, *(row.get(name, "") for name in ("nodes", "limit", "batch", "policy", "label")))


def planning(
    nodes: Sequence[int], limits: Sequence[int], batch: int, known: Collection[tuple[Any, ...]], repeats: int = 3
) -> Iterator[Row]:
    """Seconds that a plan of the last step takes, the least of ``repeats``; on the wall and of CPU. Not for ``known`` rows."""
    for limit in limits:
        (step,) = logged_steps(rollouts(batch, limit), None, limit, None, {EPOCHS - 1})
        for n in nodes:
            for name in PLANNED:
                if ("planning", n, limit, batch, name, "") in known:
                    continue
                policy, on = make_policy(name), setting(n, limit)
                took = []
                for _ in range(repeats):
                    began_s, began_cpu_s = time.perf_counter(), time.process_time()
                    plan = policy.plan(*step.inputs(on, policy.clairvoyant))
                    took.append((time.process_time() - began_cpu_s, time.perf_counter() - began_s))
                cpu_s, wall_s = min(took)
                row = {"nodes": n, "limit": limit, "batch": batch, "policy": name, "actors": len(plan.actors)}
                yield {**row, "planning_cpu_ms": 1e3 * cpu_s, "planning_wall_ms": 1e3 * wall_s, "load": os.getloadavg()[0]}


def measure(cell: Cell) -> Row:
    """The row of a cell, over the steps with history."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    policy = TimedPolicy(make_policy(cell.policy))
    result = simulate(rollouts(cell.batch, cell.limit), setting(cell.nodes, cell.limit, **cell.how), [policy])
    known = result.steps["has_history"].to_numpy()
    own, cpu_s = result.steps[known], np.array(policy.cpu_s)[known]
    return {
        "nodes": cell.nodes,
        "limit": cell.limit,
        "batch": cell.batch,
        "policy": cell.policy,
        "label": cell.label,
        "time_s": float(own["time_s"].sum()),
        "gpu_seconds": float(own["gpu_seconds"].sum()),
        "bound_gpu_seconds": float(own["bound_gpu_seconds"].sum()),
        "actors": float(own["actors"].mean()),
        "moves": int(own["moves"].sum()),
        "planning_cpu_ms": 1e3 * float(cpu_s.mean()),
        "worst_planning_cpu_ms": 1e3 * float(cpu_s.max()),
        "cpu_s": time.process_time() - began_cpu_s,
        "wall_s": time.perf_counter() - began_s,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def effects_of(nodes: int) -> Mapping[str, dict[str, Any]]:
    """One effect at a time, and in the end two that meet."""
    tree, late = Network(nodes, NETWORK_RATIO), StartDelays(20.0, 0.5)
    return {
        "nothing": {},
        "network, tree": {"network": tree},
        "network, from one node": {"network": Network(nodes, NETWORK_RATIO, fan_out=None)},
        "network, a node's link carries 4 at once": {"network": tree, "effects": Effects(contention=Contention(4.0))},
        "network, a node's link carries 1 at once": {"network": tree, "effects": Effects(contention=Contention(1.0))},
        "starts: 20 s at the median": {"effects": Effects(starts=late)},
        "stragglers: 20 %, half as fast": {"effects": Effects(stragglers=Stragglers(0.2, 1.0))},
        "failures: 0.01 per GPU and hour, 120 s": {"effects": Effects(outages=Outages(0.01, 120.0))},
        "preemptible: 1 per GPU and hour, 60 s": {"effects": Effects(outages=Outages(1.0, 60.0))},
        "prefill in calls of its own": {"prefill": "separate"},
        "network, carries 1, late starts": {
            "network": tree,
            "effects": Effects(contention=Contention(1.0), starts=late),
        },
    }


def cells(nodes: Sequence[int], limits: Sequence[int], batch: int, stress: Sequence[tuple[int, int]]) -> list[Cell]:
    """All rows that are simulated."""
    most, limit = max(nodes), limits[0]
    fewer = [n for n in nodes if n < most] or [most]
    found = [Cell("scaling", n, tokens, batch, p) for tokens in limits for n in fewer for p in SCALED]
    found += [Cell("policies", most, tokens, batch, p) for tokens in limits for p in POLICIES]
    for rule in ("preempt", "reserve"):
        for times in (0.5, 1.0, 4.0):
            how = {"admission": rule, "memory": times}
            label = f"{rule}, {times:g} x the memory"
            found += [Cell("admission", most, limit, batch, p, label, how) for p in ("random", "solver+replan")]
    found += [Cell("stress", n, limit, r, p, "reserve", {"admission": "reserve"}) for n, r in stress for p in STRESSED]
    for name, how in effects_of(most).items():
        found += [Cell("effects", most, limit, batch, p, name, how) for p in AFFECTED]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts (all)")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="of eight H100")
    parser.add_argument("--limits", type=int, nargs="+", default=list(LIMITS), help="response limits in tokens")
    parser.add_argument("--jobs", type=int, default=2, help="rows at a time (2)")
    parser.add_argument("--json", type=Path, help="also write all rows to this file; parts that are not run stay as they are")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has, and add those that it lacks")
    parser.add_argument("--markdown", action="store_true", help="print the tables of details/large_clusters.md in the end")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    nodes, limits, batch, stress = options.nodes, options.limits, BATCH, STRESS
    if options.tiny:
        nodes, limits, batch, stress = [1], [64], 8, ((1, 24),)
    results: dict[str, Any] = {}
    if options.json and options.json.is_file():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    results |= {part: results.get(part, []) if options.resume and part != "memory" else [] for part in options.only}
    known = {key(part, row) for part in options.only for row in results[part]}

    def note(part: str, row: Row) -> None:
        results[part].append(row)
        print(f"{part}: {shown(row)}", flush=True)
        if options.json:  # row by row: whatever ends it early leaves what was measured
            options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")

    began_s = time.perf_counter()
    for row in memory(limits) if "memory" in options.only else ():
        note("memory", row)
    for row in planning(nodes, limits, batch, known) if "planning" in options.only else ():
        note("planning", row)
    asked = [cell for cell in cells(nodes, limits, batch, stress) if cell.part in options.only]
    asked = [cell for cell in asked if key(cell.part, vars(cell)) not in known]
    with multiprocessing.get_context("fork").Pool(options.jobs, maxtasksperchild=1) as pool:
        for cell, row in zip(asked, pool.imap(measure, asked), strict=True):
            note(cell.part, row)
    print(f"{time.perf_counter() - began_s:.0f} s in all, load average {os.getloadavg()[0]:.1f} at the end", flush=True)
    if options.markdown:
        print(f"\n{markdown(results)}")


if __name__ == "__main__":
    main()
