"""What scheduling gains when lengths are not known: shares of the way from right-sized random to the clairvoyant optimum.

    python tests/benchmarks/uncertainty.py            # about nine minutes on one core
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

**Information limits.** The fluid policy with a forecast S_i of length i decodes token x at the load kappa sqrt(S_i(x) l(x)),
which is the cheapest course for that forecast (derived in solver.worth), evaluated on the true lengths: whole actors,
migration and delays cost nothing. Forecasts are out of sample, in ten folds of prompts: *no information*: the lengths of all
prompts of the other folds; *history*: the lengths of those fifth of the prompts in the other folds whose last visit was most
like this prompt's.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from rlhfless.engine.protocol import Request
from rlhfless.engine.simulated import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.latency import load_profile
from rlhfless.scheduling.draining import DrainingFold
from rlhfless.scheduling.fold import Fold
from rlhfless.scheduling.policy import PlanningInput, SchedulingPolicy
from rlhfless.scheduling.replan import OracleReplan, SolverReplan
from rlhfless.scheduling.spread import Spread
from solver import Cluster, Objective, Plan, Workload, clairvoyant_bound, random_split
from solver.evaluate import ready_s
from solver.survival import from_samples, survival_of, token_grid

DATA = Path(__file__).parents[2].parent / "shared" / "data"
CLUSTER = Cluster(10, 8, 2)
LATENCY = load_profile("l40s-qwen2.5-3b-tp2").affine
ACTORS = range(3, 13)
FOLDS = 10


@dataclass(frozen=True)
class Log:
    """Lengths of one step, and those of the same prompts' last visit.

    Attributes:
        prompt_of, tokens: (R,); history: (P,) lengths of each prompt's last visit; origin: (P,) prompt that a (resampled)
            prompt is a copy of; folds are over origins.
    """

    name: str
    prompt_of: np.ndarray
    tokens: np.ndarray
    history: list[np.ndarray]
    limit: int
    origin: np.ndarray

    def resampled(self, seed: int) -> Log:
        """As many prompts, drawn with replacement, each with all its responses and its history."""
        drawn = np.random.default_rng(seed).integers(0, len(self.history), len(self.history))
        of = [np.flatnonzero(self.prompt_of == p) for p in drawn]
        owner = np.repeat(np.arange(len(drawn)), [len(r) for r in of])
        history = [self.history[p] for p in drawn]
        return Log(self.name, owner, self.tokens[np.concatenate(of)], history, self.limit, self.origin[drawn])

    def truth(self) -> Workload:
        """The step with its true lengths."""
        return Workload(np.zeros(len(self.history), int), self.prompt_of, self.tokens, response_limit=self.limit)

    def blind(self) -> Workload:
        """The step when nothing is known of its lengths but the limit."""
        return self.truth().with_response_tokens(np.full(len(self.tokens), self.limit // 2))

    def expected(self) -> Workload:
        """The step with scenarios drawn from each prompt's last visit."""
        rng = np.random.default_rng(0)
        drawn = np.array([rng.choice(self.history[p], 8) for p in self.prompt_of]).T
        return Workload(np.zeros(len(self.history), int), self.prompt_of, drawn, response_limit=self.limit)


def rows(name: str) -> list[dict[str, str]] | None:
    """The rows of a log, or None with a sentence when it is not there."""
    path = DATA / name
    if not path.is_file():
        print(f"skipped: the public log {name} is not in {DATA.name} beside this checkout")
        return None
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def by_prompt(table: list[dict[str, str]], prompts: int, limit: int) -> list[np.ndarray]:
    """(P,) lengths of each prompt."""
    lengths: list[list[int]] = [[] for _ in range(prompts)]
    for row in table:
        if int(row["prompt_index"]) < prompts:
            lengths[int(row["prompt_index"])].append(min(limit, int(row["response_tokens"])))
    return [np.array(x) for x in lengths]


def log_of(name: str, now: list[dict[str, str]], before: list[dict[str, str]], limit: int) -> Log:
    """A log from the rows of a step and those of an earlier visit of the same prompts."""
    prompts = 1 + max(int(row["prompt_index"]) for row in now)
    lengths = by_prompt(now, prompts, limit)
    owner = np.repeat(np.arange(prompts), [len(x) for x in lengths])
    return Log(name, owner, np.concatenate(lengths), by_prompt(before, prompts, limit), limit, np.arange(prompts))


def logs() -> list[Log]:
    """The logs that are there."""
    found = []
    if (table := rows("grpo-gsm8k-lengths/areal_s0_lengths.csv")) is not None:
        visits = [[row for row in table if row["visit"] == v] for v in "10"]
        found.append(log_of("GSM8K", *visits, 512))
    if (table := rows("reasoning-eval-lengths/response_lengths.csv")) is not None:
        math = [row for row in table if row["benchmark"] == "math500" and row["max_tokens"] == "4096"]
        base = [[row for row in math if row["run"].startswith("base") is is_base] for is_base in (True, False)]
        found.append(log_of("MATH-500", *base, 4096))
    return found


