"""Clusters far larger than ours: a 70B model on up to 20 nodes of eight H100, and plans and simulated steps on up to 1,000.

    python tests/benchmarks/large_clusters.py [--only PART ...] [--nodes N ...] [--limits TOKENS ...] [--json FILE]
    [--markdown] [--tiny]

Model: Llama-2-70B's shape, two H100 per actor, the shipped profile (modelled from measured operators). Lengths are no log's:
a prompt's median is lognormal around 0.3 times the response limit (sd of log 0.6), its samples around that (0.3), 4 % longer
every epoch, cut at the limit; prompts have 128 to 512 tokens; four samples per prompt; three epochs of one step each, the
first of which has no history. Admission is by ``preempt``: reserving the limit would leave most of the little KV memory
unused.

Parts: ``memory``, what an actor holds. ``scaling``, the same batch of 512 on more nodes, six policies. ``policies``, all of
them on the largest cluster. ``admission``, reserving against preempting. ``stress``, solver and simulator up to 1,000 nodes
with 6.4 responses per actor, as the batch of 512 has on 20 nodes, and up to 16 times as many. ``effects``, one at a time, on
the network and with actors that nobody planned for. Numbers are sums over the steps with history. Planning is measured on
this machine, in one process; peak memory is that of the process so far. The bound knows nothing of KV memory, which is what
binds here.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.latency import load_profile, read_profile, usd_per_gpu_hour
from rlhfless.latency.effects import Effects, Network, Outages, PrefillInterference, StartDelays, Stragglers
from rlhfless.scheduling import POLICIES
from rlhfless.simulate import Setting, simulate
from rlhfless.trace import validate
from solver import Cluster

PROFILE, GPUS_PER_NODE, GPUS_PER_ACTOR = "h100-llama2-70b-tp2", 8, 2
NODES, LIMITS, BATCH = (2, 5, 10, 20), (2048, 4096, 8192), 512
STRESS = ((20, 512), (20, 8192), (100, 2560), (300, 7680), (1000, 25600))
SAMPLES, EPOCHS = 4, 3
SCALED = ("static", "random", "rlhfless", "fold", "solver+replan", "oracle+replan")
STRESSED = ("least-loaded", "random", "solver")
PARTS = ("memory", "scaling", "policies", "admission", "stress", "effects")
Rows = Callable[[], Iterator[dict[str, Any]]]
NETWORK_RATIO = 9.0  # 450 GB/s of NVLink against 50 GB/s of a network card per GPU


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
    nodes: int, limit: int, effects: Effects | None = None, network: Network | None = None, admission: str = "preempt"
) -> Setting:
    """A cluster of so many nodes."""
    latency = load_profile(PROFILE)
    cluster = Cluster(nodes, GPUS_PER_NODE, GPUS_PER_ACTOR, latency.kind, usd_per_gpu_hour(latency.kind))
    latency = latency if network is None else network.applied(latency)
    return Setting(cluster, latency, response_limit=limit, admission=admission, effects=effects)


def memory(limits: Sequence[int]) -> list[dict[str, Any]]:
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


def peak_gb() -> float:
    """Peak memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(nodes: int, limit: int, batch: int, policies: Sequence[str], **how: Any) -> list[dict[str, Any]]:
    """One row per policy, over the steps with history."""
    began = time.perf_counter()
    result = simulate(rollouts(batch, limit), setting(nodes, limit, **how), policies)
    whole_s, known = time.perf_counter() - began, result.steps[result.steps["has_history"]]
    rows = []
    for policy in policies:
        own = known[known["policy"] == policy]
        rows.append(
            {
                "nodes": nodes,
                "limit": limit,
                "batch": batch,
                "policy": policy,
                "time_s": float(own["time_s"].sum()),
                "gpu_seconds": float(own["gpu_seconds"].sum()),
                "bound_gpu_seconds": float(own["bound_gpu_seconds"].sum()),
                "actors": float(own["actors"].mean()),
                "planning_ms": 1e3 * float(own["planning_s"].mean()),
                "worst_planning_ms": 1e3 * float(own["planning_s"].max()),
                "wall_s": whole_s,
                "peak_gb": peak_gb(),
            }
        )
    return rows


def effects_of(nodes: int) -> Mapping[str, dict[str, Any]]:
    """One effect at a time."""
    return {
        "nothing": {},
        "network, tree": {"network": Network(nodes, NETWORK_RATIO)},
        "network, from one node": {"network": Network(nodes, NETWORK_RATIO, fan_out=None)},
        "starts: 20 s at the median": {"effects": Effects(starts=StartDelays(20.0, 0.5))},
        "stragglers: 20 %, half as fast": {"effects": Effects(stragglers=Stragglers(0.2, 1.0))},
        "failures: 0.01 per GPU and hour, 120 s": {"effects": Effects(outages=Outages(0.01, 120.0))},
        "preemptible: 1 per GPU and hour, 60 s": {"effects": Effects(outages=Outages(1.0, 60.0))},
        "prefill 20 % slower, chunks of 2,048": {"effects": Effects(prefill=PrefillInterference(0.2, 2048))},
    }


