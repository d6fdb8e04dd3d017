"""Steps that learn while others decode, beside steps that learn from the whole batch, on the wall clock and in turn.

    python tests/benchmarks/streaming.py [--pairs 12] [--json FILE]

Two processes each train the shipped model, with one actor process of their own, the same prompts, and the same forced ragged
lengths. One learns by ``stream``, beside its actor, the other by ``batch``. Only one of them works at a time: their steps
alternate, and the order changes with every pair. The first pair is left out, because processes start. Printed are seconds of
whole steps, the ratio of each pair, and the largest difference of the weights at the end.

On two cores nothing else should run: what streaming saves is the time in which the second core would idle.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from alternating import alternate

from rlhfless.training import TrainConfig, Trainer

MODEL = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"
PROMPTS, SAMPLES, TOKENS = 16, 4, 300


class RaggedTrainer(Trainer):
    """A trainer with forced lengths: a prompt's are alike, the longest are ten times the shortest."""

    def requests(self, problems: Any, step: int) -> list[Any]:
        """As ever, with forced lengths."""
        most = self.config.rollout.max_response_tokens
        lengths = np.linspace(most / 10, most, len(problems)).round().astype(int)
        return [replace(r, target_tokens=int(lengths[r.prompt])) for r in super().requests(problems, step)]


def trainer_of(learning: str, prompts: int, samples: int, tokens: int) -> RaggedTrainer:
    """One of the two runs."""
    options = TrainConfig.from_options(
        learning=learning, executor="local", device="cpu", gpus=1, gpus_per_node=1, policy="static", steps=1000, prompts=64,
        prompts_per_step=prompts, samples_per_prompt=samples, max_response_tokens=tokens, kl_coef=0.05, idle_timeout_s=600.0,
        learning_rate=1e-5,
    )  # fmt: skip
    return RaggedTrainer(options, model=MODEL, rewards=variety, progress=False)


def variety(completions: list[str], **_: Any) -> list[float]:
    """Reward the share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def measured(pairs: int, size: tuple[int, int, int]) -> dict[str, Any]:
    """Return what both runs took in each pair of steps, and how far their weights are apart."""
    makes = {learning: partial(trainer_of, learning, *size) for learning in ("stream", "batch")}
    found = alternate(makes, pairs + 1)
    of_stream, of_batch = found.weights["stream"], found.weights["batch"]
    apart = max(float(np.abs(of_stream[name] - of_batch[name]).max()) for name in of_stream)
    ratios = [each["stream"]["step_s"] / each["batch"]["step_s"] for each in found.rounds[1:]]
    return {"pairs": found.rounds[1:], "ratios": ratios, "weights_apart": apart, "cores": os.cpu_count()}


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measured(1, (2, 2, 20)) if arguments.tiny else measured(arguments.pairs, (PROMPTS, SAMPLES, TOKENS))
    for learning in ("stream", "batch"):
        steps, learns, generates = (
            [pair[learning][name] for pair in found["pairs"]] for name in ("step_s", "learn_s", "generate_s")
        )
        print(
            f"{learning}: median {statistics.median(steps):.2f} s per step ({min(steps):.2f} to {max(steps):.2f}), generation "
            f"{statistics.median(generates):.2f} s, learning {statistics.median(learns):.2f} s"
        )
    ratios = found["ratios"]
    faster = sum(ratio < 1 for ratio in ratios)
    low, high = np.quantile(ratios, [0.25, 0.75])
    print(
        f"stream / batch: median {statistics.median(ratios):.3f}, half of the pairs {low:.3f} to {high:.3f}, all "
        f"{min(ratios):.3f} to {max(ratios):.3f}; faster in {faster} of {len(ratios)} pairs; weights apart by "
        f"{found['weights_apart']:.1e}"
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