def made_up() -> Log:
    """40 prompts x 2 responses of lognormal lengths, which try the script."""
    rng = np.random.default_rng(0)
    before, now = np.clip(rng.lognormal(4.5, 0.6, (2, 40, 2)), 1, 512).astype(int)
    return Log("made up", np.repeat(np.arange(40), 2), now.ravel(), list(before), 512, np.arange(40))


# --- fronts -----------------------------------------------------------------------------------------------------------------


def executed(plan: Plan, truth: Workload) -> tuple[float, float, int]:
    """Time, actor-seconds and moves of a plan on the true lengths."""
    requests = [Request(i, 0, truth.response_limit, target_tokens=n) for i, n in enumerate(truth.response_tokens.tolist())]
    record = run_step(plan, requests, SimulatedEngine, LATENCY, CLUSTER)
    return record.makespan_s, sum(a["end_s"] - a["start_s"] for a in record.allocations), record.moves


def random_front(log: Log, seeds: int) -> np.ndarray:
    """(N, 2) mean time and actor-seconds of the random split with each number of actors."""
    truth = log.truth()
    plans = [[random_split(truth, CLUSTER, LATENCY, seed=s, actors=n) for s in range(seeds)] for n in ACTORS]
    return np.array([np.mean([(p.makespan_s, p.gpu_seconds / 2) for p in of_n], axis=0) for of_n in plans])


def policy_front(log: Log, known: Workload, policy: SchedulingPolicy, weights: np.ndarray, seeds: int) -> np.ndarray:
    """(weights, 3) mean time, actor-seconds and moves of a policy at each time weight."""
    truth = log.truth()
    points = []
    for weight in weights:
        given = [
            PlanningInput(known, CLUSTER, LATENCY, Objective(float(weight)), time_limit_s=0.1, seed=s) for s in range(seeds)
        ]
        points.append(np.mean([executed(policy.plan(g), truth) for g in given], axis=0))
    return np.array(points)


