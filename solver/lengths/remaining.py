"""Forecasts of the remaining lengths of running responses: one distribution per response, conditional on its tokens so far.

The forecasts are survival curves of lengths. True lengths are used only if a forecast is built from them (``KnownLengths``, for
clairvoyant policies). A predictor that updates while decoding plugs in by building a ``SurvivalTable`` at every re-planning
round.

Conventions: a running response of L tokens that has generated x tokens has L > x. S(x) = P(L > x), S(0) = 1, and S(limit) = 0:
the response limit ends every response. So the forecast at x tokens is ``P(L > y | L > x) = S(y) / S(x)``, and the expected
remaining tokens are ``sum over y >= x of S(y) / S(x)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given
from solver.model.number_arrays import number_array
from solver.model.plurals import counted
from solver.model.workload import FloatArray, IntArray


class RemainingLengths(Protocol):
    """Interface of a forecast of remaining lengths, used by re-planning. Arrays are over all R responses of the step,
    or over ``chosen`` of them."""

    def __len__(self) -> int:
        """Number of responses R."""
        ...

    @property
    def max_response_tokens(self) -> int:
        """Return the most tokens that any response can have."""
        ...

    def survival(self, chosen: IntArray, tokens: ArrayLike, at_tokens: ArrayLike) -> FloatArray:
        """Return the (n,) probabilities that each chosen response, running at ``tokens``, is longer than
        ``at_tokens`` (>= tokens)."""
        ...

    def expected_tokens(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        """Return the (n,) expected remaining tokens of each chosen response, running at ``tokens``."""
        ...

    def max_tokens(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        """Return the (n,) most tokens that each chosen response, running at ``tokens``, can still generate."""
        ...

    def root_load(self, chosen: IntArray, tokens: ArrayLike, per_response: float, per_kv_token: float) -> FloatArray:
        """Return the (n,) sums ``sum over y >= tokens of sqrt(S(y) / S(tokens) * load(y))``.

        The load of a token at y tokens is ``per_response + per_kv_token * (prompt + y)``.
        """
        ...

    def observe(self, tokens: IntArray, complete: NDArray[np.bool_]) -> RemainingLengths:
        """Return the forecast updated with this step's (R,) tokens so far and completions; ``self`` if nothing changes."""
        ...

    @property
    def observe_response_s(self) -> float:
        """Return about how many seconds ``observe`` takes per unfinished response. A constant, so that decisions do
        not depend on a clock."""
        ...


