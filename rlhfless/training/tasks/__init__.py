"""Training tasks: the shipped arithmetic, GSM8K, and data sets of prompts and answers. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlhfless.engine.tokenizers.pretrained_tokenizer import PretrainedTokenizer
from rlhfless.training.problem import Problem, Task, TextProblem, digest
from rlhfless.training.tasks.arithmetic import ArithmeticTask
from rlhfless.training.tasks.dataset import DatasetTask
from rlhfless.training.tasks.gsm8k import HUB, Gsm8kTask

__all__ = ["DatasetTask", "Gsm8kTask", "PretrainedTokenizer", "Problem", "Task", "TextProblem", "digest", "make_task"]


def make_task(name: str | Path, tokenizer: Any, *, seed: int = 0, prompts: int | None = None, **columns: Any) -> Task:
    """Return the task of a run.

    Args:
        name: ``arithmetic``; ``gsm8k`` (from the hub) or ``gsm8k:FILE``; or a data set of prompts and answers, see
            ``read_rows``.
        tokenizer: the model's.
        prompts: number of training prompts; None: all of a data set, 128 for arithmetic.
        columns: ``prompt_column``, ``answer_column`` and further arguments of ``DatasetTask``.

    Raises:
        InputError: the arguments do not fit the task; see the tasks.
    """
    if name == "arithmetic":
        return ArithmeticTask(seed) if prompts is None else ArithmeticTask(seed, prompts)
    kind, _, source = str(name).partition(":")
    if kind == "gsm8k":
        return Gsm8kTask(source or HUB, tokenizer, seed=seed, prompts=prompts, **columns)
    return DatasetTask(name, tokenizer, seed=seed, prompts=prompts, **columns)
