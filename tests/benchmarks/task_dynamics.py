"""The dynamics of a recorded run, and the accuracy of a model on problems that nobody trained on.

    python tests/benchmarks/task_dynamics.py data/traces/arithmetic-grpo        # reads the trace
    python tests/benchmarks/task_dynamics.py --warm-up                          # warms up a model and lets it answer (minutes)

What a reinforcement learning workload needs so that scheduling it is worth studying is stated in ``REQUIRED``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rlhfless.predict import history_quality
from rlhfless.trace import read_trace

REQUIRED = {
    "warm-up accuracy": (0.15, 0.35),
    "variation of length within a prompt": (0.2, np.inf),
    "rank correlation between epochs": (0.4, 0.95),
    "change of mean length": (0.15, np.inf),
    "rise of mean reward": (0.1, np.inf),
}
HELD_OUT = 1000


def dynamics(rollouts: pd.DataFrame) -> dict[str, float]:
    """What ``REQUIRED`` asks of a run, from its rollouts."""
    groups = rollouts.groupby(["epoch", "prompt_id"])["response_tokens"]
    variation = (groups.std() / groups.mean()).mean()
    means = groups.mean().unstack("epoch")
    ranks = [history_quality(means[e], means[e + 1]).rank_correlation for e in range(means.shape[1] - 1)]
    epochs = rollouts.groupby("epoch")[["response_tokens", "reward"]].mean()
    length, reward = epochs["response_tokens"], epochs["reward"]
    return {
        "variation of length within a prompt": float(variation),
        "rank correlation between epochs": float(np.median(ranks)),
        "lowest": float(min(ranks)),
        "highest": float(max(ranks)),
        "change of mean length": float(abs(length.iloc[-1] / length.iloc[0] - 1)),
        "rise of mean reward": float(reward.iloc[-1] - reward.iloc[0]),
    }


def answers(model: Any, tokenizer: Any, seed: int = 0, count: int = HELD_OUT, max_response_tokens: int = 320) -> pd.DataFrame:
    """One sampled response to each of ``count`` held-out problems, sampled as in a run's evaluation: ``right`` (0 or 1) and
    ``response_tokens``."""
    from rlhfless.engine.common.sampling import Sampling
    from rlhfless.training import RolloutConfig, TaskConfig, TrainConfig
    from rlhfless.training.evaluation import Evaluator
    from rlhfless.training.rewards.registry import make_rewards
    from rlhfless.training.tasks.arithmetic import ArithmeticTask

    task = ArithmeticTask(seed)
    rollout = RolloutConfig(max_response_tokens=max_response_tokens)
    config = TrainConfig(
        preset="demo", seed=seed, eval_every=1, task=TaskConfig(prompts=128, eval_prompts=count), rollout=rollout
    )
    rewards = make_rewards(("task",), task)
    evaluator = Evaluator.of(
        config, task, rewards, tokenizer, Sampling(), "float32", tokenizer.eos_token_id, device=model.device, compares=True
    )
    responses = evaluator.responses(model)
    right = [task.reward(response.problem, response.text) for response in responses]
    return pd.DataFrame({"right": right, "response_tokens": [response.tokens for response in responses]})


def holds(name: str, value: float) -> bool:
    """Whether a measured value lies where it is required to."""
    low, high = REQUIRED[name]
    return low <= value <= high


def main() -> None:
    """Print a table of what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--warm-up", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.trace is not None:
        rollouts = read_trace(options.trace).rollouts
        for name, value in dynamics(rollouts).items():
            print(f"{name:40s}{value:8.3f}  {('ok' if holds(name, value) else 'NOT MET') if name in REQUIRED else ''}")
        print(rollouts.groupby("epoch")[["response_tokens", "reward"]].mean().round(3).T.to_string())
        print(
            "lengths, quantiles 0, 5, 50, 95, 100 %:", np.percentile(rollouts["response_tokens"], [0, 5, 50, 95, 100]).tolist()
        )
    if options.warm_up:
        from rlhfless.training.run_start import make_model

        began = time.perf_counter()
        model, tokenizer = make_model(options.seed, progress=False)
        print(f"warm-up took {time.perf_counter() - began:.0f} s")
        found = answers(model, tokenizer, options.seed)
        value = float(found["right"].mean())
        verdict = "ok" if holds("warm-up accuracy", value) else "NOT MET"
        print(f"warm-up accuracy on {len(found)} held-out problems {value:.3f} {verdict}")


if __name__ == "__main__":
    main()
