"""Stated models of response lengths, for data sets without a published log of lengths over epochs.

Lengths are lognormal draws. A prompt has a typical length, lognormal over prompts; a response is lognormal around it; from
epoch to epoch the typical length changes a little. Every number names its source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from rlhfless.trace import validate

PROMPT_LIMIT = 1024  # tokens, as in the paper


@dataclass(frozen=True)
class LengthModel:
    """Lognormal lengths of the responses to one data set's prompts.

    Attributes:
        median_tokens: of a prompt's typical length in the first epoch.
        prompt_sd: standard deviation of the logarithm of typical lengths over prompts.
        sample_sd: of the logarithm of a response's length around its prompt's typical length.
        moves_sd: of the change of the logarithm of a prompt's typical length from epoch to epoch.
        drift: mean of that change: what training does to all lengths.
        prompt_tokens: median length of a prompt; prompt_tokens_sd: of its logarithm.
        max_response_tokens: longer responses end there.
        basis: where these numbers are from, in one sentence.
    """

    name: str
    median_tokens: float
    prompt_sd: float
    sample_sd: float
    prompt_tokens: float
    basis: str
    prompt_tokens_sd: float = 0.35
    moves_sd: float = 0.05
    drift: float = 0.0
    max_response_tokens: int = 2048

    def rollouts(
        self, prompts: int, samples_per_prompt: int, epochs: int, steps_per_epoch: int = 1, seed: int = 0
    ) -> pd.DataFrame:
        """Return a log: every epoch has each of the prompts once, divided evenly over ``steps_per_epoch`` steps.

        Returns:
            Validated rollouts with ``epochs * prompts * samples_per_prompt`` rows.
        """
        rng = np.random.default_rng([seed, prompts, samples_per_prompt])
        typical = np.log(self.median_tokens) + self.prompt_sd * rng.standard_normal(prompts)
        asked = np.exp(np.log(self.prompt_tokens) + self.prompt_tokens_sd * rng.standard_normal(prompts))
        prompt_tokens = np.clip(np.round(asked), 1, PROMPT_LIMIT).astype(np.int64)
        step_of = np.arange(prompts) * steps_per_epoch // prompts
        tables = []
        for epoch in range(epochs):
            if epoch:
                typical = typical + self.drift + self.moves_sd * rng.standard_normal(prompts)
            drawn = np.exp(typical[:, None] + self.sample_sd * rng.standard_normal((prompts, samples_per_prompt)))
            tokens = np.clip(np.ceil(drawn), 1, self.max_response_tokens).astype(np.int64).ravel()
            owner = np.repeat(np.arange(prompts), samples_per_prompt)
            tables.append(
                pd.DataFrame(
                    {
                        "run": self.name, "step": epoch * steps_per_epoch + step_of[owner], "prompt_id": owner.astype(str),
                        "sample": np.tile(np.arange(samples_per_prompt), prompts), "prompt_tokens": prompt_tokens[owner],
                        "response_tokens": tokens,
                        "finish_reason": np.where(tokens >= self.max_response_tokens, "length", "stop"),
                    }
                )
            )  # fmt: skip
        return validate("rollouts", pd.concat(tables, ignore_index=True))


GSM8K = LengthModel(
    "GSM8K", 200.0, 0.6, 0.16, 105.0,
    "spread fitted to what the paper prints of this data set (PPO, Qwen2.5-3B: about 70 % of prompts change by at most 50 "
    "tokens between epochs, about 90 % by at most 100); the median is assumed",
)  # fmt: skip
GPQA = LengthModel(
    "GPQA", 520.0, 0.5, 0.35, 230.0,
    "assumed: Epoch AI (April 2025) reports that GPQA Diamond and MATH Level 5 elicit responses of similar length, so the "
    "median is set well above grade-school mathematics; spread as of a harder set, cap of 2,048 tokens from the paper",
)  # fmt: skip
LIVECODEBENCH = LengthModel(
    "LiveCodeBench", 620.0, 0.65, 0.35, 480.0,
    "assumed, as no length is published for such models: longer than mathematics, of which the maintainers of rllm say that it "
    "takes about half the tokens of code (GitHub, rllm-org/rllm, issue 77); problems state input, output and examples, so "
    "prompts are longest; cap of 2,048 tokens from the paper",
)  # fmt: skip
MODELS = (GSM8K, GPQA, LIVECODEBENCH)