@dataclass(frozen=True, eq=False)
class KnownLengths:
    """True (or point-predicted) lengths as a forecast. A response that has already reached its length ends after one
    more token.

    Args:
        length: (R,) tokens; prompt_tokens: (R,) tokens of each response's prompt.

    Raises:
        PlanningError: a length is NaN, infinite or negative.
    """

    length: FloatArray
    prompt_tokens: FloatArray
    max_response_tokens: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", length_array("the known lengths", self.length, 1))

    def __len__(self) -> int:
        """Number of responses R."""
        return len(self.length)

    def _remaining(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        return np.asarray(np.maximum(self.length[chosen] - np.asarray(tokens, dtype=float), 1.0))

    def survival(self, chosen: IntArray, tokens: ArrayLike, at_tokens: ArrayLike) -> FloatArray:
        """See ``RemainingLengths``."""
        tokens_now = np.asarray(tokens, dtype=float)
        return np.where(np.asarray(at_tokens) < tokens_now + self._remaining(chosen, tokens_now), 1.0, 0.0)

    def expected_tokens(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        """See ``RemainingLengths``."""
        return self._remaining(chosen, tokens)

    def max_tokens(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        """See ``RemainingLengths``."""
        return self._remaining(chosen, tokens)

    def root_load(self, chosen: IntArray, tokens: ArrayLike, per_response: float, per_kv_token: float) -> FloatArray:
        """See ``RemainingLengths``. The sum of a concave function is replaced by its integral between the tokens' middles."""
        tokens_now, remaining = np.asarray(tokens, dtype=float), self._remaining(chosen, tokens)
        if per_kv_token <= 0:
            return np.asarray(np.sqrt(per_response) * remaining)
        start = np.maximum(per_response + per_kv_token * (self.prompt_tokens[chosen] + tokens_now - 0.5), 0.0)
        return np.asarray(((start + per_kv_token * remaining) ** 1.5 - start**1.5) / (1.5 * per_kv_token))

    def observe(self, tokens: IntArray, complete: NDArray[np.bool_]) -> KnownLengths:
        """Return ``self``: the lengths are fixed."""
        return self

    @property
    def observe_response_s(self) -> float:
        """See ``RemainingLengths``."""
        return 0.0


@dataclass(frozen=True, eq=False)
class SurvivalTable:
    """Survival curves on a grid of tokens, linear between grid points, one curve per class of responses (for example,
    per prompt).

    Args:
        grid: (G,) increasing tokens from 0 to the response limit.
        curve: (C, G) S at the grid points: 1 at 0, falling, 0 at the limit (set so when it is not).
        class_of: (R,) the curve of each response.
        prompt_tokens: (C,) prompt tokens of each class (a mean, where prompts differ).

    Raises:
        PlanningError: shapes differ, a curve rises or leaves [0, 1], or the grid does not start at 0 and increase.
    """

    grid: FloatArray
    curve: FloatArray
    class_of: IntArray
    prompt_tokens: FloatArray
    _tails: dict[tuple[float, float], FloatArray] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        grid, curve = np.asarray(self.grid, dtype=float), np.array(self.curve, dtype=float)
        if len(grid) < 2 or curve.ndim != 2 or curve.shape[1] != len(grid) or grid[0] != 0 or np.any(np.diff(grid) <= 0):
            raise PlanningError(
                f"survival curves have shape {curve.shape} on a grid of {len(grid)} points; (classes, points) on an increasing "
                "grid that begins at 0 tokens is needed"
            )
        curve[:, 0], curve[:, -1] = 1.0, 0.0
        if not np.all(np.isfinite(curve)) or np.any(np.diff(curve, axis=1) > 1e-9) or curve.min() < 0:
            raise PlanningError("a survival curve must fall from 1 to 0")
        if len(self.class_of) and not 0 <= int(np.min(self.class_of)) <= int(np.max(self.class_of)) < len(curve):
            raise PlanningError(f"class_of names a survival curve that does not exist; there are {len(curve)}, numbered from 0")
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "curve", curve)

    def __len__(self) -> int:
        """Number of responses R."""
        return len(self.class_of)

    @property
    def max_response_tokens(self) -> int:
        """Return the most tokens that any response can have."""
        return int(self.grid[-1])

    @cached_property
    def _ends(self) -> FloatArray:
        """Return the (C,) grid points at which the curves reach 0."""
        return np.asarray(self.grid[np.argmax(self.curve <= 0.0, axis=1)])

    def _locate(self, tokens: ArrayLike) -> tuple[IntArray, FloatArray]:
        """Return the grid cell of each number of tokens and the position within it, 0 to 1."""
        x = np.clip(np.asarray(tokens, dtype=float), 0.0, self.grid[-1])
        cell = np.clip(np.searchsorted(self.grid, x, side="right") - 1, 0, len(self.grid) - 2)
        return cell, (x - self.grid[cell]) / (self.grid[cell + 1] - self.grid[cell])

    def _read(self, chosen: IntArray, tokens: ArrayLike, *tables: FloatArray) -> tuple[FloatArray, ...]:
        """Return (C, G) tables interpolated at (n,) tokens, for the curves of the chosen responses."""
        cell, part = self._locate(tokens)
        flat_index = self.class_of[chosen] * len(self.grid) + cell
        return tuple(
            (1 - part) * values[flat_index] + part * values[flat_index + 1] for values in (table.ravel() for table in tables)
        )

    def _alive(self, chosen: IntArray, tokens: ArrayLike, *tables: FloatArray) -> tuple[FloatArray, ...]:
        """Return S at ``tokens``, kept above 0, and other tables there. A response that outlives its curve counts as
        about to end."""
        last = np.minimum(np.asarray(tokens, dtype=float), self.grid[-1] - 0.5)
        alive, *values = self._read(chosen, last, self.curve, *tables)
        return np.maximum(alive, 1e-9), *values

    def survival(self, chosen: IntArray, tokens: ArrayLike, at_tokens: ArrayLike) -> FloatArray:
        """See ``RemainingLengths``."""
        (alive_then,), (alive,) = self._read(chosen, at_tokens, self.curve), self._alive(chosen, tokens)
        return np.minimum(alive_then / alive, 1.0)

    def expected_tokens(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        """See ``RemainingLengths``; never below 1."""
        alive, tail = self._alive(chosen, tokens, self._tail((0.0, 0.0)))
        return np.asarray(np.clip(tail / alive, 1.0, self.max_tokens(chosen, tokens)))

    def max_tokens(self, chosen: IntArray, tokens: ArrayLike) -> FloatArray:
        """See ``RemainingLengths``; up to where the response's curve reaches 0."""
        return np.asarray(np.maximum(self._ends[self.class_of[chosen]] - np.asarray(tokens, dtype=float), 1.0))

    def root_load(self, chosen: IntArray, tokens: ArrayLike, per_response: float, per_kv_token: float) -> FloatArray:
        """See ``RemainingLengths``. At least one load, because a running response has a next token."""
        alive, tail = self._alive(chosen, tokens, self._tail((per_response, per_kv_token)))
        load = per_response + per_kv_token * (self.prompt_tokens[self.class_of[chosen]] + np.asarray(tokens, dtype=float))
        return np.asarray(np.maximum(tail / np.sqrt(alive), np.sqrt(load)))

    def _tail(self, loads: tuple[float, float]) -> FloatArray:
        """Return the (C, G) remaining sums from each grid point on: of S for loads (0, 0), else of sqrt(S * load)."""
        if loads not in self._tails:
            if loads == (0.0, 0.0):
                value = self.curve
            else:
                value = np.sqrt(self.curve * (loads[0] + loads[1] * (self.prompt_tokens[:, None] + self.grid)))
            cells = (value[:, 1:] + value[:, :-1]) / 2 * np.diff(self.grid)
            tail = np.zeros_like(value)
            tail[:, :-1] = np.cumsum(cells[:, ::-1], axis=1)[:, ::-1]
            self._tails[loads] = tail
        return self._tails[loads]

    def observe(self, tokens: IntArray, complete: NDArray[np.bool_]) -> SurvivalTable:
        """Return ``self``: the curves are fixed."""
        return self

    @property
    def observe_response_s(self) -> float:
        """See ``RemainingLengths``. The time of ``BatchLengths.observe`` is part of what a re-planning round takes in
        any case."""
        return 0.0


def length_array(name: str, values: ArrayLike, dimensions: int) -> FloatArray:
    """Return lengths as an array; refuse what is not a finite number of 0 or more, naming the first such index."""
    lengths: FloatArray = number_array(name, values).astype(float)
    if lengths.ndim != dimensions:
        needed = "one length per response" if dimensions == 1 else "(scenarios, responses)"
        raise PlanningError(f"{name} has shape {lengths.shape}; {needed} is needed")
    wrong = ~(np.isfinite(lengths) & (lengths >= 0))
    if wrong.any():
        index = tuple(np.argwhere(wrong)[0].tolist())
        raise PlanningError(f"{name}{list(index)} is {lengths[index]}; a finite number of tokens of 0 or more is needed")
    return lengths


def check_remaining(remaining: Any, responses: int) -> None:
    """Refuse anything but remaining lengths of this number of responses (a PlanningError)."""
    if not hasattr(remaining, "survival"):
        raise PlanningError(
            f"the forecast's remaining is {as_given(remaining)}; remaining lengths, such as a SurvivalTable, or None are needed"
        )
    if len(remaining) != responses:
        raise PlanningError(
            f"the forecast has remaining lengths of {counted(len(remaining), 'response')} instead of {responses}; one for each "
            "response is needed"
        )
