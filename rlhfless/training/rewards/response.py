"""A response as reward functions see it, and what became of judging it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class Response:
    """One response, decoded.

    Attributes:
        problem: what was asked, see ``tasks.problem``; a problem of a data set has all columns in ``problem.row``.
        tokens: its length, the end token included. truncated: the response limit ended it.
    """

    problem: Any
    text: str
    tokens: int = 0
    truncated: bool = False

    @property
    def prompt(self) -> str:
        """The prompt's text."""
        return str(self.problem.prompt)

    @property
    def answer(self) -> str:
        """The right answer."""
        return str(self.problem.answer)


@dataclass(frozen=True)
class Failure:
    """A reward that could not be given: to which response, by which reward, and why."""

    response: int
    reward: str
    reason: str


def finite(value: Any) -> float:
    """What a function returned, as a finite float.

    Raises:
        ValueError: it is none.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"returned {value!r}, which is no number") from None
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, which is not finite")
    return number


class Reward(Protocol):
    """Something that judges responses, called ``name`` in metrics."""

    name: str

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """(R,) numbers, NaN where it failed, and why it did."""
        ...


class RewardWarning(UserWarning):
    """Some responses could not be judged; the message says how many, and why the first one was not."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Rewards of a batch.

    Attributes:
        values: (R,) rewards; NaN where a part failed: nothing is learned from that response.
        parts: what each reward gave, before weights. failures: everything that went wrong.
    """

    values: np.ndarray
    parts: Mapping[str, np.ndarray]
    failures: Sequence[Failure] = field(default_factory=tuple)

    def metrics(self) -> dict[str, float]:
        """Mean of every part over the responses that it judged, and the share of responses without a reward."""
        means = {f"reward_{name}": float(np.nanmean(x)) for name, x in self.parts.items() if not np.isnan(x).all()}
        return {**means, "reward_failures": float(np.isnan(self.values).mean())}

    def warn(self) -> None:
        """Say in one sentence per reward what failed."""
        for name in self.parts:
            own = [failure for failure in self.failures if failure.reward == name]
            if own:
                warnings.warn(
                    f"reward {name!r} failed on {len(own)} of {len(self.values)} responses, from which nothing is learned; the "
                    f"first, response {own[0].response}: {own[0].reason}",
                    RewardWarning,
                    stacklevel=3,
                )
