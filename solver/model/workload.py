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
from solver.model.number_arrays import number_array, whole_numbers
from solver.model.passes import checked_passes, least_passes
from solver.model.plurals import counted

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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


def _remaining(workload: Workload) -> IntArray:
    remaining: IntArray = np.maximum(workload.response_tokens - workload.generated_tokens, 0)
    return remaining


@dataclass(frozen=True, eq=False)
class Workload:
    """The responses of one generation step.

    Args:
        prompt_tokens: (P,) tokens of each prompt.
        prompt_of: (R,) index into ``prompt_tokens`` for each response; groups may be ragged.
        response_tokens: (R,) predicted tokens of each response, fractions rounded up; or (S, R) scenarios, whose mean is used.
        generated_tokens: (R,) tokens already generated (re-planning), or 0.
        max_response_tokens: limit on response length; longer predictions are cut to it, with a ``CutLengthsWarning``.
        scenarios: (S, R) length scenarios, sampled jointly. Time and cost of a plan (``solver.evaluate``) are means over them.
        passes: with speculative decoding: (R,) predicted iterations (passes) for the remaining tokens of each response, rounded
            up. None: one token per iteration. Not with scenarios.
        fed_per_pass: (R,) mean tokens per pass that each response feeds to the model, drafted ones and one more. None: as many
            as it commits, so every drafted token is accepted.

    Raises:
        PlanningError: shapes differ, a value is negative, not finite or (except for predictions) a fraction, a prompt index
            does not exist, or passes are too few or too many for the remaining tokens.
    """

    prompt_tokens: IntArray
    prompt_of: IntArray
    response_tokens: IntArray
    generated_tokens: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    max_response_tokens: int = 2048
    scenarios: IntArray | None = None
    passes: IntArray | None = None
    fed_per_pass: FloatArray | None = None

    def __init__(
        self,
        prompt_tokens: ArrayLike,
        prompt_of: ArrayLike,
        response_tokens: ArrayLike,
        generated_tokens: ArrayLike | int = 0,
        max_response_tokens: int = 2048,
        scenarios: ArrayLike | None = None,
        passes: ArrayLike | None = None,
        fed_per_pass: ArrayLike | None = None,
    ) -> None:
        predicted = number_array("response_tokens", response_tokens)
        if predicted.ndim == 2:
            scenarios = predicted
            predicted = predicted.astype(float).mean(axis=0) if predicted.size else np.zeros(0)
        prompts = whole_numbers("prompt_tokens", prompt_tokens)
        prompt_index = whole_numbers(
            "prompt_of", prompt_of, needed=f"an index into the {counted(len(prompts), 'prompt')} is needed"
        )
        tokens = whole_numbers("response_tokens", predicted, rounds_up=True)
        generated_array = number_array("generated_tokens", generated_tokens)
        generated = whole_numbers(
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
            sampled = whole_numbers("scenarios", table.ravel(), rounds_up=True).reshape(-1, len(tokens))
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
        checked = checked_passes(_remaining(self), passes, fed_per_pass, with_scenarios=sampled is not None)
        for name, numbers in zip(("passes", "fed_per_pass"), checked, strict=True):
            object.__setattr__(self, name, numbers)

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
        """Return the (R,) tokens that each response still needs."""
        return _remaining(self)

    @property
    def iterations(self) -> IntArray:
        """Return the (R,) iterations that each response still needs: its passes, or one per token."""
        return self.remaining_tokens if self.passes is None else self.passes

    @cached_property
    def tokens_per_pass(self) -> FloatArray:
        """Return the (R,) mean tokens that an iteration commits for each response; 1 without passes."""
        return np.asarray(self.remaining_tokens / np.maximum(self.iterations, 1) + (self.iterations == 0))

    @cached_property
    def fed_steps(self) -> FloatArray:
        """Return the (R,) tokens that each response feeds to the model over all its iterations; one per iteration without
        passes.
        """
        iterations: FloatArray = self.iterations.astype(float)
        return iterations if self.fed_per_pass is None else iterations * self.fed_per_pass

    @cached_property
    def kv_steps(self) -> FloatArray:
        """Return the (R,) sums of a response's KV tokens over all its iterations."""
        context, n = self.context_tokens.astype(float), self.iterations.astype(float)
        growing = n * (n - 1) / 2
        return np.asarray(context * n + (growing if self.passes is None else self.tokens_per_pass * growing))

    @cached_property
    def context_tokens(self) -> IntArray:
        """Return the (R,) KV tokens of each response at its next decode iteration: its prompt and the generated tokens."""
        return self.prompt_tokens[self.prompt_of] + self.generated_tokens

    @cached_property
    def reserved_tokens(self) -> IntArray:
        """Return the (R,) KV tokens that admission by ``reserve`` sets aside: the prompt and the response limit."""
        return self.prompt_tokens[self.prompt_of] + self.max_response_tokens

    def with_response_tokens(self, response_tokens: ArrayLike) -> Workload:
        """Return the same workload with other lengths, for example the true ones, and without scenarios.

        The tokens per pass stay the same.
        """
        same = (self.prompt_tokens, self.prompt_of, response_tokens, self.generated_tokens, self.max_response_tokens)
        if self.fed_per_pass is None:
            return Workload(*same)
        remaining = Workload(*same).remaining_tokens
        passes = np.clip(np.ceil(remaining / self.tokens_per_pass - 1e-9), least_passes(remaining), remaining)
        fed = np.maximum(self.fed_per_pass, remaining / np.maximum(passes, 1))
        return Workload(*same, passes=passes, fed_per_pass=fed)

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
            ("passes", None if self.passes is None else self.passes[responses]),
            ("fed_per_pass", None if self.fed_per_pass is None else self.fed_per_pass[responses]),
        ):
            object.__setattr__(reordered, name, value)
        return reordered

    @property
    def points(self) -> Workload:
        """The same workload without scenarios."""
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
        if self.passes is not None:
            facts.append(("passes", f"{int(self.passes.sum()):,}, most {int(self.passes.max()):,}"))
        return facts_table("Workload", facts)
