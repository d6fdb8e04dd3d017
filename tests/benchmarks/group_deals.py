"""Deals of prompts that let groups complete spread out, and learners that start late: whole steps that stream, on public logs.

    python tests/benchmarks/group_deals.py [--seeds 5] [--slots 0 16] [--json FILE] [--tiny]

Lengths are true; deals and orders use the lengths of earlier answers to the same prompts. Latency is the profile's affine fit,
and preparation and learning are those of ``stage_fusion.py``. The learner has the GPUs of half of the actors or of all, held
for the step. Steps are executed on the simulated engine. All deals have the same actors.

- prompts: whole prompts, at random (``solver.random_split``), in random order. The others are compared with it.
- responses: single responses, at random, so that a prompt's are on several actors.
- short first, long first: the same deal as ``prompts``, but actors admit prompts in the order of their expected longest answer.
- staircase: prompts by expected longest answer, the first actors get the shortest ones, each about as many expected tokens.
- even: prompts by expected longest answer, dealt in turn, long first, so that every actor has some of each length.

With slots (responses that an actor decodes at once) below its responses, the order decides when groups start. Further rows have
a learner that starts when it is needed (``solver.latest_start``, true lengths), and everything after generation: with a learner
that is held for the step (serial), or that starts then (after).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from stage_fusion import PASSES, SETTINGS
from stage_fusion_logs import Draw, draws

from rlhfless.engine import Request, SimulatedEngine
from rlhfless.executor import phase_work_items, run_step
from rlhfless.latency import load_profile
from solver import Cluster, Objective, Plan, PlanningProblem, TokenWork, latest_start, random_split

DEALS = ("prompts", "responses", "short first", "long first", "staircase", "even")


def deal(name: str, draw: Draw, problem: PlanningProblem, actors: int, seed: int) -> Plan:
    """Return the plan of a deal."""
    plan = random_split(problem, actors=actors, seed=seed, spread=name == "responses")
    if name in ("prompts", "responses"):
        return plan
    assert draw.history is not None
    prompt_of = np.asarray(draw.workload.prompt_of)
    longest = np.zeros(len(draw.workload.prompt_tokens))
    tokens = np.zeros(len(longest))
    np.maximum.at(longest, prompt_of, draw.history.max(1))
    np.add.at(tokens, prompt_of, draw.history.mean(1))
    rows = np.arange(len(prompt_of))
    by_length = np.argsort(longest, kind="stable")
    if name in ("short first", "long first"):
        order = by_length if name == "short first" else by_length[::-1]
        rank = np.argsort(order, kind="stable")
        groups = [sorted(actor.responses, key=lambda r: (rank[prompt_of[r]], r)) for actor in plan.actors]
    elif name == "even":
        groups = [rows[np.isin(prompt_of, by_length[::-1][a::actors])].tolist() for a in range(actors)]
        groups = [sorted(group, key=lambda r: (-longest[prompt_of[r]], r)) for group in groups]
    else:
        share = np.cumsum(tokens[by_length]) / tokens.sum()
        of = np.minimum((share * actors - 1e-9).astype(int), actors - 1)
        groups = [rows[np.isin(prompt_of, by_length[of == a])].tolist() for a in range(actors)]
    filled = [(actor, group) for actor, group in zip(plan.actors, groups, strict=True) if group]
    prompts = [tuple(dict.fromkeys(prompt_of[group].tolist())) for _, group in filled]
    dealt = [replace(actor, responses=tuple(group), prompts=of) for (actor, group), of in zip(filled, prompts, strict=True)]
    return replace(plan, actors=tuple(dealt))


def executed(plan: Plan, draw: Draw, problem: PlanningProblem, work: TokenWork) -> tuple[float, float]:
    """Return seconds and GPU-seconds of the whole step."""
    cluster, latency = problem.one_kind
    workload = draw.workload
    requests = [
        Request(i, int(workload.prompt_tokens[p]), workload.max_response_tokens, target_tokens=int(n), prompt=int(p))
        for i, (p, n) in enumerate(zip(workload.prompt_of, workload.response_tokens, strict=True))
    ]
    items = phase_work_items(work.of(workload, cluster.gpus_per_actor), cluster, len(plan.actors))
    record = run_step(plan, requests, SimulatedEngine, latency, cluster, work=items)
    gpu_s = sum((row["end_s"] - row["start_s"]) * len(row["gpu_ids"]) for row in record.allocations)
    return record.end_s - record.start_s, gpu_s


def measured(log: str, profile: str, actors: int, algorithm: str, seeds: int, slots: int) -> list[dict[str, Any]]:
    """Return a row for each deal and size of the learner: ratios to ``prompts`` over all steps and seeds."""
    latency = load_profile(profile).affine
    size = latency.gpus_per_actor
    if slots:
        latency = replace(latency, max_batch=slots)
    prepare, learn, unlock = PASSES[algorithm]
    per_token_s, rows = latency.prefill_per_token_s, []
    steps = draws(f"{log}, earlier answers")
    for name, servers in (("half", max(1, actors // 2)), ("all", actors)):
        work = TokenWork(prepare * per_token_s, learn * per_token_s, unlock, servers * size, place="learner")
        found: dict[str, list[tuple[float, float]]] = {each: [] for each in (*DEALS, "serial", "after", "needed")}
        for number, draw in enumerate(steps):
            problem = PlanningProblem(draw.workload, Cluster(actors, size, size), latency, Objective(1.0))
            for seed in range(seeds):
                for each in DEALS:
                    plan = deal(each, draw, problem, actors, seed * len(steps) + number)
                    found[each].append(executed(plan, draw, problem, work))
                plan = deal("prompts", draw, problem, actors, seed * len(steps) + number)
                if not slots:
                    start = latest_start(plan, problem, work)
                    found["needed"].append(executed(plan, draw, problem, replace(work, learner_from_s=start.from_s)))
                total_s = work.of(draw.workload, size).total_s / servers
                ends_s = plan.makespan_s + total_s
                found["serial"].append((ends_s, plan.gpu_seconds + size * servers * ends_s))
                found["after"].append((ends_s, plan.gpu_seconds + size * servers * total_s))
        base = np.array(found["prompts"])
        for each, pairs in found.items():
            if pairs:
                ratio = np.array(pairs) / base
                whole = np.array(pairs).sum(0) / base.sum(0)
                rows.append(
                    {"log": log, "profile": profile, "algorithm": algorithm, "learner": name, "slots": slots, "deal": each,
                     "time": float(whole[0]), "cost": float(whole[1]), "least": float(ratio[:, 0].min()),
                     "most": float(ratio[:, 0].max())}
                )  # fmt: skip
    return rows


def said(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows in words: time and cost relative to ``prompts``, with the range of single steps."""
    lines = []
    for row in rows:
        setting = f"{row['log']:9s} {row['profile']:20s} {row['algorithm']:4s} learner {row['learner']:4s}"
        took = f"time {row['time']:.3f} ({row['least']:.3f} to {row['most']:.3f}), cost {row['cost']:.3f}"
        lines.append(f"{setting} slots {row['slots'] or 'all':>3} {row['deal']:12s} {took}")
    return "\n".join(lines)


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--slots", type=int, nargs="*", default=[0, 16])
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = [("made up", "l40s-qwen2.5-7b-tp4", 2)] if arguments.tiny else SETTINGS
    every: list[dict[str, Any]] = []
    for (log, profile, actors), algorithm, slots in itertools.product(settings, PASSES, arguments.slots):
        rows = measured(log, profile, actors, algorithm, 1 if arguments.tiny else arguments.seeds, slots)
        print(said(rows), flush=True)
        every += rows
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
