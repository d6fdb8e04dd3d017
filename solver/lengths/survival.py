"""Builds forecasts of remaining lengths from the running batch itself, from lengths seen before, or from samples per response.

Input lengths may be censored. Every builder returns one of the forecasts of solver.lengths.remaining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.lengths.remaining import KnownLengths, SurvivalTable
from solver.model.errors import PlanningError
from solver.model.workload import FloatArray, IntArray, Workload

GRID_POINTS = 512  # steps of a survival curve at most; between them it is a straight line
CLASS_WIDTH, MAX_CLASSES = 0.5, 256  # of the spread of a prediction: how far the predictions of a class may differ; classes
POOL_SAMPLES = 1.0  # weight of the pool, in lengths, beside the samples of a prompt


def token_grid(max_response_tokens: int) -> FloatArray:
    """Return a grid of at most ``GRID_POINTS`` steps from 0 to the response limit."""
    return np.unique(np.linspace(0, max_response_tokens, min(max_response_tokens, GRID_POINTS) + 1).round())


def survival_of(samples: ArrayLike, grid: FloatArray) -> FloatArray:
    """Return the (G,) share of (n,) lengths above each grid point."""
    ordered = np.sort(np.asarray(samples, dtype=float))
    return np.asarray(1.0 - np.searchsorted(ordered, grid, side="right") / max(1, len(ordered)))


def kaplan_meier(tokens: ArrayLike, complete: ArrayLike, grid: FloatArray) -> FloatArray:
    """Return the (G,) Kaplan-Meier survival of right-censored lengths: (n,) lengths, ``complete`` False for responses still
    running.

    S falls at every complete length by the factor 1 - (ended there) / (at risk there); a response censored at c is at risk at
    c. Beyond the last length S stays constant.
    """
    length, is_complete = np.asarray(tokens, dtype=float), np.asarray(complete, dtype=bool)
    if not len(length):
        return np.ones(len(grid))
    ends, index = np.unique(length, return_inverse=True)
    ended = np.bincount(index, weights=is_complete, minlength=len(ends))
    at_risk = np.cumsum(np.bincount(index, minlength=len(ends))[::-1])[::-1]
    survival = np.concatenate([[1.0], np.cumprod(1.0 - ended / at_risk)])
    return np.asarray(survival[np.searchsorted(ends, grid, side="right")])


def known_lengths(workload: Workload) -> KnownLengths:
    """Return the workload's lengths as a forecast without uncertainty, for clairvoyant policies."""
    prompt = workload.prompt_tokens[workload.prompt_of].astype(float)
    return KnownLengths(workload.response_tokens.astype(float), prompt, workload.max_response_tokens)


def from_samples(
    samples_of: Sequence[ArrayLike], workload: Workload, pool: ArrayLike | None = None, pool_samples: float = POOL_SAMPLES
) -> SurvivalTable:
    """Return one curve per prompt from sample lengths of its responses: those of its last visit, or scenarios.

    S = (n S_own + m S_pool) / (n + m) with n samples of the prompt and m = ``pool_samples``. The pool describes responses that
    outlive all samples of their prompt.

    Args:
        samples_of: (P,) lengths of each prompt; empty where it has no history.
        pool: lengths of any comparable responses; all samples together when None. Lengths at the response limit or above count
            as ending there.
    """
    samples = [np.asarray(s, dtype=float) for s in samples_of]
    if len(samples) != len(workload.prompt_tokens):
        raise PlanningError(
            f"samples are of {len(samples)} prompts, but the workload has {len(workload.prompt_tokens)}; one entry each is "
            "needed"
        )
    all_samples = np.concatenate(samples)
    prompt_of = np.repeat(np.arange(len(samples)), [len(s) for s in samples])
    return _of_prompts(
        prompt_of, all_samples, workload, all_samples if pool is None else np.asarray(pool, dtype=float), pool_samples
    )


def _of_prompts(
    owner: IntArray, samples: NDArray[np.generic], workload: Workload, pool: NDArray[np.generic], pool_samples: float
) -> SurvivalTable:
    """Return ``from_samples`` for (N,) lengths and the prompt of each."""
    grid = token_grid(workload.max_response_tokens)
    prompts = len(workload.prompt_tokens)
    common = survival_of(pool, grid) if len(pool) else 1.0 - grid / grid[-1]
    curves, counts = _curves(owner, samples, prompts, grid)
    weight = counts + pool_samples if pool_samples > 0 else np.maximum(counts, 1.0)
    mixed = (counts * curves + (weight - counts) * common) / weight
    return SurvivalTable(grid, mixed, workload.prompt_of, workload.prompt_tokens.astype(float))


