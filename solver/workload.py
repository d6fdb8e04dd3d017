"""What has to be generated in one step: prompts, responses, and how many tokens each response still needs.

Knows nothing of GPUs, time or plans.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.errors import PlanningError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def _whole_numbers(name: str, values: ArrayLike) -> IntArray:
    """A one-dimensional int64 copy; refuses NaN, negative and fractional-shape input with the first bad index."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise PlanningError(f"{name} has shape {array.shape}; one number per entry (one dimension) is needed")
    if array.size and not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise PlanningError(f"{name} holds {array.dtype} values; numbers of tokens are needed")
    if array.size and not np.all(np.isfinite(array)):
        index = int(np.flatnonzero(~np.isfinite(array))[0])
        raise PlanningError(f"{name}[{index}] is {array[index]}; a finite number of tokens is needed")
    rounded: IntArray = np.ceil(array).astype(np.int64)
    if rounded.size and rounded.min() < 0:
        index = int(np.argmin(rounded))
        raise PlanningError(f"{name}[{index}] is {array[index]}; tokens cannot be negative")
    rounded.setflags(write=False)
    return rounded


@dataclass(frozen=True, eq=False)
class Workload:
    """The responses of one generation step.

    Args:
        prompt_tokens: (P,) tokens of each prompt.
        prompt_of: (R,) index into ``prompt_tokens`` for each response; groups may be ragged.
        response_tokens: (R,) predicted tokens of each response, fractions rounded up; or (S, R) scenarios, whose mean it is.
        generated_tokens: (R,) tokens already generated (re-planning), or 0.
        response_limit: no response gets longer than this; predictions above it are cut to it.
        scenarios: (S, R) jointly sampled lengths around the predicted ones. Plans are searched and bounded for
            ``response_tokens``; what a plan takes (``solver.evaluate``) is the mean over the scenarios.

    Raises:
        PlanningError: shapes differ, a value is negative or not finite, or a prompt index does not exist.
    """

    prompt_tokens: IntArray
    prompt_of: IntArray
    response_tokens: IntArray
    generated_tokens: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    response_limit: int = 2048
    scenarios: IntArray | None = None

    def __init__(
        self,
        prompt_tokens: ArrayLike,
        prompt_of: ArrayLike,
        response_tokens: ArrayLike,
        generated_tokens: ArrayLike | int = 0,
        response_limit: int = 2048,
        scenarios: ArrayLike | None = None,
    ) -> None:
        if np.ndim(response_tokens) == 2:
            scenarios = response_tokens
            response_tokens = np.asarray(response_tokens, dtype=float).mean(axis=0) if np.size(response_tokens) else []
        prompts = _whole_numbers("prompt_tokens", prompt_tokens)
        owner = _whole_numbers("prompt_of", prompt_of)
        tokens = _whole_numbers("response_tokens", response_tokens)
        if np.ndim(generated_tokens) == 0:
            generated_tokens = np.full(len(tokens), generated_tokens)
        generated = _whole_numbers("generated_tokens", generated_tokens)
        if not len(owner) == len(tokens) == len(generated):
            raise PlanningError(
                f"prompt_of has {len(owner)}, response_tokens {len(tokens)} and generated_tokens {len(generated)} "
                "entries; one of each per response is needed"
            )
        if len(tokens) == 0:
            raise PlanningError("the workload has no responses; at least one is needed")
        if owner.max() >= len(prompts):
            index = int(np.argmax(owner))
            raise PlanningError(f"prompt_of[{index}] is {owner[index]}, but there are only {len(prompts)} prompts")
        if response_limit < 1:
            raise PlanningError(f"response_limit is {response_limit}; at least 1 token is needed")
        sampled = None
        if scenarios is not None:
            if np.ndim(scenarios) != 2 or np.shape(scenarios)[1] != len(tokens) or np.shape(scenarios)[0] == 0:
                raise PlanningError(
                    f"scenarios have shape {np.shape(scenarios)}; (scenarios, {len(tokens)} responses) is needed"
                )
            sampled = _whole_numbers("scenarios", np.ravel(scenarios)).reshape(-1, len(tokens))
            sampled = np.minimum(sampled, response_limit)
        for name, value in (
            ("prompt_tokens", prompts),
            ("prompt_of", owner),
            ("response_tokens", np.minimum(tokens, response_limit)),
            ("generated_tokens", generated),
            ("response_limit", int(response_limit)),
            ("scenarios", sampled),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def grid(cls, prompt_tokens: ArrayLike, response_tokens_of_samples: ArrayLike, **options: Any) -> Workload:
        """A rectangular workload: (P,) prompt tokens and (P, G) response tokens of the G samples of each prompt."""
        tokens = np.asarray(response_tokens_of_samples)
        if tokens.ndim != 2:
            raise PlanningError(f"response_tokens_of_samples has shape {tokens.shape}; (prompts, samples) is needed")
        owner = np.repeat(np.arange(tokens.shape[0]), tokens.shape[1])
        return cls(prompt_tokens, owner, tokens.reshape(-1), **options)

    def __len__(self) -> int:
        """Number of responses R."""
        return len(self.response_tokens)

    @property
    def remaining_tokens(self) -> IntArray:
        """(R,) decode iterations each response still needs."""
        remaining: IntArray = np.maximum(self.response_tokens - self.generated_tokens, 0)
        return remaining

    @property
    def context_tokens(self) -> IntArray:
        """(R,) KV tokens each response holds at its next decode iteration: its prompt and what was generated."""
        return self.prompt_tokens[self.prompt_of] + self.generated_tokens

    @property
    def reserved_tokens(self) -> IntArray:
        """(R,) KV tokens that admission by ``reserve`` sets aside: the prompt and the response limit."""
        return self.prompt_tokens[self.prompt_of] + self.response_limit

    def with_response_tokens(self, response_tokens: ArrayLike) -> Workload:
        """The same prompts and responses with other lengths (true ones instead of predicted ones, say)."""
        return Workload(self.prompt_tokens, self.prompt_of, response_tokens, self.generated_tokens, self.response_limit)

    @property
    def points(self) -> Workload:
        """The same without scenarios: what plans are searched and bounded for."""
        return self if self.scenarios is None else self.with_response_tokens(self.response_tokens)

    def cases(self) -> tuple[Workload, ...]:
        """One workload per scenario, or this one alone when it has none."""
        if self.scenarios is None:
            return (self,)
        return tuple(self.with_response_tokens(lengths) for lengths in self.scenarios)

    def __repr__(self) -> str:
        tokens = self.response_tokens
        return (
            f"Workload({len(self)} responses to {len(self.prompt_tokens)} prompts, "
            f"{int(tokens.sum()):,} tokens, longest {int(tokens.max())}, limit {self.response_limit})"
        )
