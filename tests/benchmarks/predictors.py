"""How good length predictors are on real logs, and what that is worth: time and cost of plans made with them.

    python tests/benchmarks/predictors.py [--logs shipped gsm8k math500 pairs] [--steps 4] [--json FILE]

Every predictor is told the same history and asked for the same steps: `shipped`, the last four epochs of the recorded run, an
epoch per step; `gsm8k`, the second visit of 128 prompts x 8 samples of a GRPO run, 32 steps after the first; `math500`, 500
prompts of an RL checkpoint, given one answer each of the model before RL; `pairs`, all 52 pairs of that model and a checkpoint
on one benchmark, language and limit (MATH-500, AIME-2024, AMC-23, MGSM in eight languages), by benchmark.

- error: mean over responses of |prediction - length|, in tokens; rank: rank correlation over responses;
- below: share of lengths below the predicted 10, 50 and 90 % quantiles (0.1, 0.5, 0.9 would be right), a length that equals one
  counting half; truncated responses count as they are;
- score: T^0.7 C^0.3 of the policy `solver` planning with it on 16 GPUs (L40S), executed with the true lengths, summed over the
  steps, over that of the same policy with the truth (1 is as good as knowing). `none` plans with nothing known but the limit.

`inflight` is judged before the step, by its prediction alone. `dialled` knows the truth of a share of the prompts. `math500`
and `pairs` have one earlier answer, so wider windows and a drift are the last value. Of `pairs` the table has the median over
the pairs of a benchmark, and the lowest to the highest.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from predictor_logs import Log, gsm8k, math500, pairs, shipped

from rlhfless.latency import load_profile
from rlhfless.predict import (
    EwmaPredictor,
    InFlightPredictor,
    Predictor,
    SyntheticPredictor,
    history_quality,
)
from rlhfless.simulate import SimulationConfig, simulate
from solver.model.cluster import Cluster

PROFILE = "l40s-qwen2.5-3b-tp2"
DRAWN = 400  # scenarios that quantiles are taken over
LEVELS = [0.1, 0.5, 0.9]


class Blind(EwmaPredictor):
    """Learns nothing."""

    def update(self, rollouts: pd.DataFrame) -> Blind:
        """Nothing is learned."""
        return self


def contenders(log: pd.DataFrame) -> dict[str, Callable[[], Predictor]]:
    """Predictors by name."""
    return {
        "none": Blind, "last value (EWMA 1)": EwmaPredictor, "EWMA 2": lambda: EwmaPredictor(2),
        "EWMA 4": lambda: EwmaPredictor(4), "inflight": InFlightPredictor,
        "dialled 44 %": lambda: SyntheticPredictor(log, 0.44), "dialled 100 %": lambda: SyntheticPredictor(log, 1.0),
    }  # fmt: skip


def quality(log: Log, make: Callable[[], Predictor]) -> dict[str, float]:
    """Error, rank correlation and calibration over the steps."""
    table, steps, limit = log
    guessed, true, below = [], [], []
    for step in steps:
        history, now = table[table["step"] < step], table[table["step"] == step]
        predictor = make().fit(history)
        asked, lengths = now["prompt_id"].tolist(), now["response_tokens"].to_numpy(dtype=float)
        guessed.append(predictor.predict(asked, max_response_tokens=limit))
        distinct, owner = np.unique(asked, return_inverse=True)
        drawn = predictor.sample(distinct.tolist(), max_response_tokens=limit, scenarios=DRAWN)
        quantiles = np.quantile(drawn, LEVELS, axis=0)[:, owner]
        below.append(((lengths < quantiles) + (lengths <= quantiles).astype(float)) / 2)
        true.append(lengths)
    found = history_quality(np.concatenate(guessed), np.concatenate(true))
    shares = np.concatenate(below, axis=1).mean(axis=1)
    return {
        "error_tokens": found.mean_abs_error_tokens, "rank": found.rank_correlation,
        **{f"below_{level:.0%}": float(share) for level, share in zip(LEVELS, shares, strict=True)},
    }  # fmt: skip


def worth(log: Log, make: Callable[[], Predictor] | None) -> tuple[float, float]:
    """Seconds and GPU-seconds of the policy ``solver`` with a predictor, or with the truth."""
    table, steps, limit = log
    latency = load_profile(PROFILE)
    setting = SimulationConfig(Cluster(2, 8, latency.gpus_per_actor, latency.kind), latency, max_response_tokens=limit)
    policy = "oracle" if make is None else "solver"
    done = simulate(table, setting, [policy], None if make is None else make(), steps=steps).table
    return float(done["time_s"].sum()), float(done["gpu_seconds"].sum())


def measured(name: str, log: Log) -> list[dict[str, Any]]:
    """All predictors on one log."""
    found = []
    best = worth(log, None)
    for predictor, make in contenders(log[0]).items():
        time_s, gpu_s = worth(log, make)
        score = (time_s / best[0]) ** 0.7 * (gpu_s / best[1]) ** 0.3
        worths = {"time_s": time_s, "gpu_seconds": gpu_s, "score": score}
        found.append({"log": name, "predictor": predictor, **quality(log, make), **worths})
    found.append({"log": name, "predictor": "truth", "time_s": best[0], "gpu_seconds": best[1], "score": 1.0})
    return found


def of_pair(log: Log) -> dict[str, dict[str, float]]:
    """Quality and score of the predictors that differ where a prompt has one earlier answer."""
    best = worth(log, None)
    made: dict[str, Callable[[], Predictor]] = {
        "none": Blind, "last value (EWMA 1)": EwmaPredictor,
    }  # fmt: skip
    found = {}
    for name, make in made.items():
        time_s, gpu_s = worth(log, make)
        found[name] = {**quality(log, make), "score": (time_s / best[0]) ** 0.7 * (gpu_s / best[1]) ** 0.3}
    return found


def over_pairs(every: Sequence[tuple[str, Log]]) -> list[dict[str, Any]]:
    """All pairs, one row per pair and predictor; prints a table by benchmark."""
    rows = []
    for name, log in every:
        benchmark, language, limit, run = name.split()
        same = {"log": "pairs", "benchmark": f"{benchmark} {limit}", "language": language, "run": run}
        rows += [{**same, "predictor": predictor, **numbers} for predictor, numbers in of_pair(log).items()]
    table = pd.DataFrame(rows)
    names = ["error_tokens", "rank", *(f"below_{level:.0%}" for level in LEVELS), "score"]
    forms = ["{:.0f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.3f}"]
    print("\n| benchmark, limit | pairs | predictor | error | rank | below 10 % | below 50 % | below 90 % | score |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (benchmark, predictor), own in table.groupby(["benchmark", "predictor"], sort=True):
        cells = [_spread(own[name], form) for name, form in zip(names, forms, strict=True)]
        print(f"| {benchmark} | {len(own)} | {predictor} | {' | '.join(cells)} |", flush=True)
    return rows


def _spread(values: pd.Series, form: str) -> str:
    low, middle, high = (form.format(v) for v in (values.min(), values.median(), values.max()))
    return middle if low == high else f"{middle} ({low} to {high})"


def main() -> None:
    """Measure, print a markdown table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    logs: dict[str, Callable[[], Log | None]] = {"shipped": shipped, "gsm8k": gsm8k, "math500": math500}
    parser.add_argument("--logs", nargs="+", choices=[*logs, "pairs"], default=[*logs, "pairs"])
    parser.add_argument("--steps", type=int, default=4, help="most steps of a log to predict")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    names = ["error_tokens", "rank", *(f"below_{level:.0%}" for level in LEVELS), "time_s", "gpu_seconds", "score"]
    forms = ["{:.1f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.1f}", "{:.3f}"]
    print("| log | predictor | error | rank | below 10 % | below 50 % | below 90 % | s | GPU-s | score |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for name in (one for one in options.logs if one in logs):
        if (log := logs[name]()) is None:
            continue
        for row in measured(name, log._replace(steps=log.steps[-options.steps :])):
            found.append(row)
            cells = [form.format(row[key]) if key in row else "" for key, form in zip(names, forms, strict=True)]
            print(f"| {name} | {row['predictor']} | {' | '.join(cells)} |", flush=True)
    if "pairs" in options.logs and (every := pairs()):
        found += over_pairs(every)
    if options.json:
        clean = [{k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()} for row in found]
        options.json.write_text(json.dumps(clean, indent=2) + "\n")


if __name__ == "__main__":
    main()
