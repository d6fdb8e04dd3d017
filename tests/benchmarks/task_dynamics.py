"""Does the shipped task behave as a reinforcement learning workload should? Warm-up, GRPO, and what lengths do meanwhile.

Run ``python tests/benchmarks/task_dynamics.py`` (about ten minutes on two CPU cores); the last lines are a table of the
measured numbers and whether each lies in its range. Sampling is a plain batched decode of transformers with a KV cache.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from rlhfless.training.arithmetic import ArithmeticTask, Problem
from rlhfless.training.grpo import GrpoBatch, learn
from rlhfless.training.model import tiny_qwen2
from rlhfless.training.tokenizer import CharTokenizer
from rlhfless.training.warmup import WarmUp, warm_up


@dataclass(frozen=True)
class Sizes:
    """One run: the pool of training prompts, what a step takes of it, and the learner's settings."""

    prompts: int = 128
    prompts_per_step: int = 32
    samples: int = 8
    steps: int = 60
    response_limit: int = 320
    learning_rate: float = 3e-4
    updates: int = 1
    held_out: int = 1000


@dataclass
class Dynamics:
    """What was measured; ``step_*`` has one entry per step, ``epoch_lengths`` one {prompt: mean tokens} per epoch."""

    warmup_s: float = 0.0
    accuracy_before: float = 0.0
    accuracy_after: float = 0.0
    length_quantiles: list[float] = field(default_factory=list)
    variation_before: float = 0.0
    variation_after: float = 0.0
    rank_correlation: list[float] = field(default_factory=list)
    epoch_tokens: list[float] = field(default_factory=list)
    epoch_reward: list[float] = field(default_factory=list)
    epoch_truncated: list[float] = field(default_factory=list)
    generate_s: float = 0.0
    learn_s: float = 0.0
    iterations: float = 0.0
    styles: list[dict[str, float]] = field(default_factory=list)


@torch.inference_mode()
def sample(
    model, tokenizer: CharTokenizer, prompts: Sequence[Sequence[int]], limit: int, generator: torch.Generator
) -> tuple[list[list[int]], list[list[float]], int]:
    """Responses at temperature 1, their log-probabilities, and decode iterations; finished rows leave the batch."""
    width = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (width - len(p)) + list(p) for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    rows = torch.arange(len(prompts))
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    alive = torch.ones(len(prompts), dtype=torch.bool)
    positions, cache, iteration = (mask.cumsum(-1) - 1).clamp(min=0), None, 0
    for iteration in range(1, limit + 1):
        out = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        logp = out.logits[:, -1].float().log_softmax(-1)
        ids = torch.multinomial(logp.exp(), 1, generator=generator)
        for row, ok, token, value in zip(
            rows.tolist(), alive.tolist(), ids[:, 0].tolist(), logp.gather(1, ids)[:, 0].tolist(), strict=True
        ):
            if ok:
                tokens[row].append(token)
                logprobs[row].append(value)
        alive &= ids[:, 0] != tokenizer.eos_token_id
        if not alive.any():
            break
        positions = positions[:, -1:] + 1
        mask = torch.cat([mask, torch.ones_like(ids)], 1)
        if alive.float().mean() < 0.75:
            keep = alive.nonzero()[:, 0]
            ids, mask, positions, rows, alive = (x[keep] for x in (ids, mask, positions, rows, alive))
            cache.batch_select_indices(keep)
    return tokens, logprobs, iteration


