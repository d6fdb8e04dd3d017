"""What stage fusion and streamed learning save of a step, on public logs of lengths and modelled GPUs.

    python tests/benchmarks/stage_fusion.py [--markdown] [--json FILE] [--tiny]

Lengths are true, all responses start at once, prompts are dealt at random, and latency is the profile's affine fit. Preparation
and learning take a prefill's time per token and pass: GRPO prepares in 1 pass and learns in 4, PPO in 3 and 6. Learning scales
over its GPUs without loss; the optimizer's step and loading are free. Three tables are printed.

1. Speed-ups: of generation and preparation together, on freed GPUs without a cut and with the best cut in hindsight; of whole
   steps on the same GPUs, RLHFuse (learning at the end) and streamed; of a learner beside the actors that is held for the
   step and prepares, too, streamed against everything after generation.
2. The cut chosen on lengths of earlier answers to the same prompts, executed, beside the best in hindsight and no cut:
   scenarios drawn from these answers, and those of the default predictor, which sees the same answers.
3. The speed-up of generation and preparation over the ratio of preparation to generation, and over the weight of the tail.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from stage_fusion_logs import Draw, draws, made_up

from rlhfless.engine import Request, SimulatedEngine
from rlhfless.executor import phase_work_items, run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling.rlhfuse import GlobalCut
from solver import Cluster, Objective, Plan, PlanningProblem, Workload, random_split
from solver.lengths.survival import from_scenarios
from solver.step.cut import choose_cut
from solver.step.work import BESIDE_DECODING, Learner, TokenWork

SETTINGS = (
    ("GSM8K", "l40s-qwen2.5-7b-tp4", 4),
    ("MATH-500", "l40s-qwen2.5-7b-tp4", 8),
    ("MATH-500", "h100-qwen2.5-3b-tp1", 8),
    ("MGSM", "l40s-qwen2.5-7b-tp4", 8),
    ("MGSM", "l40s-qwen2.5-3b-tp2", 8),
)
PASSES = {"GRPO": (1, 4, "group"), "PPO": (3, 6, "response")}  # of preparation, of learning, and what unlocks learning
EVERY = 10_000  # cuts may be followed: those that a bound cannot exclude all are
RATIOS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
TAILS = (0.2, 0.5, 0.8, 1.1, 1.4)


class Case(NamedTuple):
    """A step on GPUs: its plan and problem, and a pass over a token in seconds on one actor."""

    plan: Plan
    problem: PlanningProblem
    pass_s: float


def case_of(workload: Workload, profile: str, actors: int, seed: int) -> Case:
    """Return a random deal of the prompts over the actors, where only time counts."""
    latency = load_profile(profile).affine
    size = latency.gpus_per_actor
    problem = PlanningProblem(workload, Cluster(actors, size, size), latency, Objective(1.0))
    return Case(random_split(problem, actors=actors, seed=seed), problem, latency.prefill_per_token_s)


def step_s(
    case: Case, work: TokenWork, learner: Learner = BESIDE_DECODING, *, cuts: bool = True
) -> tuple[float, float, float, int]:
    """Return time and GPU-seconds of the best step in hindsight, with its cut's share and actors (0 and all: none)."""
    shares = {} if cuts else {"shares": ()}
    chosen = choose_cut(case.plan, case.problem, work, learner, followed=EVERY, **shares)
    return chosen.time_s, chosen.gpu_seconds, chosen.share, chosen.keep


