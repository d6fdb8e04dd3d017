"""How near the bounds on any schedule are to the optimum with whole actors, and what room below a random split they show.

    python tests/benchmarks/exact_bound.py [--json FILE] [--tiny] [--markdown]

Per set of lengths and number of actors N: a right-sized random split takes a time T and a cost; at T, the closed form, the
bound (the larger one of it and the configuration LP) and the optimum of the configuration linear programme on a finer axis. The
programme knows one load per response. Without a KV term that is exact. With one it is what the bound could reach at most if a
response weighed its mean load throughout, not a proved bound. Slots, memory, cold starts and prefill are left out. Seconds are
CPU seconds of a whole bound curve, imports left out; work is counted and the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from public_logs import logs

from rlhfless.latency import load_profile
from solver import Cluster, LatencyModel, PlanningProblem, Workload, evaluate, random_split
from solver.bounds.configuration_lp import ConfigurationLP, LoadAxis
from solver.bounds.schedules import ScheduleBound

ACTORS = (2, 4, 8, 12)
FINER = 2  # times as many cells of the axis for the optimum
ROUNDS = 30
CLUSTER = Cluster(1000, 2, 2)


def latency(kv: bool) -> LatencyModel:
    """The fit of Qwen2.5-3B on two L40S, with its KV term or without, and nothing beside decoding."""
    fit = load_profile("l40s-qwen2.5-3b-tp2").affine
    return replace(
        fit, max_batch=1 << 30, kv_capacity_tokens=1 << 50, start_s=0.0, sync_s=0.0,
        prefill="separate", token_budget=None, prefill_per_token_s=0.0, prefill_base_s=0.0, join_s=0.0,
        per_kv_token_s=fit.per_kv_token_s if kv else 0.0,
    )  # fmt: skip


def long_tailed(responses: int, spread: float, limit: int) -> Workload:
    """Lognormal lengths around a median of 403 tokens."""
    tokens = np.random.default_rng(0).lognormal(6, spread, responses)
    return Workload([0] * responses, range(responses), np.clip(tokens, 1, limit).astype(int), max_response_tokens=limit)


def sets(tiny: bool) -> dict[str, Workload]:
    """The lengths by name."""
    made = {"long-tailed": long_tailed(250, 1.2, 16_000), "very long-tailed": long_tailed(240, 2.0, 32_000)}
    return {"long-tailed": long_tailed(40, 1.2, 2000)} if tiny else {**{log.name: log.truth() for log in logs()}, **made}


def measure(name: str, work: Workload, kv: bool) -> list[dict[str, Any]]:
    """One row per number of actors."""
    problem = PlanningProblem(work, CLUSTER, latency(kv))
    began = time.process_time()
    bound = ScheduleBound(problem)
    configuration = bound.configuration
    took = time.process_time() - began
    assert configuration is not None
    closed_form = ScheduleBound(problem, lp_work=0)
    (terms,) = bound.minorants
    minorant = (terms.base_s, terms.per_response_s, terms.per_kv_token_s)
    axis = LoadAxis.of(bound.length, bound.context, minorant, FINER)
    program, unit_s = ConfigurationLP(axis), terms.base_s * float(bound.length.max())
    rows = []
    for actors in ACTORS:
        split = evaluate(random_split(problem, actors=actors), problem)
        solved = program.solve(split.makespan_s / unit_s, ROUNDS)
        optimum = math.nan if solved is None else 2 * (float(terms.load.sum()) + unit_s * solved.optimum)
        least = {"closed_form": closed_form.gpu_seconds(split.makespan_s), "bound": bound.gpu_seconds(split.makespan_s)}
        rows.append(
            {
                "lengths": name, "responses": len(work), "kv": kv, "actors": actors, "time_s": split.makespan_s,
                "gpu_s": split.gpu_seconds, "optimum": optimum, **least, "method": bound.method(split.makespan_s),
                "seconds": took, "work": configuration[1].work, "finished": configuration[1].finished,
            }
        )  # fmt: skip
    return rows


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of ``details/planning.md``: a line per set of lengths, N = 2, 4, 8, 12 in every cell."""
    head = ("lengths", "KV term", "closed form / optimum", "bound / optimum", "room shown before", "room shown now",
            "room at the optimum", "the bound is", "CPU seconds", "work")  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for k in range(0, len(rows), len(ACTORS)):
        group = rows[k : k + len(ACTORS)]
        ratios = [" ".join(f"{row[name] / row['optimum']:.3f}" for row in group) for name in ("closed_form", "bound")]
        rooms = [" ".join(f"{1 - r[name] / r['gpu_s']:.0%}" for r in group) for name in ("closed_form", "bound", "optimum")]
        by = " ".join("LP" if row["method"].endswith("LP") else "closed" for row in group)
        first = group[0]
        cells = (
            f"{first['lengths']} ({first['responses']:,})", "yes" if first["kv"] else "no", *ratios, *rooms, by,
            f"{first['seconds']:.2f}", f"{first['work'] / 1e6:.0f} M",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    measure("warm-up", long_tailed(ACTORS[-1], 1.2, 100), kv=True)
    rows = [row for kv in (False, True) for name, work in sets(options.tiny).items() for row in measure(name, work, kv)]
    if options.markdown:
        print(markdown(rows))
    else:
        for row in rows:
            print({name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()})
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        options.json.write_text(json.dumps({**machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
