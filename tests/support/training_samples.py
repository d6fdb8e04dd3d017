"""A tiny run that learns: noise is generated, rewarded by what it looks like, and learned from in steps that change texts."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlhfless.gone_options import in_sections
from rlhfless.training.config import TrainConfig
from rlhfless.training.loop import Trainer
from rlhfless.training.tasks.arithmetic import ArithmeticProblem, ArithmeticTask

SMALL = {
    "steps": 3, "prompts": 8, "prompts_per_step": 4, "samples_per_prompt": 3, "max_response_tokens": 24,
    "learning_rate": 1e-2,
}  # fmt: skip


def run_config(**keys: object) -> TrainConfig:
    """A configuration of keys without their sections; the others are those of the shipped run."""
    return TrainConfig(preset="demo", **in_sections(keys))


def config(**changes: object) -> TrainConfig:
    """The configuration of a tiny run with changes, keys without their sections."""
    return run_config(**{**SMALL, **changes})


def started(function: Callable[..., None], *given: object) -> BaseProcess:
    """A process that runs a function of a test file, without a new import of torch: it is forked from a process that has it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rlhfless.training.loop"])
    process = context.Process(target=function, args=given)
    process.start()
    return process


def variety(task: ArithmeticTask, problem: ArithmeticProblem, response_text: str) -> float:
    """A reward that untrained models earn in different amounts: the share of characters that differ."""
    return len(set(response_text)) / max(1, len(response_text))


def same_weights(folder: Path, other: Path) -> bool:
    """Whether two runs that ended have the same final weights, bit for bit."""
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (folder, other))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def farthest(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """The largest difference of any weight."""
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


class RaggedTrainer(Trainer):
    """Responses have a quarter of the limit's tokens, or a few more by their prompt, and the last prompt's all of them."""

    def requests(self, problems: Any, step: int) -> list[Any]:
        most, last = self.config.rollout.max_response_tokens, len(problems) - 1
        lengths = [most if p == last else most // 4 + 2 * p for p in range(len(problems))]
        return [replace(request, target_tokens=lengths[request.prompt]) for request in super().requests(problems, step)]
