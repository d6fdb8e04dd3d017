"""Supervised warm-up of a model on worked solutions, so that reinforcement learning starts with some correct answers.

Input is a stream of (prompt, solution) pairs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhfless.training import missing_torch

try:
    import torch
    from tqdm.auto import tqdm
except ImportError as error:
    raise missing_torch(error) from None

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.logprobs import token_logprobs
from rlhfless.training.micro_batches import micro_batches, right_padded


@dataclass(frozen=True)
class WarmUp:
    """Options of the warm-up (supervised training of the tiny model); the defaults take about a minute on one CPU core."""

    steps: int = 700
    batch_tokens: int = 1024
    learning_rate: float = 5e-3
    matrix_learning_rate: float = 0.01
    warmup_share: float = 0.05
    max_grad_norm: float = 1.0
    pool: int = 256  # solutions drawn at a time; a batch takes neighbours in length from one pool


def warm_up(
    model: Any,
    tokenizer: CharTokenizer,
    pairs: Iterator[tuple[str, str]],
    config: WarmUp = WarmUp(),
    *,
    seed: int = 0,
    progress: bool = True,
    on_step: Callable[[int, float], None] | None = None,
) -> Any:
    """Train ``model`` in place on (prompt, solution) pairs and return it.

    The loss is the mean cross entropy of the solution's tokens, its end token included. The result is determined by the model,
    the pairs and ``seed`` (on one machine with one number of threads). ``on_step(step, loss)`` is called after every step.
    """
    optimizers = _optimizers(model, config)
    batches = _batches(tokenizer, pairs, config, seed)
    model.train()
    bar = tqdm(range(config.steps), desc="warm-up", unit="step", disable=not progress)
    for step in bar:
        for optimizer, rate in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * _schedule(step, config)
            optimizer.zero_grad(set_to_none=True)
        input_ids, mask = right_padded(*next(batches))
        input_ids, mask = input_ids.to(model.device), mask.to(model.device)
        loss = -token_logprobs(model, input_ids)[mask].mean()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        for optimizer, _ in optimizers:
            optimizer.step()
        if on_step is not None:
            on_step(step, float(loss.detach()))
        if step % 20 == 0:
            bar.set_postfix(loss=f"{float(loss.detach()):.3f}")
    return model.eval()


def _optimizers(model: Any, config: WarmUp) -> list[tuple[Any, float]]:
    """Muon for the weight matrices, AdamW for embeddings, norms and biases; each with its peak learning rate.

    Muon (Jordan et al. 2024) learns to copy from the prompt in about half of the steps that AdamW alone needs here.
    """
    matrices: list[Any] = []
    other_parameters: list[Any] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else other_parameters).append(parameter)
    return [
        (torch.optim.Muon(matrices, lr=config.matrix_learning_rate, weight_decay=0.0), config.matrix_learning_rate),
        (
            torch.optim.AdamW(other_parameters, lr=config.learning_rate, betas=(0.9, 0.98), weight_decay=0.0),
            config.learning_rate,
        ),
    ]


def _schedule(step: int, config: WarmUp) -> float:
    """Linear rise, then half a cosine down to a fiftieth."""
    rise = max(1, round(config.warmup_share * config.steps))
    if step < rise:
        return (step + 1) / rise
    return 0.02 + 0.49 * (1 + math.cos(math.pi * (step - rise) / max(1, config.steps - rise)))


def _batches(
    tokenizer: CharTokenizer, pairs: Iterator[tuple[str, str]], config: WarmUp, seed: int
) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Batches of similar length in random order."""
    rng = np.random.default_rng(seed)
    while True:
        pool = list(itertools.islice(pairs, config.pool))
        prompts = [tokenizer.encode(prompt) for prompt, _ in pool]
        solutions = [tokenizer.encode(solution, eos=True) for _, solution in pool]
        batches = micro_batches([len(p) + len(s) for p, s in zip(prompts, solutions, strict=True)], config.batch_tokens)
        for index in rng.permutation(len(batches)):
            yield [prompts[row] for row in batches[index]], [solutions[row] for row in batches[index]]
