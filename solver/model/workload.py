"""Defines ``Workload``: the prompts and responses of one generation step, and how many tokens each response still needs.

GPUs, time and plans play no part.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from solver.model.errors import PlanningError, as_given, is_whole
from solver.model.html_tables import facts_table
from solver.model.plurals import counted

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def number_array(name: str, values: ArrayLike) -> NDArray[np.generic]:
    """Return numbers as an array; refuse ragged lists and anything that is not a number."""
    try:
        array: NDArray[np.generic] = np.asarray(values)
    except (ValueError, OverflowError):
        raise PlanningError(f"{name} has rows of different lengths; a rectangular array of numbers is needed") from None
    if array.size and array.dtype.kind not in "iufb":
        raise PlanningError(f"{name} holds {array.dtype} values; numbers are needed")
    return array


def _whole_numbers(name: str, values: ArrayLike, *, needed: str = "", rounds_up: bool = False) -> IntArray:
    """Return a one-dimensional int64 copy; refuse values that are infinite, NaN, negative or fractional, naming the
    first bad index.

    Args:
        needed: what would be right, if not numbers of tokens. rounds_up: fractions are rounded up instead.
    """
    array = number_array(name, values)
    if array.ndim != 1:
        raise PlanningError(f"{name} has shape {array.shape}; one number per entry (one dimension) is needed")
    if not array.size:
        return np.zeros(0, dtype=np.int64)
    numbers = array.astype(float)
    rounded = np.ceil(numbers)
    for wrong, why in (
        (~np.isfinite(numbers), "a finite number of tokens is needed"),
        (np.abs(numbers) > 1e15, "a smaller number of tokens is needed"),
        (rounded < 0, "tokens cannot be negative"),
        ((rounded != numbers) & (not rounds_up), "a whole number of tokens is needed"),
    ):
        if wrong.any():
            index = int(np.argmax(wrong))
            raise PlanningError(f"{name}[{index}] is {array[index]}; {needed or why}")
    whole: IntArray = rounded.astype(np.int64)
    whole.setflags(write=False)
    return whole


class CutLengthsWarning(UserWarning):
    """Some response lengths were above ``max_response_tokens`` and were cut to it; the message gives their number."""


def _cut(tokens: IntArray, limit: int) -> IntArray:
    """Return the lengths, those above the limit cut to it with a warning."""
    above = int((tokens > limit).sum())
    if above:
        warnings.warn(
            f"{above:,} of {counted(len(tokens), 'response length')} are above max_response_tokens={limit} and are cut to it, "
            f"the longest from {int(tokens.max()):,} tokens; give a limit of at least that if the responses may be that long",
            CutLengthsWarning,
            stacklevel=3,
        )
    return np.minimum(tokens, limit)


@dataclass(frozen=True, eq=False)
class Workload:
    """The responses of one generation step.

    Args:
        prompt_tokens: (P,) tokens of each prompt.
        prompt_of: (R,) index into ``prompt_tokens`` for each response; groups may be ragged.
        response_tokens: (R,) predicted tokens of each response, fractions rounded up; or (S, R) scenarios, whose mean is used.
        generated_tokens: (R,) tokens already generated (re-planning), or 0.
        max_response_tokens: no response gets longer than this; predictions above it are cut to it, with a
            ``CutLengthsWarning``.
        scenarios: (S, R) jointly sampled lengths around the predicted ones. Plans are searched and bounded for
            ``response_tokens``; time and cost of a plan (``solver.evaluate``) are means over the scenarios.

    Raises:
        PlanningError: shapes differ, a value is negative, not finite or (except for predictions) a fraction, or a prompt index
            does not exist.
    """

    prompt_tokens: IntArray
    prompt_of: IntArray
    response_tokens: IntArray
    generated_tokens: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    max_response_tokens: int = 2048
    scenarios: IntArray | None = None

    def __init__(
        self,
        prompt_tokens: ArrayLike,
        prompt_of: ArrayLike,
        response_tokens: ArrayLike,
        generated_tokens: ArrayLike | int = 0,
        max_response_tokens: int = 2048,
        scenarios: ArrayLike | None = None,
    ) -> None:
        predicted = number_array("response_tokens", response_tokens)
        if predicted.ndim == 2:
            scenarios = predicted
            predicted = predicted.astype(float).mean(axis=0) if predicted.size else np.zeros(0)
        prompts = _whole_numbers("prompt_tokens", prompt_tokens)
        prompt_index = _whole_numbers(
            "prompt_of", prompt_of, needed=f"an index into the {counted(len(prompts), 'prompt')} is needed"
        )
        tokens = _whole_numbers("response_tokens", predicted, rounds_up=True)
        generated_array = number_array("generated_tokens", generated_tokens)
        generated = _whole_numbers(
            "generated_tokens", np.full(len(tokens), generated_array) if generated_array.ndim == 0 else generated_array
        )
        if not len(prompt_index) == len(tokens) == len(generated):
            raise PlanningError(
                f"prompt_of has {len(prompt_index)}, response_tokens {len(tokens)} and generated_tokens {len(generated)} "
                "entries; one of each per response is needed"
            )
        if len(tokens) == 0:
            raise PlanningError("the workload has no responses; at least one is needed")
        if prompt_index.max() >= len(prompts):
            index = int(np.argmax(prompt_index))
            raise PlanningError(
                f"prompt_of[{index}] is {prompt_index[index]}, but the workload has only {counted(len(prompts), 'prompt')}"
            )
        if not is_whole(max_response_tokens, 1):
            raise PlanningError(
                f"max_response_tokens is {as_given(max_response_tokens)}; a whole number of at least 1 token is needed"
            )
        sampled = None
        if scenarios is not None:
            table = number_array("scenarios", scenarios)
            if table.ndim != 2 or table.shape[1] != len(tokens) or table.shape[0] == 0:
                raise PlanningError(f"scenarios have shape {table.shape}; (scenarios, {len(tokens)} responses) is needed")
            sampled = _whole_numbers("scenarios", table.ravel(), rounds_up=True).reshape(-1, len(tokens))
            sampled = np.minimum(sampled, max_response_tokens)
        for name, value in (
            ("prompt_tokens", prompts),
            ("prompt_of", prompt_index),
            ("response_tokens", _cut(tokens, int(max_response_tokens))),
            ("generated_tokens", generated),
            ("max_response_tokens", int(max_response_tokens)),
            ("scenarios", sampled),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def grid(cls, prompt_tokens: ArrayLike, response_tokens_of_samples: ArrayLike, **options: Any) -> Workload:
        """Return a rectangular workload: (P,) prompt tokens and (P, G) response tokens of the G samples of each prompt."""
        tokens = number_array("response_tokens_of_samples", response_tokens_of_samples)
        if tokens.ndim != 2:
            raise PlanningError(f"response_tokens_of_samples has shape {tokens.shape}; (prompts, samples) is needed")
        prompt_of = np.repeat(np.arange(tokens.shape[0]), tokens.shape[1])
        return cls(prompt_tokens, prompt_of, tokens.reshape(-1), **options)

    def __len__(self) -> int:
        """Number of responses R."""
        return len(self.response_tokens)

    @cached_property
    def remaining_tokens(self) -> IntArray:
        """Return the (R,) decode iterations each response still needs."""
        remaining: IntArray = np.maximum(self.response_tokens - self.generated_tokens, 0)
        return remaining

    @cached_property
    def context_tokens(self) -> IntArray:
        """Return the (R,) KV tokens of each response at its next decode iteration: its prompt and the generated tokens."""
        return self.prompt_tokens[self.prompt_of] + self.generated_tokens

    @cached_property
    def reserved_tokens(self) -> IntArray:
        """Return the (R,) KV tokens that admission by ``reserve`` sets aside: the prompt and the response limit."""
        return self.prompt_tokens[self.prompt_of] + self.max_response_tokens

    def with_response_tokens(self, response_tokens: ArrayLike) -> Workload:
        """Return the same prompts and responses with other lengths and without scenarios, for example with true lengths."""
        return Workload(self.prompt_tokens, self.prompt_of, response_tokens, self.generated_tokens, self.max_response_tokens)

    def reordered(self, prompts: IntArray, responses: IntArray) -> Workload:
        """Return the same workload with prompts, responses and scenario columns in another order.

        Args:
            prompts, responses: (P,) and (R,) every index once, in the order wanted.
        """
        new_index = np.empty(len(prompts), np.int64)
        new_index[prompts] = np.arange(len(prompts))
        reordered = object.__new__(Workload)  # its values are checked already
        for name, value in (
            ("prompt_tokens", self.prompt_tokens[prompts]),
            ("prompt_of", new_index[self.prompt_of[responses]]),
            ("response_tokens", self.response_tokens[responses]),
            ("generated_tokens", self.generated_tokens[responses]),
            ("max_response_tokens", self.max_response_tokens),
            ("scenarios", None if self.scenarios is None else self.scenarios[:, responses]),
        ):
            object.__setattr__(reordered, name, value)
        return reordered

    @property
    def points(self) -> Workload:
        """Return the same workload without scenarios: the lengths for which plans are searched and bounded."""
        return self if self.scenarios is None else self.with_response_tokens(self.response_tokens)

    def cases(self) -> tuple[Workload, ...]:
        """Return one workload per scenario, or this workload alone if it has none."""
        return (self,) if self.scenarios is None else self._sampled

    @cached_property
    def _sampled(self) -> tuple[Workload, ...]:
        """Return the workloads of the scenarios, built once because plans are timed over them dozens of times."""
        assert self.scenarios is not None
        return tuple(self.with_response_tokens(lengths) for lengths in self.scenarios)

    def __repr__(self) -> str:
        tokens = self.response_tokens
        return (
            f"Workload({counted(len(self), 'response')} to {counted(len(self.prompt_tokens), 'prompt')}, "
            f"{int(tokens.sum()):,} tokens, longest {int(tokens.max())}, limit {self.max_response_tokens})"
        )

    def _repr_html_(self) -> str:
        tokens = self.response_tokens
        facts = [
            ("responses", f"{len(self):,} to {counted(len(self.prompt_tokens), 'prompt')}"),
            ("response tokens", f"{int(tokens.sum()):,}, longest {int(tokens.max()):,}, limit {self.max_response_tokens:,}"),
            ("prompt tokens", f"{int(self.prompt_tokens.sum()):,}"),
        ]
        if self.generated_tokens.any():
            facts.append(("generated already", f"{int(self.generated_tokens.sum()):,} tokens"))
        if self.scenarios is not None:
            facts.append(("scenarios", f"{len(self.scenarios):,}"))
        return facts_table("Workload", facts)
