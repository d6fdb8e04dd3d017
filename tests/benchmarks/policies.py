"""Scheduling policies side by side: realised time and GPU-seconds on real logs, against right-sized random and the bound.

    python tests/benchmarks/policies.py [--fast | --full] [--markdown] [--json FILE] [--profile NAME ...] [--logs NAME ...]

Every policy plans every step that has history from the same predictions (clairvoyant ones from the true lengths) and is run
with the true lengths on simulated engines, which charge the measured table of the profile and every migration. Then once
more on the first profile with a planner whose own is wrong: a larger by 20 %, b smaller by 20 %, no table (``--off``);
execution and bound stay with the true one. Prompt lengths that a log does not tell count as 0 tokens.

Charged: ``time`` is the sum over steps of the realised generation time, of the delay by planning and of the time that the
runtime rule took to decide. Planning overlaps preparation and learning of the step before, so it delays generation only by what
exceeds ``--overlap-s``; "plan s" is all planning, "delay s" what was charged. Planning holds no GPUs, so GPU-seconds are those
of the allocations alone. Planning and deciding are measured on this machine, so they vary from run to run; everything else is
deterministic.

``value`` is T^w C^(1-w) of these sums, divided by that of right-sized random; ``alone`` is the same without delay and deciding,
which a faster implementation would take less of, or hide behind the decoding. Intervals of values, times and
GPU-seconds (95 %, paired: every policy on the same resample) depend on the log:

- logs of 8 steps and more: steps are drawn with replacement (2,000 times, percentiles). A step of these logs is a batch of
  prompts, so it is a block bootstrap over prompts; nothing is planned anew. With 8 blocks it is somewhat too narrow.
- shorter logs, and all with ``--full``: within every step whole prompts (all samples, with their predictions) are drawn with
  replacement, 20 times (100 with ``--full``). The three rivals (random, random+tau, fold) and the solver's two policies plan
  and run every resampled step anew, with its own draw of the random split; the interval is the ratio times
  exp(-+ t sd of its logarithm over the resamples). The other policies have no intervals there.

Short logs are run with several draws of the random split, and their numbers are sums over these too.

The last row is a bound on what any policy can reach: per step the least T^w C(T)^(1-w) on the curve of the bound. Its sum is at
most T^w C^(1-w) of the sums of any policy (Hoelder). ``C/bound`` divides GPU-seconds by the curve at the realised times.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from policy_comparison import POLICIES, compare
from policy_tables import Column, markdown, show

from rlhfless.latency import load_profile
from rlhfless.simulate import SimulationConfig, logged_steps
from rlhfless.trace import read_trace, validate
from solver import Cluster, LatencyModel, Objective

PROJECT = Path(__file__).parents[2]
DATA = PROJECT.parent / "shared" / "data"  # public logs beside the project, not part of it
PROFILES = ("l40s-qwen2.5-3b-tp2", "h100-qwen2.5-3b-tp1")
GPUS = 16
ENOUGH_STEPS = 8  # from here on steps are resampled, below prompts


# --- logs ------------------------------------------------------------------------------------------------------------------


class Log(NamedTuple):
    """A log's rollouts, its response limit, and what one step of it is."""

    rollouts: pd.DataFrame
    max_response_tokens: int
    about: str


def _gsm8k(step: str) -> pd.DataFrame:
    log = pd.read_csv(DATA / "grpo-gsm8k-lengths" / "areal_s0_lengths.csv")
    columns = {"step": log[step], "prompt_id": log["prompt_index"].astype(str), "sample": log["rollout"]}
    finish = np.where(log["hit_cap"] == 1, "length", "stop")
    rows = pd.DataFrame({**columns, "response_tokens": log["response_tokens"], "finish_reason": finish})
    return validate("rollouts", rows.assign(run="gsm8k"))


def gsm8k() -> Log:
    """GRPO on GSM8K as it was logged: 8 steps of 16 prompts x 8 samples that were seen 32 steps before."""
    return Log(_gsm8k("step"), 512, "8 logged steps of 16 prompts x 8 samples")


def gsm8k_visit() -> Log:
    """The same as one step: the second visit of 128 prompts."""
    return Log(_gsm8k("visit"), 512, "the second visit in one step, 128 prompts x 8 samples")


def math500() -> Log:
    """MATH-500: the base model's lengths are the history, a checkpoint after 50 steps is what is run."""
    log = pd.read_csv(DATA / "reasoning-eval-lengths" / "response_lengths.csv")
    log = log[(log["benchmark"] == "math500") & (log["max_tokens"] == 4096)]
    rows = pd.DataFrame(
        {
            "run": "math500", "step": np.where(log["run"].str.startswith("base"), 0, 1), "sample": 0,
            "prompt_id": log["prompt_index"].astype(str), "response_tokens": np.minimum(log["response_tokens"], 4096),
            "finish_reason": np.where(log["hit_cap"] == 1, "length", "stop"),
        }
    )  # fmt: skip
    return Log(validate("rollouts", rows), 4096, "500 prompts x 1 sample, predicted from the model before training")


