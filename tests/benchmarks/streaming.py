"""Steps that learn while others decode, beside steps that learn from the whole batch, on the wall clock and in turn.

    python tests/benchmarks/streaming.py [--steps 5] [--json FILE]

Two runs of the shipped model on one actor process each, with the same prompts and forced ragged lengths. One learns by
``stream``, in this process beside the actor, the other by ``batch``. Their steps alternate, and the order changes with every
pair. The first pair is left out: processes start. Printed are seconds of whole steps and their ratio, and the largest
difference of the weights at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlhfless.training import TrainConfig, Trainer

MODEL = Path(__file__).parents[2] / "data" / "models" / "arithmetic-grpo"


class RaggedTrainer(Trainer):
    """A trainer with forced lengths: a prompt's are alike, the longest are ten times the shortest."""

    def requests(self, problems: Any, step: int) -> list[Any]:
        """As ever, with forced lengths."""
        most = self.config.rollout.max_response_tokens
        lengths = np.linspace(most / 10, most, len(problems)).round().astype(int)
        return [replace(r, target_tokens=int(lengths[r.prompt])) for r in super().requests(problems, step)]


def trainer_of(learning: str, tokens: int, samples: int) -> RaggedTrainer:
    """One of the two runs."""
    options = TrainConfig.from_options(
        learning=learning, executor="local", device="cpu", gpus=1, gpus_per_node=1, policy="static", steps=1000, prompts=64,
        prompts_per_step=8, samples_per_prompt=samples, max_response_tokens=tokens, kl_coef=0.05, idle_timeout_s=600.0,
        learning_rate=1e-5,
    )  # fmt: skip
    return RaggedTrainer(options, model=MODEL, rewards=variety, progress=False)


def variety(completions: list[str], **_: Any) -> list[float]:
    """Reward the share of characters that differ."""
    return [len(set(text)) / max(1, len(text)) for text in completions]


def measured(steps: int, tokens: int, samples: int) -> dict[str, Any]:
    """Return seconds of the steps of both runs, and how far their weights are apart."""
    seconds: dict[str, list[float]] = {"stream": [], "batch": []}
    with trainer_of("stream", tokens, samples) as stream, trainer_of("batch", tokens, samples) as batch:
        both = [("stream", stream), ("batch", batch)]
        for pair in range(steps + 1):
            for name, trainer in both if pair % 2 else both[::-1]:
                began = time.perf_counter()
                trainer.step()
                seconds[name].append(time.perf_counter() - began)
        ours, theirs = (trainer.model.state_dict() for trainer in (stream, batch))
        apart = max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
    return {"seconds": {name: values[1:] for name, values in seconds.items()}, "weights_apart": apart}


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="the smallest size, whose numbers say nothing")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = measured(1, 20, 2) if arguments.tiny else measured(arguments.steps, 300, 8)
    medians = {name: statistics.median(values) for name, values in found["seconds"].items()}
    for name, values in found["seconds"].items():
        print(f"{name}: median {medians[name]:.2f} s per step ({', '.join(f'{value:.2f}' for value in values)})")
    print(f"stream / batch: {medians['stream'] / medians['batch']:.2f}; weights apart by {found['weights_apart']:.1e}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
