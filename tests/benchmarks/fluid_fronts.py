"""What could be reached without knowing lengths: fluid policies with a forecast, and folding with even loads at any time.

Knows a log's lengths and a latency model; nothing of plans or engines. What a fluid policy is, and what its forecasts know, is
said in ``uncertainty.py``.
"""

from __future__ import annotations

import math

import numpy as np
from uncertainty_logs import Log

from rlhfless.latency import load_profile
from solver.lengths.survival import survival_of, token_grid
from solver.timing.evaluate import ready_s

LATENCY = load_profile("l40s-qwen2.5-3b-tp2").affine
FOLDS = 10


def fluid_front(log: Log, curves: np.ndarray, class_of: np.ndarray) -> np.ndarray:
    """(80, 2) realised time and actor-seconds of the fluid policy with these survival curves, tight to loose."""
    a, b, c = LATENCY.base_s, LATENCY.per_response_s, LATENCY.per_kv_token_s
    x = token_grid(log.limit)
    width = np.diff(x)
    load = b + c * (x[:-1] + (width - 1) / 2)
    # token j is decoded by the share S(j) that is longer than j: S is summed over the tokens of a step without the step's end,
    # since it falls to 0 at the response limit
    alive = curves[:, :-1] + (curves[:, 1:] - curves[:, :-1]) * (width - 1) / (2 * width)
    root = np.sqrt(np.maximum(alive, 1e-12) * load)
    total = (root * width).sum(axis=1)[:, None]
    work = float((b * log.tokens + c * log.tokens * (log.tokens - 1) / 2).sum())
    points = []
    for left_s in a * log.limit * (1 + np.geomspace(0.08, 6.0, 80)):
        wanted = np.clip((left_s - a * log.limit) * root / total, load, LATENCY.max_batch * load)
        spent, passed = (
            np.concatenate([np.zeros((len(curves), 1)), np.cumsum(f * width, axis=1)], axis=1)
            for f in (a * load / wanted, a + wanted)
        )
        cost_s, time_s = 0.0, 0.0
        for k in range(len(curves)):
            own = log.tokens[class_of == k]
            if len(own):
                cost_s += float(np.interp(own, x, spent[k]).sum())
                time_s = max(time_s, float(np.interp(own.max(), x, passed[k])))
        start = float((load[0] / wanted[class_of, 0]).sum())
        points.append((ready_s(LATENCY) + time_s, work + cost_s + ready_s(LATENCY) * start))
    return np.array(points)


def limits(log: Log) -> dict[str, np.ndarray]:
    """The fluid fronts without information and with last-visit lengths, out of sample."""
    grid = token_grid(log.limit)
    fold = np.random.default_rng(0).permutation(int(log.origin.max()) + 1)[log.origin] % FOLDS
    typical = np.log([np.mean(h) for h in log.history])
    none = np.array([survival_of(log.tokens[fold[log.prompt_of] != f], grid) for f in range(FOLDS)])
    like = []
    for p in range(len(log.history)):
        others = np.flatnonzero(fold[log.prompt_of] != fold[p])
        distance = np.abs(typical[log.prompt_of[others]] - typical[p])
        nearest = others[np.argsort(distance, kind="stable")[: len(log.tokens) // 5]]
        like.append(survival_of(log.tokens[nearest], grid))
    return {
        "no history": fluid_front(log, none, fold[log.prompt_of]),
        "history": fluid_front(log, np.array(like), log.prompt_of),
    }


def ideal_fold(log: Log, transfer_s: float) -> np.ndarray:
    """(60, 2) time and actor-seconds of square-root folding with whole actors whose loads are even at any time.

    Args:
        transfer_s: of one response; those of an actor that is folded leave one after the other, while it goes on decoding.
    """
    a, b, c = LATENCY.base_s, LATENCY.per_response_s, LATENCY.per_kv_token_s
    age = np.arange(log.limit)
    alive = (log.tokens[:, None] > age).sum(axis=0).astype(float)
    share = b + c * age
    points = []
    for nu in np.geomspace(1.0, 80.0, 60):
        actors = max(math.ceil(math.sqrt(nu * b * alive[0] / a)), math.ceil(alive[0] / LATENCY.max_batch))
        time_s, cost_s, leaves, before = ready_s(LATENCY), ready_s(LATENCY) * actors, 0.0, alive[0]
        for n, load in zip(alive[: log.tokens.max()], share, strict=False):
            leaves *= n / before
            fits = n <= (actors - 1) * LATENCY.max_batch
            if leaves <= 0 and actors > 1 and fits and (actors - 1) ** 2 >= nu * load * n / a:
                actors, leaves = actors - 1, n / actors if transfer_s > 0 else 0.0
            step_s = a + load * (n - leaves) / actors
            time_s, cost_s = time_s + step_s, cost_s + step_s * (actors + (leaves > 0))
            leaves, before = max(0.0, leaves - step_s / transfer_s) if leaves > 0 else 0.0, n
        points.append((time_s, cost_s))
    return np.array(points)
