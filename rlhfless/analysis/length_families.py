"""Families of response lengths with the mean, the shortest, the longest and the clipped share that a step logged.

Knows one step and its numbers; nothing of logs. ``drawn_lengths.py`` draws whole logs.

- ``lognormal``: a heavy tail. Where nothing was clipped, the longest of the step's draws is expected at the logged length.
- ``two modes``: most responses are near the shortest or near the longest one. No other shape with this mean varies much more.
- ``narrow``: all but a few are near the mean.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

Family = Literal["lognormal", "two modes", "narrow"]
FAMILIES: tuple[Family, ...] = ("lognormal", "two modes", "narrow")
CONCENTRATIONS: dict[Family, float] = {"two modes": 0.5, "narrow": 20.0}  # of beta distributions
ALIKE = 0.7  # correlation of the normal scores of two responses to one prompt, where they are alike
GRID = 4_001  # quantiles by which a mean is computed
STEPS_KEPT = 80  # whose fit is kept, as every draw of the family has the same


class StepLengths(NamedTuple):
    """What the scalars of a step say of its lengths, in tokens.

    Attributes:
        mean, shortest, longest: of the responses. truncated: share that ended at the longest length, which is then the limit.
        responses: number of them. prompt_tokens: mean.
    """

    mean: float
    shortest: float
    longest: float
    truncated: float
    responses: int
    prompt_tokens: float


def drawn_lengths(step: StepLengths, family: Family, random: np.random.Generator) -> np.ndarray:
    """Return (responses,) lengths in tokens, ascending: the logged longest and shortest one, clipped share and, where it can
    be, mean.

    Draws are stratified, one from each of ``responses`` equal parts of the distribution. Then lengths between the shortest and
    the longest are moved until the mean is the logged one.
    """
    strata = (np.arange(step.responses) + random.uniform(size=step.responses)) / step.responses
    lengths = _heavy_tail(step, strata) if family == "lognormal" else _bounded(step, CONCENTRATIONS[family], strata)
    clipped = max(1, round(step.truncated * step.responses))
    lengths[-clipped:] = step.longest
    uncut = max(step.shortest, step.longest - 1 if step.truncated > 0 else step.longest)
    lengths[:-clipped] = np.minimum(lengths[:-clipped], uncut)
    lengths[: min(1, step.responses - clipped)] = step.shortest
    whole = np.maximum(1, lengths.round()).astype(np.int64)
    _move_to(whole[1:-clipped], round(step.mean * step.responses) - int(whole.sum()), math.ceil(step.shortest), int(uncut))
    return np.sort(whole)


def in_groups(lengths: np.ndarray, samples: int, alike: bool, random: np.random.Generator) -> np.ndarray:
    """Return ascending (n,) lengths in an order in which ``samples`` after each other are responses to one prompt.

    Where they are alike, lengths have the ranks of normal scores, of which those of a prompt correlate.
    """
    count = len(lengths)
    of_prompt = np.repeat(random.normal(size=-(-count // samples)), samples)[:count]
    share = ALIKE if alike and samples > 1 else 0.0
    scores = math.sqrt(share) * of_prompt + math.sqrt(1 - share) * random.normal(size=count)
    order = np.empty_like(lengths)
    order[np.argsort(scores)] = lengths
    return order


def _move_to(lengths: np.ndarray, more: int, least: int, most: int) -> None:
    """Add ``more`` tokens to the lengths in place, or take them away, evenly and between two bounds, as far as they allow."""
    while more and len(lengths):
        room = most - lengths if more > 0 else lengths - least
        movable = np.flatnonzero(room > 0)[: abs(more)]
        if not len(movable):
            return
        moved = np.minimum(room[movable], abs(more) // len(movable))
        lengths[movable] += moved if more > 0 else -moved
        more += int(moved.sum()) * (-1 if more > 0 else 1)


def _heavy_tail(step: StepLengths, shares: np.ndarray) -> np.ndarray:
    """Return (n,) quantiles of the lognormal distribution with the step's mean and share above the longest length."""
    spread, scale = _fitted(step)
    return _clipped(step, scale * np.exp(spread * np.array([_score(share) for share in shares])))


@lru_cache(STEPS_KEPT)
def _fitted(step: StepLengths) -> tuple[float, float]:
    """The spread and the scale with the step's mean, and its share above the longest length, by bisection over the spread."""
    above = step.truncated if step.truncated > 0 else math.log(2) / step.responses
    grid, cut = _scores(GRID), _score(1.0 - above)

    def mean_of(spread: float) -> float:
        return float(_clipped(step, step.longest * np.exp(spread * (grid - cut))).mean())

    low, high = (1e-3, 8.0)  # from nearly equal lengths to a few long ones
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if mean_of(middle) > step.mean else (low, middle)
    return low, step.longest * math.exp(-low * cut)


@lru_cache
def _scores(count: int) -> np.ndarray:
    """The (count,) middle quantiles of the unit normal distribution."""
    return np.array([_score((i + 0.5) / count) for i in range(count)])


def _score(share: float) -> float:
    return NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12))


def _bounded(step: StepLengths, concentration: float, shares: np.ndarray) -> np.ndarray:
    """Return (n,) quantiles of the beta distribution between the shortest and the longest length.

    Its mean is that of the responses which were not cut. A concentration below 1 has two modes, at both ends.
    """
    cut = max(step.truncated, 1.0 / step.responses)
    uncut = (step.mean - cut * step.longest) / (1.0 - cut) if cut < 1.0 else step.mean
    width = max(step.longest - step.shortest, 1e-9)
    mean = min(max((uncut - step.shortest) / width, 1e-3), 1.0 - 1e-3)
    logits = np.linspace(-40.0, 40.0, GRID)  # a grid that is fine at both ends
    points = 1.0 / (1.0 + np.exp(-logits))
    log_density = -concentration * (mean * np.logaddexp(0.0, -logits) + (1.0 - mean) * np.logaddexp(0.0, logits))
    cumulated = np.cumsum(np.exp(log_density - log_density.max()))
    return step.shortest + width * np.interp(shares / (1.0 - cut + 1e-12), cumulated / cumulated[-1], points)


def _clipped(step: StepLengths, lengths: np.ndarray) -> np.ndarray:
    return np.clip(lengths, step.shortest, step.longest)
