"""The model of response lengths behind ``InFlightPredictor``: its parameters from the history, its posterior while a step runs.

Response j to prompt i has ``log L = centre_i + g + u_i + e_ij``. ``g`` is shared by all responses of the step, as the policy
changed since the history. ``u_i`` is shared by those of a prompt. Both are normal; ``e`` has the empirical distribution of the
history. Lengths that are lower bounds are treated as censored.

While a step runs, a finished response gives its length; a running one shows that its length exceeds its tokens so far. Both are
evidence for u, and for g and the variance of u. The distributions of both are kept on a grid of shifts. A forecast is the
mixture over shifts, weighted by the evidence. A response's own tokens so far count when its forecast is evaluated at them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from rlhfless.predict.predictor import PromptHistory
from solver.lengths.remaining import SurvivalTable
from solver.lengths.survival import kaplan_meier
from solver.model.ordered_sums import dot
from solver.model.workload import FloatArray, IntArray, Workload

STEP = 0.05  # of a grid of logs
RESIDUALS = np.arange(-100, 101) * STEP  # at which the distribution of e is known
FEWEST_PROMPTS = 8  # that anything is learned from
SURPRISE, SURPRISE_SD = 0.003, 1.5  # share and spread of responses that are like none before
MIN_VARIANCE = 0.05**2
DRIFT, UNSEEN_DRIFT = 0.15**2, 0.3**2  # variance of g; where no prompt was ever seen to come back
GOES_ON = 0.8  # standard deviations that a response which was cut off is taken to go on for (half a normal distribution's mean)
RETURN = 0.2**2  # variance of a prompt's change until it comes back, where none was seen to
SHIFT_STEPS = 2  # of the grid of logs between two shifts
SHIFTS = np.arange(-20, 21) * SHIFT_STEPS * STEP
WIDEST = len(RESIDUALS)
MIXED = np.arange(-140, 141) * STEP  # where mixtures over shifts are known, relative to a response's centre
POINTS = 64  # of the grid of tokens, evenly spread, and as many with even ratios
MAX_PROMPTS = 15.0  # that all together count as where what all share is judged: how e is distributed is only about right
RESPONSE_S, CURVE_S = 4e-7, 4e-6  # about what ``observe`` takes for a response, and for a curve


# --- parameters from the history ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LengthModelParameters:
    """Parameters of the length model.

    Attributes:
        centres: of prompts with history, by their name; common: that of all others.
        between, between_new: variance of u for prompts with history and without; drift: variance of g.
        shares: equally likely factors on the variance of u in a step.
        residual: (201,) P(e > x) at ``RESIDUALS``. Its last value is the share of responses that end only at the limit.
    """

    centres: dict[str, float]
    common: float
    between: float
    between_new: float
    drift: float
    shares: tuple[float, ...]
    residual: FloatArray


def scatter_of(table: pd.DataFrame, complete: NDArray[np.bool_], visits: PromptHistory) -> LengthModelParameters | None:
    """Estimate the parameters from the last visits of every prompt; None with fewer than 8 prompts.

    If at least 8 prompts were visited again, their last visits are compared with what was predicted for these. Otherwise the
    samples of a visit are compared with each other. With single samples, half of the variance is attributed to prompts, because
    the data cannot separate the two.

    Args:
        table: the history, with ``prompt_id, epoch, response_tokens`` and ``expected``; complete: (H,) False for lower bounds.
    """
    epochs = table.groupby("prompt_id")["epoch"]
    last = (table["epoch"] == epochs.transform("max")).to_numpy()
    names = table["prompt_id"].to_numpy()[last]
    distinct, owner, count = np.unique(names.astype(str), return_inverse=True, return_counts=True)
    if len(distinct) < FEWEST_PROMPTS:
        return None
    logs = np.log(np.maximum(table["response_tokens"].to_numpy(dtype=float)[last], 1.0))
    whole, single = complete[last], count == 1
    informative = (np.bincount(owner, weights=~whole) == 0) & ~single  # of a group that was cut off nobody knows the middle
    informative = informative if informative.sum() >= FEWEST_PROMPTS else ~single
    deviation = (logs - (np.bincount(owner, weights=logs) / count)[owner]) * np.sqrt(count / np.maximum(count - 1, 1))[owner]
    degrees = int((count - 1)[informative].sum())
    squares = deviation**2 * ((count - 1) / count)[owner]
    within = float(squares[informative[owner]].sum() / degrees) if degrees else 0.0
    mean = np.bincount(owner, weights=logs + np.where(whole, 0.0, GOES_ON * math.sqrt(within))) / count
    last_epoch = table["epoch"].to_numpy()[last]
    back = np.unique(owner[(epochs.transform("max") > epochs.transform("min")).to_numpy()[last]])
    average = np.log([max(visits.averages[name], 1.0) for name in distinct])
    if len(back) >= FEWEST_PROMPTS:
        key = dict(zip(owner.tolist(), last_epoch.tolist(), strict=True))
        predicted = np.log([max(visits.predicted[distinct[p], key[p]], 1.0) for p in back])
        off = mean[back] - predicted
        offset, between = float(off.mean()), float(off.var(ddof=1) - within * (1 / count[back]).mean())
        centre, drift, shares = average + offset, DRIFT, (0.5, 1.0, 2.0)
        alone = np.zeros(len(distinct))
        alone[back] = off - offset
        residuals, used = (deviation, informative) if degrees else (alone[owner], np.isin(np.arange(len(distinct)), back))
        if not degrees:
            between = 0.0  # single samples: all that is not foreseen counts as theirs
    else:
        plain = np.log(np.maximum(np.bincount(owner, weights=table["expected"].to_numpy(dtype=float)[last]) / count, 1.0))
        level = mean + average - plain  # what the policy is expected to have changed since
        spread = float(level.var(ddof=1))
        residuals, used = deviation, informative
        if not degrees:
            within, used = spread / 2, np.ones(len(distinct), dtype=bool)
            residuals = (logs - logs.mean()) * math.sqrt(0.5)
        variance = max(spread - within * float((1 / count).mean()), MIN_VARIANCE)
        trust = variance / (variance + within / count)
        centre = level.mean() + trust * (level - level.mean())
        between = float((trust * within / count).mean()) + RETURN
        drift, shares = UNSEEN_DRIFT, (1 / 16, 1 / 4, 1.0)  # as nothing tells, rather too wide than too narrow
    between = max(between, MIN_VARIANCE)
    return LengthModelParameters(
        dict(zip(distinct.tolist(), centre.tolist(), strict=True)), float(centre.mean()), between,
        between + float(centre.var(ddof=1)), drift, shares, _smooth(residuals[used[owner]], whole[used[owner]]),
    )  # fmt: skip


def _smooth(residuals: FloatArray, complete: NDArray[np.bool_]) -> FloatArray:
    """Return (201,) survival of e: Kaplan-Meier, smoothed by Silverman's width, and a small share for what was never seen."""
    survival = kaplan_meier(residuals, complete, RESIDUALS.astype(np.float64))
    width = max(STEP, 0.9 * float(residuals.std()) * len(residuals) ** -0.2)
    reach = math.ceil(4 * width / STEP)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * STEP / width) ** 2)
    padded = np.concatenate([np.ones(reach), survival, np.full(reach, survival[-1])])
    smooth = np.convolve(padded, kernel / kernel.sum(), mode="valid")
    surprise = np.array([0.5 * math.erfc(x / (SURPRISE_SD * math.sqrt(2))) for x in RESIDUALS])
    return np.asarray((1 - SURPRISE) * np.minimum.accumulate(np.clip(smooth, 0.0, 1.0)) + SURPRISE * surprise)