def shown(row: Mapping[str, Any]) -> str:
    """A row as a line."""
    return (
        f"{row['nodes']:5d} nodes, {row['limit']:5d} tokens, batch {row['batch']:6d}, "
        f"{row['policy']:14s}: {row['time_s']:8.1f} s, "
        f"{row['gpu_seconds']:11,.0f} GPU-s (bound {row['bound_gpu_seconds']:11,.0f}), "
        f"{row['actors']:6.1f} actors, planning "
        f"{row['planning_ms']:8.1f} ms, {row['peak_gb']:.2f} GB"
    )


def markdown(results: Mapping[str, list[dict[str, Any]]]) -> str:
    """The README's tables."""
    lines = []
    scaling = results.get("scaling", [])
    policies = list(dict.fromkeys(row["policy"] for row in scaling))
    if scaling:
        lines += ["| tokens | nodes | " + " | ".join(policies) + " |", "|---|---|" + "---|" * len(policies)]
    for limit, nodes in dict.fromkeys((row["limit"], row["nodes"]) for row in scaling):
        own = {row["policy"]: row for row in scaling if (row["limit"], row["nodes"]) == (limit, nodes)}
        cells = [f"{own[p]['time_s']:.0f} s, {own[p]['gpu_seconds'] / 1e3:.1f}k" for p in policies]
        lines.append(f"| {limit:,} | {nodes} | " + " | ".join(cells) + " |")
    for part, field in (("policies", "limit"), ("admission", "admission"), ("stress", "limit"), ("effects", "effect")):
        if results.get(part):
            lines += ["", f"| nodes | responses | {field} | policy | time | GPU-seconds | actors | planning | peak memory |"]
            lines += ["|---" * 9 + "|"]
            lines += [
                f"| {r['nodes']:,} | {r['batch']:,} | {r[field]} | {r['policy']} | "
                f"{r['time_s']:.0f} s | {r['gpu_seconds']:,.0f} | "
                f"{r['actors']:.0f} | {r['planning_ms']:,.0f} ms | {r['peak_gb']:.2f} GB |"
                for r in results[part]
            ]
    return "\n".join(lines)


def parts(nodes: Sequence[int], limits: Sequence[int], batch: int, stress: Sequence[tuple[int, int]]) -> Mapping[str, Rows]:
    """What each part yields, row by row."""
    most = max(nodes)

    def named(name: str, key: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, key: name} for row in rows]

    def admissions() -> Iterator[dict[str, Any]]:
        for rule in ("preempt", "reserve"):
            yield from named(rule, "admission", measure(most, limits[0], batch, ("random", "solver+replan"), admission=rule))

    def effects() -> Iterator[dict[str, Any]]:
        for name, how in effects_of(most).items():
            yield from named(name, "effect", measure(most, limits[0], batch, ("random", "solver+replan"), **how))

    return {
        "memory": lambda: iter(memory(limits)),
        "scaling": lambda: (row for limit in limits for n in nodes for row in measure(n, limit, batch, SCALED)),
        "policies": lambda: (row for limit in limits for row in measure(most, limit, batch, POLICIES)),
        "admission": admissions,
        "stress": lambda: (
            row for n, responses in stress for row in measure(n, limits[0], responses, STRESSED, admission="reserve")
        ),
        "effects": effects,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts (all)")
    parser.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="of eight H100")
    parser.add_argument("--limits", type=int, nargs="+", default=list(LIMITS), help="response limits in tokens")
    parser.add_argument("--json", type=Path, help="also write all rows to this file; parts that are not run stay as they are")
    parser.add_argument("--markdown", action="store_true", help="in the end the tables as they stand in README.md")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    made = parts(options.nodes, options.limits, BATCH, STRESS)
    if options.tiny:
        made = parts([1], [64], 8, [(1, 24)])
    results: dict[str, list[dict[str, Any]]] = {}
    if options.json and options.json.is_file():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    for name in options.only:
        results[name] = []
        for row in made[name]():
            results[name].append(row)
            print(f"{name}: {shown(row) if 'policy' in row else row}", flush=True)
            if options.json:  # row by row: whatever ends it early leaves what was measured
                options.json.write_text(json.dumps(results, indent=1), encoding="utf-8")
    if options.markdown:
        print(f"\n{markdown(results)}")


if __name__ == "__main__":
    main()