def arithmetic() -> Log:
    """The shipped run as it was recorded: steps of 32 prompts x 8 samples."""
    return Log(read_trace(PROJECT / "data" / "traces" / "arithmetic-grpo").rollouts, 320, "steps of 32 prompts x 8 samples")


def arithmetic_epoch() -> Log:
    """The shipped run with an epoch in every step."""
    rollouts = arithmetic().rollouts
    return Log(rollouts.assign(step=rollouts["epoch"]), 320, "an epoch in every step, 128 prompts x 8 samples")


LOGS: dict[str, Callable[[], Log]] = {
    "math500": math500,
    "gsm8k-visit": gsm8k_visit,
    "gsm8k": gsm8k,
    "arithmetic-epoch": arithmetic_epoch,
    "arithmetic": arithmetic,
}


def available(names: Sequence[str]) -> Iterator[tuple[str, Log]]:
    """The logs that are there; one sentence for each that is not."""
    for name in names:
        try:
            yield name, LOGS[name]()
        except FileNotFoundError:
            print(f"{name} is skipped: its data folder is not beside the project (../shared/data).")


# --- on the command line ---------------------------------------------------------------------------------------------------


def off(latency: LatencyModel, share: float) -> LatencyModel:
    """What a planner with a wrong profile works with: a larger and b smaller by ``share``, no table."""
    return replace(
        latency, base_s=latency.base_s * (1 + share), per_response_s=latency.per_response_s * (1 - share), table=None
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table per log and profile, and which of the solver's policies beats or loses to which rival."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="three logs, one profile, the last step of each, few resamples")
    parser.add_argument("--full", action="store_true", help="prompts of all logs are resampled, 100 times (hours)")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    parser.add_argument("--markdown", action="store_true", help="print the tables of details/policies.md in the end")
    parser.add_argument("--profile", nargs="+", default=list(PROFILES))
    parser.add_argument("--logs", nargs="+", choices=LOGS, help="all but 'arithmetic' unless given")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--time-weight", type=float, default=0.7)
    parser.add_argument(
        "--overlap-s", type=float, default=5.0,
        help="seconds that a step prepares and learns, which planning overlaps (5: assumed; 0: all of planning is charged)",
    )  # fmt: skip
    parser.add_argument("--off", type=float, nargs="*", default=[0.2], help="a and b of planners that are wrong")
    options = parser.parse_args(arguments)
    everything: list[dict[str, Any]] = []
    columns: list[Column] = []
    names = options.logs or [n for n in LOGS if n != "arithmetic" and not (options.fast and n == "gsm8k")]
    for name, log in available(names):
        steps = [s for s in logged_steps(log.rollouts, max_response_tokens=log.max_response_tokens) if s.has_history]
        steps = steps[-1:] if options.fast else steps
        few = len(steps) < ENOUGH_STEPS
        replicates = 100 if options.full else (3 if options.fast else 20) if few else 0
        draws = 4 if few and not options.fast else 1
        variants = [(profile, 0.0) for profile in options.profile] + [(options.profile[0], share) for share in options.off]
        for profile, share in variants[: 1 if options.fast else None]:
            latency, began = load_profile(profile), time.perf_counter()
            setting = SimulationConfig(
                Cluster(GPUS // 8, 8, latency.gpus_per_actor), latency, Objective(options.time_weight),
                max_response_tokens=log.max_response_tokens,
                planned_latency=off(latency, share) if share else None,
            )  # fmt: skip
            result = compare(steps, setting, options.policies, draws, replicates, options.overlap_s)
            how = f"{replicates} resamples of the prompts of every step" if replicates else "resampled steps"
            wrong = f", planned with a {share:+.0%} and b {-share:+.0%}" if share else ""
            print(
                f"\n{name} ({log.about}; {len(steps)} steps x {draws} draws), {profile}, {GPUS} GPUs{wrong}; "
                f"intervals from {how}; {time.perf_counter() - began:.0f} s\n{show(result.rows())}"
            )
            print("\n".join(result.verdicts()), flush=True)
            everything += [{"log": name, "profile": profile, "off": share, **row} for row in result.rows()]
            columns.append(Column(name, profile, share, result.rows()))
    if options.markdown and columns:
        print(f"\n{markdown(columns)}")
    if options.json is not None:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
