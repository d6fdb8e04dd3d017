"""What a schedule saves of the demonstration log, beside what it saves of every public log at hand.

    python tests/benchmarks/saving_range.py [--logs NAME ...] [--time-weight 0.7] [--profile NAME] [--json FILE]

Of every log all steps with history run on 16 GPUs, by default those of the demonstration. They run under `static`, which
holds all GPUs until the last response, and under `random`, `fold` and `solver`. One row per log: the best of the three by
T^w C^(1-w), what it saves of the GPU-seconds and of the time of `static`, and the most that any schedule saves which takes as
long. The logs are those of policies.py, and MGSM: the prompts of one benchmark under five checkpoints of a reasoning model,
each checkpoint as a step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd
from policies import DATA, GPUS, LOGS, Log

import rlhfless as rl
from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import read_trace, response_limit, validate
from solver import Cluster, Objective

POLICIES = ("random", "fold", "solver")


def demonstration() -> Log:
    """The demonstration log."""
    trace = read_trace(rl.example())
    return Log(trace.rollouts, response_limit(trace.meta), "generated, steps of 64 prompts x 8 samples")


def mgsm() -> Log:
    """MGSM in several languages under five checkpoints, one answer to each prompt."""
    log = pd.read_csv(DATA / "reasoning-eval-lengths" / "response_lengths.csv")
    log = log[log["benchmark"] == "mgsm"]
    rows = pd.DataFrame(
        {
            "run": "mgsm", "step": pd.factorize(log["run"], sort=True)[0], "sample": 0,
            "prompt_id": log["language"] + log["prompt_index"].astype(str),
            "response_tokens": np.minimum(log["response_tokens"], 8192),
            "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
        }
    )  # fmt: skip
    return Log(validate("rollouts", rows), 8192, "2,000 prompts x 1 sample, five checkpoints as steps")


READ = {"demonstration": demonstration, **{name: LOGS[name] for name in ("math500", "gsm8k", "gsm8k-visit")}, "mgsm": mgsm}


def saving(log: Log, profile: str, time_weight: float) -> dict[str, object]:
    """The best schedule of a log and what it saves."""
    latency = load_profile(profile)
    cluster = Cluster(2, GPUS // 2, latency.gpus_per_actor, latency.kind, usd_per_gpu_hour(latency.kind))
    setting = SimulationConfig(cluster, latency, Objective(time_weight), max_response_tokens=log.max_response_tokens)
    steps = simulate(log.rollouts, setting, ["static", *POLICIES]).table
    sums = steps[steps["has_history"]].groupby("policy")[["time_s", "gpu_seconds", "bound_gpu_seconds"]].sum()
    ratios = sums[["time_s", "gpu_seconds"]] / sums.loc["static", ["time_s", "gpu_seconds"]]
    value = pd.Series(Objective(time_weight).product(ratios["time_s"], ratios["gpu_seconds"]), ratios.index)
    best = value[list(POLICIES)].idxmin()
    most = 1 - sums.loc[best, "bound_gpu_seconds"] / sums.loc["static", "gpu_seconds"]
    return {
        "best schedule": best,
        "GPU-seconds saved": f"{1 - ratios.loc[best, 'gpu_seconds']:.0%}",
        "time saved": f"{1 - ratios.loc[best, 'time_s']:.0%}",
        "any schedule that takes as long, at most": f"{most:.0%}",
        "lengths": log.about,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-weight", type=float, default=0.7)
    parser.add_argument("--profile", default="h100-qwen2.5-3b-tp2", help="default: the GPUs of the demonstration")
    parser.add_argument("--logs", nargs="+", choices=tuple(READ), default=list(READ), help="only these")
    parser.add_argument("--json", type=Path, help="write the rows to this file, too")
    options = parser.parse_args()
    rows = {}
    for name in options.logs:
        if name != "demonstration" and not DATA.is_dir():
            print(f"{name}: skipped, there is no {DATA}")
            continue
        rows[name] = saving(READ[name](), options.profile, options.time_weight)
        print(name, *(f"{key}: {value}" for key, value in rows[name].items()), sep="; ", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
