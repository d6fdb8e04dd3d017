"""What starting, holding and prewarming cost, on the wall clock: planned against measured, cold against warm, serverful against
elastic.

Every life-cycle runs the same steps: generation of forced lengths by the tiny model with torch, then a time for learning.
Actors are processes of this machine, then Ray actors on one cluster that is started for all of them. The life-cycles are:

- cold: every step starts its actors;
- kept: actors wait for half of the learning (scale to zero);
- by cost: actors wait where that costs less than a start;
- prewarmed by the paper's rule: the shortest step so far and a buffer;
- prewarmed by the solver's forecast: the plan's makespan and the shortest rest so far;
- serverful: GPUs are held through learning.

Learners have other GPUs. The first two steps give the rules something to go by. Of every later step: seconds of generation,
GPU-seconds by purpose (from the trace), and what was idle.

Planned start-up, sync and decode are given twice. Once they are those of the shipped profile of that model, whose start-up is
that of an engine in a process that runs already; a cold actor is a process first. Once they are those of the first step, as one
would plan after it. Measured ones are medians over the actors of the later steps of the cold life-cycle.

    python tests/benchmarks/lifecycle_costs.py --json tests/benchmarks/results/lifecycle_costs.json    # a quarter of an hour
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.engine.protocol import Request
from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.engine.torch.factory import TorchEngineFactory
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.executor import Faults, Lifecycle, PlanForecast, ProcessPool, RayPool, ShortestStep, StepRecord
from rlhfless.executor.distributed.ray.cluster import RayCluster
from rlhfless.latency import load_profile
from rlhfless.scheduling import PlanningOptions, make_policy
from rlhfless.trace import Trace, held_gpu_seconds
from rlhfless.training.models.tiny_model import tiny_qwen2
from solver import Cluster, Plan, Workload
from solver.model.problem import PlanningProblem

PROFILE, ACTORS = "cpu-tiny-qwen2", 2
LEARN_IN = 2  # steps before those that are counted
LEARN_S = {"local": 12.0, "ray": 24.0}  # of learning: several cold starts, so that ending actors meanwhile pays
PATIENT = Faults(silence_floor_s=120.0, min_start_timeout_s=300.0, slow_factor=float("inf"))


def lifecycles(learn_s: float, buffer_s: float) -> dict[str, Lifecycle]:
    """By name."""
    return {
        "cold": Lifecycle.cold(),
        "kept": Lifecycle(idle_timeout_s=learn_s / 2),
        "by cost": Lifecycle(),
        "prewarm, paper's rule": Lifecycle(0.0, ShortestStep(buffer_s)),
        "prewarm, forecast": Lifecycle(0.0, PlanForecast(buffer_s)),
        "serverful": Lifecycle.serverful(),
    }


def step_of(prompts: int, limit: int) -> tuple[Plan, list[Request]]:
    """A plan for known lengths of a long tail, and its requests."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(2, 30, size=int(rng.integers(8, 24))).astype(np.int64) for _ in range(prompts)]
    lengths = np.minimum(rng.geometric(4 / limit, (prompts, 4)) + limit // 10, limit)
    workload = Workload.grid([len(one) for one in ids], lengths, max_response_tokens=limit)
    given = (PlanningProblem(workload, Cluster(1, ACTORS, 1), load_profile(PROFILE)), PlanningOptions(time_limit_s=0.1))
    plan = make_policy("static", tau=0.7, static_actors=ACTORS).plan(*given)
    requests = [
        Request(i, len(ids[i // 4]), limit, prompt_ids=ids[i // 4], seed=i, target_tokens=int(n), prompt=i // 4)
        for i, n in enumerate(lengths.ravel())
    ]
    return plan, requests


def run(
    pool: ProcessPool | RayPool, engines: Any, plan: Plan, requests: list[Request], steps: int, learn_s: float, what: str
) -> list[StepRecord]:
    """So many steps; what is held while the learner works is in the record of its step. Says where it is, ``what`` first."""
    latency, cluster, records = load_profile(PROFILE), Cluster(1, ACTORS, 1), list[StepRecord]()
    for step in range(steps):
        records.append(pool.run_step(plan, requests, engines, latency, cluster, step=step))
        print(f"{what}: step {step + 1} of {steps} took {records[-1].makespan_s:.1f} s", file=sys.stderr, flush=True)
        time.sleep(learn_s)
        pool.finalise_allocations(records[-1])
    return records


def trace_of(records: Sequence[StepRecord]) -> Trace:
    """As a trace, which refuses a GPU with two holders."""
    tables = {
        name: pd.DataFrame([row for r in records for row in getattr(r, name)]) for name in ("allocations", "spans", "events")
    }
    rows = [{"step": r.step, "prompt_id": i, "sample": 0, **r.rollout_times(i)} for r in records for i in r.completions]
    return Trace(rollouts=pd.DataFrame(rows), **{name: table for name, table in tables.items() if len(table)})


def costs(records: Sequence[StepRecord]) -> dict[str, float]:
    """Means over the steps that count: seconds of generation, and GPU-seconds by purpose."""
    held = held_gpu_seconds(trace_of(records))
    late = held[held["step"] >= LEARN_IN]
    count = len(records) - LEARN_IN
    found = {name: float(late[name].sum()) / count for name in ("start", "sync", "work", "hold", "total")}
    waited = [_ready_s(r) for r in records[LEARN_IN:]]
    generated = [r.makespan_s for r in records[LEARN_IN:]]
    return {
        "generation_s": float(np.mean(generated)), "until_decoding_s": float(np.mean(waited)), **found,
        "idle_share": found["hold"] / found["total"],
        "not_working_share": 1 - found["work"] / found["total"],
    }  # fmt: skip


def _ready_s(record: StepRecord) -> float:
    """From the step's beginning until its last actor has the weights."""
    return max(s["end_s"] for s in record.spans if s["phase"] == "sync" and s["holder"].startswith("actor")) - record.start_s


def planned_against_measured(records: Sequence[StepRecord]) -> pd.DataFrame:
    """Seconds by phase: of the profile; of the first step, as one would plan after it; and measured in the steps after it.
    Medians over actors (and steps); for decoding the plan knows every length."""
    latency, plan = load_profile(PROFILE), records[0].plan
    spans = pd.DataFrame([s for r in records for s in r.spans if s["holder"].startswith("actor")])
    spans["took_s"], first = spans["end_s"] - spans["start_s"], spans["step"] == records[0].step
    decode_s = float(np.median([a.predicted_s for a in plan.actors])) - latency.start_s - latency.sync_s
    phases = {"start": latency.start_s, "sync": latency.sync_s, "prefill and decode": decode_s}
    rows = {}
    for name, profile_s in phases.items():
        own = spans["phase"].isin(name.split(" and "))
        took = [spans[own & these].groupby(["step", "holder"])["took_s"].sum().median() for these in (first, ~first)]
        rows[name] = {"profile_s": profile_s, "first_step_s": float(took[0]), "measured_s": float(took[1])}
    return pd.DataFrame(rows).T


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pools", nargs="+", choices=("local", "ray"), default=["local", "ray"])
    parser.add_argument("--only", nargs="+", help="life-cycles, by the beginning of their names")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--limit", type=int, default=400, help="longest response, in tokens")
    parser.add_argument("--learn", type=float, help=f"seconds of learning after each generation (default: {LEARN_S})")
    parser.add_argument("--buffer", type=float, default=0.0, help="seconds after the forecast at which the step is expected")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    tokenizer, began_s = CharTokenizer(), time.monotonic()
    model = DecoderModel(tiny_qwen2(tokenizer, seed=3), options.limit + 32)
    engines, given = TorchEngineFactory(model, tokenizer.eos_token_id), step_of(options.prompts, options.limit)
    rows, planned, load = [], {}, [os.getloadavg()]
    for name in options.pools:
        learn_s = LEARN_S[name] if options.learn is None else options.learn
        with contextlib.closing(RayCluster(gpus=ACTORS)) if name == "ray" else contextlib.nullcontext():
            for how, lifecycle in lifecycles(learn_s, options.buffer).items():
                if options.only and not how.startswith(tuple(options.only)):
                    continue
                made = {"lifecycle": lifecycle, "faults": PATIENT}
                pool: Any = ProcessPool(["cpu"] * ACTORS, **made) if name == "local" else RayPool(**made)
                with pool:
                    records = run(pool, engines, *given, options.steps, learn_s, f"{name}, {how}")
                rows.append({"pool": name, "lifecycle": how, "learn_s": learn_s, **costs(records)})
                if how == "cold":
                    planned[name] = planned_against_measured(records)
                load.append(os.getloadavg())
                print(pd.DataFrame(rows[-1:]).round(3).to_string(index=False, header=len(rows) == 1), flush=True)
    for name, phases in planned.items():
        print(f"\n{name}: planned and measured seconds\n{phases.round(4).to_string()}")
    if options.json is not None:
        about = {"machine": platform.machine(), "cores": os.cpu_count(), "load_1m_5m_15m": load}
        asked = {name: value for name, value in vars(options).items() if name != "json"}
        phases_of = {name: phases.to_dict("index") for name, phases in planned.items()}
        took = {"took_s": time.monotonic() - began_s}
        whole = {**about, "options": asked, **took, "costs": rows, "planned_against_measured": phases_of}
        options.json.write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