def speedups(steps: Sequence[Draw], profile: str, actors: int, algorithm: str) -> dict[str, Any]:
    """Return means over the steps, and ratios of mean times."""
    prepare, learn, unlock = PASSES[algorithm]
    sums: dict[str, list[float]] = {}
    cuts: list[tuple[float, int]] = []

    def add(name: str, seconds: float) -> float:
        sums.setdefault(name, []).append(seconds)
        return seconds

    for seed, draw in enumerate(steps):
        case = case_of(draw.workload, profile, actors, seed)
        rates = prepare * case.pass_s, learn * case.pass_s
        alone, whole, at_the_end = TokenWork(rates[0], 0.0), TokenWork(*rates, unlock), Learner(overlaps=True)
        tokens = whole.of(draw.workload, case.problem.one_kind[0].gpus_per_actor)
        generated = add("generation", case.plan.makespan_s)
        prepared = generated + add("prepare", float(tokens.prepare_s.sum()) / actors)
        everything = prepared + add("learn", float(tokens.learn_s.sum()) / actors)
        add("gen+prep", prepared)
        add("step", everything)
        add("gen+prep freed", step_s(case, alone, at_the_end, cuts=False)[0])
        best = step_s(case, alone, at_the_end)
        add("gen+prep cut", best[0])
        cuts.append(best[2:])
        add("rlhfuse", step_s(case, whole, at_the_end)[0])
        add("rlhfuse+stream", step_s(case, whole)[0])
        size = tokens.gpus_per_actor
        for name, servers in (("half", max(1, actors // 2)), ("all", actors)):
            learner = replace(BESIDE_DECODING, own=servers, grows=False)
            serial_s = add(f"serial {name}", generated + tokens.total_s / servers)
            add(f"serial {name} gpu_s", case.plan.gpu_seconds + size * servers * serial_s)
            streamed = step_s(case, whole, learner, cuts=False)
            add(f"stream {name}", streamed[0])
            add(f"stream {name} gpu_s", streamed[1])
    mean = {name: float(np.mean(values)) for name, values in sums.items()}
    ratio = {
        "gen+prep freed": mean["gen+prep"] / mean["gen+prep freed"],
        "gen+prep cut": mean["gen+prep"] / mean["gen+prep cut"],
        "rlhfuse": mean["step"] / mean["rlhfuse"],
        "rlhfuse+stream": mean["step"] / mean["rlhfuse+stream"],
    }
    for name in ("half", "all"):
        ratio[f"stream {name}"] = mean[f"serial {name}"] / mean[f"stream {name}"]
        ratio[f"stream {name} cost"] = mean[f"stream {name} gpu_s"] / mean[f"serial {name} gpu_s"]
    return {"mean": mean, "ratio": ratio, "cuts": cuts}


def chosen_before(steps: Sequence[Draw], profile: str, actors: int, *, predicts: bool = False) -> dict[str, Any]:
    """Return executed GRPO steps with the cut that earlier lengths choose, without a cut, and the best in hindsight."""
    rows = []
    for seed, draw in enumerate(steps):
        if draw.history is None:
            continue
        case = case_of(draw.workload, profile, actors, seed)
        cluster, latency = case.problem.one_kind
        prepare, learn, unlock = PASSES["GRPO"]
        work = TokenWork(prepare * case.pass_s, learn * case.pass_s, unlock)
        expected = replace(case.problem, workload=draw.predicted() if predicts else draw.expected(seed))
        began = time.process_time()
        cut = choose_cut(case.plan, expected, work)
        took_s = time.process_time() - began
        items = phase_work_items(work.of(draw.workload, cluster.gpus_per_actor), BESIDE_DECODING, cluster, actors)
        owners, lengths = draw.workload.prompt_of.tolist(), draw.workload.response_tokens.tolist()
        tokens, limit = draw.workload.prompt_tokens.tolist(), int(draw.workload.max_response_tokens)
        requests = [Request(i, tokens[p], limit, target_tokens=n) for i, (p, n) in enumerate(zip(owners, lengths, strict=True))]
        remaining = from_scenarios(expected.workload)
        rule = GlobalCut(cut.threshold, len(requests), keep=cut.keep, remaining=remaining) if cut.share else None
        times = {
            name: run_step(replace(case.plan, rule=r), requests, SimulatedEngine, latency, cluster, work=items).end_s
            for name, r in (("chosen", rule), ("no cut", None))
        }
        hindsight = step_s(case, work)
        rows.append({**times, "hindsight": hindsight[0], "cut": (cut.share, cut.keep), "best": hindsight[2:], "cpu_s": took_s})
    return {
        "steps": rows,
        "above hindsight": max(row["chosen"] / row["hindsight"] - 1 for row in rows),
        "above no cut": max(row["chosen"] / row["no cut"] - 1 for row in rows),
        "cpu_s": max(row["cpu_s"] for row in rows),
    }


def curves(actors: int = 8) -> dict[str, list[tuple[float, float, float]]]:
    """Return speed-ups of generation and preparation, without a cut and with the best, over two properties of made-up steps."""
    found: dict[str, list[tuple[float, float, float]]] = {"prepare / generate": [], "tail weight": []}
    points = [("prepare / generate", ratio, ratio, 0.8) for ratio in RATIOS]
    points += [("tail weight", sigma, 0.4, sigma) for sigma in TAILS]
    for name, x, ratio, sigma in points:
        draw = made_up(256, sigma)
        case = case_of(draw.workload, "l40s-qwen2.5-7b-tp4", actors, 0)
        tokens = float((draw.workload.prompt_tokens[draw.workload.prompt_of] + draw.workload.response_tokens).sum())
        generated = case.plan.makespan_s
        work, learner = TokenWork(ratio * generated * actors / tokens, 0.0), Learner(overlaps=True)
        at_end = generated * (1 + ratio)
        found[name].append((x, at_end / step_s(case, work, learner, cuts=False)[0], at_end / step_s(case, work, learner)[0]))
    return found


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    settings = (("made up", "h100-qwen2.5-3b-tp1", 2),) if arguments.tiny else SETTINGS
    table = [
        {"log": log, "profile": profile, "actors": actors, "algorithm": algorithm,
         **speedups(steps, profile, actors, algorithm)}
        for log, profile, actors in settings if (steps := draws(log)) for algorithm in PASSES
    ]  # fmt: skip
    before = {
        f"{log}, {'default predictor' if predicts else 'drawn from earlier answers'}": chosen_before(
            steps, profile, actors, predicts=predicts
        )
        for log, profile, actors in (settings if arguments.tiny else (SETTINGS[0], SETTINGS[1], SETTINGS[3]))
        if (steps := draws(f"{log}, earlier answers"))
        for predicts in (False, True)
    }
    gains = {} if arguments.tiny else curves()
    _print(table, before, gains, markdown=arguments.markdown)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"speedups": table, "chosen before": before, "curves": gains}, indent=1))


