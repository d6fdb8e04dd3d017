"""How good length predictors are on real logs, and what that is worth: time and cost of plans made with them.

    python tests/benchmarks/predictors.py [--logs shipped gsm8k math500] [--steps 4] [--json FILE]

Every predictor is told the same history and asked for the same steps: `shipped`, the last four epochs of the recorded run, an
epoch per step; `gsm8k`, the second visit of 128 prompts x 8 samples of a GRPO run, 32 steps after the first; `math500`, 500
prompts of an RL checkpoint (one of those in the log), given one answer each of the model before RL.

- error: mean over responses of |prediction - length|, in tokens; rank: rank correlation over responses;
- below: share of lengths below the predicted 10, 50 and 90 % quantiles (0.1, 0.5, 0.9 would be right), a length that equals one
  counting half; truncated responses count as they are;
- score: T^0.7 C^0.3 of the policy `solver` planning with it on 16 GPUs (L40S), executed with the true lengths, summed over the
  steps, over that of the same policy with the truth (1 is as good as knowing). `none` plans with nothing known but the limit.

`probe` is told every group's first sample beforehand, and is judged on the others; its score leaves out what waiting costs.
`dialled` knows the truth of a share of the prompts. `features` has to predict prompts that it never saw: a fifth of the prompts
is taken out of the history, and the rows with `(unseen)` are about them alone. `math500` has one sample per prompt: no probes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from uncertainty_logs import DATA, rows

from rlhfless.latency import load_profile
from rlhfless.predict import (
    DialledPredictor,
    EwmaPredictor,
    FeaturePredictor,
    Predictor,
    ProbePredictor,
    ShrinkagePredictor,
    TrendPredictor,
    history_quality,
)
from rlhfless.simulate import Setting, simulate
from rlhfless.trace import read_trace
from solver.cluster import Cluster

HERE = Path(__file__).parents[2]
PROFILE = "l40s-qwen2.5-3b-tp2"
LEVELS = [0.1, 0.5, 0.9]
Log = tuple[pd.DataFrame, list[int], int]  # rollouts, the steps to predict, the response limit


class Blind(EwmaPredictor):
    """Learns nothing."""

    def update(self, rollouts: pd.DataFrame) -> Blind:
        """Nothing is learned."""
        return self


class Probed(ProbePredictor):
    """A probe predictor that is told the first samples of the step after its history."""

    def __init__(self, truth: pd.DataFrame) -> None:
        super().__init__()
        self._truth = truth

    def update(self, rollouts: pd.DataFrame) -> Probed:
        """Learn, and look at the next step's first samples."""
        super().update(rollouts)
        later = self._truth[self._truth["step"] > rollouts["step"].max()] if len(rollouts) else self._truth
        first = later[(later["step"] == later["step"].min()) & (later["sample"] == 0)]
        return self.observe(dict(zip(first["prompt_id"], first["response_tokens"], strict=True)))


def shipped() -> Log:
    """The recorded run, an epoch per step."""
    trace = read_trace(HERE / "data" / "traces" / "arithmetic-grpo")
    table = trace.rollouts.assign(step=trace.rollouts["epoch"])
    return table, sorted(table["step"].unique())[-4:], int(trace.meta["config"]["response_limit"])


def gsm8k() -> Log | None:
    """The public GRPO log; its second pass over the first prompts is one step."""
    found = rows("grpo-gsm8k-lengths/areal_s0_lengths.csv")
    if found is None:
        return None
    raw = pd.DataFrame(found).astype(dict.fromkeys(("step", "visit", "rollout", "response_tokens", "hit_cap"), int))
    step = np.where(raw["visit"] == 0, raw["step"], 32)
    return _rollouts(raw["prompt_index"], raw["rollout"], step, raw["visit"], raw["response_tokens"], raw["hit_cap"]), [32], 512


def math500() -> Log | None:
    """The model before RL, then one checkpoint after it."""
    found = rows("reasoning-eval-lengths/response_lengths.csv")
    if found is None:
        return None
    raw = pd.DataFrame(found).astype(dict.fromkeys(("prompt_index", "response_tokens", "hit_cap", "max_tokens"), int))
    raw = raw[(raw["benchmark"] == "math500") & (raw["max_tokens"] == 4096)]
    base = raw["run"].str.startswith("base")
    kept = pd.concat([raw[base].drop_duplicates("prompt_index"), raw[raw["run"] == sorted(raw.loc[~base, "run"])[0]]])
    after = (~kept["run"].str.startswith("base")).astype(int)
    tokens = kept["response_tokens"].clip(1, 4096)
    table = _rollouts(kept["prompt_index"], 0, after, after, tokens, kept["hit_cap"])
    path = DATA / "reasoning-eval-lengths" / "math500_prompts.jsonl"
    texts = dict(enumerate(json.loads(line)["problem"] for line in path.read_text("utf-8").splitlines()))
    return table.assign(prompt=table["prompt_id"].astype(int).map(texts)), [1], 4096


