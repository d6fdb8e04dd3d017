"""Sorts prompts and responses into a canonical order, so that plans and bounds do not depend on how they were numbered.

Plans are made for the workload in this order and returned with the caller's indices. Without it, renumbering the prompts would
change the random split, and with it reference, value and bound. The reason is that a seeded shuffle assigns positions, and
searches break ties by position.

**Order.** A response is what it needs: predicted length, tokens generated so far, length in every scenario, passes and fed
tokens. A prompt is its tokens and its responses, in any order. Each is mapped to a number of 64 bits, by the finaliser of
splitmix64. Prompts are sorted by theirs, and the responses of a prompt by the first bits of theirs. Two that have the same
number are the same, but for chances of about 1e-9, and it does not matter which of them comes first. No order of lengths is
left in it: the first of a prompt's responses is no longer on average than the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from solver.model.plan import Plan
from solver.model.workload import IntArray, Workload

FED_STEP = 1 << 20  # fed tokens are distinguished by this part of one
HashArray = NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Canonical:
    """A workload in canonical order, with the mapping back to the caller's indices.

    Attributes:
        workload: in that order. response: (R,) the caller's index of each of its responses; prompt: (P,) of each prompt.
    """

    workload: Workload
    response: IntArray
    prompt: IntArray

    @classmethod
    def of(cls, caller: Workload) -> Canonical:
        """Return the same responses in canonical order."""
        tokens = caller.response_tokens
        sampled = [] if caller.scenarios is None else [row for row in caller.scenarios if not np.array_equal(row, tokens)]
        key = np.zeros(len(caller), np.uint64)
        drafted = [] if caller.passes is None else [caller.passes, np.rint(caller.fed_steps * FED_STEP)]
        for values in (
            tokens,
            caller.generated_tokens,
            *sampled,
            *drafted,
        ):  # one scenario of the predicted lengths says nothing more
            key = _mixed(key + values.astype(np.uint64))
        together = np.zeros(len(caller.prompt_tokens), np.uint64)
        np.add.at(together, caller.prompt_of, key)
        prompt = np.argsort(_mixed(together + _mixed(caller.prompt_tokens.astype(np.uint64))), kind="stable")
        turn = np.empty(len(prompt), np.uint64)
        turn[prompt] = np.arange(len(prompt), dtype=np.uint64)
        bits = np.uint64(len(prompt).bit_length())
        # one sort of prompt and response in one number takes a quarter of the time of a sort by both
        response = np.argsort(turn[caller.prompt_of] << (np.uint64(64) - bits) | key >> bits, kind="stable")
        return cls(caller.reordered(prompt, response), response, prompt)

    def with_caller_indices(self, plan: Plan) -> Plan:
        """Return a plan for ``workload`` with the caller's indices of responses and prompts."""
        actors = tuple(
            replace(
                actor,
                responses=tuple(self.response[np.array(actor.responses, np.int64)].tolist()),
                prompts=tuple(self.prompt[np.array(actor.prompts, np.int64)].tolist()),
            )
            for actor in plan.actors
        )
        return replace(plan, actors=actors)


def _mixed(values: HashArray) -> HashArray:
    """Return 64-bit hashes in which every bit depends on all bits of ``values``."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
