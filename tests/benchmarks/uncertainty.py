"""What scheduling gains when lengths are not known: shares of the way from right-sized random to the clairvoyant optimum.

    python tests/benchmarks/uncertainty.py --markdown # about six minutes on one core; prints the table of details/policies.md
    python tests/benchmarks/uncertainty.py --fast     # under a minute: one coarse sweep, no oracle, no intervals
    python tests/benchmarks/uncertainty.py --tiny     # tries the script on made-up lengths: its numbers say nothing

Two public logs (skipped when they are not beside the checkout): GRPO on GSM8K (second visit of 128 prompts, 8 samples; history:
their first visit) and MATH-500 (500 responses, 4k limit; history: another run of the same model family). Prompts have
unknown lengths, which count as 0 tokens. Every point is executed by ``run_step`` on simulated engines, migration charged.

For N = 3..12 actors let (T_N, C_N) be the random split with N actors (mean over seeds). A split that another N beats in both
is not right-sized and left out (3 actors have fewer slots than GSM8K responses). A policy is swept over its objective, so that
its price of time moves along the front (re-planning without looking ahead: several weights have the same best point, and a
front of few points is not read between them); its cost at the time T_N is read from the front it realises, and

    share = (C_N - C_policy(T_N)) / (C_N - C_opt(T_N)) ,     C_opt: the fluid clairvoyant bound (no policy can cost less).

``mean`` and ``least`` are over N; a least share below 0 says that the policy is worse than the random split somewhere.
Intervals are the mean -+ t sd over resamples: prompts are drawn with replacement, with all their responses and their history,
and everything is planned and run anew.

**Information limits.** The fluid policy with a forecast S_i of length i decodes token x at the load kappa sqrt(S_i(x) l(x)),
which is the cheapest course for that forecast (derived in solver.replanning.marginal_value), evaluated on the true lengths:
whole actors, migration and delays cost nothing. Forecasts are out of sample, in ten folds of prompts: *no information*: the
lengths of all prompts of the other folds; *history*: the lengths of those fifth of the prompts in the other folds whose last
visit was most like this prompt's.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from fluid_fronts import LATENCY, ideal_fold, limits
from uncertainty_logs import Log, logs, made_up

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.scheduling.fold import Fold
from rlhfless.scheduling.fold_draining import DrainingFold
from rlhfless.scheduling.policy import PlanningOptions, SchedulingPolicy
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.scheduling.round_robin import Spread
from solver import Cluster, Objective, Plan, Workload, clairvoyant_bound, random_split
from solver.lengths.survival import from_samples
from solver.model.problem import PlanningProblem

CLUSTER = Cluster(10, 8, 2)
ACTORS = range(3, 13)
RESAMPLES = 6
STUDENT = 2.015  # the 95 % quantile of Student's t for RESAMPLES - 1


# --- fronts -----------------------------------------------------------------------------------------------------------------


def executed(plan: Plan, truth: Workload) -> tuple[float, float, int]:
    """Time, actor-seconds and moves of a plan on the true lengths."""
    requests = [Request(i, 0, truth.max_response_tokens, target_tokens=n) for i, n in enumerate(truth.response_tokens.tolist())]
    record = run_step(plan, requests, SimulatedEngine, LATENCY, CLUSTER)
    return record.makespan_s, sum(a["end_s"] - a["start_s"] for a in record.allocations), record.moves


def random_front(log: Log, seeds: int) -> np.ndarray:
    """(N, 2) mean time and actor-seconds of the random split with each number of actors."""
    truth = log.truth()
    plans = [[random_split(PlanningProblem(truth, CLUSTER, LATENCY), seed=s, actors=n) for s in range(seeds)] for n in ACTORS]
    return np.array([np.mean([(p.makespan_s, p.gpu_seconds / 2) for p in of_n], axis=0) for of_n in plans])


def policy_front(log: Log, known: Workload, policy: SchedulingPolicy, weights: np.ndarray, seeds: int) -> np.ndarray:
    """(weights, 3) mean time, actor-seconds and moves of a policy at each time weight."""
    truth = log.truth()
    points = []
    for weight in weights:
        given = [
            (PlanningProblem(known, CLUSTER, LATENCY, Objective(float(weight))), PlanningOptions(time_limit_s=0.1, seed=s))
            for s in range(seeds)
        ]
        points.append(np.mean([executed(policy.plan(*g), truth) for g in given], axis=0))
    return np.array(points)


def cost_at(front: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """Cost read from a realised front, straight between its points (settings may be mixed from step to step). Slower than the
    slowest point costs as much as that; NaN where the policy was never as fast."""
    order = np.argsort(front[:, 0])
    return np.interp(time_s, front[order, 0], front[order, 1], left=np.nan)


# --- the table --------------------------------------------------------------------------------------------------------------


def last_visit(log: Log, workload: Workload) -> object:
    """The forecast from the lengths of each prompt's last visit."""
    return from_samples(log.history, workload)


