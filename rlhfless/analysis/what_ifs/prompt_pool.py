"""The prompts of all steps of a log in the order in which a loop takes them; after the log's end it begins again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhfless.simulate import LoggedStep
from solver.model.workload import IntArray, Workload


@dataclass(frozen=True, eq=False)
class PromptPool:
    """Prompts with their groups of responses, numbered in the order in which they can be started.

    Attributes:
        prompt_tokens: (P,). first: (P + 1,) index of the first response of each prompt, and the number R of responses.
        length: (R,) true tokens of each response. prompts_of_step: (K,) prompts of each step of the log.
        max_response_tokens: the limit of the run.
    """

    prompt_tokens: IntArray
    first: IntArray
    length: IntArray
    prompts_of_step: IntArray
    max_response_tokens: int

    @classmethod
    def of(cls, steps: Sequence[LoggedStep], at_least: int = 0) -> PromptPool:
        """Return the prompts of these steps. They come again, as in another epoch, until there are ``at_least`` so many."""
        prompt_tokens, sizes, lengths, counts = [], [], [], []
        for step in steps:
            truth = step.truth
            order = np.argsort(truth.prompt_of, kind="stable")
            size = np.bincount(truth.prompt_of, minlength=len(truth.prompt_tokens))
            prompt_tokens.append(truth.prompt_tokens[size > 0])
            sizes.append(size[size > 0])
            lengths.append(truth.response_tokens[order])
            counts.append(int(np.count_nonzero(size)))
        laps = max(1, -(-at_least // sum(counts)))
        return cls(
            np.tile(np.concatenate(prompt_tokens), laps),
            np.concatenate([[0], np.cumsum(np.tile(np.concatenate(sizes), laps))]),
            np.tile(np.concatenate(lengths), laps),
            np.array(counts),
            max(step.truth.max_response_tokens for step in steps),
        )

    @property
    def sizes(self) -> IntArray:
        """Return the (P,) responses of each prompt."""
        return np.diff(self.first)

    def responses_of(self, prompts: IntArray) -> IntArray:
        """Return all responses of these prompts, in their order."""
        parts = [np.arange(self.first[prompt], self.first[prompt + 1]) for prompt in prompts.tolist()]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def prompts_of(self, responses: IntArray) -> IntArray:
        """Return the (n,) prompts of these responses."""
        return np.asarray(np.searchsorted(self.first, responses, side="right") - 1)

    def workload(self, responses: IntArray, generated: IntArray, until: IntArray) -> Workload:
        """Return the workload of generating tokens of these responses, its prompts in the order of appearance.

        Args:
            responses: (n,) generated, until: (n,) tokens that each has before and afterwards.
        """
        prompts, first, owner = np.unique(self.prompts_of(responses), return_index=True, return_inverse=True)
        rank = np.empty(len(prompts), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(prompts))
        return Workload(
            self.prompt_tokens[prompts[np.argsort(first)]],
            rank[owner],
            until,
            generated,
            max_response_tokens=self.max_response_tokens,
        )
