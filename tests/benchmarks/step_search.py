"""Whole-step plans: period, bound, gap and CPU time of ``plan_step``, beside published ways to plan a step.

    python tests/benchmarks/step_search.py [--json FILE] [--gpus 8,16,32,64,128] [--algorithms ppo,grpo,remax,dpo]
        [--chain-cpu-s 2] [--seeds 1] [--orders "fifo,longest path"] [--jobs 1] [--kind a100] [--tiny] [--markdown]

Actor and reference have 7, 13, 34 and 70 billion parameters on 8, 16, 32 and 64 GPUs, critic and reward model 7. On 128 GPUs
all have 70. Batches are 256 responses of 128 and 384 tokens, with 4 mini-batches. Baselines are Megatron's rule, verl's
co-located sets and ReaL's chains, each judged with calls first come, first served, and in our order. Chains have three
temperatures, and ``--chain-cpu-s`` CPU seconds each; their target is 120 s and three seeds. ``--jobs`` chains run at a time,
each in a process with one thread. CPU seconds are also given as a multiple of a loop of a million additions in plain Python,
timed before every plan. Our search ends at a proven gap of 1 %, or by its counted work.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rlhfless.latency import CallTable, CostOptions, StepBatch
from rlhfless.scheduling.published import LayoutProblem, MarkovSearch, colocated_plan, megatron_plan, real_plan
from solver import Cluster
from solver.layouts import StepPlan, dpo, grpo, plan_step, ppo, remax
from solver.layouts.times import Order

GRAPHS = {"ppo": ppo, "grpo": grpo, "remax": remax, "dpo": dpo}
ACTORS = {8: "llama2-7b", 16: "llama2-13b", 32: "codellama-34b", 64: "llama2-70b", 128: "llama2-70b"}
ORDERS = ("fifo", "longest path")
TEMPERATURES = (0.003, 0.01, 0.03)


def costs_of(gpus: int, kind: str) -> CallTable:
    """The costs of the setting with so many GPUs."""
    actor, critic = ACTORS[gpus], "llama2-70b" if gpus == 128 else "llama2-7b"
    models = {"actor": actor, "reference": actor, "critic": critic, "reward": critic}
    batch = StepBatch(responses=256, prompt_tokens=128, response_tokens=384, mini_batches=4)
    return CallTable(kind, models, batch, CostOptions(host_s_per_layer=0.4e-3), gpus_per_node=8)


def loop_s() -> float:
    """CPU seconds of a million additions."""
    began, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return time.process_time() - began


def timed(plan: Callable[[], StepPlan]) -> tuple[StepPlan, dict[str, Any]]:
    """A plan, with its CPU seconds and how many loops they are."""
    loop = loop_s()
    began = time.process_time()
    found = plan()
    cpu_s = time.process_time() - began
    return found, {"period_s": found.period_s, "status": found.status, "cpu_s": cpu_s, "loops": cpu_s / loop}


def chain(algorithm: str, gpus: int, kind: str, order: Order, search: MarkovSearch) -> tuple[StepPlan, dict[str, Any]]:
    """The plan of ReaL's chain with one temperature and one seed in one setting."""
    costs = costs_of(gpus, kind)
    graph, cluster, memory = GRAPHS[algorithm](), Cluster(gpus // 8, 8, 1), costs.gpu_memory_bytes
    return timed(lambda: real_plan(LayoutProblem.of(graph, cluster, costs, memory_bytes=memory, order=order), search))


def start_chains(pool: Executor, algorithm: str, gpus: int, options: argparse.Namespace) -> dict[str, list[Future[Any]]]:
    """Start the chains of all temperatures and seeds in one setting, and return them by their order of calls."""
    searches = [
        MarkovSearch(10**9, (temperature,), (seed,), cpu_s=options.chain_cpu_s)
        for temperature, seed in itertools.product(TEMPERATURES, range(options.seeds))
    ]
    return {
        order: [pool.submit(chain, algorithm, gpus, options.kind, order, search) for search in searches]
        for order in options.orders
    }


def best_of(chains: list[Future[Any]]) -> dict[str, Any]:
    """The best plan of some chains, with the CPU seconds of all of them, and each one's period."""
    found = [one.result() for one in chains]
    plan: StepPlan
    row: dict[str, Any]
    plan, row = min(found, key=lambda one: (one[0].status != "given", one[0].period_s))
    row |= {"cpu_s": sum(one["cpu_s"] for _, one in found), "loops": sum(one["loops"] for _, one in found)}
    return row | {"history": plan.history, "chains_s": [one["period_s"] for _, one in found]}


def measure(algorithm: str, gpus: int, options: argparse.Namespace, chains: dict[str, list[Future[Any]]]) -> dict[str, Any]:
    """Our plan and those of the baselines in one setting."""
    graph, cluster, costs = GRAPHS[algorithm](), Cluster(gpus // 8, 8, 1), costs_of(gpus, options.kind)
    memory = costs.gpu_memory_bytes
    ours, row = timed(lambda: plan_step(graph, cluster, costs, memory_bytes=memory, work=options.work))
    row |= {"algorithm": algorithm, "gpus": gpus, "lower_bound_s": ours.lower_bound_s, "gap": ours.gap}
    row |= {"evaluations": ours.history[-1][0], "history": ours.history, "baselines": {}}
    for name, method in (("megatron", megatron_plan), ("colocated", colocated_plan)):
        for order in options.orders:
            found, result = timed(
                lambda method=method, order=order: method(  # type: ignore[misc]
                    LayoutProblem.of(graph, cluster, costs, memory_bytes=memory, order=order)
                )
            )
            row["baselines"][f"{name}, {order}"] = result | {"history": found.history}
    for order in options.orders:
        row["baselines"][f"real, {order}"] = best_of(chains[order])
    for result in row["baselines"].values():
        result["times_the_bound"] = result["period_s"] / ours.lower_bound_s
    return row


def markdown(rows: list[dict[str, Any]]) -> str:
    """The rows as a table: periods as multiples of the bound, in brackets where memory is short."""
    names = list(rows[0]["baselines"])
    lines = ["| step | GPUs | period (s) | bound (s) | gap | CPU s | loops | timed plans | " + " | ".join(names) + " |"]
    lines.append("|" + "---|" * (8 + len(names)))
    for row in rows:
        cells = [
            row["algorithm"],
            str(row["gpus"]),
            f"{row['period_s']:.2f}",
            f"{row['lower_bound_s']:.2f}",
            f"{row['gap']:.1%}",
        ]
        cells += [f"{row['cpu_s']:.2f}", f"{row['loops']:.0f}", str(row["evaluations"])]
        for name in names:
            found = row["baselines"][name]
            times = f"{found['times_the_bound']:.3f}"
            cells.append(times if found["status"] == "given" else f"({times})")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--gpus", default="8,16,32,64,128")
    parser.add_argument("--algorithms", default=",".join(GRAPHS))
    parser.add_argument("--chain-cpu-s", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--orders", default=",".join(ORDERS))
    parser.add_argument("--jobs", type=int, default=1, help="chains that run at a time")
    parser.add_argument("--kind", default="a100")
    parser.add_argument("--work", type=int, default=20_000_000)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.tiny:
        options.gpus, options.algorithms, options.chain_cpu_s = "8", "dpo", 0.05
    options.orders = options.orders.split(",")
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # for the chains' processes
    settings = [(name, int(gpus)) for name in options.algorithms.split(",") for gpus in options.gpus.split(",")]
    rows = []
    with ProcessPoolExecutor(options.jobs) as pool:
        started = [start_chains(pool, algorithm, gpus, options) for algorithm, gpus in settings]
        for (algorithm, gpus), chains in zip(settings, started, strict=True):
            rows.append(measure(algorithm, gpus, options, chains))
            shown = {name: value for name, value in rows[-1].items() if name != "history"}
            shown["baselines"] = {name: found["times_the_bound"] for name, found in rows[-1]["baselines"].items()}
            print(json.dumps(shown), flush=True)
    if options.markdown:
        print(markdown(rows))
    found = {"python": platform.python_version(), "kind": options.kind, "chain_cpu_s": options.chain_cpu_s}
    found |= {"seeds": options.seeds, "settings": rows}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