# --- posterior while a step runs ----------------------------------------------------------------------------------------------


def inflight_grid(max_response_tokens: int) -> FloatArray:
    """Return the tokens at which forecasts are computed, from 0 to the limit.

    The grid is dense at short lengths, has no large gaps, and contains the token before the limit, at which many may end.
    """
    even, ratios = np.linspace(0, max_response_tokens, POINTS + 1), np.geomspace(1, max_response_tokens, POINTS)
    return np.unique(np.concatenate([even, ratios, [max_response_tokens - 1]]).round())


@dataclass(frozen=True, eq=False)
class Siblings:
    """The length model of one step's responses: their prompts, and the centres around which their log lengths vary.

    Args:
        prompt_of: (R,) prompt of each response. has_history: (P,) whether a prompt has history. centre: (P,) of each prompt.
    """

    scatter: LengthModelParameters
    prompt_of: IntArray
    has_history: NDArray[np.bool_]
    centre: FloatArray
    max_response_tokens: int

    @cached_property
    def _order(self) -> tuple[IntArray, IntArray, IntArray]:
        """Responses sorted by prompt, where each prompt begins there, and which prompts these are."""
        order = np.argsort(self.prompt_of, kind="stable")
        present, starts = np.unique(self.prompt_of[order], return_index=True)
        return order, starts, present

    @cached_property
    def _evidence_tables(self) -> FloatArray:
        """Logs of the density of e at ``RESIDUALS``, then those of its survival."""
        survival = self.scatter.residual
        ends = -np.diff(np.concatenate([[1.0], survival])) / STEP
        return np.asarray(np.log(np.maximum(np.concatenate([ends, survival]), 1e-12)))

    @cached_property
    def _priors(self) -> FloatArray:
        """(share, 2, g, shift) probability of a shift given g and the share of the variance of u that holds in this step, of
        prompts without history and with it."""
        apart = SHIFTS[None, :] - SHIFTS[:, None]
        variances = (self.scatter.between_new, self.scatter.between)
        density = np.array(
            [[np.exp(-0.5 * apart**2 / (share * v)) + 1e-12 for v in variances] for share in self.scatter.shares]
        )
        return np.asarray(density / density.sum(axis=3, keepdims=True))

    @cached_property
    def _mixing(self) -> FloatArray:
        """(shift, point) survival of the log length at ``MIXED`` for every shift."""
        at = (MIXED[None, :] - SHIFTS[:, None] - RESIDUALS[0]) / STEP
        whole = np.rint(at).astype(np.int64)
        table = self.scatter.residual[np.clip(whole, 0, len(RESIDUALS) - 1)]
        return np.asarray(np.where(whole < 0, 1.0, table))

    def evidence(self, tokens: IntArray, complete: NDArray[np.bool_], prompts: IntArray) -> FloatArray:
        """Return (n, shift) log-likelihoods of the known lengths of (n,) responses to these prompts, given the shift of
        each.
        """
        ended = complete & (tokens < self.max_response_tokens)
        left = np.log(np.maximum(np.where(ended, tokens, tokens + 0.5), 0.5)) - self.centre[prompts]
        first = np.rint((left - RESIDUALS[0]) / STEP).astype(np.int64)
        first += np.where(ended, 0, WIDEST)
        at = first[:, None] - SHIFT_STEPS * np.arange(-20, 21)
        np.clip(at, np.where(ended, 0, WIDEST)[:, None], np.where(ended, 1, 2)[:, None] * WIDEST - 1, out=at)
        evidence = self._evidence_tables.take(at)
        evidence[~ended & (tokens == 0)] = 0.0
        return np.asarray(evidence)

    def weights(self, tokens: IntArray, complete: NDArray[np.bool_], chosen: IntArray, own_tokens: IntArray) -> FloatArray:
        """Return (n, shift) posterior probabilities of the shifts of (n,) chosen prompts, given all that is known.

        The fact that a response of the prompt is still running at ``own_tokens`` is left out: it counts when its forecast is
        evaluated.
        """
        evidence = self.evidence(tokens, complete, self.prompt_of)
        order, starts, present = self._order
        of_prompt = np.zeros((len(self.centre), len(SHIFTS)))
        of_prompt[present] = np.add.reduceat(evidence[order], starts, axis=0)
        has_history = self.has_history.astype(np.int64)
        best = of_prompt.max(axis=1, keepdims=True)
        likely = np.exp(of_prompt - best)
        priors = self._priors
        of_all = np.zeros((len(priors), len(SHIFTS)))
        for kind in (0, 1):
            fits = dot(likely[has_history == kind], priors[:, kind].reshape(-1, len(SHIFTS)).T)
            of_all += np.log(np.maximum(fits, 1e-300)).sum(axis=0).reshape(of_all.shape)
        of_all *= min(1.0, MAX_PROMPTS / len(present))
        of_all -= 0.5 * SHIFTS**2 / self.scatter.drift
        shared = np.exp(of_all - of_all.max())
        shared /= shared.sum()
        prior = np.log(np.einsum("sg,skgd->kd", shared, priors))
        logs = prior[has_history[chosen]] + of_prompt[chosen]
        logs -= self.evidence(own_tokens, np.zeros(len(chosen), dtype=bool), chosen)
        weights = np.exp(logs - logs.max(axis=1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def curves(self, weights: FloatArray, prompts: IntArray, grid: FloatArray) -> FloatArray:
        """Return (n, G) survival at the grid's tokens for (n, shift) weights and the prompt of each."""
        mixed = dot(weights, self._mixing)
        place = (np.log(grid + 0.5)[None, :] - self.centre[prompts][:, None] - MIXED[0]) / STEP
        place = np.clip(place, 0.0, len(MIXED) - 1.0)
        cell = np.minimum(place.astype(np.int64), len(MIXED) - 2)
        part = place - cell
        at = cell + np.arange(len(mixed))[:, None] * len(MIXED)
        flat = mixed.ravel()
        curve = flat[at] * (1 - part) + flat[at + 1] * part
        curve[:, 0], curve[:, -1] = 1.0, 0.0
        return np.asarray(np.minimum.accumulate(np.clip(curve, 0.0, 1.0), axis=1))


@dataclass(frozen=True, eq=False, kw_only=True)
class InFlightLengths(SurvivalTable):
    """Forecast that is updated while the step runs: one curve per prompt.

    Args:
        siblings: the model.
    """

    siblings: Siblings
    _all_prompt_tokens: FloatArray = field(repr=False)

    @classmethod
    def of(cls, siblings: Siblings, workload: Workload) -> InFlightLengths:
        """Return the forecast before the step begins."""
        nothing, prompts = np.zeros(len(workload), np.int64), np.arange(len(workload.prompt_tokens))
        grid = inflight_grid(workload.max_response_tokens)
        weights = siblings.weights(nothing, np.zeros(len(workload), dtype=bool), prompts, np.zeros(len(prompts), np.int64))
        tokens = workload.prompt_tokens.astype(float)
        return cls(
            grid, siblings.curves(weights, prompts, grid), workload.prompt_of, tokens,
            siblings=siblings, _all_prompt_tokens=tokens,
        )  # fmt: skip

    def observe(self, tokens: IntArray, complete: NDArray[np.bool_]) -> InFlightLengths:
        """See ``RemainingLengths``: one curve for every prompt with running responses.

        Of a prompt's running responses, the shortest is the one whose own tokens are not counted twice.
        """
        running = np.flatnonzero(~complete)
        if not len(running):
            return self
        prompts, owner = np.unique(self.siblings.prompt_of[running], return_inverse=True)
        shortest = np.full(len(prompts), self.max_response_tokens)
        np.minimum.at(shortest, owner, tokens[running])
        curve = self.siblings.curves(self.siblings.weights(tokens, complete, prompts, shortest), prompts, self.grid)
        class_of = np.zeros(len(tokens), np.int64)
        class_of[running] = owner
        return InFlightLengths(
            self.grid, curve, class_of, self._all_prompt_tokens[prompts],
            siblings=self.siblings, _all_prompt_tokens=self._all_prompt_tokens,
        )  # fmt: skip

    @property
    def observe_response_s(self) -> float:
        """See ``RemainingLengths``."""
        responses = len(self.siblings.prompt_of)
        curves = min(len(self.siblings.centre), responses)
        return RESPONSE_S + CURVE_S * curves / max(1, responses)
