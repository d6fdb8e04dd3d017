"""A linear probe that forecasts a response's remaining tokens from the model's own signals, and estimates its own accuracy.

The probe is a ridge regression of the log of the remaining tokens. Its inputs are means of signals over a response's last
tokens, the last hidden state among them. It is fitted step by step. A second regression, on responses that the probe was not
fitted to, estimates how far it can be trusted. It explains the probe's value z by the true log of the remaining tokens and by
what was expected without the probe, ``z = a + b log(left) + c expected + noise``. By Bayes' rule a forecast is weighted with
the density of z given each outcome. Where the probe only repeats what was expected, b is 0 and the forecast does not change.
There is a second regression for every doubling of the tokens so far, because early signals may be less informative. All
regressions are sums over rows: their memory does not grow with the run, and earlier steps fade.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhfless.predict.censoring import FloatArray
from rlhfless.predict.errors import PredictionError
from solver.model.runtime_rules import SIGNAL_TOKENS, Signals

MAX_FEATURES = 256  # numbers of a signal; longer ones are projected to as many with random signs, always the same
RIDGE = 0.01  # times the mean square of each input
KEPT = 0.8  # of the weight of earlier steps, at every new one
FEWEST_ROWS = 200  # that a probe is trusted from
AGES, COMMON_ROWS = 16, 50.0  # doublings of tokens so far; rows of all ages that stand beside an age's own
MIN_LOGPROB = -30.0  # log-probabilities are told from there on


def recent_means(values: NDArray[np.floating], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (n, ...) means of one response's (L, ...) signal over the last ``SIGNAL_TOKENS`` tokens before each of (n,)
    positions.

    Positions are from 1 to L tokens; the means are what a rule sees when the response has that many tokens.
    """
    sums = np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0, dtype=float)])
    first = np.maximum(tokens - SIGNAL_TOKENS, 0)
    return np.asarray((sums[tokens] - sums[first]) / (tokens - first).reshape(-1, *[1] * (values.ndim - 1)))


def features(tokens: FloatArray, signals: Signals, names: tuple[str, ...]) -> FloatArray:
    """Return (n, F) inputs of the probe from (n,) tokens so far and (n, ...) signals by name; NaN where a signal is NaN."""
    columns = [np.ones((len(tokens), 1)), np.log1p(tokens)[:, None]]
    for name in names:
        flat = np.asarray(signals[name], dtype=float).reshape(len(tokens), -1)
        if flat.shape[1] > MAX_FEATURES:
            signs = np.random.default_rng(flat.shape[1]).choice([-1.0, 1.0], (flat.shape[1], MAX_FEATURES))
            flat = flat @ signs / np.sqrt(flat.shape[1])
        columns.append(np.maximum(flat, MIN_LOGPROB) if name.endswith("logprob") else flat)
    return np.concatenate(columns, axis=1)


@dataclass(frozen=True, eq=False)
class FittedProbe:
    """A fitted probe: (F,) weights of inputs, and (AGES,) a, b, c and the standard deviation of the noise (see above)."""

    names: tuple[str, ...]
    weights: FloatArray
    offset: FloatArray
    slope: FloatArray
    of_expected: FloatArray
    noise: FloatArray

    def weigh(self, curve: FloatArray, grid: FloatArray, tokens: FloatArray, signals: Signals) -> FloatArray:
        """Return (n, G) survival curves updated by the signals of responses that run at (n,) ``tokens``.

        A curve is 1 at tokens that are already generated. Rows with unknown signals are unchanged.

        Raises:
            PredictionError: a signal that the probe was fitted to is missing.
        """
        if missing := [name for name in self.names if name not in signals]:
            names = ", ".join(self.names)
            raise PredictionError(
                f"signal {missing[0]!r} is missing; all signals that the probe was fitted on are needed: {names}"
            )
        inputs = features(tokens, signals, self.names)
        reported = np.isfinite(inputs).all(axis=1) & (tokens > 0)
        reweighted = curve.copy()
        if not reported.any():
            return reweighted
        chance, left = outcomes(curve[reported], grid, tokens[reported])
        log_left = np.log(left)
        expected = (chance * log_left).sum(axis=1)
        value, age = inputs[reported] @ self.weights, age_of(tokens[reported])
        off = (value - self.offset[age] - self.of_expected[age] * expected)[:, None] - self.slope[age, None] * log_left
        logs = -0.5 * (off / self.noise[age, None]) ** 2
        chance *= np.exp(logs - logs.max(axis=1, keepdims=True))
        total = chance.sum(axis=1, keepdims=True)
        sure = total[:, 0] > 1e-200  # else nothing that is possible goes with the signals
        after = np.cumsum(chance[:, ::-1], axis=1)[:, ::-1] / np.maximum(total, 1e-300)
        reweighted[np.flatnonzero(reported)[sure], :-1] = np.clip(after[sure], 0.0, 1.0)
        return reweighted


