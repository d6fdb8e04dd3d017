"""GRPO steps on one GPU, a part of `gpu_engine.py`: what every phase takes, in seconds and GPU-seconds; beside TRL's trainer.

A model with random weights. Generation is bfloat16 on a GPU, by the torch engine, with the lengths of a logged run forced
(made up where `gpu_engine.py --prepare` was not run before, which the result says); learning has float32 weights and bfloat16
products. Rewards are drawn, since random weights answer nothing. A step is

- ``sync``: the learner's weights are copied into the engine's;
- ``generate``: all responses of the step, on one actor with ``SLOTS`` slots;
- ``prepare``: a forward pass of the reference model (weights as they began) over every response;
- ``learn``: forward and backward passes, and one step of AdamW.

One GPU holds everything, so GPU-seconds are seconds. The clock is read when the device is done. The first step captures graphs
and loads kernels: medians leave it out.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gpu_workload import LIMIT, LONGEST_PROMPT, Step, step_of

from rlhfless.engine.torch.engine import TorchEngine
from rlhfless.engine.torch.iteration_clock import MEASURED
from rlhfless.engine.torch.model import DecoderModel
from rlhfless.latency.measure import CausalLM
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.algorithms.registry import make_algorithm
from solver.model.admission import Admission

PHASES = ("sync", "generate", "prepare", "learn")
SLOTS, TOKEN_BUDGET, LEARNING_RATE, KL_WEIGHT = 256, 8192, 1e-6, 0.02
TRL_STEPS = 3  # the first of them does not count


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
        lm: whose weights both begin with. lengths: (P, G) tokens of every response of a step.
        kl_weight: of the reference model; 0 makes no pass of it.
    """

    def __init__(self, lm: CausalLM, lengths: np.ndarray, kl_weight: float = KL_WEIGHT) -> None:
        self.rows = DecoderModel(lm.model, LONGEST_PROMPT + LIMIT)  # bfloat16 on a GPU
        self.model = copy.deepcopy(lm.model).float()
        self.lengths = lengths
        dtype = "float32" if lm.device.type == "cpu" else "bfloat16"
        self.algorithm = make_algorithm(
            "grpo",
            self.model,
            learning_rate=LEARNING_RATE,
            kl_coef=kl_weight,
            max_tokens_per_micro_batch=TOKEN_BUDGET,
            learner_dtype=dtype,
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
        engine = TorchEngine(self.rows, Admission(SLOTS, 1 << 40), MEASURED, eos_id=0)
        engine.add(work.requests())
        done = sorted(engine.advance(np.inf).completions, key=lambda one: one.response)
        assert [one.response_tokens for one in done] == self.lengths.reshape(-1).tolist(), "lengths are forced"
        return done

    def batch(self, work: Step, done: list[Any], number: int) -> Batch:
        """What is learned from, with drawn rewards."""
        owners = work.workload.prompt_of
        prompts = [work.prompts[p].tolist() for p in owners]
        return Batch(
            prompts,
            [one.token_ids.tolist() for one in done],
            np.array(drawn(number, len(done))),
            owners,
            [one.logprobs for one in done],
        )


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


def trained(lm: CausalLM, lengths: np.ndarray, steps: int, until_s: float) -> dict[str, Any]:
    """Up to ``steps`` steps, as many as begin before ``until_s`` of ``time.monotonic``; two at least.

    Args:
        lengths: (P, G) tokens of every response of a step.
    """
    run, done = Run(lm, lengths), list[dict[str, Any]]()
    while len(done) < steps and (len(done) < 2 or time.monotonic() < until_s):
        done.append(run.step(len(done)))
        print(len(done), *(f"{name} {done[-1][f'{name}_s']:.3f} s" for name in PHASES), flush=True)
    return {"prompts": lengths.shape[0], "samples": lengths.shape[1], "slots": SLOTS, "summary": summary(done), "steps": done}


def beside_trl(lm: CausalLM, lengths: np.ndarray) -> dict[str, Any]:
    """Whole steps here and with TRL's GRPOTrainer: the same model, prompts, lengths and rewards, no reference model on either
    side; where TRL is not installed, that.

    Args:
        lengths: (P, G) tokens of every response of a step.
    """
    if importlib.util.find_spec("trl") is None:
        print("TRL is not installed: nothing to compare with")
        return {"trl": "not installed (pip install 'trl>=1.16')"}
    from step_stopwatch import Stopwatch
    from trl_trainer import run, tokenizer_of_ids

    ours = Run(lm, lengths, kl_weight=0.0)
    ours_s = [ours.step(number)["step_s"] for number in range(TRL_STEPS)]
    prompts, samples = lengths.shape
    work, watch = step_of(lengths, lm.model.config.vocab_size), Stopwatch()
    asked = [" ".join(str(max(token, 2)) for token in ids.tolist()) for ids in work.prompts] * TRL_STEPS
    rollout = SimpleNamespace(prompts_per_step=prompts, samples_per_prompt=samples, max_response_tokens=LIMIT, temperature=1.0)
    config = SimpleNamespace(rollout=rollout, optimizer=SimpleNamespace(learning_rate=LEARNING_RATE))
    run(
        copy.deepcopy(lm.model).float(), tokenizer_of_ids(lm.model.config.vocab_size), asked, lengths.tolist() * TRL_STEPS,
        config, drawn, TRL_STEPS, watch,
    )  # fmt: skip
    trl_s = [step["step_s"] for step in watch.steps]
    ratio = float(np.median(trl_s[1:]) / np.median(ours_s[1:]))
    print(f"a step takes TRL {ratio:.2f} times as long")
    return {"prompts": prompts, "samples": samples, "steps_s": ours_s, "trl_steps_s": trl_s, "ratio": ratio}


def drawn(step: int, responses: int) -> list[float]:
    """Rewards of 0 or 1."""
    return np.random.default_rng(step).integers(0, 2, responses).astype(float).tolist()
