"""A small batch of noise and a small model to learn from it: what the tests of the algorithms share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from rlhfless.engine.tokenizers.char_tokenizer import CharTokenizer
from rlhfless.training.algorithms.batch import Batch
from rlhfless.training.algorithms.policy_gradient import PolicyGradient
from rlhfless.training.algorithms.registry import algorithm_options
from rlhfless.training.logprobs import response_logprobs
from rlhfless.training.models.tiny_model import tiny_qwen2

TOKENIZER = CharTokenizer()


def small_model(seed: int = 0) -> Any:
    """Two layers of 32: large enough to have a gradient everywhere."""
    return tiny_qwen2(TOKENIZER, seed, hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64)


def noise_batch(
    model: Any, seed: int = 0, prompts: int = 3, samples: int = 4, tokens: tuple[int, int] = (3, 14), off: float = 0.2
) -> Batch:
    """Random prompts and responses with rewards of 0, 0.5 or 1. The engine's log-probabilities are the model's, moved by noise
    of size ``off``. A third of the responses, those without the end token, count as truncated."""
    rng = np.random.default_rng(seed)
    low, high = tokens
    prompt_ids = [rng.integers(2, TOKENIZER.vocab_size, rng.integers(2, 7)).tolist() for _ in range(prompts)]
    rows = [prompt_ids[i // samples] for i in range(prompts * samples)]
    responses = [rng.integers(2, TOKENIZER.vocab_size, rng.integers(low, high + 1)).tolist() for _ in rows]
    truncated = np.arange(len(rows)) % 3 == 0
    for response, cut in zip(responses, truncated, strict=True):
        if not cut:
            response[-1] = TOKENIZER.eos_token_id
    engine = [x + rng.normal(0, off, len(x)).astype(np.float32) for x in response_logprobs(model, rows, responses)]
    rewards = rng.choice([0.0, 0.5, 1.0], len(rows))
    rewards[:2] = 0.0, 1.0  # one group at least has something to say
    return Batch(rows, responses, rewards, np.repeat(np.arange(prompts), samples), engine, truncated)


def pieces_of(batch: Batch, seed: int, size: int | None = None) -> list[Batch]:
    """The groups of a batch in random order; or ``size`` responses at a time, of any groups."""
    rng, group_of = np.random.default_rng(seed), np.asarray(batch.group_of)
    if size is None:
        return [batch.take(np.flatnonzero(group_of == group)) for group in rng.permutation(np.unique(group_of))]
    order = rng.permutation(len(group_of)).tolist()
    return [batch.take(order[i : i + size]) for i in range(0, len(order), size)]


def gradient_of(module: Any) -> torch.Tensor:
    """(N,) all gradients, in the order of the parameters; zeros where there is none."""
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()])


def still(module: Any) -> Any:
    """An optimizer that changes nothing, so that the gradient can be read after ``learn``."""
    return torch.optim.SGD(module.parameters(), lr=0.0)


def policy_gradient(name: str, trained: Any, optimizer: Any = None, reference: Any = None, **options: Any) -> PolicyGradient:
    """What trains a model, or a policy with its critic, by an algorithm's name; without an optimizer nothing changes."""
    config, update = algorithm_options(name, **options)
    return PolicyGradient(config, trained, still(trained) if optimizer is None else optimizer, update, reference)


def word_tokenizer() -> Any:
    """A transformers tokenizer of words t2, t3, ... with the ids of the character tokenizer."""
    vocabulary = {"<pad>": 0, "<eos>": 1} | {f"t{i}": i for i in range(2, TOKENIZER.vocab_size)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