def _curves(owner: IntArray, samples: NDArray[np.generic], classes: int, grid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the (classes, G) shares of each class's lengths above each grid point, and the (classes, 1) numbers of lengths."""
    points = len(grid)
    cell = np.minimum(np.searchsorted(grid, samples), points)  # the first grid point that a length is not above
    ended = np.bincount(owner * (points + 1) + cell, minlength=classes * (points + 1)).reshape(classes, points + 1)
    counts = ended.sum(axis=1, keepdims=True).astype(float)
    return 1.0 - np.cumsum(ended[:, :points], axis=1) / np.maximum(counts, 1.0), counts


def from_scenarios(workload: Workload, pool_samples: float = POOL_SAMPLES) -> SurvivalTable | BatchLengths | KnownLengths:
    """Return the workload's scenarios as a forecast.

    Where all responses of a prompt have the same prediction, each gets the scenario lengths of all of them. Where they differ,
    or every prompt has one response, the forecast is per response. Then responses of similar predicted length share a curve,
    whatever their prompt, and no pool is added. Without scenarios, such lengths are known. If the scenarios give every response
    the same length (a log without history), they carry no information. Then the forecast learns from the running batch alone
    (``BatchLengths``).
    """
    sampled = workload.response_tokens[None] if workload.scenarios is None else workload.scenarios
    if np.ptp(sampled) == 0:
        return from_batch(workload)
    predicted, owner = workload.response_tokens, workload.prompt_of
    of_prompt = np.zeros(len(workload.prompt_tokens))
    of_prompt[owner] = predicted
    if len(np.unique(owner)) == len(owner) or not np.array_equal(of_prompt[owner], predicted):
        return known_lengths(workload) if workload.scenarios is None else _of_predictions(sampled, workload)
    owner = np.broadcast_to(owner, sampled.shape)
    return _of_prompts(owner.ravel(), sampled.ravel(), workload, sampled.ravel(), pool_samples)


def _of_predictions(sampled: NDArray[np.generic], workload: Workload) -> SurvivalTable:
    """Return one curve per class of similar predicted lengths, from (S, R) lengths.

    A class is at most as wide as half the spread of the lengths around a prediction, so that sharing a curve adds little to it.
    """
    logs = np.log(np.maximum(sampled, 1))
    middle = logs.mean(axis=0)
    max_width = CLASS_WIDTH * float(np.sqrt(logs.var(axis=0).mean()))
    width = max(max_width, float(np.ptp(middle)) / MAX_CLASSES, 1e-9)
    _, class_of = np.unique(np.floor((middle - middle.min()) / width), return_inverse=True)
    prompt = workload.prompt_tokens[workload.prompt_of].astype(float)
    sizes = np.bincount(class_of)
    grid = token_grid(workload.max_response_tokens)
    classes = np.broadcast_to(class_of, sampled.shape).ravel()
    curves = _curves(classes, sampled.ravel(), len(sizes), grid)[0]
    return SurvivalTable(grid, curves, class_of, np.bincount(class_of, weights=prompt) / sizes)


@dataclass(frozen=True, eq=False)
class BatchLengths(SurvivalTable):
    """One curve for all responses, learned from the batch while it runs.

    Kaplan-Meier over this step's lengths (running responses are censored at their tokens so far) and those of an optional pool.
    Beyond the longest length of batch and pool, every length up to the limit is equally likely: S falls there in a straight
    line to 0 at the limit. At the start without a pool, this is the whole curve.
    """

    pool: FloatArray = field(default_factory=lambda: np.zeros(0))
    pool_complete: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    observed: int = 0

    def observe(self, tokens: IntArray, complete: NDArray[np.bool_]) -> BatchLengths:
        """Return the curve updated with this step's (R,) lengths so far; ``self`` until 2 % more of the responses
        have completed."""
        ended = int(np.count_nonzero(complete))
        if ended - self.observed < max(1.0, 0.02 * len(complete)):
            return self
        lengths = np.concatenate([self.pool, np.asarray(tokens, dtype=float)])
        is_complete = np.concatenate([self.pool_complete, np.asarray(complete, dtype=bool)])
        curve = _with_straight_end(lengths, is_complete, self.grid)
        return replace(self, curve=curve[None], observed=ended, _tails={})


def from_batch(workload: Workload, pool: ArrayLike = (), pool_complete: ArrayLike | None = None) -> BatchLengths:
    """Return a forecast that does not distinguish prompts, see ``BatchLengths``. Lengths of ``pool`` at the response
    limit end there."""
    grid = token_grid(workload.max_response_tokens)
    lengths = np.asarray(pool, dtype=float)
    is_complete = np.ones(len(lengths), dtype=bool) if pool_complete is None else np.asarray(pool_complete, dtype=bool)
    mean_prompt = np.array([float(workload.prompt_tokens[workload.prompt_of].mean())])
    return BatchLengths(
        grid, _with_straight_end(lengths, is_complete, grid)[None], np.zeros(len(workload), np.int64), mean_prompt,
        pool=lengths, pool_complete=is_complete,
    )  # fmt: skip


def _with_straight_end(lengths: FloatArray, complete: NDArray[np.bool_], grid: FloatArray) -> FloatArray:
    """Return Kaplan-Meier on the grid, with a straight line to 0 at the limit from the longest length on."""
    curve = kaplan_meier(lengths, complete, grid)
    last = min(float(lengths.max(initial=0.0)), float(grid[-1]) - 1.0)
    beyond = grid > last
    level = float(np.interp(last, grid, curve))
    curve[beyond] = level * (grid[-1] - grid[beyond]) / (grid[-1] - last)
    return curve
