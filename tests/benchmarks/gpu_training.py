"""Ten GRPO steps on one GPU: what every phase takes, in seconds and GPU-seconds.

    PYTHONPATH=. python tests/benchmarks/gpu_training.py [--steps 10] [-o FILE]
    PYTHONPATH=. python tests/benchmarks/gpu_training.py --device cpu --tiny    # every path but CUDA itself, no result

Needs numpy, torch and transformers only. A model of Qwen2.5-0.5B's shape with random weights. Generation is bfloat16 on a
GPU, by the torch engine, with the lengths of a logged run forced (made up where `gpu_engine.py --prepare` was not run before,
which the result says); learning has float32 weights and bfloat16 products. Rewards are drawn, since random weights answer
nothing. A step is

- ``sync``: the learner's weights are copied into the engine's;
- ``generate``: all responses of the step, on one actor with as many slots as ``--slots``;
- ``prepare``: a forward pass of the reference model (weights as they began) over every response;
- ``learn``: forward and backward passes, and one step of AdamW.

One GPU holds everything, so GPU-seconds are seconds. The clock is read when the device is done. The result is written after
every step. The first step captures graphs and loads kernels: medians leave it out.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_engine import RESULTS, about, load
from gpu_workload import LIMIT, LONGEST_PROMPT, Step, known_lengths, step_of

from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.algorithms.registry import make_algorithm
from solver.model.admission import Admission

PHASES = ("sync", "generate", "prepare", "learn")
PROMPTS, SLOTS, TOKEN_BUDGET, LEARNING_RATE, KL_WEIGHT = 64, 256, 8192, 1e-6, 0.02


class Phases:
    """Seconds of a step by phase, the device's work included."""

    def __init__(self, device: torch.device) -> None:
        self.seconds, self._device = dict.fromkeys(PHASES, 0.0), device

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """What runs within it belongs to a phase."""
        began = self._now()
        yield
        self.seconds[phase] += self._now() - began

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


class Run:
    """The learner's model, and the engine's copy of its weights.

    Args:
        lengths: (P, G) tokens of every response of a step.
    """

    def __init__(self, device: str, tiny: bool, lengths: np.ndarray, slots: int) -> None:
        loaded = load("0.5B", device, tiny).model  # bfloat16 on a GPU, and so is what the engine copies of it
        self.rows = DecoderModel(loaded, LONGEST_PROMPT + LIMIT)
        self.model = loaded.float()
        self.slots, self.lengths = slots, lengths
        precision = "float32" if device == "cpu" else "bfloat16"
        self.algorithm = make_algorithm(
            "grpo",
            self.model,
            learning_rate=LEARNING_RATE,
            kl_coef=KL_WEIGHT,
            max_tokens_per_micro_batch=TOKEN_BUDGET,
            precision=precision,
        )

    def step(self, number: int) -> dict[str, Any]:
        """One whole step; its seconds by phase, tokens, and the algorithm's numbers."""
        work, phases = step_of(self.lengths, self.rows.vocabulary), Phases(self.model.device)
        with phases.timed("sync"):
            self.rows.load(self.model)
        with phases.timed("generate"):
            done = self.generated(work)
        batch = self.batch(work, done, number)
        self.model.train()
        with phases.timed("learn"):
            learned = self.algorithm.learn(batch)
        self.model.eval()
        passes_s = learned.pop("prepare_seconds")  # those of the reference are made between the learner's own
        phases.seconds["prepare"] += passes_s
        phases.seconds["learn"] -= passes_s
        tokens = int(self.lengths.sum())
        return {
            "step": number, **{f"{name}_s": seconds for name, seconds in phases.seconds.items()}, "response_tokens": tokens,
            "step_s": sum(phases.seconds.values()), "learning": learned,
        }  # fmt: skip

    def generated(self, work: Step) -> list[Any]:
        """The step's completions, in order."""
        engine = TorchEngine(self.rows, Admission(self.slots, 1 << 40), MEASURED, eos_id=0)
        engine.add(work.requests())
        done = sorted(engine.advance(np.inf).completions, key=lambda one: one.response)
        assert [one.response_tokens for one in done] == self.lengths.reshape(-1).tolist(), "lengths are forced"
        return done

    def batch(self, work: Step, done: list[Any], number: int) -> Batch:
        """What is learned from, with drawn rewards."""
        owners = work.workload.prompt_of
        rewards = np.random.default_rng(number).integers(0, 2, len(done)).astype(float)
        prompts = [work.prompts[p].tolist() for p in owners]
        return Batch(prompts, [one.token_ids.tolist() for one in done], rewards, owners, [one.logprobs for one in done])


def summary(steps: list[dict[str, Any]]) -> dict[str, float]:
    """Medians of the steps after the first."""
    later = steps[1:] or steps
    seconds = {name: float(np.median([step[name] for step in later])) for name in (*(f"{p}_s" for p in PHASES), "step_s")}
    tokens = float(np.median([step["response_tokens"] for step in later]))
    share = {f"{phase}_share": seconds[f"{phase}_s"] / seconds["step_s"] for phase in PHASES}
    return {
        **seconds, **share, "gpu_seconds": sum(step["step_s"] for step in steps),
        "generated_tokens_per_s": tokens / seconds["generate_s"], "learned_tokens_per_s": tokens / seconds["learn_s"],
    }  # fmt: skip


def main() -> None:
    """Run, print a line per step and the medians, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="of a step, with 8 samples each")
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: try the script")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --tiny tries the script without one")
    if given.device == "cpu" and not given.tiny:
        parser.error("this model is too large for the CPU; add --tiny to try the script")
    lengths, where = known_lengths()
    lengths = lengths[:2, :4] // 24 + 1 if given.tiny else lengths[: given.prompts]
    facts = about(given.device, given.tiny)
    path = given.output or RESULTS / f"gpu_training_{facts['device'].lower().replace(' ', '-')}.json"
    run = Run(given.device, given.tiny, lengths, given.slots)
    print(facts["device"], facts["versions"], "; lengths:", where)
    steps: list[dict[str, Any]] = []
    for number in range(2 if given.tiny else given.steps):
        steps.append(run.step(number))
        print(number, *(f"{name} {steps[-1][f'{name}_s']:.3f} s" for name in PHASES), flush=True)
        size = {"prompts": lengths.shape[0], "samples": lengths.shape[1], "slots": given.slots, "lengths": where}
        result: dict[str, Any] = {**facts, **size, "summary": summary(steps), "steps": steps}
        if torch.cuda.is_available():
            result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
        path.parent.mkdir(parents=True, exist_ok=True)
        partly = path.with_name(path.name + ".part")
        partly.write_text(json.dumps(result, indent=1) + "\n")
        os.replace(partly, path)
    print(json.dumps(result["summary"], indent=1))
    print(f"written: {path}")


if __name__ == "__main__":
    main()
