"""How well lengths are predicted while responses are decoded, and what that is worth to re-planning.

    python tests/benchmarks/inflight.py --json tests/benchmarks/results/inflight.json    # all logs, minutes
    python tests/benchmarks/inflight.py --logs gsm8k
    python tests/benchmarks/inflight.py --tiny                                            # tries the script

Logs: `gsm8k` and `math500` are the public ones (skipped when they are not beside the checkout), as in ``predictors.py``: tokens
so far and siblings only. `shipped` is the model in ``data/models/arithmetic-grpo``: lengths of the recorded run are the
history, then the shipped weights answer all 128 prompts again, 8 samples each, once per round. The last round is what is
measured, those before it are learned from.

**Forecasts.** `history` is what ``solver+replan`` follows without a predictor of its own: lengths of the prompt's last visit,
conditional on the tokens so far. `tokens` is the in-flight predictor that sees of a step only the response itself; `siblings`
sees all of the step.

- sd, bias: standard deviation and mean of log(true / predicted median) of the tokens left, over responses at 10, 25 and 50 % of
  their length, all others being as far as a common pace takes them (responses of fewer than 20 tokens are left out);
- cover: share of lengths within the central 50, 80 and 90 % of the forecast, over all responses that go on when 10, 25 and 50 %
  of the step's have ended (a part of a response's own length is no moment that anybody knows, so shares then mean little);
- share: of the way from right-sized random to the clairvoyant bound that ``solver+replan`` covers with this forecast, the mean
  over numbers of actors at which it is compared, and the least; measured as in ``uncertainty.py`` (L40S, prices of time swept,
  without looking ahead). Steps run on simulated engines with the true lengths;
- observe: milliseconds of one ``observe`` with all responses running, on this machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from fluid_fronts import LATENCY
from inflight_cases import Case, made_up, public, shipped
from predictor_logs import gsm8k, math500
from uncertainty import ACTORS, cost_at

from rlhfless.engine.simulated.engine import SimulatedEngine
from rlhfless.executor import run_step
from rlhfless.predict.remaining import quantiles_left
from rlhfless.scheduling.policy import PlanningOptions
from rlhfless.scheduling.replan import SolverReplan
from solver import Cluster, Objective, Workload, clairvoyant_bound, random_split
from solver.lengths.forecast import LengthForecast
from solver.lengths.remaining import RemainingLengths
from solver.model.problem import PlanningProblem

PARTS = (0.1, 0.25, 0.5)
INTERVALS = (0.5, 0.8, 0.9)
LEVELS = sorted({0.5, *((1 + sign * share) / 2 for share in INTERVALS for sign in (-1, 1))})
LEAST_TOKENS = 20


# --- accuracy --------------------------------------------------------------------------------------------------------------


def state_at(case: Case, name: str, x: int) -> RemainingLengths:
    """The forecast when every response has got ``x`` tokens, or has ended."""
    lengths = np.asarray(case.step.truth.response_tokens)
    return case.forecasts[name].observe(np.minimum(lengths, x), lengths <= x)


def accuracy(case: Case, name: str) -> list[dict[str, Any]]:
    """Errors where responses have come to a part of their length."""
    lengths = np.asarray(case.step.truth.response_tokens)
    asked = np.flatnonzero(lengths >= LEAST_TOKENS)
    found = []
    for progress in PARTS:
        at = np.floor(progress * lengths).astype(int)
        median = np.zeros(len(lengths))
        for x in np.unique(at[asked]):
            here = asked[at[asked] == x]
            median[here] = quantiles_left(state_at(case, name, int(x)), here, at[here].astype(float), 0.5)[0]
        error = np.log((lengths - at)[asked] / median[asked])
        found.append({"part": progress, "sd": float(error.std()), "bias": float(error.mean())})
    return found


def calibration(case: Case, name: str) -> list[dict[str, Any]]:
    """Shares of lengths within intervals, of all responses that go on when a part of the step's has ended."""
    lengths = np.asarray(case.step.truth.response_tokens)
    found = []
    for part in PARTS:
        x = int(np.quantile(lengths, part))
        here = np.flatnonzero(lengths > x)
        quantiles = quantiles_left(state_at(case, name, x), here, np.full(len(here), float(x)), LEVELS)
        left, row = lengths[here] - x, {"part": part}
        for share in INTERVALS:
            low, high = (quantiles[LEVELS.index((1 + sign * share) / 2)] for sign in (-1, 1))
            row[f"cover_{share:.0%}"] = float(((left >= low) & (left <= high)).mean())
        found.append(row)
    return found


def observe_ms(case: Case, name: str) -> float:
    """Median time of one ``observe`` with all responses running."""
    lengths = np.asarray(case.step.truth.response_tokens)
    tokens, running = np.minimum(lengths, 16), np.zeros(len(lengths), dtype=bool)
    times = []
    for _ in range(7):
        began = time.perf_counter()
        case.forecasts[name].observe(tokens, running)
        times.append(time.perf_counter() - began)
    return 1e3 * float(np.median(times))