def _rollouts(prompt: Any, sample: Any, step: Any, epoch: Any, tokens: Any, hit_cap: Any) -> pd.DataFrame:
    table = pd.DataFrame({"prompt_id": prompt.astype(str), "sample": sample, "step": step, "epoch": epoch})
    reason = np.where(np.asarray(hit_cap) == 1, "length", "stop")
    table = table.assign(run="log", response_tokens=tokens, prompt_tokens=0, finish_reason=reason)
    return table.reset_index(drop=True)


def contenders(log: pd.DataFrame) -> dict[str, Callable[[], Predictor]]:
    """Predictors by name."""
    made: dict[str, Callable[[], Predictor]] = {
        "none": Blind, "last value (EWMA 1)": EwmaPredictor, "EWMA 2": lambda: EwmaPredictor(2),
        "EWMA 4": lambda: EwmaPredictor(4), "trend": TrendPredictor, "shrinkage": ShrinkagePredictor,
    }  # fmt: skip
    if log["sample"].nunique() > 1:
        made["probe"] = lambda: Probed(log)
    made["dialled 44 %"] = lambda: DialledPredictor(log, 0.44)
    made["dialled 100 %"] = lambda: DialledPredictor(log, 1.0)
    return made


def quality(log: Log, make: Callable[[], Predictor], hidden: bool = False) -> dict[str, float]:
    """Error, rank correlation and calibration over the steps, ``hidden``: of a fifth of the prompts without history."""
    table, steps, limit = log
    guessed, true, below = [], [], []
    for step in steps:
        history, now = table[table["step"] < step], table[table["step"] == step]
        if hidden:
            names = sorted(now["prompt_id"].unique())
            out = set(np.random.default_rng(0).choice(names, max(1, len(names) // 5), replace=False))
            history, now = history[~history["prompt_id"].isin(out)], now[now["prompt_id"].isin(out)]
        predictor = make().fit(history)
        if isinstance(predictor, FeaturePredictor):
            predictor.describe(dict(zip(now["prompt_id"], now["prompt"], strict=True)))
        if isinstance(predictor, ProbePredictor):
            now = now[now["sample"] > 0]
        asked, lengths = now["prompt_id"].tolist(), now["response_tokens"].to_numpy(dtype=float)
        guessed.append(predictor.predict(asked, response_limit=limit))
        distinct, owner = np.unique(asked, return_inverse=True)
        quantiles = predictor.quantiles(distinct.tolist(), LEVELS, response_limit=limit)[:, owner]
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
    setting = Setting(Cluster(2, 8, latency.gpus_per_actor, latency.kind), latency, response_limit=limit)
    policy = "oracle" if make is None else "solver"
    done = simulate(table, setting, [policy], None if make is None else make(), steps=steps).steps
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
    if "prompt" in log[0].columns:
        unseen = {"last value (EWMA 1)": EwmaPredictor}
        if importlib.util.find_spec("sklearn") is not None:
            unseen["features"] = FeaturePredictor
        found += [{"log": name, "predictor": f"{p} (unseen)", **quality(log, make, True)} for p, make in unseen.items()]
    return found


def main() -> None:
    """Measure, print a markdown table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    logs: dict[str, Callable[[], Log | None]] = {"shipped": shipped, "gsm8k": gsm8k, "math500": math500}
    parser.add_argument("--logs", nargs="+", choices=list(logs), default=list(logs))
    parser.add_argument("--steps", type=int, default=4, help="most steps of a log to predict")
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    names = ["error_tokens", "rank", *(f"below_{level:.0%}" for level in LEVELS), "time_s", "gpu_seconds", "score"]
    forms = ["{:.1f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.1f}", "{:.3f}"]
    print("| log | predictor | error | rank | below 10 % | below 50 % | below 90 % | s | GPU-s | score |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    found = []
    for name in options.logs:
        if (log := logs[name]()) is None:
            continue
        table, steps, limit = log
        for row in measured(name, (table, steps[-options.steps :], limit)):
            found.append(row)
            cells = [form.format(row[key]) if key in row else "" for key, form in zip(names, forms, strict=True)]
            print(f"| {name} | {row['predictor']} | {' | '.join(cells)} |", flush=True)
    if options.json:
        clean = [{k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()} for row in found]
        options.json.write_text(json.dumps(clean, indent=2) + "\n")


if __name__ == "__main__":
    main()