def contenders(log: Log) -> dict[str, tuple[Workload, SchedulingPolicy, str]]:
    """Policies with what they are given, and the information that they have."""
    informed: Callable[[Workload], object] = partial(last_visit, log)
    return {
        "fold, cutting": (log.blind(), Fold(Spread()), "no history"),
        "fold, draining": (log.blind(), Fold(Spread(), rule=DrainingFold), "no history"),
        "solver+replan, no history": (log.blind(), SolverReplan(looks_ahead=False), "no history"),
        "solver+replan, history": (log.expected(), SolverReplan(informed, looks_ahead=False), "history"),
        # type: ignore[arg-type]
        "oracle+replan": (log.truth(), OracleReplan(looks_ahead=False), "truth"),
    }


def shares(log: Log, weights: np.ndarray, seeds: int, splits: int, oracle: bool = True) -> dict[str, np.ndarray]:
    """(N,) share of every contender (``oracle``: those who know the truth, too) and limit for every number of actors; NaN where
    a policy was never as fast."""
    base = random_front(log, splits)
    bound = clairvoyant_bound(PlanningProblem(log.truth(), CLUSTER, LATENCY, admission="preempt"))
    best = np.array([bound.gpu_seconds(t) / 2 for t in base[:, 0]])
    beaten = [bool(np.any((base[:, 0] < t) & (base[:, 1] < c))) for t, c in base]
    best[beaten] = np.nan
    fronts = {f"limit, {name}": front for name, front in limits(log).items()}
    context = float(log.tokens.mean()) / 2
    fronts |= {"even fold, free moves": ideal_fold(log, 0.0), "even fold": ideal_fold(log, LATENCY.transfer_s(context))}
    for name, (known, policy, _) in contenders(log).items():
        if policy.clairvoyant and not oracle:
            continue
        fronts[name] = policy_front(log, known, policy, weights, seeds)
    found = {name: (base[:, 1] - cost_at(front, base[:, 0])) / (base[:, 1] - best) for name, front in fronts.items()}
    return found | {"room": 1 - best / base[:, 1]}


def of_limit(measured: dict[str, np.ndarray], name: str, information: str | None) -> float:
    """The mean share over that of the limit with the same information, where both are known; NaN without such a limit."""
    limit = measured.get(f"limit, {information}")
    if limit is None:
        return math.nan
    both = np.isfinite(measured[name]) & np.isfinite(limit)
    return float(measured[name][both].mean() / limit[both].mean())


def half_width(values: Sequence[float]) -> float:
    """Of the 90 % interval, from resampled values; NaN without any."""
    return STUDENT * float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def report(log: Log, fast: bool, settings: int) -> dict[str, Any]:
    """Measure a log and print its table."""
    began = time.perf_counter()
    odds = np.geomspace(0.5, 5.0, settings)  # w / (1 - w): the price of time in units of the split's actors
    weights = odds / (1 + odds)
    measured = shares(log, weights, 1 if fast else 2, 8 if fast else 32, oracle=not fast)
    again = [shares(log.resampled(s), weights[::2], 1, 8) for s in range(0 if fast else RESAMPLES)]
    print(
        f"\n{log.name}: {len(log.tokens)} responses, limit {log.limit}; room "
        + " ".join("-" if np.isnan(x) else f"{x:.0%}" for x in measured["room"])
    )
    head = f"{'share of the way to the fluid clairvoyant bound':50s}{'mean':>7s}{'90 %':>10s}{'of limit':>18s}{'least':>8s}"
    print(f"{head}   N = 3..12")
    table: dict[str, dict[str, Any]] = {}
    of = {name: information for name, (_, _, information) in contenders(log).items()}
    of |= {"even fold, free moves": "no history", "even fold": "no history"}
    for name in (n for n in measured if n != "room"):
        row = {
            "mean": float(np.nanmean(measured[name])),
            "half_width_90": half_width([float(np.nanmean(b[name])) for b in again]),
            "share_of_limit": of_limit(measured, name, of.get(name)),
            "of_limit_half_width_90": half_width([of_limit(b, name, of.get(name)) for b in again]),
            "least": float(np.nanmin(measured[name])),
            "by_actors": measured[name].tolist(),
        }
        print(
            f"{name:50s}{row['mean']:7.1%}{percent(None, row['half_width_90']):>10s}"
            f"{percent(row['share_of_limit'], row['of_limit_half_width_90']):>18s}{row['least']:8.1%}   "
            + " ".join("   -" if np.isnan(x) else f"{100 * x:4.0f}" for x in measured[name])
        )
        table[name] = row
    print(f"({time.perf_counter() - began:.0f} s)", flush=True)
    return {"log": log.name, "responses": len(log.tokens), "room": measured["room"].tolist(), "policies": table}