def evaluate(model, tokenizer, task, problems: Sequence[Problem], samples: int, limit: int, seed: int):
    """(P, samples) tokens and rewards of sampled responses, and their texts."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [tokenizer.encode(problem.prompt) for problem in problems for _ in range(samples)]
    responses: list[list[int]] = []
    for at in range(0, len(prompts), 256):
        responses += sample(model, tokenizer, prompts[at : at + 256], limit, generator)[0]
    texts = [tokenizer.decode(response) for response in responses]
    owners = [problem for problem in problems for _ in range(samples)]
    rewards = np.array([task.reward(problem, text) for problem, text in zip(owners, texts, strict=True)])
    tokens = np.array([len(response) for response in responses])
    return tokens.reshape(-1, samples), rewards.reshape(-1, samples), texts


def style_of(text: str) -> str:
    """The style a response was written in, read off its marks."""
    return "checked" if "(" in text else "columns" if ":" in text else "steps" if "=" in text else "terse"


def style_table(texts: Sequence[str], rewards: np.ndarray) -> dict[str, tuple[float, float]]:
    """Share and accuracy of each style."""
    styles = np.array([style_of(text) for text in texts])
    flat = rewards.ravel()
    return {
        str(s): (round(float((styles == s).mean()), 3), round(float(flat[styles == s].mean()), 3))
        for s in np.unique(styles)
    }


def variation(tokens: np.ndarray) -> float:
    """Mean over prompts of the coefficient of variation of a prompt's response lengths."""
    return float((tokens.std(1) / tokens.mean(1)).mean())


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation, ties by mean rank."""

    def ranks(x: np.ndarray) -> np.ndarray:
        values, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[inverse]

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def run(sizes: Sizes = Sizes(), config: WarmUp = WarmUp(), seed: int = 0, *, verbose: bool = True) -> Dynamics:
    """Warm up, measure, train with GRPO, measure again."""
    say = print if verbose else (lambda *_, **__: None)
    result = Dynamics()
    tokenizer, task = CharTokenizer(), ArithmeticTask(seed, sizes.prompts)
    start = time.perf_counter()
    model = warm_up(tiny_qwen2(tokenizer, seed), tokenizer, task.worked_solutions(seed), config, seed=seed, progress=verbose)
    result.warmup_s = time.perf_counter() - start

    held_out = task.held_out(sizes.held_out)
    tokens, rewards, texts = evaluate(model, tokenizer, task, held_out, 1, sizes.response_limit, seed)
    result.accuracy_before = float(rewards.mean())
    result.length_quantiles = np.quantile(tokens, [0, 0.05, 0.5, 0.95, 1]).tolist()
    operands = np.array([problem.operands for problem in held_out])
    say("accuracy by operands", {int(n): round(float(rewards[operands == n].mean()), 2) for n in np.unique(operands)})
    say("styles (share, accuracy)", style_table(texts, rewards), "mean tokens", tokens.mean().round(1))
    for i in range(4):
        say("  ", held_out[i].prompt, texts[i])
    result.variation_before = variation(evaluate(model, tokenizer, task, held_out[:100], 8, sizes.response_limit, seed)[0])
    say(f"warm-up {result.warmup_s:.0f} s, accuracy {result.accuracy_before:.3f}, cv {result.variation_before:.2f}, "
        f"length quantiles {result.length_quantiles}", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    generator, order = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    lengths: dict[str, float] = {}
    previous: dict[str, float] = {}
    per_epoch = sizes.prompts // sizes.prompts_per_step
    stats: list[tuple[float, float, float]] = []
    for step in range(sizes.steps):
        if step % per_epoch == 0:
            shuffled = order.permutation(sizes.prompts)
        chosen = [task.problems[i] for i in shuffled[step % per_epoch * sizes.prompts_per_step :][: sizes.prompts_per_step]]
        owners = [problem for problem in chosen for _ in range(sizes.samples)]
        prompts = [tokenizer.encode(problem.prompt) for problem in owners]
        begun = time.perf_counter()
        responses, logprobs, iterations = sample(model, tokenizer, prompts, sizes.response_limit, generator)
        result.generate_s += (time.perf_counter() - begun) / sizes.steps
        result.iterations += iterations / sizes.steps
        texts = [tokenizer.decode(response) for response in responses]
        reward = np.array([task.reward(problem, text) for problem, text in zip(owners, texts, strict=True)])
        batch = GrpoBatch(prompts, responses, reward, [problem.prompt_id for problem in owners], logprobs)
        metrics = learn(model, optimizer, batch, updates=sizes.updates)
        result.learn_s += metrics["seconds"] / sizes.steps
        count = np.array([len(response) for response in responses])
        truncated = np.mean([response[-1] != tokenizer.eos_token_id for response in responses])
        stats.append((count.mean(), reward.mean(), truncated))
        for problem, mean in zip(chosen, count.reshape(-1, sizes.samples).mean(1), strict=True):
            lengths[problem.prompt_id] = float(mean)
        if step % 4 == 3:
            cv = variation(count.reshape(-1, sizes.samples))
            say(f"step {step:3d} tokens {count.mean():6.1f} cv {cv:.2f} reward {reward.mean():.3f} trunc {truncated:.3f} "
                f"clip {metrics['clip_share']:.3f} kl {metrics['kl_old']:.5f} grad {metrics['grad_norm']:.2f} learn {metrics['seconds']:.2f}s "
                f"gen {time.perf_counter() - begun - metrics['seconds']:.1f}s {style_table(texts, reward)}", flush=True)
        if step % per_epoch == per_epoch - 1:
            if previous:
                keys = sorted(lengths)
                result.rank_correlation.append(
                    rank_correlation(np.array([previous[k] for k in keys]), np.array([lengths[k] for k in keys]))
                )
            previous, lengths = lengths, {}
            for name, values in zip(
                ("epoch_tokens", "epoch_reward", "epoch_truncated"), np.mean(stats[-per_epoch:], axis=0), strict=True
            ):
                getattr(result, name).append(float(values))
    tokens, rewards, texts = evaluate(model, tokenizer, task, held_out, 1, sizes.response_limit, seed + 1)
    result.accuracy_after = float(rewards.mean())
    result.variation_after = variation(evaluate(model, tokenizer, task, held_out[:100], 8, sizes.response_limit, seed)[0])
    return result


def checks(result: Dynamics) -> dict[str, tuple[object, bool]]:
    """Each required property, what was measured, and whether it holds."""
    start, end = result.epoch_tokens[0], result.epoch_tokens[-1]
    return {
        "warm-up takes at most 120 s": (round(result.warmup_s, 1), result.warmup_s <= 120),
        "accuracy after warm-up 0.15..0.35": (round(result.accuracy_before, 3), 0.15 <= result.accuracy_before <= 0.35),
        "held-out accuracy rises by 0.1": (round(result.accuracy_after, 3), result.accuracy_after >= result.accuracy_before + 0.1),
        "variation within prompts >= 0.2": (
            (round(result.variation_before, 2), round(result.variation_after, 2)),
            min(result.variation_before, result.variation_after) >= 0.2,
        ),
        "rank correlation between epochs 0.4..0.95": (
            [round(r, 2) for r in result.rank_correlation],
            all(0.4 <= r <= 0.95 for r in result.rank_correlation),
        ),
        "mean length moves by 15 %": ([round(t, 1) for t in result.epoch_tokens], abs(end / start - 1) >= 0.15),
        "mean reward rises by 0.1": ([round(r, 3) for r in result.epoch_reward], result.epoch_reward[-1] >= result.epoch_reward[0] + 0.1),
        "learning takes at most 1.5 s a step": (round(result.learn_s, 2), result.learn_s <= 1.5),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    for name, kind in Sizes.__annotations__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=eval(kind), default=getattr(Sizes, name))
    parser.add_argument("--warmup", type=json.loads, default={}, help='fields of WarmUp, as {"steps": 300}')
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = Sizes(**{name: getattr(args, name) for name in Sizes.__annotations__})
    result = run(sizes, WarmUp(**args.warmup), args.seed)
    print(f"generate {result.generate_s:.2f} s and {result.iterations:.0f} iterations a step, truncated "
          f"{[round(t, 3) for t in result.epoch_truncated]}, length quantiles {result.length_quantiles}")
    for name, (value, holds) in checks(result).items():
        print(f"{'ok  ' if holds else 'FAIL'} {name}: {value}")


if __name__ == "__main__":
    main()
