"""Input and output types of rewards: a response as reward functions see it, scores of a batch, and failures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlhfless.errors import InputError
from rlhfless.training.problem import RewardWarning
from rlhfless.training.rewards.called_with import RewardLog


@dataclass(frozen=True)
class Response:
    """One decoded response.

    Attributes:
        problem: the problem that was asked, see ``training.problem``; a data set's problem has all columns in ``problem.row``.
        tokens: its length in tokens, the end token included. truncated: it was ended by the response limit.
        token_ids: of the response, the end token included.
    """

    problem: Any
    text: str
    tokens: int = 0
    truncated: bool = False
    token_ids: tuple[int, ...] = field(default=(), repr=False)

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


def number_of(value: Any) -> float:
    """Return a function's result as a float; NaN where it is None or NaN, with which a function abstains.

    Raises:
        ValueError: it is neither, nor a finite number.
    """
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"returned {value!r}, which is not a number") from None
    if math.isinf(number):
        raise ValueError(f"returned {number}, which is not finite")
    return number


def reason_of(error: BaseException, place: str = "") -> str:
    """Return an exception of a user's function as the reason why a response has no reward; ``place`` follows its message."""
    took_it_for_text = isinstance(error, (TypeError, AttributeError)) and "'Response'" in str(error)
    hint = "; a function of one response gets a Response, its text is response.text" if took_it_for_text else ""
    return f"{type(error).__name__}: {error}{place}{hint}"


class Reward(Protocol):
    """Interface of a reward; ``name`` is its name in metrics."""

    name: str

    def score(self, responses: Sequence[Response]) -> tuple[np.ndarray, list[Failure]]:
        """Return (R,) numbers, NaN where the reward failed or abstained, and the failures."""
        ...


class RewardError(InputError):
    """No response could be scored, so there is nothing to learn from; the message gives the reason for the first one."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Rewards of a batch.

    Attributes:
        values: (R,) rewards, the weighted sums of the parts that did not abstain. NaN where a part failed or all abstained, and
            that response is left out of learning.
        parts: the numbers of each reward, before weights. failures: all failures.
        log: what the functions logged.
    """

    values: np.ndarray
    parts: Mapping[str, np.ndarray]
    failures: Sequence[Failure] = field(default_factory=tuple)
    log: RewardLog = field(default_factory=lambda: RewardLog(0))

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
        values = np.concatenate([group.values for group in groups])
        return cls(values, parts, failures, RewardLog.joined([group.log for group in groups]))

    def metrics(self) -> dict[str, float]:
        """Return the mean of every part over the responses that it judged, the share of responses without a reward, and the
        mean of every number that the functions logged.
        """
        means = {f"reward_{name}": float(np.nanmean(x)) for name, x in self.parts.items() if not np.isnan(x).all()}
        return {**self.log.metrics(), **means, "reward_failures": float(np.isnan(self.values).mean())}

    def check(self, step: int) -> None:
        """Check that a step can be learned from, and warn of failures.

        Raises:
            RewardError: none of its responses has a reward.
        """
        if not np.isnan(self.values).all():
            self.warn()
            return
        found = "; ".join(self._result_of(name) for name in self.parts)
        raise RewardError(f"no response of step {step} has a reward, so nothing can be learned: {found}")

    def _result_of(self, name: str) -> str:
        """Return how many responses a part failed on, or abstained on."""
        values, failed = self.parts[name], [failure for failure in self.failures if failure.reward == name]
        of, silent = len(values), int(np.isnan(values).sum()) - len(failed)
        if failed:
            first = failed[0]
            return (
                f"reward {name!r} failed on {len(failed)} of {of} responses; the first, response {first.response}: "
                f"{first.reason}"
            )
        return f"reward {name!r} returned None or NaN for {silent} of {of} responses"

    def warn(self) -> None:
        """Issue one warning per reward that failed, and one where all abstained on some responses."""
        for name in self.parts:
            if any(failure.reward == name for failure in self.failures):
                failed, _, first = self._result_of(name).partition("; ")
                warnings.warn(f"{failed}, which are left out of learning; {first}", RewardWarning, stacklevel=3)
        silent: np.ndarray = np.isnan(np.stack(list(self.parts.values()))).all(axis=0)
        silent[[failure.response for failure in self.failures]] = False
        if silent.any():
            names = " and ".join(map(repr, self.parts))
            which = np.flatnonzero(silent)
            warnings.warn(
                f"reward {names} returned None or NaN for {len(which)} of {len(silent)} responses, which are left out of "
                f"learning; the first is response {which[0]}",
                RewardWarning,
                stacklevel=3,
            )