def percent(value: float | None, width: float) -> str:
    """A share and the half width of its interval, as far as they are known."""
    known = [] if value is None or math.isnan(value) else [f"{100 * value:.1f}"]
    known += [] if math.isnan(width) else [f"+- {100 * width:.1f}"]
    return f"{' '.join(known)} %" if known else ""


TITLES = {
    "limit, no history": "limit without history",
    "limit, history": "limit with last-visit lengths",
    "even fold, free moves": "even folds, free moves",
    "even fold": "even folds, responses leave one by one",
    "fold, cutting": "folding by cuts",
    "fold, draining": "folding by single moves",
    "solver+replan, no history": "`solver+replan` without history",
    "solver+replan, history": "`solver+replan` with history",
    "oracle+replan": "`oracle+replan`",
}
AIMED, AIM = ("fold, draining", "solver+replan, no history", "solver+replan, history"), 0.8  # of the limit


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """The table of ``details/policies.md``, and which aims are met."""
    head = [""] + [cell for r in results for cell in (f"{r['log']} ({r['responses']:,} responses)", "of its limit", "least")]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    said = []
    for name, title in TITLES.items():
        cells = []
        for result in results:
            row = result["policies"].get(name)
            if row is None:
                cells += ["-"] * 3
                continue
            cells += [
                percent(row["mean"], row["half_width_90"]), percent(row["share_of_limit"], row["of_limit_half_width_90"]),
                percent(row["least"], math.nan),
            ]  # fmt: skip
            if name in AIMED and not math.isnan(row["share_of_limit"]):
                share, least = row["share_of_limit"], row["least"]
                said.append(
                    f"- {title} on {result['log']}: {100 * share:.2f} % of its limit, so the aim of {100 * AIM:.0f} % is "
                    f"{'met' if share >= AIM else 'missed'}; {'never' if least >= 0 else 'somewhere'} below the random split "
                    f"(least share {100 * least:.1f} %)."
                )
        lines.append("| " + " | ".join([title, *cells]) + " |")
    return "\n".join([*lines, "", *said])


def main() -> None:
    """Print the tables; ``--json FILE`` writes them too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="one coarse sweep per log, no oracle, no intervals")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--markdown", action="store_true", help="print the table of details/policies.md, and the aims")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: tries the script, its numbers say nothing")
    options = parser.parse_args()
    print(
        f"{LATENCY.name}, affine fit: {1e3 * LATENCY.base_s:.2f} ms + {1e3 * LATENCY.per_response_s:.4f} ms per response + "
        f"{1e3 * LATENCY.per_kv_token_s:.3g} ms per KV token; a move {1e3 * LATENCY.transfer_base_s:.0f} ms + "
        f"{1e6 * LATENCY.transfer_per_kv_token_s:.2f} us per KV token; {LATENCY.max_batch} slots"
    )
    fast, settings = options.fast or options.tiny, 3 if options.tiny else 11 if options.fast else 19
    results = [report(log, fast, settings) for log in ([made_up()] if options.tiny else logs())]
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    if options.markdown and results:
        print(f"\n{markdown(results)}")
    if not results:
        sys.exit(0)


if __name__ == "__main__":
    main()
