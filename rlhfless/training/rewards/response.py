"""Input and output types of rewards: a response as reward functions see it, scores of a batch, and failures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlhfless.errors import InputError


@dataclass(frozen=True)
class Response:
    """One decoded response.

    Attributes:
        problem: the problem that was asked, see ``training.problem``; a data set's problem has all columns in ``problem.row``.
        tokens: its length in tokens, the end token included. truncated: it was ended by the response limit.
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
    def given_prompt(self) -> str | list[Mapping[str, str]]:
        """The prompt as the data set has it: a text, or a list of messages."""
        given = getattr(self.problem, "given", None)
        return self.prompt if given is None else given if isinstance(given, str) else list(given)

    @property
    def answer(self) -> str:
        """The right answer."""
        return str(self.problem.answer)


@dataclass(frozen=True)
class Failure:
    """A reward that could not be computed: which response, which reward, and why."""

    response: int
    reward: str
    reason: str


def finite(value: Any) -> float:
    """Return a function's result as a finite float.

    Raises:
        ValueError: it is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"returned {value!r}, which is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"returned {number}, which is not finite")
    return number


class Reward(Protocol):
    """Interface of a reward; ``name`` is its name in metrics."""

    name: str

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """Return (R,) numbers, NaN where the reward failed, and the failures."""
        ...


class RewardError(InputError):
    """No response could be scored, so there is nothing to learn from; the message gives the reason for the first one."""


class RewardWarning(UserWarning):
    """Some responses could not be scored, or all rewards of a step are equal, so nothing is learned; the message says which,
    and why.
    """


@dataclass(frozen=True, eq=False)
class Scores:
    """Rewards of a batch.

    Attributes:
        values: (R,) rewards; NaN where a part failed, and that response is left out of learning.
        parts: the numbers of each reward, before weights. failures: all failures.
    """

    values: np.ndarray
    parts: Mapping[str, np.ndarray]
    failures: Sequence[Failure] = field(default_factory=tuple)

    @classmethod
    def joined(cls, groups: Sequence[Scores]) -> Scores:
        """Return the scores of all groups as those of one batch, in this order."""
        first = np.cumsum([0, *(len(group.values) for group in groups)])
        parts = {name: np.concatenate([group.parts[name] for group in groups]) for name in groups[0].parts}
        failures = [
            replace(failure, response=failure.response + int(begin))
            for group, begin in zip(groups, first, strict=False)
            for failure in group.failures
        ]
        failures.sort(key=lambda failure: list(parts).index(failure.reward))
        return cls(np.concatenate([group.values for group in groups]), parts, failures)

    def metrics(self) -> dict[str, float]:
        """Return the mean of every part over the responses that it judged, and the share of responses without a reward."""
        means = {f"reward_{name}": float(np.nanmean(x)) for name, x in self.parts.items() if not np.isnan(x).all()}
        return {**means, "reward_failures": float(np.isnan(self.values).mean())}

    def check(self, step: int) -> None:
        """Check that a step can be learned from, and warn of failures.

        Raises:
            RewardError: none of its responses has a reward.
        """
        if not np.isnan(self.values).all():
            self.warn()
            return
        first = self.failures[0] if self.failures else Failure(0, next(iter(self.parts)), "returned no number")
        failed = sum(failure.reward == first.reward for failure in self.failures)
        raise RewardError(
            f"no response of step {step} has a reward, so nothing can be learned: reward {first.reward!r} failed on {failed} "
            f"of {len(self.values)} responses; the first, response {first.response}: {first.reason}"
        )

    def warn(self) -> None:
        """Issue one warning per reward that failed."""
        for name in self.parts:
            failed = [failure for failure in self.failures if failure.reward == name]
            if failed:
                warnings.warn(
                    f"reward {name!r} failed on {len(failed)} of {len(self.values)} responses, which are left out of learning; "
                    f"the first, response {failed[0].response}: {failed[0].reason}",
                    RewardWarning,
                    stacklevel=3,
                )