def _print(table: list[dict[str, Any]], before: dict[str, Any], gains: dict[str, Any], *, markdown: bool) -> None:
    bar = " | " if markdown else "  "

    def line(cells: Sequence[str]) -> None:
        print(f"| {bar.join(cells)} |" if markdown else bar.join(cells))

    def head(cells: Sequence[str]) -> None:
        line(cells)
        if markdown:
            line(["---"] * len(cells))

    head(["log, profile, actors", "s of generation / preparation / learning on all", "gen+prep: freed / cut", "best cuts",
          "step: RLHFuse / streamed", "learner of N/2: streamed, cost", "learner of N"])  # fmt: skip
    for row in table:
        mean, ratio = row["mean"], row["ratio"]
        cuts = sorted({f"{share:.0%} {keep}" if share else "none" for share, keep in row["cuts"]})
        line([
            f"{row['log']}, {row['profile']}, {row['actors']}, {row['algorithm']}",
            f"{mean['generation']:.1f} / {mean['prepare']:.1f} / {mean['learn']:.1f}",
            f"{ratio['gen+prep freed']:.2f} / {ratio['gen+prep cut']:.2f}x", ", ".join(cuts),
            f"{ratio['rlhfuse']:.2f} / {ratio['rlhfuse+stream']:.2f}x",
            f"{ratio['stream half']:.2f}x, {ratio['stream half cost'] - 1:+.0%}",
            f"{ratio['stream all']:.2f}x, {ratio['stream all cost'] - 1:+.0%}",
        ])  # fmt: skip
    print()
    head(["cut chosen on earlier lengths", "steps", "at most above hindsight", "at most above no cut", "choice (CPU s)"])
    for log, found in before.items():
        line([log, str(len(found["steps"])), f"{found['above hindsight']:+.1%}", f"{found['above no cut']:+.1%}",
              f"{found['cpu_s']:.2f}"])  # fmt: skip
    for name, points in gains.items():
        print()
        head([name, "freed, no cut", "best cut"])
        for x, freed, cut in points:
            line([f"{x:g}", f"{freed:.2f}x", f"{cut:.2f}x"])


if __name__ == "__main__":
    main()