def outcomes(curve: FloatArray, grid: FloatArray, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return (n, G - 1) probabilities that a response running at (n,) tokens ends in each cell of the grid, and the tokens
    left then.
    """
    low, high = np.maximum(grid[:-1], tokens[:, None]), np.maximum(grid[1:], tokens[:, None])
    width = np.diff(grid)
    ends = curve[:, :-1] - curve[:, 1:]
    inside = (high - low) / width
    chance = ends * inside
    nothing = chance.sum(axis=1) <= 0
    chance[nothing] = inside[nothing]  # alive beyond its curve: any of the cells that are left
    chance /= chance.sum(axis=1, keepdims=True)
    return chance, np.maximum((low + high) / 2 - tokens[:, None], 0.5)


class SignalProbe:
    """Fits the probe to finished steps; ``reading`` returns the current fit.

    It uses the signals of the first step that it gets.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] | None = None
        self._inputs = self._targets = np.zeros(0)
        self._rows = 0.0
        self._trust = np.zeros((AGES, 4, 4))  # products of 1, log(left), expected and z

    def update(
        self, tokens: FloatArray, signals: Signals, left: FloatArray, expected: FloatArray, half: NDArray[np.bool_]
    ) -> None:
        """Learn from several moments of a finished step.

        Args:
            tokens: (n,) so far; signals: (n, ...); left: (n,) remaining tokens; expected: (n,) logs of their expected values.
            half: (n,) splits the rows in two halves, prompt by prompt; each half is evaluated by a probe fitted without it.
        """
        if self.names is None:
            self.names = tuple(sorted(signals))
        inputs, targets = features(tokens, signals, self.names), np.log(np.maximum(left, 0.5))
        fine = np.isfinite(inputs).all(axis=1)
        inputs, targets, expected, half, ages = inputs[fine], targets[fine], expected[fine], half[fine], age_of(tokens[fine])
        if not len(inputs):
            return
        if not self._inputs.size:
            self._inputs, self._targets = np.zeros((inputs.shape[1],) * 2), np.zeros(inputs.shape[1])
        self._inputs, self._targets = KEPT * self._inputs, KEPT * self._targets
        self._rows, self._trust = KEPT * self._rows, KEPT * self._trust
        parts = [(inputs[side].T @ inputs[side], inputs[side].T @ targets[side]) for side in (half, ~half)]
        for side, (squares, products) in zip((~half, half), parts, strict=True):
            if not side.any():
                continue
            z = inputs[side] @ _ridge(self._inputs + squares, self._targets + products)
            row = np.column_stack([np.ones(len(z)), targets[side], expected[side], z])
            np.add.at(self._trust, ages[side], row[:, :, None] * row[:, None, :])
        for squares, products in parts:
            self._inputs, self._targets = self._inputs + squares, self._targets + products
        self._rows += len(inputs)

    @property
    def reading(self) -> FittedProbe | None:
        """The current fit; None with fewer than ``FEWEST_ROWS`` moments, or if the probe is uninformative."""
        if self.names is None or self._rows < FEWEST_ROWS:
            return None
        common = self._trust.sum(axis=0)
        trust = self._trust + common * COMMON_ROWS / common[0, 0]
        scale = np.trace(trust[:, :3, :3], axis1=1, axis2=2)[:, None, None]
        squares, products = trust[:, :3, :3] + 1e-9 * scale * np.eye(3), trust[:, :3, 3]
        coefficients = np.linalg.solve(squares, products[:, :, None])[:, :, 0]
        residual = trust[:, 3, 3] - (products * coefficients).sum(axis=1)
        offset, slope, of_expected = coefficients.T
        if slope.max() <= 0:
            return None
        noise = np.sqrt(np.maximum(residual, 0.0) / trust[:, 0, 0])
        # a probe that is the less, the more is left, tells nothing; nor can any be as good as certain
        slope, noise = np.maximum(slope, 0.0), np.maximum(noise, 0.01 * np.maximum(slope, 1e-3))
        return FittedProbe(self.names, _ridge(self._inputs, self._targets), offset, slope, of_expected, noise)


def age_of(tokens: FloatArray) -> NDArray[np.int64]:
    """Return (n,) age classes, the doublings of (n,) tokens so far."""
    return np.asarray(np.clip(np.log2(np.maximum(tokens, 1.0)).astype(np.int64), 0, AGES - 1))


def _ridge(squares: FloatArray, products: FloatArray) -> FloatArray:
    penalty = RIDGE * np.diag(squares) + 1e-9 * max(1.0, float(np.trace(squares)))
    penalty[0] = 0.0
    return np.asarray(np.linalg.solve(squares + np.diag(penalty), products))


def moments(lengths: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return at most ``count`` token counts at which a finished step is evaluated, evenly spaced in ratio up to its longest
    response.
    """
    return np.unique(np.geomspace(2, max(int(lengths.max(initial=0)) - 1, 2), count).astype(np.int64))


def signals_at(
    per_token: list[Mapping[str, NDArray[np.floating]]], lengths: NDArray[np.int64], at: NDArray[np.int64]
) -> list[tuple[NDArray[np.int64], dict[str, FloatArray]]]:
    """Return, for each of (m,) token counts, the responses that are still running there and their signals by name (n, ...).

    Args:
        per_token: of every response, by name (tokens, ...).
    """
    moments_with_signals: list[tuple[NDArray[np.int64], dict[str, FloatArray]]] = []
    reached = [at[at < n] for n in lengths]
    means = [
        {name: recent_means(values, indices) for name, values in signals.items()} if len(indices) else {}
        for signals, indices in zip(per_token, reached, strict=True)
    ]
    for k, x in enumerate(at):
        alive = np.flatnonzero((lengths > x) & np.array([bool(m) for m in means]))
        names = means[alive[0]] if len(alive) else ()
        moments_with_signals.append((alive, {name: np.array([means[r][name][k] for r in alive]) for name in names}))
    return moments_with_signals
