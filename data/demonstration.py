"""Generates the demonstration trace: `make demonstration` writes data/traces/reasoning-static, the same files every time.

    python data/demonstration.py [--out FOLDER]
    python data/demonstration.py --facts LOG     # the facts below, read from the public log (its response_lengths.csv)

Lengths follow a stated rule, fixed before any schedule was run on them (docs/decisions/demonstration_fixed_before_it_ran.md).
Every prompt comes back in every epoch. The facts are those of one public log: answers of
DeepSeek-R1-Distill-Qwen-1.5B to MATH-500, at most 4,096 tokens each (github.com/nhockid235/xling-grpo-sub3b, Apache-2.0).

- Of the answers, 24 % are cut (3,900 tokens or more). So many responses are long thoughts, the others are short ones.
- Short ones are lognormal; the line through the log's quantiles 5, 10, 25 and 50 % gives median and spread.
- Long thoughts are lognormal with the same spread. Their median is such that 95 % of them exceed the log's limit of 4,096.
- Two checkpoints of the model answered the same prompts. The correlation of the logarithms of their lengths says how alike the
  responses to one prompt are: a prompt has a normal score, a response one around it, and the length is the mixture's quantile.

Prompts have the log's median of characters, 3.2 characters per token (assumed), and 44 tokens for a template (assumed).
The run is what a framework does that holds its GPUs: policy static, 16 H100 GPUs with list prices, 2 GPUs per actor, simulated
by the executor. Profiles of 1 and 2 GPUs per actor ship for this model and GPU, so plans have a size to choose.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlhfless.latency import load_profile, usd_per_gpu_hour
from rlhfless.simulate import SimulationConfig, simulate
from rlhfless.trace import validate
from solver import Cluster, Objective

TARGET = Path(__file__).parent / "traces" / "reasoning-static"
PROFILE = "h100-qwen2.5-3b-tp2"
MAX_RESPONSE_TOKENS = 16_384
LOG_LIMIT_TOKENS, CUT_TOKENS = 4_096, 3_900
POOL, PROMPTS_PER_STEP, SAMPLES, STEPS = 128, 64, 8, 8
TEMPLATE_TOKENS, CHARACTERS_PER_TOKEN = 44, 3.2
SEED = 1
NORMAL = NormalDist()


class Facts(NamedTuple):
    """What the rule takes from the public log."""

    cut_share: float = 0.24
    quantiles_tokens: tuple[float, float, float, float] = (542, 640, 906, 1508)  # 5, 10, 25, 50 %
    correlation: float = 0.57
    prompt_characters: float = 148
    prompt_characters_sd: float = 0.74  # of the logarithm


def facts(log: Path) -> Facts:
    """Read the facts from the public log's table of lengths and its list of prompts."""
    table = pd.read_csv(log)
    table = table[table["benchmark"] == "math500"]
    base = table.loc[table["run"].str.startswith("base"), "response_tokens"]
    pairs = table.pivot_table(index="prompt_index", columns="run", values="response_tokens")
    pairs = np.log(pairs[(pairs < CUT_TOKENS).all(axis=1)])
    characters = pd.read_json(log.with_name("math500_prompts.jsonl"), lines=True)["problem"].str.len()
    quantiles = base.quantile([0.05, 0.1, 0.25, 0.5]).round().tolist()
    return Facts(
        round(float((base >= CUT_TOKENS).mean()), 2), tuple(quantiles), round(float(pairs.corr().iloc[0, 1]), 2),
        float(characters.median()), round(float(np.log(characters).std()), 2),
    )  # fmt: skip