# --- what it is worth ------------------------------------------------------------------------------------------------------


def shares(case: Case, weights: Sequence[float], seeds: int, splits: int) -> dict[str, dict[str, float]]:
    """Mean and least share of the way to the bound by forecast, and moves per response."""
    step, latency, gpus = case.step, LATENCY, LATENCY.gpus_per_actor
    nothing = np.zeros(len(step.truth.prompt_tokens), int)  # prompts are not charged, as in uncertainty.py
    truth, predicted = (
        Workload(nothing, step.truth.prompt_of, np.asarray(lengths), max_response_tokens=step.truth.max_response_tokens)
        for lengths in (step.truth.response_tokens, step.predicted.response_tokens)
    )
    cluster = Cluster(10, 8, gpus)
    split = [[random_split(PlanningProblem(truth, cluster, latency), seed=s, actors=n) for s in range(splits)] for n in ACTORS]
    base = np.array([np.mean([(p.makespan_s, p.gpu_seconds / gpus) for p in of_n], axis=0) for of_n in split])
    bound = clairvoyant_bound(PlanningProblem(truth, cluster, latency, admission="preempt"))
    best = np.array([bound.gpu_seconds(t) / gpus for t in base[:, 0]])
    best[[bool(np.any((base[:, 0] < t) & (base[:, 1] < c))) for t, c in base]] = np.nan
    requests = [replace(r, prompt_tokens=0) for r in step.requests()]
    found = {}
    for name, forecast in case.forecasts.items():
        points = []
        for weight in weights:
            outcomes = []
            for seed in range(seeds):
                given = (
                    PlanningProblem(predicted, cluster, latency, Objective(weight)),
                    PlanningOptions(
                        0.1, seed, forecast=LengthForecast(predicted.response_tokens.astype(float), None, forecast)
                    ),
                )
                record = run_step(SolverReplan(looks_ahead=False).plan(*given), requests, SimulatedEngine, latency, cluster)
                held = sum(a["end_s"] - a["start_s"] for a in record.allocations)
                outcomes.append((record.makespan_s, held, record.moves))
            points.append(np.mean(outcomes, axis=0))
        front = np.array(points)
        share = (base[:, 1] - cost_at(front, base[:, 0])) / (base[:, 1] - best)
        known = share[np.isfinite(share)]
        found[name] = {
            "share": float(known.mean()) if len(known) else None, "least": float(known.min()) if len(known) else None,
            "moves_per_response": float(front[:, 2].mean() / len(requests)),
        }  # fmt: skip
    return found


# --- on the command line ---------------------------------------------------------------------------------------------------


def measured(case: Case, settings: int, seeds: int, splits: int) -> list[dict[str, Any]]:
    """All forecasts of one case; prints a row each."""
    odds = np.geomspace(0.5, 5.0, settings)  # w / (1 - w), as in uncertainty.py
    of_forecast = shares(case, (odds / (1 + odds)).tolist(), seeds, splits)
    rows = []
    for name in case.forecasts:
        errors, covers = accuracy(case, name), calibration(case, name)
        row = {
            "log": case.name, "forecast": name, "of_responses": errors, "of_the_step": covers, **of_forecast[name],
            "observe_ms": observe_ms(case, name),
        }  # fmt: skip
        rows.append(row)
        cells = [" / ".join(f"{a[key]:.2f}" for a in errors) for key in ("sd", "bias")]
        percentages = ["-" if row[key] is None else f"{100 * row[key]:.1f} %" for key in ("share", "least")]
        cells += [" / ".join(f"{a[f'cover_{s:.0%}']:.2f}" for a in covers) for s in INTERVALS]
        cells += [*percentages, f"{row['moves_per_response']:.2f}", f"{row['observe_ms']:.1f}"]
        print(f"| {case.name} | {name} | {' | '.join(cells)} |", flush=True)
    return rows


def main() -> None:
    """Measure, print a markdown table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made: dict[str, Callable[[], Case | None]] = {
        "shipped": shipped, "gsm8k": lambda: public("gsm8k", gsm8k), "math500": lambda: public("math500", math500),
    }  # fmt: skip
    parser.add_argument("--logs", nargs="+", choices=list(made), default=list(made))
    parser.add_argument("--settings", type=int, default=11, help="prices of time that are swept")
    parser.add_argument("--seeds", type=int, default=1, help="draws at each price")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--tiny", action="store_true", help="made-up lengths: tries the script, its numbers say nothing")
    options = parser.parse_args()
    head = ["log", "forecast", "sd at 10 / 25 / 50 %", "bias", *(f"cover {s:.0%}" for s in INTERVALS)]
    print("| " + " | ".join([*head, "share", "least", "moves", "observe, ms"]) + " |\n" + "|---" * 11 + "|")
    rows: list[dict[str, Any]] = []
    if options.tiny:
        rows += measured(made_up(), 2, 1, 2)
    for name in () if options.tiny else options.logs:
        if (case := made[name]()) is not None:
            rows += measured(case, options.settings, options.seeds, 16)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
