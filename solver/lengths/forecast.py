"""Defines ``LengthForecast``: what a predictor says about the lengths of a step, beforehand and while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from solver.lengths.remaining import RemainingLengths, check_remaining, length_array
from solver.model.errors import PlanningError, as_given
from solver.model.plurals import counted
from solver.model.workload import FloatArray, Workload


@dataclass(frozen=True, eq=False)
class LengthForecast:
    """The forecast lengths of a step's R responses.

    Attributes:
        expected: (R,) expected tokens of each response.
        scenarios: (S, R) tokens, jointly sampled around the expected ones; None without scenarios.
        remaining: the remaining lengths of running responses, which policies follow that re-plan while the step runs; None
            where they follow the scenarios.
        error_sd: standard deviation of the logarithm of (length / expected length) of earlier forecasts by the same predictor;
            None where there are none.

    Raises:
        PlanningError: a length or the error is NaN, infinite or negative, or the shapes differ.

    Example:
        >>> forecast = predictor.fit(rollouts).forecast(["a", "b"], 4, max_response_tokens=512)
        >>> workload = forecast.workload([31, 78], [0, 0, 0, 0, 1, 1, 1, 1], 512)
    """

    expected: FloatArray
    scenarios: FloatArray | None = None
    remaining: RemainingLengths | None = None
    error_sd: float | None = None

    def __post_init__(self) -> None:
        expected = length_array("the forecast's expected", self.expected, 1)
        object.__setattr__(self, "expected", expected)
        if self.scenarios is not None:
            scenarios = length_array("the forecast's scenarios", self.scenarios, 2)
            if len(scenarios) == 0 or scenarios.shape[1] != len(expected):
                raise PlanningError(
                    f"the forecast's scenarios have shape {scenarios.shape}; (scenarios, {len(expected)} responses) is needed"
                )
            object.__setattr__(self, "scenarios", scenarios)
        if self.remaining is not None:
            check_remaining(self.remaining, len(expected))
        if self.error_sd is not None and not (isinstance(self.error_sd, Real) and 0 <= self.error_sd < math.inf):
            raise PlanningError(
                f"the forecast's error_sd is {as_given(self.error_sd)}; a finite number of 0 or more, or None, is needed"
            )

    def __len__(self) -> int:
        """Number of responses R."""
        return len(self.expected)

    def workload(self, prompt_tokens: ArrayLike, prompt_of: ArrayLike, max_response_tokens: int) -> Workload:
        """Return the workload of these lengths and scenarios; the other arguments are those of ``Workload``.

        Raises:
            PlanningError: the forecast is of another number of responses, or the arguments make no workload.
        """
        self.check_size(np.size(np.asarray(prompt_of)))
        return Workload(
            prompt_tokens, prompt_of, self.expected, max_response_tokens=max_response_tokens, scenarios=self.scenarios
        )

    def check_size(self, responses: int) -> None:
        """Refuse another number of responses than the forecast has (a PlanningError)."""
        if len(self) != responses:
            raise PlanningError(
                f"the forecast has {counted(len(self), 'length')}, but there are {counted(responses, 'response')}; one length "
                "for each is needed"
            )

    def __repr__(self) -> str:
        sampled = "no scenarios" if self.scenarios is None else counted(len(self.scenarios), "scenario")
        mean = float(self.expected.mean()) if len(self) else 0.0
        return f"LengthForecast({counted(len(self), 'response')} of {mean:.0f} tokens on average, {sampled})"


def check_forecast(forecast: Any) -> None:
    """Refuse anything but a forecast (a PlanningError), such as the array of lengths of a predictor of one's own."""
    if not isinstance(forecast, LengthForecast):
        raise PlanningError(f"the predictor's forecast is {as_given(forecast)}; a LengthForecast is needed")