def rollouts(known: Facts, seed: int = SEED) -> pd.DataFrame:
    """Return the log: an epoch visits all prompts once, in steps of ``PROMPTS_PER_STEP``."""
    rng = np.random.default_rng(seed)
    asked = known.prompt_characters * np.exp(known.prompt_characters_sd * rng.standard_normal(POOL))
    prompt_tokens = np.ceil(TEMPLATE_TOKENS + asked / CHARACTERS_PER_TOKEN).astype(np.int64)
    scores = rng.standard_normal(POOL)
    steps = []
    for step in range(STEPS):
        first = step * PROMPTS_PER_STEP % POOL
        owner = np.repeat(np.arange(first, first + PROMPTS_PER_STEP), SAMPLES)
        own = rng.standard_normal(len(owner))
        drawn = _quantile(np.sqrt(known.correlation) * scores[owner] + np.sqrt(1 - known.correlation) * own, known)
        tokens = np.clip(np.ceil(drawn), 1, MAX_RESPONSE_TOKENS).astype(np.int64)
        columns = {"run": "reasoning", "step": step, "epoch": step * PROMPTS_PER_STEP // POOL, "prompt_id": owner.astype(str)}
        columns |= {"sample": np.tile(np.arange(SAMPLES), PROMPTS_PER_STEP), "prompt_tokens": prompt_tokens[owner]}
        finish = np.where(tokens >= MAX_RESPONSE_TOKENS, "length", "stop")
        steps.append(pd.DataFrame({**columns, "response_tokens": tokens, "finish_reason": finish}))
    return validate("rollouts", pd.concat(steps, ignore_index=True))


def _quantile(scores: NDArray[np.float64], known: Facts) -> NDArray[np.float64]:
    """Return the lengths whose place in the mixture is that of the normal scores."""
    short = 1 - known.cut_share
    places = np.array([NORMAL.inv_cdf(p / short) for p in (0.05, 0.1, 0.25, 0.5)])
    spread, middle = np.polyfit(places, np.log(known.quantiles_tokens), 1)
    long_middle = np.log(LOG_LIMIT_TOKENS) + spread * NORMAL.inv_cdf(0.95)
    grid = np.linspace(middle - 5 * spread, long_middle + 5 * spread, 4_001)
    below = [short * NORMAL.cdf((x - middle) / spread) + known.cut_share * NORMAL.cdf((x - long_middle) / spread) for x in grid]
    places_of_grid = np.array([NORMAL.inv_cdf(min(max(p, 1e-12), 1 - 1e-12)) for p in below])
    return np.exp(np.interp(scores, places_of_grid, grid))


def write(target: Path) -> Path:
    """Simulate the run and write its trace."""
    latency = load_profile(PROFILE)
    cluster = Cluster(2, 8, latency.gpus_per_actor, latency.kind, usd_per_gpu_hour(latency.kind))
    setting = SimulationConfig(
        cluster, latency, Objective(), max_response_tokens=MAX_RESPONSE_TOKENS, bound_work=0
    )  # policy static holds its GPUs through generation unless told otherwise
    trace = simulate(rollouts(Facts()), setting, ["static"]).traces["static"]
    trace.meta["seeds"] = {"lengths": SEED}
    trace.meta["origin"] = (
        "Lengths were generated by data/demonstration.py, whose header states the rule; nobody trained a model. The run was "
        "simulated: a fixed number of actors, all GPUs held until the last response, generation only."
    )
    trace.meta["config"] = {
        "steps": STEPS, "task": {"prompts": POOL},
        "rollout": {
            "prompts_per_step": PROMPTS_PER_STEP, "samples_per_prompt": SAMPLES, "max_response_tokens": MAX_RESPONSE_TOKENS,
        },
    }  # fmt: skip
    return trace.save(target, overwrite=True)


def main() -> None:
    """Write the trace, or show the facts of the public log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--facts", type=Path, metavar="LOG", help="response_lengths.csv of the public log")
    options = parser.parse_args()
    if options.facts:
        found = facts(options.facts)
        print(found)
        print("as in the rule" if found == Facts() else f"the rule has {Facts()}")
        return
    print(f"wrote {write(options.out)}")


if __name__ == "__main__":
    main()
