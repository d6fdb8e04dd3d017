"""Round-robin dispatch of single responses: the samples of a prompt are spread, so that no actor gets all of a long prompt.

Lengths are used for right-sizing only. A split of whole prompts makes actors unequal where samples of a prompt have similar
lengths. Spreading them costs nothing as long as every response computes its own prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhfless.scheduling.policy import PlanningInput
from rlhfless.scheduling.right_sizing import right_sized_deal
from solver.model.plan import Plan
from solver.model.workload import IntArray, Workload


def assign_round_robin(workload: Workload, actors: int, seed: int) -> list[IntArray]:
    """Assign responses round-robin to ``actors`` actors, prompts in random order.

    With more actors than responses, the last actors get none.
    """
    rank = np.random.default_rng(seed).permutation(len(workload.prompt_tokens))
    order = np.argsort(rank[workload.prompt_of], kind="stable")
    return [order[first::actors] for first in range(actors)]


@dataclass(frozen=True)
class Spread:
    """Prompts in random order, their responses assigned round-robin to the best number of actors; released when done."""

    name: str = "spread"
    clairvoyant: bool = False

    def plan(self, given: PlanningInput) -> Plan:
        """See ``SchedulingPolicy``."""
        workload = given.workload
        return right_sized_deal(self.name, lambda n: assign_round_robin(workload, n, given.seed), len(workload), given)
