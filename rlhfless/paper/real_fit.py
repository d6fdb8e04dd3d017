"""Fits two constants of the cost model to the throughput of Megatron's rule that ReaL's figure prints (arXiv:2406.14088).

The constants are the host's time per layer and decode iteration, and the share of all-reduce that training and inference wait
for. They are fitted to the column of the rule only, over all settings together. The column of ReaL is left for a test.
"""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd

from rlhfless.latency import CallTable, CostOptions
from rlhfless.paper.real_settings import GPUS_PER_NODE, real_settings
from solver.layouts import Layout, Mesh, Strategy, ppo

HOST_MS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6)
ALL_REDUCE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
FITTED = CostOptions(host_s_per_layer=1.2e-3, all_reduce_share=1.0)
"""What ``fit_table`` finds on A100 with 4 mini-batches; a test computes it again."""


def step_flops(costs: CallTable) -> float:
    """Return the operations of a step: 2 per weight and token in a pass forward, 6 in training; attention is left out."""
    tokens = costs.batch.responses * costs.batch.tokens
    per_token = {"generate": 2, "inference": 2, "train": 6}
    return float(sum(per_token[call.kind] * costs.model(call.role).parameters * tokens for call in ppo().calls))


def fit_table(kind: str = "a100", mini_batches: int = 4, most_gpus: int = 128) -> pd.DataFrame:
    """Return how well each pair of constants gives the published petaFLOP/s of Megatron's rule, the best pair first.

    Args:
        kind, mini_batches, most_gpus: as of ``real_main``.

    Returns:
        Columns ``host_s_per_layer, all_reduce_share, median_error, mean_ratio``: the median over the settings of the relative
        error, and the geometric mean of ours over the published number.
    """
    settings = real_settings(most_gpus)
    published = np.array([one.heuristic_pflops for one in settings])
    rule = [Layout(Mesh(0, one.gpus), Strategy(1, GPUS_PER_NODE, one.gpus // GPUS_PER_NODE)) for one in settings]
    rows = []
    for host_ms, share in product(HOST_MS, ALL_REDUCE):
        options = CostOptions(host_s_per_layer=host_ms / 1e3, all_reduce_share=share)
        ours = []
        for one, layout in zip(settings, rule, strict=True):
            costs = one.costs(kind, mini_batches, options)
            step_s = sum(costs.seconds(call, layout) for call in ppo().calls)  # one after another, as all have all GPUs
            ours.append(step_flops(costs) / step_s / 1e15)
        ratio = np.array(ours) / published
        rows.append((host_ms / 1e3, share, float(np.median(np.abs(ratio - 1))), float(np.exp(np.log(ratio).mean()))))
    table = pd.DataFrame(rows, columns=["host_s_per_layer", "all_reduce_share", "median_error", "mean_ratio"])
    return table.sort_values("median_error", kind="stable", ignore_index=True)