def cost_at(front: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """Cost read from a realised front, straight between its points (settings may be mixed from step to step). Slower than the
    slowest point costs as much as that; NaN where the policy was never as fast."""
    order = np.argsort(front[:, 0])
    return np.interp(time_s, front[order, 0], front[order, 1], left=np.nan)


# --- information limits -----------------------------------------------------------------------------------------------------


def fluid_front(log: Log, curves: np.ndarray, class_of: np.ndarray) -> np.ndarray:
    """(80, 2) realised time and actor-seconds of the fluid policy with these survival curves, tight to loose."""
    a, b, c = LATENCY.base_s, LATENCY.per_response_s, LATENCY.per_kv_token_s
    x = token_grid(log.limit)
    width = np.diff(x)
    load = b + c * (x[:-1] + (width - 1) / 2)
    # token j is decoded by the share S(j) that is longer than j: S is summed over the tokens of a step without the step's end,
    # since it falls to 0 at the response limit
    alive = curves[:, :-1] + (curves[:, 1:] - curves[:, :-1]) * (width - 1) / (2 * width)
    root = np.sqrt(np.maximum(alive, 1e-12) * load)
    total = (root * width).sum(axis=1)[:, None]
    work = float((b * log.tokens + c * log.tokens * (log.tokens - 1) / 2).sum())
    points = []
    for left_s in a * log.limit * (1 + np.geomspace(0.08, 6.0, 80)):
        wanted = np.clip((left_s - a * log.limit) * root / total, load, LATENCY.max_batch * load)
        spent, passed = (
            np.concatenate([np.zeros((len(curves), 1)), np.cumsum(f * width, axis=1)], axis=1)
            for f in (a * load / wanted, a + wanted)
        )
        cost_s, time_s = 0.0, 0.0
        for k in range(len(curves)):
            own = log.tokens[class_of == k]
            if len(own):
                cost_s += float(np.interp(own, x, spent[k]).sum())
                time_s = max(time_s, float(np.interp(own.max(), x, passed[k])))
        start = float((load[0] / wanted[class_of, 0]).sum())
        points.append((ready_s(LATENCY) + time_s, work + cost_s + ready_s(LATENCY) * start))
    return np.array(points)


def limits(log: Log) -> dict[str, np.ndarray]:
    """The fluid fronts without information and with last-visit lengths, out of sample."""
    grid = token_grid(log.limit)
    fold = np.random.default_rng(0).permutation(int(log.origin.max()) + 1)[log.origin] % FOLDS
    typical = np.log([np.mean(h) for h in log.history])
    none = np.array([survival_of(log.tokens[fold[log.prompt_of] != f], grid) for f in range(FOLDS)])
    like = []
    for p in range(len(log.history)):
        others = np.flatnonzero(fold[log.prompt_of] != fold[p])
        distance = np.abs(typical[log.prompt_of[others]] - typical[p])
        nearest = others[np.argsort(distance, kind="stable")[: len(log.tokens) // 5]]
        like.append(survival_of(log.tokens[nearest], grid))
    return {
        "no history": fluid_front(log, none, fold[log.prompt_of]),
        "history": fluid_front(log, np.array(like), log.prompt_of),
    }


def ideal_fold(log: Log, transfer_s: float) -> np.ndarray:
    """(60, 2) time and actor-seconds of square-root folding with whole actors whose loads are even at any time.

    Args:
        transfer_s: of one response; those of an actor that is folded leave one after the other, while it goes on decoding.
    """
    a, b, c = LATENCY.base_s, LATENCY.per_response_s, LATENCY.per_kv_token_s
    age = np.arange(log.limit)
    alive = (log.tokens[:, None] > age).sum(axis=0).astype(float)
    share = b + c * age
    points = []
    for nu in np.geomspace(1.0, 80.0, 60):
        actors = max(math.ceil(math.sqrt(nu * b * alive[0] / a)), math.ceil(alive[0] / LATENCY.max_batch))
        time_s, cost_s, leaves, before = ready_s(LATENCY), ready_s(LATENCY) * actors, 0.0, alive[0]
        for n, load in zip(alive[: log.tokens.max()], share, strict=False):
            leaves *= n / before
            fits = n <= (actors - 1) * LATENCY.max_batch
            if leaves <= 0 and actors > 1 and fits and (actors - 1) ** 2 >= nu * load * n / a:
                actors, leaves = actors - 1, n / actors if transfer_s > 0 else 0.0
            step_s = a + load * (n - leaves) / actors
            time_s, cost_s = time_s + step_s, cost_s + step_s * (actors + (leaves > 0))
            leaves, before = max(0.0, leaves - step_s / transfer_s) if leaves > 0 else 0.0, n
        points.append((time_s, cost_s))
    return np.array(points)


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
        "solver+replan, history": (log.expected(), SolverReplan(informed, looks_ahead=False), "history"),  # type: ignore[arg-type]
        "oracle+replan": (log.truth(), OracleReplan(looks_ahead=False), "truth"),
    }


def shares(log: Log, weights: np.ndarray, seeds: int, splits: int, oracle: bool = True) -> dict[str, np.ndarray]:
    """(N,) share of every contender (``oracle``: those who know the truth, too) and limit for every number of actors; NaN where
    a policy was never as fast."""
    base = random_front(log, splits)
    bound = clairvoyant_bound(log.truth(), CLUSTER, LATENCY)
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


def report(log: Log, fast: bool, settings: int) -> dict[str, object]:
    """Measure a log and print its table."""
    began = time.perf_counter()
    odds = np.geomspace(0.5, 5.0, settings)  # w / (1 - w): the price of time in units of the split's actors
    weights = odds / (1 + odds)
    measured = shares(log, weights, 1 if fast else 2, 8 if fast else 32, oracle=not fast)
    again = [shares(log.resampled(s), weights[::2], 1, 8) for s in range(0 if fast else 4)]
    print(
        f"\n{log.name}: {len(log.tokens)} responses, limit {log.limit}; room "
        + " ".join("-" if np.isnan(x) else f"{x:.0%}" for x in measured["room"])
    )
    print(f"{'share of the way to the fluid clairvoyant bound':50s}{'mean':>7s}{'90 %':>10s}{'of limit':>10s}   N = 3..12")
    table: dict[str, object] = {}
    of = {name: information for name, (_, _, information) in contenders(log).items()}
    of |= {"even fold, free moves": "no history", "even fold": "no history"}
    for name in (n for n in measured if n != "room"):
        mean = float(np.nanmean(measured[name]))
        spread = 1.64 * float(np.std([np.nanmean(b[name]) for b in again], ddof=1)) if len(again) > 1 else float("nan")
        limit = measured.get(f"limit, {of.get(name)}")
        both = np.isfinite(measured[name]) & (np.isfinite(limit) if limit is not None else True)
        share = float(measured[name][both].mean() / limit[both].mean()) if limit is not None else float("nan")
        line = " ".join("   -" if np.isnan(x) else f"{100 * x:4.0f}" for x in measured[name])
        interval = "" if np.isnan(spread) else f"+-{spread:.1%}"
        of_limit = "" if np.isnan(share) else f"{share:.0%}"
        print(f"{name:50s}{mean:7.1%}{interval:>10s}{of_limit:>10s}   {line}")
        table[name] = {"mean": mean, "half_width_90": spread, "share_of_limit": share, "by_actors": measured[name].tolist()}
    print(f"({time.perf_counter() - began:.0f} s)")
    return {"log": log.name, "responses": len(log.tokens), "room": measured["room"].tolist(), "policies": table}


def main() -> None:
    """Print the tables; ``--json FILE`` writes them too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="one coarse sweep per log, no oracle, no intervals")
    parser.add_argument("--json", type=Path, help="write the numbers here")
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
    if not results:
        sys.exit(0)


if __name__ == "__main__":
    main()
