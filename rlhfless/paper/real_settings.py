"""The 36 settings of ReaL's main figure (arXiv:2406.14088, figure 7), with published throughputs, as planning problems.

``real_main_figure.csv`` holds the published petaFLOP/s of two earlier systems, of Megatron's rule ("heuristic") and of ReaL. A
step has 2^17 tokens: 512, 256 or 128 responses of 128, 384 or 896 tokens, after prompts of 128. Either actor and reference are
scaled, or critic and reward, or all four; the others have 7 billion weights. Sizes are 7, 13, 34 and 70 billion.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rlhfless.latency import CallTable, CostOptions, StepBatch

PUBLISHED = Path(__file__).with_name("real_main_figure.csv")
PROMPT_TOKENS, STEP_TOKENS, GPUS_PER_NODE = 128, 1 << 17, 8
SIZES = ("llama2-7b", "llama2-13b", "codellama-34b", "llama2-70b")
LEAST_GPUS = {"actor": 8, "critic": 8, "both": 16}
"""On which the smallest models run; the next size runs on twice as many."""
SCALED = {"actor": ("actor", "reference"), "critic": ("critic", "reward"), "both": ("actor", "reference", "critic", "reward")}


@dataclass(frozen=True)
class RealSetting:
    """One bar group of the figure.

    Attributes:
        scaled: ``actor``, ``critic`` or ``both``. response_tokens: of each response. gpus: in nodes of 8.
        heuristic_pflops, real_pflops: published throughput of Megatron's rule and of ReaL.
    """

    scaled: str
    response_tokens: int
    gpus: int
    heuristic_pflops: float
    real_pflops: float

    @property
    def models(self) -> dict[str, str]:
        """Role to model."""
        size = SIZES[(self.gpus // LEAST_GPUS[self.scaled]).bit_length() - 1]
        roles = ("actor", "critic", "reference", "reward")
        return {role: size if role in SCALED[self.scaled] else SIZES[0] for role in roles}

    @property
    def responses(self) -> int:
        """Responses of a step."""
        return STEP_TOKENS // (PROMPT_TOKENS + self.response_tokens)

    @property
    def published_gain(self) -> float:
        """Throughput of ReaL over that of Megatron's rule."""
        return self.real_pflops / self.heuristic_pflops

    def costs(self, kind: str, mini_batches: int, options: CostOptions) -> CallTable:
        """Return what the calls of this setting take on a GPU kind."""
        batch = StepBatch(self.responses, PROMPT_TOKENS, self.response_tokens, mini_batches)
        return CallTable(kind, self.models, batch, options, GPUS_PER_NODE)


def real_settings(most_gpus: int = 128) -> list[RealSetting]:
    """Return the published settings on at most so many GPUs, in the figure's order.

    Example:
        >>> from rlhfless.paper import real_settings
        >>> len(real_settings()), real_settings()[0].models["actor"]
        (36, 'llama2-7b')
    """
    table = pd.read_csv(PUBLISHED)
    return [
        RealSetting(row.scaled_model, int(row.response_tokens), int(row.gpus), row.heuristic_pflops, row.real_pflops)
        for row in table.itertuples()
        if row.gpus <= most_gpus
    ]
