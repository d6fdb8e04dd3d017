"""Calibrates the scenarios of a forecast: how far they lie from their mean follows how wrong earlier forecasts were. Also
says in words how far lengths differ between prompts and within them, by these scenarios.

Predictors state too little or too much uncertainty. Where earlier forecasts of the same predictor have proved how wrong they
are (``LengthForecast.error_sd``), scenarios get exactly this spread. Where nothing has been proved, they count with ``STRESS``
times their own spread. Scenarios without spread do not say which responses are uncertain: they get errors of at least
``UNSTATED_SD``.

Errors differ between responses, and one spread for all does not show which have larger ones. So a plan that trusts predictions
must also do well in ``stressed`` scenarios, whose errors are larger.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from rlhfless.scheduling.policy import PlanningOptions
from solver.model.problem import PlanningProblem
from solver.model.workload import FloatArray, IntArray, Workload

STRESS = 1.5  # times the distance of scenarios from their mean, on a logarithmic scale, which a plan must stand
UNSTATED_SD = 0.5  # of the logarithm of errors, at least, where the forecast has no spread
LEAST_SPREAD = 1e-6  # of the logarithm of lengths, below which scenarios count as having none


def calibrated(problem: PlanningProblem, options: PlanningOptions) -> PlanningProblem:
    """Return the problem with calibrated scenarios; a problem without scenarios is returned as it is."""
    workload = problem.workload
    if workload.scenarios is None:
        return problem
    error_sd = None if options.forecast is None else options.forecast.error_sd
    logs = np.log(np.maximum(workload.scenarios, 1))
    spread = float(np.sqrt(logs.var(axis=0, ddof=1).mean())) if len(logs) > 1 else 0.0
    if spread > LEAST_SPREAD:
        return with_scenarios(problem, widened(workload, STRESS if error_sd is None else error_sd / spread))
    errors = np.random.default_rng(options.seed).standard_normal(logs.shape)
    lengths = _tokens(logs.mean(axis=0) + max(UNSTATED_SD, error_sd or 0.0) * errors, workload)
    return with_scenarios(problem, lengths)


def stressed(known: PlanningProblem, options: PlanningOptions) -> PlanningProblem:
    """Return a calibrated problem with ``STRESS`` times the distance of scenarios from their mean.

    Where errors of earlier forecasts are unknown, ``calibrated`` has widened the scenarios already; they stay as they are.
    """
    workload = known.workload
    if workload.scenarios is None or options.forecast is None or options.forecast.error_sd is None:
        return known
    return with_scenarios(known, widened(workload, STRESS))


def widened(workload: Workload, factor: float) -> IntArray:
    """Return the (S, R) scenarios with ``factor`` times the distance, on a logarithmic scale, from each response's mean."""
    assert workload.scenarios is not None
    logs = np.log(np.maximum(workload.scenarios, 1))
    middle = logs.mean(axis=0)
    return _tokens(middle + factor * (logs - middle), workload)


def _tokens(logs: FloatArray, workload: Workload) -> IntArray:
    """Return whole lengths within the response limit."""
    lengths: IntArray = np.rint(np.exp(logs)).clip(1, workload.max_response_tokens).astype(np.int64)
    return lengths


def with_scenarios(problem: PlanningProblem, scenarios: IntArray) -> PlanningProblem:
    """Return the same problem with other scenarios."""
    return replace(problem, workload=replace(problem.workload, scenarios=scenarios))


def spreads(workload: Workload) -> tuple[float, float]:
    """Return the standard deviations of the logarithms of lengths between prompts and within them.

    A forecast of prompts can tell responses of different prompts apart, never those of one prompt. So where lengths differ more
    within prompts than between them, such a forecast explains at most half of the variance of their logarithms.

    The two spreads are the variance components of the logarithms of lengths. Each prompt's draws are its responses in all
    scenarios. *Within*: the variance of a prompt's draws, averaged over responses. *Between*: the variance of the prompts'
    means, less what the draws' own spread adds to it.

    Args:
        workload: with at least two scenarios.
    """
    assert workload.scenarios is not None
    logs, prompts = np.log(np.maximum(workload.scenarios, 1)), workload.prompt_of
    scenarios, size = len(logs), np.bincount(prompts)
    used = size > 0
    draws = size[used] * scenarios
    mean = np.bincount(prompts, logs.sum(axis=0))[used] / draws
    squares = np.bincount(prompts, (logs**2).sum(axis=0))[used]
    variance = np.maximum(squares - draws * mean**2, 0.0) / (draws - 1)
    weight = size[used] / len(prompts)
    within = float((variance * weight).sum())
    between = float((weight * (mean - (weight * mean).sum()) ** 2).sum() - (weight * variance / draws).sum())
    return math.sqrt(max(0.0, between)), math.sqrt(within)


def spread_in_words(workload: Workload) -> str:
    """Return a sentence where lengths differ more within prompts than between them; the empty text elsewhere, and
    where responses of one prompt have different predictions, so that the forecast is not one of prompts."""
    prompts, predicted = workload.prompt_of, workload.response_tokens
    of_prompt = np.zeros(int(prompts.max()) + 1, dtype=predicted.dtype)
    of_prompt[prompts] = predicted
    if not np.array_equal(of_prompt[prompts], predicted):
        return ""
    between, within = spreads(workload)
    if within <= between:
        return ""
    return (
        f"Lengths differ at least as much within prompts as between them ({within:.2f} and {between:.2f}, standard deviations "
        "of their logarithms), so a forecast that knows only the prompt explains at most half of this variance."
    )
